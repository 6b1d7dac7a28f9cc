"""Loop and Scan: what `onnx.reference` does wrong or refuses, done here; it evaluates the bodies.

`onnx.reference` joins the results of a Loop's iterations along their first axis, where ONNX stacks them on a new one. It takes a missing
condition for false, and knows Scan only forwards over first axes.

A body is called with every outer value except those whose names it defines itself, so that outer names never hide its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, TypeProto, helper, shape_inference

from aspen_mp.workers.fallback.rounds import Evaluating, Rounds

Array = npt.NDArray[Any]


class Body:
    """A sub-graph to be called again and again. `outer`: the values around it."""

    def __init__(self, evaluator: Evaluating, outer: Mapping[str, Any] | None, attributes: dict[str, Any] | None) -> None:
        self.graph: GraphProto = evaluator.proto_
        self._evaluator, self._attributes = evaluator, attributes
        self.inputs = [i.name for i in self.graph.input]
        own = {*self.inputs, *(t.name for t in self.graph.initializer), *(t.values.name for t in self.graph.sparse_initializer)}
        self._outer = {name: value for name, value in (outer or {}).items() if name not in own}
        self._rounds: Rounds | None = None
        if attributes is None and evaluator.plain:
            self._rounds = Rounds(evaluator.steps, self.inputs, evaluator.output_names, {**evaluator.rt_inits_, **self._outer})

    def __call__(self, *values: Any) -> list[Any]:
        """The body's outputs for values of its inputs."""
        if len(values) != len(self.inputs):
            raise ValueError(f"the body has {len(self.inputs)} inputs, but {len(values)} values are given")
        if self._rounds is not None:
            return self._rounds(values)
        found = self._evaluator.run(None, {**self._outer, **dict(zip(self.inputs, values, strict=True))}, attributes=self._attributes)
        assert isinstance(found, list)
        return found

    def grows(self, k: int) -> int | None:
        """The axis along which carried value `k` of a Loop grows; None elsewhere. It grows where a round only joins something behind it,
        and only hands the result on. Lists of results are exported so."""
        if len(self.inputs) <= 2 + k or len(self.graph.output) <= 1 + k:
            return None
        given, made = self.inputs[2 + k], self.graph.output[1 + k].name
        joins = [node for node in self.graph.node if made in node.output]
        if (
            not given
            or len(joins) != 1
            or joins[0].op_type != "Concat"
            or joins[0].domain not in {"", "ai.onnx"}
            or joins[0].input[0] != given
        ):
            return None
        used = Counter(_used(self.graph))
        axes = [attribute.i for attribute in joins[0].attribute if attribute.name == "axis"]
        return axes[0] if axes and used[given] == used[made] == 1 else None

    def empty(self, k: int, axis: int, opsets: Mapping[str, int], values: Sequence[Any]) -> Array:
        """Output `k` of the body, stacked at `axis`, where the body never runs. Its dtype and rank are as declared, or as they follow from
        `values` for its inputs, None where there is none. Dimensions that are not known are 0."""
        kind = self.graph.output[k].type.tensor_type
        if not kind.elem_type or not kind.HasField("shape"):
            kind = self._inferred(opsets, values)[k].tensor_type
        if not kind.elem_type or not kind.HasField("shape"):
            raise ValueError(f"no iteration, and type and rank of the body's output {self.graph.output[k].name!r} are not declared")
        shape = [d.dim_value for d in kind.shape.dim]
        shape.insert(axis + len(shape) + 1 if axis < 0 else axis, 0)
        return np.empty(shape, helper.tensor_dtype_to_np_dtype(kind.elem_type))

    def _inferred(self, opsets: Mapping[str, int], values: Sequence[Any]) -> list[TypeProto]:
        graph = GraphProto()
        graph.CopyFrom(self.graph)
        del graph.input[:]
        for name, value in (*self._outer.items(), *zip(self.inputs, values, strict=True)):
            if name and isinstance(value, np.ndarray) and value.dtype.kind not in "OUST":
                graph.input.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape))
        imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        model: ModelProto = helper.make_model(graph, opset_imports=imports)
        return [o.type for o in shape_inference.infer_shapes(model).graph.output]


