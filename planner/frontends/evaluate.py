"""Values of constant sub-expressions: numpy for the operators that it has, ONNX's reference implementation for all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, helper

from aspen_mp.shm.errors import ModelInvalidError
from aspen_mp.workers.fallback.numpy_operators import SMALLEST_OPSET, Call, compile_node, plain

Array = npt.NDArray[Any]
Attrs = dict[str, Any]

RANDOM = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"})

OURS = frozenset({"LSTM", "GRU", "RNN", "GlobalLpPool", "Det", "GridSample", "STFT", "Hardmax", "RoiAlign", "MaxRoiPool", "AffineGrid"})
OURS |= {"ConvTranspose", "DeformConv", "LRN", "MaxPool", "StringNormalizer", "TfIdfVectorizer", "Unique", "Upsample"}
"""Operators that ONNX's reference implementation computes wrongly (with some options) or not at all: workers do, so they are never
constants."""

_OURS_BEFORE = {"BatchNormalization": 14, "Softmax": 13, "LogSoftmax": 13}
"""The same as operators were before an opset."""

VIEWS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Split", "Expand"})
"""Operators whose value is a numpy view of the first input's."""

LOOPING = frozenset({"Resize", "Upsample", "ConvTranspose", "RoiAlign", "MaxRoiPool", "GridSample", "DeformConv", "TfIdfVectorizer"})
LOOPING |= {
    "MaxPool",
    "AveragePool",
    "LpPool",
    "MaxUnpool",
    "Conv",
    "ConvInteger",
    "QLinearConv",
    "NonMaxSuppression",
}
"""Operators that ONNX's reference implementation computes one element after the other."""


def left_to_workers(node: NodeProto, version: int, whole_numbers: bool) -> bool:
    """Whether a node of the default domain stays one although its inputs (`whole_numbers`: the first of integers) are constant."""
    if node.op_type == "Resize":  # of weights, such as positions, it is best done once
        return whole_numbers or attributes(node).get("mode", "nearest") == "nearest"
    if node.op_type == "Dropout":
        return len(node.output) > 1 and bool(node.output[1])
    return node.op_type in OURS or node.op_type in RANDOM or version < _OURS_BEFORE.get(node.op_type, 0)


def quick(node: NodeProto, opset: int) -> bool:
    """Whether numpy alone computes an operator."""
    return _by_numpy(node, opset) is not None


def _by_numpy(node: NodeProto, opset: int) -> Call | None:
    return compile_node(node, max(opset, SMALLEST_OPSET))  # older ones mean the same, or have been rewritten (`legacy`)


def attributes(node: NodeProto) -> Attrs:
    """A node's attributes as Python values: numbers, str, lists, TensorProto, GraphProto."""
    out: Attrs = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        out[attribute.name] = value.decode(errors="replace") if isinstance(value, bytes) else value
    return out


class NotComputed(ModelInvalidError):
    """ONNX's reference implementation refuses a node with its constant inputs. That may be its own lack: a kernel may know better."""


def evaluate(node: NodeProto, opsets: dict[str, int], inputs: Sequence[Array | None]) -> list[Any]:
    """The outputs of a node whose inputs are all known. Raises ModelInvalidError where the operator refuses them, NotComputed where it is
    not numpy that does."""
    kind: type[ModelInvalidError] = ModelInvalidError
    try:
        with np.errstate(all="ignore"):
            call = _by_numpy(node, opsets.get("", 1)) if all(x is None or x.dtype != object for x in inputs) else None
            found = NotImplemented
            if call is not None:
                try:
                    found = call(*inputs)
                except TypeError:
                    if plain(inputs):  # numpy may lack a function of types that are not its own
                        raise
            if found is not NotImplemented:
                return [np.asarray(value) for value in (found if isinstance(found, tuple) else (found,))]
            kind = NotComputed
            return _reference(node, opsets, inputs)
    except MemoryError:
        raise
    except Exception as error:  # whatever an operator's implementation raises is the model's fault
        raise kind(f"node {node.name!r} ({node.op_type}) cannot be computed from its constant inputs: {error}") from None


def _reference(node: NodeProto, opsets: dict[str, int], inputs: Sequence[Array | None]) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    names = {name: x for name, x in zip(node.input, inputs, strict=False) if name and x is not None}
    infos = [onnx.ValueInfoProto(name=name) for name in names]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "constant", infos, outputs)
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = helper.make_model(graph, opset_imports=imports)
    found = iter(ReferenceEvaluator(model).run(None, names))
    return [next(found) if name else None for name in node.output]
