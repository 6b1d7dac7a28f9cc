"""The backend of `torch.compile`: graphs of ATen operators run in a runtime, what cannot run there stays with PyTorch."""

from __future__ import annotations

import contextlib
import logging
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from aspen_mp.shm.errors import UnsupportedModelError
from aspen_mp.torch import decompositions, gradients, partition, refusals, work
from aspen_mp.torch.compiled import Compiled, Options, start_early
from aspen_mp.torch.importer import import_graph

log = logging.getLogger("aspen_mp.torch")
_warned: set[str] = set()
_OPTIONS = ("runtime", "precision", "min_block_size", "name", "release")


def aspen_mp(
    module: fx.GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Any:
    """Compile a graph for a runtime. `torch.compile(model, backend="aspen_mp", options={…})` calls this.

    Args:
        module: The graph that Dynamo has captured.
        example_inputs: Its arguments, which tell their shapes.
        mode: Ignored: plans are made for the machine at hand in every mode.
        options: "runtime": the name of a runtime that `aspen-mp launch` started, a `Runtime`, or None for one of the process's own.
            "precision": "f32" or "bf16", as of `Runtime.load`. "min_block_size" and "release": as of `optimize`. "name": what
            `aspen-mp status` calls the model.

    Returns:
        A function that computes what the graph says.

    Raises:
        ValueError: An option is unknown.
        UnsupportedModelError: A tensor is not in the memory of the CPU.
    """
    return compile_module(module, example_inputs, options_of(options))


def compile_module(
    module: fx.GraphModule, example_inputs: Sequence[Any], options: Options, *, recompute: bool = False, meter: work.Meter | None = None
) -> Any:
    """The same with options that have been checked.

    Args:
        recompute: Whether a graph whose results may be asked for gradients runs in the runtime, too. PyTorch runs it again for these.
        meter: What adds up the work of calls.
    """
    check_devices(example_inputs)
    if any(isinstance(value, torch.Tensor) and value.is_meta for value in example_inputs):
        return module.forward
    _call_powers(module)
    differentiable = needs_gradients(example_inputs)
    if differentiable and not recompute:
        warn_of_gradients()
        return module.forward
    start_early(options, example_inputs)
    repeatable = True

    def compile_graph(lowered: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        nonlocal repeatable
        _call_powers(lowered)  # of sizes
        repeatable = not differentiable or gradients.can_recompute(lowered.graph)
        takes = work.of(lowered.graph, module.graph)
        stays = not repeatable or (options.by_work and work.is_small(takes))
        run = lowered.forward if stays else compiled(lowered, constant_places(), options)
        return make_boxed_func(run if meter is None else meter.watched(run, lowered.graph, takes))  # type: ignore[no-any-return]

    with torch.no_grad() if differentiable else contextlib.nullcontext():
        run = aot_autograd(fw_compiler=compile_graph, decompositions=decompositions.table())(module, example_inputs)
    if not repeatable:
        warn_of_gradients()
        return module.forward
    called = refusals.with_pytorch(run, module)
    return gradients.Recomputed(called, module) if differentiable else called


def _call_powers(module: fx.GraphModule) -> None:
    """Have powers of negative numbers call a function: FX prints `(-1) ** x` as `-1 ** x`, which Python reads as `-(1 ** x)`."""
    for part in module.modules():
        powers = part.graph.find_nodes(op="call_function", target=operator.pow) if isinstance(part, fx.GraphModule) else []
        if negative := [node for node in powers if str(node.args[0]).startswith("-")]:
            for node in negative:
                node.target = power
            part.recompile()


def power(base: Any, exponent: Any) -> Any:
    return base**exponent


def options_of(options: Mapping[str, Any] | None) -> Options:
    """ValueError where one is unknown."""
    given = dict(options or {})
    for key in given:
        if key not in _OPTIONS:
            raise ValueError(f"backend aspen_mp: option {key!r} is unknown. Give some of {', '.join(map(repr, _OPTIONS))}")
    return Options(**given)


def check_devices(values: Sequence[Any]) -> None:
    for value in values:
        if isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "meta"):
            raise UnsupportedModelError(
                f"backend aspen_mp: a tensor is on device {value.device}, and aspen-mp computes on CPUs only. Move model and inputs there: "
                "model.to('cpu')"
            )


def needs_gradients(values: Sequence[Any]) -> bool:
    """Whether results may be asked for gradients."""
    return torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


def warn_of_gradients() -> None:
    """Say once that PyTorch runs a graph because its results may be asked for gradients."""
    once(
        "gradients",
        "backend aspen_mp: an input or a parameter needs gradients, so PyTorch runs this graph. Call the model under torch.no_grad() or "
        "torch.inference_mode() to run it in aspen-mp",
    )


def once(key: str, message: str) -> None:
    if key not in _warned:
        _warned.add(key)
        warnings.warn(message, UserWarning, stacklevel=2)


def constant_places() -> list[int]:
    """Which arguments of the graph that AOTAutograd is compiling are parameters or buffers that the graph does not change."""
    context = torch._guards.TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None:
        return []
    changed = {k for k, info in enumerate(metadata.input_info) if info.mutates_data}
    return [place for place in metadata.static_input_indices if place not in changed]


def compiled(module: fx.GraphModule, constants: Sequence[int], options: Options) -> Callable[..., Any]:
    """A function that runs a graph of ATen operators: in the runtime as far as it can. PyTorch runs one that no rule foresaw."""
    try:
        return in_runtime(module, constants, options)
    except Exception as error:
        log.warning("a graph stays with PyTorch: %s", refusals.said(error)[:300])
        return module.forward  # type: ignore[no-any-return]


def in_runtime(module: fx.GraphModule, constants: Sequence[int], options: Options) -> Callable[..., Any]:
    """The same, but a fault of a rule is raised."""
    imported = import_graph(module.graph, constants, share=True)
    if not imported.unsupported:
        if partition.size(module.graph.nodes) < options.fewest:
            return module.forward  # type: ignore[no-any-return]
        return Compiled(module.graph, constants, options, imported)
    for node, why in imported.unsupported.items():
        log.info("%s (%s) stays with PyTorch: %s", node.name, node.target, why)
    return partition.split(module, constants, imported.unsupported, options)
