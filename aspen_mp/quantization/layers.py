"""The error of each quantised layer: its output beside that of the model in floats, given the same inputs.

The model in 8 bits is cut into its layers. Each reads the values that it has in the model in floats, rounded as the quantiser says. So the
error of a layer is its own: it holds none of the layers before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy.typing as npt

from aspen_mp.client.trials.difference import Difference
from aspen_mp.client.trials.samples import Feeds
from aspen_mp.quantization import quantizer

if TYPE_CHECKING:
    import onnx

Array = npt.NDArray[Any]
_RENAMED: Final = "_QuantizeLinear_Input"
"""The quantiser appends this to the name of a graph output where it is not yet rounded."""
_GIVEN: Final = "in floats: "
"""Stands before the name of a value that is an input of the layers."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A quantised layer. `error`: of its own. `before`: the layers whose rounded outputs it reads."""

    name: str
    op: str
    error: float
    before: tuple[str, ...]


def errors(prepared: Path, quantised: Path, samples: Iterable[Feeds]) -> list[Layer]:
    """The quantised layers, the worst first. `prepared`: the model in floats as the quantiser read it. The external data of each file lies
    beside it."""
    model = quantizer.read(quantised)
    layers = quantizer.layers_of(model)
    floats = quantizer.read(prepared).graph
    known = {value.name for value in floats.input} | {name for node in floats.node for name in node.output}
    cut = _Cut(model, layers, known)
    if not cut.outputs:
        return []
    differences = _measured(cut, prepared, quantised, samples)
    found = [Layer(name, layers[name], each.rms, tuple(cut.before[name])) for name, each in differences.items()]
    return sorted(found, key=lambda layer: -layer.error)


def _measured(cut: _Cut, prepared: Path, quantised: Path, samples: Iterable[Feeds]) -> dict[str, Difference]:
    """By layer: how far its output is from that of the model in floats."""
    wanted = sorted({*cut.given, *cut.outputs.values()})
    whole = quantizer.read(prepared)
    fed = {value.name for value in whole.graph.input}
    floats = _with_outputs(whole, [name for name in wanted if name not in fed], prepared)
    found = {name: Difference() for name in cut.outputs}
    session: Any = None
    for feeds in samples:
        values = {**feeds, **floats(feeds)}
        given = {_GIVEN + name: values[name] for name in cut.given if name in values}
        if session is None:
            session = _session(cut.model({name: values[name] for name in cut.given if name in values}), quantised)
        results = session.run(list(cut.measured.values()), given)
        for layer, value in zip(cut.measured, results, strict=True):
            found[layer].add(value, values[cut.outputs[layer]])
    return found