def loop(body: Body, trips: Any, condition: Any, carried: Sequence[Any], opsets: Mapping[str, int]) -> tuple[Any, ...]:
    """The outputs of Loop: last values of what is carried, then scan outputs. `trips`, `condition`: None where there is none.

    A value that grows (`Body.grows`) is joined once, at the end: rounds see nothing of it, so that none copies the results of those
    before."""
    n = len(carried)
    growing: dict[int, tuple[int, list[Array]]] = {}
    rounds: Iterator[int] = count() if trips is None else iter(range(_one(trips, "trip count")))
    go = condition is None or bool(_one(condition, "condition"))
    scanned: list[list[Array]] = [[] for _ in body.graph.output[n + 1 :]]
    values, true = list(carried), np.array(True)
    true.flags.writeable = False
    for k, value in enumerate(values):
        axis = body.grows(k)
        if axis is not None and isinstance(value, np.ndarray) and -value.ndim <= axis < value.ndim:
            growing[k] = axis, [value]
            values[k] = np.take(value, [], axis)
    while go and (i := next(rounds, None)) is not None:
        found = body(np.array(i), true, *values)
        go = bool(_one(found[0], "condition"))
        given, values = values, found[1 : n + 1]
        for k, (_, parts) in growing.items():
            parts.append(values[k])
            values[k] = given[k]
        for parts, part in zip(scanned, found[n + 1 :], strict=True):
            parts.append(np.asarray(part))
    for k, (axis, parts) in growing.items():
        values[k] = np.concatenate(parts, axis) if len(parts) > 1 else parts[0]
    known = [np.array(0, np.int64), np.array(True), *carried]
    stacks = [stacked(parts) if parts else body.empty(n + 1 + k, 0, opsets, known) for k, parts in enumerate(scanned)]
    return (*values, *stacks)


def stacked(parts: Sequence[Array], axis: int = 0) -> Array:
    """As `np.stack`, which looks at each of many small parts for as long as a round takes."""
    first = parts[0]
    if axis or not first.ndim or any(part.shape != first.shape or part.dtype != first.dtype for part in parts):
        return np.stack(parts, axis)
    return np.concatenate(parts).reshape(len(parts), *first.shape)


def _used(graph: GraphProto) -> Iterator[str]:
    """Names of what a graph's nodes read, those of its sub-graphs too, and of its outputs."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _used(inner)
    yield from (output.name for output in graph.output)


def _one(value: Any, what: str) -> Any:
    array = value if value.__class__ is np.ndarray else np.asarray(value)
    if array.size != 1:
        raise ValueError(f"the {what} has shape {list(array.shape)}, not one element")
    return array.item()


def scan(body: Body, given: Sequence[Any], attributes: Mapping[str, Any], opsets: Mapping[str, int]) -> tuple[Any, ...]:
    """The outputs of Scan since opset 9: last states, then scan outputs."""
    m = int(attributes["num_scan_inputs"])
    n = len(given) - m
    states, inputs = list(given[:n]), [np.asarray(x) for x in given[n:]]
    outputs = len(body.graph.output) - n
    axes, backward = (_listed(attributes, f"scan_input_{kind}", m) for kind in ("axes", "directions"))
    lengths = {x.shape[axis] for x, axis in zip(inputs, axes, strict=True)}
    if len(lengths) != 1:
        raise ValueError(f"scan inputs of different lengths {sorted(lengths)}")
    steps = lengths.pop()
    moved = [
        np.ascontiguousarray(np.moveaxis(x, axis, 0)[:: -1 if back else 1]) for x, axis, back in zip(inputs, axes, backward, strict=True)
    ]
    scanned: list[list[Array]] = [[] for _ in range(outputs)]
    for t in range(steps):
        found = body(*states, *[x[t, ...] for x in moved])
        states = found[:n]
        for parts, part in zip(scanned, found[n:], strict=True):
            parts.append(np.asarray(part))
    out_axes, out_backward = (_listed(attributes, f"scan_output_{kind}", outputs) for kind in ("axes", "directions"))
    known = [*given[:n], *(np.empty(x.shape[1:], x.dtype) for x in moved)]
    stacks = [
        stacked(parts[:: -1 if back else 1], axis) if parts else body.empty(n + k, axis, opsets, known)
        for k, (parts, axis, back) in enumerate(zip(scanned, out_axes, out_backward, strict=True))
    ]
    return (*states, *stacks)


def scan_of_batches(body: Body, lengths: Array | None, given: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """The outputs of Scan of opset 8: first axes are the batch, second ones the sequence; what lies behind a sequence's end is 0."""
    m = int(attributes["num_scan_inputs"])
    n = len(given) - m
    batch, steps = given[n].shape[:2]
    counts = [steps] * batch if lengths is None else [int(k) for k in lengths]
    if len(counts) != batch or not batch or not all(0 < k <= steps for k in counts):
        raise ValueError(f"sequences of lengths {counts} in a batch of {batch} of up to {steps} steps")
    once = {"num_scan_inputs": m, "scan_input_directions": attributes.get("directions")}
    results = []
    for row, k in enumerate(counts):
        found = scan(body, [*(x[row] for x in given[:n]), *(x[row][:k] for x in given[n:])], once, {})
        results.append([*found[:n], *(np.concatenate([y, np.zeros((steps - k, *y.shape[1:]), y.dtype)]) for y in found[n:])])
    return tuple(np.stack(parts) for parts in zip(*results, strict=True))


def _listed(attributes: Mapping[str, Any], name: str, n: int) -> list[int]:
    values = attributes.get(name)
    if values is None:
        return [0] * n
    if len(values) != n:
        raise ValueError(f"{name} has {len(values)} elements, not {n}")
    return [int(v) for v in values]
