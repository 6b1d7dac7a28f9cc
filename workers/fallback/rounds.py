"""A body of Loop or Scan, prepared to be executed again and again.

`onnx.reference` looks values up by name, gathers attributes and looks at types in every round. That takes many times as long as the
arithmetic of most bodies. Here the first round settles where values are kept, by number instead of by name, and which nodes numpy computes
alone. A value of a body has one type in all rounds. In a body of such nodes alone, what follows from outer values is computed in that round
only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from typing import Any, NamedTuple, Protocol

import numpy as np

from aspen_mp.workers.fallback import interrupt
from aspen_mp.workers.fallback.bound import bound
from aspen_mp.workers.fallback.numpy_operators import Call, plain

Values = list[Any]
Step = Callable[[Values], None]
"""Executes a node: reads and writes values by their places."""


class Known(NamedTuple):
    """A node as its evaluator knows it. `call`: what numpy computes it by, if it does."""

    node: Any
    call: Call | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Evaluating(Protocol):
    """`operators.Evaluator`, as bodies use it. `plain`: nothing but results is asked of it."""

    proto_: Any
    rt_inits_: dict[str, Any]
    steps: list[Known]

    @property
    def output_names(self) -> list[str]: ...
    @property
    def plain(self) -> bool: ...
    def run(self, output_names: Any, feed_inputs: dict[str, Any], attributes: Any = None) -> Any: ...


class _Settled(NamedTuple):
    """The same with places. `context`: those of all names that it may read besides, None where it reads none."""

    node: Any
    call: Call | None
    reads: list[int]
    writes: list[int]
    context: dict[str, int] | None


class Rounds:
    """`nodes` of a body with these inputs and outputs. `outer`: values that it reads besides, constants among them."""

    def __init__(self, nodes: Sequence[Known], inputs: Sequence[str], outputs: Sequence[str], outer: Mapping[str, Any]) -> None:
        self._nodes, self._names = nodes, (inputs, outputs)
        self._outer = {"": None, **outer}
        self._values: Values = []
        self._inputs: list[int] = []
        self._outputs: list[int] = []
        self._steps: list[tuple[Any, Step]] = []
        self._types: list[Any] | None = None

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        """The body's outputs, for values of its inputs."""
        interrupt.step()
        types = [value.dtype if value.__class__ is np.ndarray else None for value in given]
        if types != self._types:
            self._settle(given)
            self._types = types
        else:
            values = self._values
            for place, value in zip(self._inputs, given, strict=True):
                values[place] = value
            for node, step in self._steps:  # noqa: B007 (errors are told by what `node` is when they are raised)
                step(values)
        return [self._values[place] for place in self._outputs]

    def _settle(self, given: Sequence[Any]) -> None:
        """Executes a round, and notes how the following ones are executed."""
        self._types = None
        places = {name: k for k, name in enumerate(self._outer)}
        values = self._values = list(self._outer.values())
        fixed = set(places.values())

        def place(name: str, value: Any) -> int:
            places[name] = len(values)
            values.append(value)
            return places[name]

        self._inputs = [place(name, value) for name, value in zip(self._names[0], given, strict=True)]
        settled: list[_Settled] = []
        for node, call, names, outputs in self._nodes:
            missing = next((name for name in names if name not in places), None)
            if missing is not None:
                raise RuntimeError(f"input {missing!r} is not known")
            reads = [places[name] for name in names]
            if call is not None and node.onnx_node.op_type == "Identity":
                places[outputs[0]] = reads[0]
                continue
            inputs = [values[k] for k in reads]
            quick = None if call is None or not plain(inputs) else bound(node.onnx_node.op_type, inputs, call)
            found = NotImplemented if quick is None else quick(*inputs)
            quick = None if found is NotImplemented else quick
            context = dict(places) if quick is None and node.need_context() else None
            if quick is None:
                interrupt.step()
                found = _executed(node, inputs, values, context)
            elif not isinstance(found, tuple):
                found = (np.asarray(found),)
            writes = list(starmap(place, zip(outputs, found, strict=False)))
            settled.append(_Settled(node, quick, reads, writes, context))
        if all(one.call is not None for one in settled):  # others might write to what they read
            for one in settled:
                if fixed.issuperset(one.reads):
                    fixed.update(one.writes)
        self._steps = [(one.node, _step(one)) for one in settled if not fixed.issuperset(one.writes)]
        self._outputs = [places[name] for name in self._names[1]]


def _executed(node: Any, inputs: Sequence[Any], values: Values, context: Mapping[str, int] | None) -> Any:
    """A node's outputs, by its own implementation."""
    if context is None:
        return node.run(*inputs)
    return node.run(*inputs, context={name: values[place] for name, place in context.items()})


def _step(settled: _Settled) -> Step:
    node, call, reads, writes, context = settled

    def plainly(values: Values) -> None:
        interrupt.step()
        inputs = [values[k] for k in reads]
        for place, value in zip(writes, _executed(node, inputs, values, context), strict=False):
            values[place] = value

    def other(values: Values, found: Any) -> None:
        """Stores anything but an array."""
        if found is NotImplemented:
            found = _executed(node, [values[k] for k in reads], values, None)
        if not isinstance(found, tuple):
            found = (np.asarray(found),)
        for place, value in zip(writes, found, strict=False):
            values[place] = value

    if call is None:
        return plainly
    out = writes[0] if len(writes) == 1 else -1
    if out < 0:
        return lambda values: other(values, call(*[values[k] for k in reads]))
    if len(reads) == 1:
        (a,) = reads

        def one(values: Values) -> None:
            found = call(values[a])
            if found.__class__ is np.ndarray:
                values[out] = found
            else:
                other(values, found)

        return one
    if len(reads) == 2:
        a, b = reads

        def two(values: Values) -> None:
            found = call(values[a], values[b])
            if found.__class__ is np.ndarray:
                values[out] = found
            else:
                other(values, found)

        return two

    def many(values: Values) -> None:
        found = call(*[values[k] for k in reads])
        if found.__class__ is np.ndarray:
            values[out] = found
        else:
            other(values, found)

    return many