class _Cut:
    """A quantised model, cut before each of its layers.

    `given`: names of the values in floats that layers read. `before`: by layer, the layers whose rounded outputs it reads. `outputs`: by
    layer, the name of its output in floats. `measured`: by layer, the name of its output in 8 bits, rounded where the model rounds it.
    """

    def __init__(self, model: onnx.ModelProto, layers: dict[str, str], known: set[str]) -> None:
        self._model = model
        graph = model.graph
        self._constants = {"", *(tensor.name for tensor in graph.initializer)}
        for node in graph.node:  # each comes after those that it reads
            if self._constants.issuperset(node.input):
                self._constants.update(node.output)
        self._producers = {name: node for node in graph.node for name in node.output}
        self._rounded = {node.input[0]: node for node in graph.node if node.op_type == "QuantizeLinear"}
        restored = {node.input[0]: node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
        self._nodes: list[Any] = []
        self._twins: dict[str, str] = {}
        self.given: list[str] = []
        self.before: dict[str, list[str]] = {}
        self.outputs: dict[str, str] = {}
        self.measured: dict[str, str] = {}
        for node in [node for node in graph.node if node.name in layers]:
            if not known.issuperset(self._compared(node)):
                continue  # the quantiser has written it in another way
            self._nodes.append(self._layer(node))
            sources = [self._source(name) for name in node.input]
            self.before[node.name] = [name for name in sources if name in layers]
            rounding = self._rounded.get(node.output[0])
            self.measured[node.name] = restored[rounding.output[0]] if rounding else node.output[0]
            self.outputs[node.name] = node.output[0].removesuffix(_RENAMED)

    def _compared(self, node: Any) -> list[str]:
        """The names in the model in floats that a layer's inputs and its output have."""
        names = [node.output[0]]
        for name in node.input:
            producer = self._producers.get(name)
            if name not in self._constants:
                restored = producer is not None and producer.op_type == "DequantizeLinear"
                names.append(self._producers[producer.input[0]].input[0] if restored else name)  # type: ignore[union-attr]
        return [name.removesuffix(_RENAMED) for name in names]

    def _layer(self, node: Any) -> Any:
        """The node, reading values in floats."""
        import onnx

        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for k, name in enumerate(node.input):
            copy.input[k] = self._read(name)
        return copy

    def _read(self, name: str) -> str:
        """The name that a layer reads in place of a value: a constant itself, the twin of a restored value, or a value in floats."""
        producer = self._producers.get(name)
        if name in self._constants:
            return name
        if producer is None or producer.op_type != "DequantizeLinear":
            return self._floats(name)
        if name not in self._twins:
            rounding = self._producers[producer.input[0]]
            middle, end = f"rounded: {name}", f"restored: {name}"
            for node, start, to in ((rounding, self._floats(rounding.input[0]), middle), (producer, middle, end)):
                twin = type(node)()
                twin.CopyFrom(node)
                twin.name, twin.input[0], twin.output[0] = to, start, to
                self._nodes.append(twin)
            self._twins[name] = end
        return self._twins[name]

    def _source(self, name: str) -> str:
        """The node whose output a restored value is; empty where there is none."""
        restoring = self._producers.get(name)
        rounding = self._producers.get(restoring.input[0]) if restoring is not None and restoring.op_type == "DequantizeLinear" else None
        source = self._producers.get(rounding.input[0]) if rounding is not None else None
        return "" if source is None else str(source.name)

    def _floats(self, name: str) -> str:
        plain = name.removesuffix(_RENAMED)
        if plain not in self.given:
            self.given.append(plain)
        return _GIVEN + plain

    def model(self, values: dict[str, Array]) -> onnx.ModelProto:
        """The layers as a model whose inputs are `values` (for their types), and whose outputs are `measured`."""
        import onnx
        from onnx import helper

        cut = onnx.ModelProto()
        cut.CopyFrom(self._model)
        del cut.graph.node[:], cut.graph.input[:], cut.graph.output[:], cut.graph.value_info[:]
        made = {name for node in self._nodes for name in node.output}
        rest = [node for node in self._model.graph.node if not made.intersection(node.output)]
        cut.graph.node.extend(_reached([*self._nodes, *rest], set(self.measured.values())))
        for name, value in values.items():
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            cut.graph.input.append(helper.make_tensor_value_info(_GIVEN + name, kind, [None] * value.ndim))
        for name in dict.fromkeys(self.measured.values()):
            cut.graph.output.append(onnx.ValueInfoProto(name=name))
        return cut


def _reached(nodes: list[Any], wanted: set[str]) -> list[Any]:
    """The nodes that outputs depend on, each after those that it reads."""
    producers = {name: node for node in nodes for name in node.output}
    ordered: list[Any] = []
    seen: set[int] = set()
    stack = [(producers[name], False) for name in sorted(wanted) if name in producers]
    while stack:
        node, read = stack.pop()
        if read:
            ordered.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack += [(producers[name], False) for name in node.input if name in producers]
    return ordered


def _with_outputs(model: onnx.ModelProto, names: list[str], path: Path) -> Any:
    """A call that gives these values of a model, by name."""
    import onnx

    there = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in there)
    session = _session(model, path)

    def run(feeds: Feeds) -> dict[str, Array]:
        return dict(zip(names, session.run(names, feeds), strict=True))

    return run


def _session(model: onnx.ModelProto, beside: Path) -> Any:
    """onnxruntime without optimisations, which would merge layers. The file lies beside another, whose external data it refers to."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    path = beside.with_name(f"{beside.stem}.layers.onnx")
    try:
        onnx.save(model, str(path))
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    finally:
        path.unlink(missing_ok=True)
