"""What a compiled graph is when it is called: arguments in, results out, constants watched.

Constants (parameters and buffers) are part of a loaded model. Each call compares their addresses, versions and a few elements with those of
the model that was loaded. Tensors that have changed, or others in their places, lead to another model; what changes often becomes an input.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from aspen_mp.shm.errors import RuntimeLost, UnsupportedModelError
from aspen_mp.torch import watching, weights
from aspen_mp.torch.builder import NUMPY_TYPES
from aspen_mp.torch.importer import Imported, Input, View, import_graph
from aspen_mp.torch.rows import Separable, separable
from aspen_mp.torch.splitting import History, splitting

if TYPE_CHECKING:
    from torch import fx

    from aspen_mp import Model, Runtime

MOST_VARIANTS: Final = 64
"""Models of one graph with other constants: of instances of one class of modules, say."""
FEWEST: Final = 3
EARLY: Final = 100_000
"""Of a graph with more elements in its arguments, parameters among them, the runtime starts while PyTorch traces."""
MOST_CHANGES: Final = 2
"""A constant that has changed more often in place becomes an input."""

Feed = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Options:
    """As of `aspen_mp.optimize`. `name`: what `aspen-mp status` calls the models."""

    runtime: Runtime | str | None = None
    precision: str = "f32"
    min_block_size: int | None = None
    name: str = ""
    release: bool = False

    @property
    def by_work(self) -> bool:
        """Whether what is of little work stays with PyTorch."""
        return self.min_block_size is None

    @property
    def fewest(self) -> int:
        """Graphs and blocks of fewer operators stay with PyTorch."""
        return FEWEST if self.min_block_size is None else self.min_block_size


class _Variant:
    """The graph with certain constants, loaded. `watched`: their places among the arguments."""

    def __init__(self, model: Model, imported: Imported, args: tuple[Any, ...], rows: Separable | None, history: History) -> None:
        self.model = model
        split = splitting(rows, imported, history)
        self.run: Callable[[Any], Any] = model.run if split is None else partial(split.run, model)
        self.watched = [constant.place for constant in imported.constants if constant.place >= 0]
        self.stamps = [_stamp(args[place]) for place in self.watched]
        self.references: list[Any] = []
        watched = watching.watch(args, self.watched)
        self.holds, self.changed = watched.holds, watched.changed
        self.feeds = [(item.name, item.place, _feed_of(item, args[item.place])) for item in imported.inputs]
        self.results = [result(output) for output in imported.outputs]


class Compiled:
    """A graph that is run by a runtime. Any thread may call it.

    Args:
        graph: Of ATen operators that are all supported.
        constants: The places of arguments that are parameters or buffers.
        options: Where and how it runs.
    """

    def __init__(self, graph: fx.Graph, constants: Sequence[int], options: Options, imported: Imported | None = None) -> None:
        self.graph = graph
        self._constants = list(constants)
        self._options = options
        self.imported = imported if imported is not None else import_graph(graph, constants, share=True)
        self._rows = separable(graph)
        self._history = History()
        self._variants: dict[tuple[Any, ...], _Variant] = {}
        self._changes: dict[int, int] = {}
        self._lock = threading.Lock()
        self._last: _Variant | None = None

    def __call__(self, *args: Any) -> list[Any]:
        variant = self._last
        if variant is None or not variant.holds(args):
            variant = self._find(args)
        try:
            results = variant.run({name: feed(args[place]) for name, place, feed in variant.feeds})
        except RuntimeLost:
            variant = self._elsewhere(args)
            results = variant.run({name: feed(args[place]) for name, place, feed in variant.feeds})
        return [result(results, args) for result in variant.results]

    # ---- models

    def _elsewhere(self, args: tuple[Any, ...]) -> _Variant:
        """The runtime has ended: there may be another by now, which knows nothing of these models."""
        with self._lock:
            self._variants.clear()
            self._last = None
        return self._find(args)

    def _find(self, args: tuple[Any, ...]) -> _Variant:
        with self._lock:
            self._make_inputs({place for place in self._constants if args[place].is_inference()})  # these do not count their changes
            key = self._key(args)
            variant = self._variants.get(key)
            if variant is None or not variant.holds(args):
                self._note_changes(variant or self._last, args)
                variant = self._load(args)
                while len(self._variants) >= MOST_VARIANTS:
                    self._variants.pop(next(iter(self._variants)))
                key = self._key(args)  # which constants there are may have changed, and where they lie
                self._variants[key] = variant
                self._watch(key, [args[place] for place in variant.watched])
            self._last = variant
            return variant

    def _key(self, args: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(_stamp(args[constant.place]) for constant in self.imported.constants if constant.place >= 0)

    def _note_changes(self, before: _Variant | None, args: tuple[Any, ...]) -> None:
        """Forgets a model whose constants have changed in place; those that have done so often become inputs."""
        changed = [] if before is None else before.changed(args)
        if before is None or not changed:
            return
        self._variants.pop(tuple(before.stamps), None)
        for place in changed:
            self._changes[place] = self._changes.get(place, 0) + 1
        self._make_inputs({place for place in changed if self._changes[place] > MOST_CHANGES})

    def _make_inputs(self, places: Collection[int]) -> None:
        """These are no constants any more."""
        if places:
            self._constants = [place for place in self._constants if place not in places]
            self.imported = import_graph(self.graph, self._constants, share=True)
            self._variants.clear()
            self._last = None

    def _load(self, args: tuple[Any, ...]) -> _Variant:
        imported = self.imported
        if imported.unsupported:  # once a constant has become an input
            raise UnsupportedModelError("; ".join(sorted(set(imported.unsupported.values()))))
        tensors = {
            constant.name: constant.tensor if constant.tensor is not None else args[constant.place] for constant in imported.constants
        }
        options = self._options
        model = weights.load(
            runtime_of(options), imported, tensors, options.release, precision=options.precision, name=options.name or None
        )
        return _Variant(model, imported, args, self._rows, self._history)

    def _watch(self, key: tuple[Any, ...], tensors: Sequence[Any]) -> None:
        """Memory of tensors that has gone may be another tensor's tomorrow: with any of it its model goes. Weak references are to the
        memory: `torch.utils.swap_tensors` refuses tensors that have some."""
        mine = weakref.ref(self)

        def gone(_: Any) -> None:
            compiled = mine()
            if compiled is not None:
                compiled._variants.pop(key, None)
                compiled._last = None

        self._variants[key].references = [weakref.ref(tensor.untyped_storage(), gone) for tensor in tensors]


def _stamp(tensor: Any) -> tuple[int, int, int]:
    """Identity, address and version of a tensor's contents."""
    return id(tensor), tensor.data_ptr(), tensor._version


def start_early(options: Options, values: Iterable[Any]) -> None:
    """A graph with these arguments will soon need its runtime: one of the process's own starts meanwhile, in processes beside this one."""
    if options.runtime is None and sum(value.numel() for value in values if isinstance(value, torch.Tensor)) > EARLY:
        from aspen_mp.compat import default_runtime

        default_runtime.start_early()


def runtime_of(options: Options) -> Runtime:
    if options.runtime is None:
        from aspen_mp.compat import default_runtime

        return default_runtime.runtime()
    if isinstance(options.runtime, str):
        from aspen_mp.client.runtime import connect

        return _connected(options.runtime, connect)
    return options.runtime


_named: dict[str, Any] = {}


def _connected(name: str, connect: Callable[[str], Runtime]) -> Runtime:
    found = _named.get(name)
    if found is None or found.closed:
        found = _named[name] = connect(name)
    return found


# ---- arguments and results


def _feed_of(item: Input, example: Any) -> Feed:
    """The same, where operators of PyTorch give another type than they say they do. Statistics of a batch in halves are an example."""
    found = feed(item)
    if item.is_size or example.dtype == item.dtype:
        return found
    return lambda tensor: found(tensor.to(item.dtype))


def feed(item: Input) -> Feed:
    """What turns an argument into the array of a request."""
    if item.is_size:
        return lambda size: np.array([size], np.int64)
    order, dtype = item.order, NUMPY_TYPES[item.dtype]
    if item.dtype == torch.bfloat16:
        return lambda tensor: _ordered(tensor, order).view(torch.int16).numpy().view(dtype)
    return lambda tensor: _ordered(tensor, order).numpy()


def _ordered(tensor: Any, order: tuple[int, ...] | None) -> Any:
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return (tensor if order is None else tensor.permute(order)).contiguous()


def result(output: Any) -> Callable[[Any, Any], Any]:
    """What finds a result among those of a request and the call's arguments."""
    name, order, place, number, view = output.name, output.order, output.place, output.number, output.view
    if number is not None:
        return lambda results, args: number(args)
    if view is not None:
        return _part(name, view) if place < 0 else lambda results, args: _viewed(args[place], view, args)
    if place >= 0:
        return lambda results, args: args[place]
    back = None if order is None else [order.index(axis) for axis in range(len(order))]

    def found(results: Any, args: Any) -> Any:
        tensor = tensor_of(results[name])
        return tensor if back is None else tensor.permute(back)

    return found


def _part(name: str, view: View) -> Callable[[Any, Any], Any]:
    """What finds a result that shares memory with others: all have one storage."""

    def found(results: Any, args: Any) -> Any:
        whole = results[name]
        if not isinstance(whole, torch.Tensor):
            whole = results[name] = tensor_of(whole)
        return _viewed(whole, view, args)

    return found


def _viewed(tensor: Any, view: View, args: Any) -> Any:
    return tensor.as_strided(view.size(args), view.stride(args), tensor.storage_offset() + view.offset(args))


def tensor_of(array: Any) -> Any:
    """A tensor over an array's memory."""
    if array.dtype == NUMPY_TYPES[torch.bfloat16]:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
