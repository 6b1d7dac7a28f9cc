"""QuantizeLinear and DequantizeLinear one behind the other, as tools write quantised networks, are a function of one argument. It rounds a
value to one of 256 levels. As such it becomes the epilogue of the node before. Where a product reads it, and weights are stored in bytes,
the bytes themselves are multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried
from aspen_mp.planner.passes.precision.byte_tables import LOOK_UP

INTEGER_PRODUCTS: Final = frozenset({"ConvInteger", "MatMulInteger"})
_F32: Final = np.dtype(np.float32)
_FLOATS: Final = frozenset({_F32, np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)})
_BYTES: Final = frozenset({np.dtype(np.int8), np.dtype(np.uint8)})
_MOST_TERMS: Final = (2**31 - 1) // (255 * 255)
"""Most terms of a sum that 32 bits hold, whatever the bytes and their zero points are."""
_KEEP_LEVELS: Final = frozenset({"Flatten", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""Their results are among their first input's values."""


def multiply_stored(graph: Graph, sums_bytes: bool = True) -> None:
    """Rewrites products and convolutions of values that DequantizeLinear makes of bytes. They multiply the bytes themselves, with the
    scales' product as a factor behind them. Sums of integers are exact; only the sum is rounded, once, where each product was before.
    `sums_bytes`: whether an instruction sums products of bytes. Without it convolutions are faster in f32, by Winograd's algorithm, and so
    are products of two activations."""
    if not graph.has("DequantizeLinear"):
        return
    producer = graph.producers()
    kept: list[Node] = []
    for node in graph.nodes:
        kept += _of_bytes(node, producer, sums_bytes) or [node]
    graph.nodes = kept
    uses = graph.uses()
    graph.nodes = [n for n in kept if n.op != "DequantizeLinear" or uses.get(n.output, 0) or n.output in graph.outputs]


@dataclass(frozen=True, slots=True)
class _OfBytes:
    """The parts of a product of stored bytes. `zero`, `weight_zero`: zero points. `factor`: the value of a sum's unit, one for all columns
    or one for each. `columns`: the axis of the output that counts them."""

    x: Tensor
    zero: Tensor | None
    values: Tensor
    weight_zero: Tensor | None
    bias: Tensor | None
    factor: npt.NDArray[np.float32]
    columns: int


def _of_bytes(node: Node, producer: dict[Tensor, Node], sums_bytes: bool) -> list[Node] | None:
    """The nodes that compute a product, of bytes; None where it is of another kind."""
    if node.op not in {"Conv", "Gemm", "MatMul"} or node.inputs[0] is None or node.inputs[1] is None:
        return None
    left, stored = producer.get(node.inputs[0]), node.inputs[1].stored
    if left is None or left.op != "DequantizeLinear":
        if stored is not None and stored.scale is not None and not stored.block:
            _in_floats(node, "its weights are levels, but what they are multiplied with is not")
        return None
    right = producer.get(node.inputs[1])
    of_two = right is not None and right.op == "DequantizeLinear"
    found = _of_two(node, left, right) if of_two and right is not None else _product(node, left)
    if not isinstance(found, str) and (node.op == "Conv" or of_two) and not sums_bytes:
        found = "this machine has no instruction that sums products of bytes"
    if isinstance(found, str):
        _in_floats(node, found)
        return None
    tried = (Tried("f32 factors", "four times as much to multiply, and each product would be rounded"),)
    reasons.tell(lambda: Reason("precision", "bytes", "both factors are stored in bytes", tried=tried, node=node.name))
    return _sums(node, found)


def _in_floats(node: Node, rule: str) -> None:
    reasons.tell(lambda: Reason("precision", "f32 factors", rule, tried=(Tried("bytes", rule),), node=node.name))


def _product(node: Node, left: Node) -> _OfBytes | str:
    """The parts of a product whose left factor DequantizeLinear gives, or why its bytes are not multiplied."""
    assert node.inputs[1] is not None
    weight, bias = node.inputs[1].stored, node.inputs[2] if len(node.inputs) > 2 else None
    if weight is None or weight.scale is None:
        return "its weights are constants of f32" if node.inputs[1].is_const else "both factors are activations"
    if weight.block:
        return "its weights have a scale for each block of rows"
    if node.output.dtype != _F32 or weight.scale.dtype not in _FLOATS:
        return f"it is computed in {node.output.dtype}"
    if bias is not None and not bias.is_const:
        return "its bias is computed by the network"
    x, levels = left.inputs[0], parameters(left)
    if x is None or levels is None:
        return "its left factor has several scales or zero points, or they are computed by the network"
    if x.dtype not in _BYTES or weight.values.dtype not in _BYTES:
        return f"its factors are {x.dtype} and {weight.values.dtype}, and kernels multiply bytes"
    if x.size == 0 or weight.values.size == 0:
        return "a factor is empty"
    rank, attrs = len(x.shape), node.attrs
    values, factor = weight.values, np.float32(levels[0]) * weight.scale.value().astype(np.float32)
    columns, out = rank - 1, 1  # `out`: the weight's axis of columns
    if node.op == "Conv":
        if attrs.get("group", 1) not in {1, x.shape[1]} or rank not in {3, 4}:
            return "kernels for bytes convolve one or two axes, without groups or channel by channel"
        columns, out = 1, 0
    elif node.op == "Gemm":
        if attrs.get("transA", 0):
            return "its left factor is transposed"
        factor = factor * np.float32(attrs.get("alpha", 1.0))
        out = 0 if attrs.get("transB", 0) else 1
        if out == 0:
            values = _transposed(values)
    elif rank < 2 or len(values.shape) != 2:
        return "a factor is not a matrix"
    if any(of is not None and of.size != 1 and weight.axis != out for of in (weight.scale, weight.zero)):
        return "its weights have scales along the axis that is summed"
    if values.size > _MOST_TERMS * node.output.shape[columns]:
        return "its sums have more terms than 32 bits hold"
    return _OfBytes(x, left.inputs[2] if len(left.inputs) > 2 else None, values, weight.zero, bias, factor, columns)


def _of_two(node: Node, left: Node, right: Node) -> _OfBytes | str:
    """The parts of a product of two activations, or why their bytes are not multiplied."""
    x, y, ours, theirs = left.inputs[0], right.inputs[0], parameters(left), parameters(right)
    if node.op != "MatMul" or node.output.dtype != _F32:
        return "both factors are activations"
    if x is None or y is None or ours is None or theirs is None:
        return "a factor has several scales or zero points, or they are computed by the network"
    if x.dtype not in _BYTES or y.dtype not in _BYTES:
        return f"its factors are {x.dtype} and {y.dtype}, and kernels multiply bytes"
    if len(x.shape) < 2 or x.shape[:-2] != y.shape[:-2] or x.size == 0 or y.size == 0 or y.shape[-2] > _MOST_TERMS:
        return "its factors are not as many matrices of bytes each"
    zeros = [t.inputs[2] if len(t.inputs) > 2 else None for t in (left, right)]
    return _OfBytes(x, zeros[0], y, zeros[1], None, np.float32(ours[0]) * np.asarray(np.float32(theirs[0])), len(x.shape) - 1)


def _sums(node: Node, of: _OfBytes) -> list[Node]:
    """A product of integers, its factor and its bias, which write the node's result."""
    made: list[Node] = []

    def emit(op: str, inputs: list[Tensor | None], dtype: type, attrs: dict[str, Any]) -> Tensor:
        result = Tensor(f"{node.output.name}~{op}", node.output.shape, np.dtype(dtype))
        made.append(Node(op, node.name, inputs, [result], attrs, node.onnx_op))
        result.producer = made[-1]
        return result

    def across(value: npt.NDArray[Any], name: str) -> Tensor:
        """One for all, or one for each column, beside the output."""
        shape = tuple(value.size if k == of.columns else 1 for k in range(len(node.output.shape)))
        return Tensor(f"{node.output.name}|{name}", shape, _F32, data=value.astype(np.float32).reshape(shape))

    op, attrs = ("ConvInteger", dict(node.attrs)) if node.op == "Conv" else ("MatMulInteger", {})
    sums = emit(op, [of.x, of.values, of.zero, of.weight_zero], np.int32, attrs)
    result = emit("Mul", [emit("Cast", [sums], np.float32, {"to": 1}), across(of.factor, "scale")], np.float32, {})
    if of.bias is not None and node.op == "Conv":
        result = emit("Add", [result, across(of.bias.value(), "bias")], np.float32, {})
    elif of.bias is not None and node.attrs.get("beta", 1.0) != 0.0:
        value = of.bias.value() * np.float32(node.attrs.get("beta", 1.0))
        result = emit("Add", [result, Tensor(f"{node.output.name}|bias", of.bias.shape, _F32, data=value)], np.float32, {})
    made[-1].outputs = [node.output]
    node.output.producer = made[-1]
    return made


def _transposed(values: Tensor) -> Tensor:
    key = None if values.weight_key is None else f"{values.weight_key}|transposed"
    return Tensor(f"{values.name}|transposed", values.shape[::-1], values.dtype, weight_key=key, pack=partial(_write_transposed, values))


def _write_transposed(values: Tensor, out: npt.NDArray[Any]) -> None:
    out[...] = values.value().T


def round_to_levels(graph: Graph) -> None:
    """Rewrites pairs with equal scales and zero points of one element as FakeQuantize, and leaves out those that change nothing."""
    if not graph.has("DequantizeLinear"):
        return
    producer = graph.producers()
    stored = {node.inputs[0] for node in graph.nodes if node.op in INTEGER_PRODUCTS or node.op == LOOK_UP}
    kept: list[Node] = []
    outputs, replaced = set(graph.outputs), dict[Tensor, Tensor]()
    for node in graph.nodes:
        if replaced:
            node.inputs = [None if t is None else replaced.get(t, t) for t in node.inputs]
        there = bool(node.inputs) and node.inputs[0] in stored  # it is read anyway, so it is less to read
        levels = None if there else _levels(node, producer)
        if levels is not None:
            x, scale, lowest = levels
            if node.output not in outputs and _on_levels(x, scale, lowest, producer):
                replaced[node.output] = x
                continue
            reasons.tell(partial(_rounded, node, producer))
            node.op, node.inputs, node.attrs, node.source = "FakeQuantize", [x], {"scale": scale, "lowest": lowest}, None
        kept.append(node)
    for op in ("QuantizeLinear", "Relu"):  # nobody may read them any more, the second because of the first
        uses = graph.uses()
        kept = [n for n in kept if n.op != op or uses.get(n.output, 0)]
    graph.nodes = kept


def _rounded(node: Node, producer: dict[Tensor, Node]) -> Reason:
    before = producer[node.inputs[0]].name if node.inputs[0] is not None else ""
    tried = (Tried("bytes between the two", "nothing else reads them"),)
    return Reason("precision", "f32, rounded to levels", "a function of one argument", tried=tried, absorbed=(before,), node=node.name)


def _levels(node: Node, producer: dict[Tensor, Node]) -> tuple[Tensor, float, float] | None:
    """(x, scale, lowest level) if the node gives back a quantised x."""
    if node.op != "DequantizeLinear" or node.inputs[0] is None:
        return None
    back = producer.get(node.inputs[0])
    if back is None or back.op != "QuantizeLinear" or back.inputs[0] is None or node.inputs[0].dtype not in _BYTES:
        return None
    x, there, here = back.inputs[0], parameters(back), parameters(node)
    if there is None or there != here or x.dtype != _F32 or node.output.dtype != _F32:
        return None
    scale, zero = there
    lowest = float(np.iinfo(node.inputs[0].dtype).min) - zero
    before = producer.get(x)
    if lowest == 0.0 and before is not None and before.op == "Relu" and before.inputs[0] is not None:
        x = before.inputs[0]  # the lowest level is 0 itself
    return x, scale, lowest


def parameters(node: Node) -> tuple[float, float] | None:
    """Scale and zero point, where both are known and of one element."""
    scale, zero = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    if scale is None or not scale.is_const or scale.size != 1 or scale.dtype != _F32:
        return None
    if zero is not None and (not zero.is_const or zero.size != 1):
        return None
    value = float(scale.value().reshape(()))
    return (value, 0.0 if zero is None else float(zero.value().reshape(()))) if 0.0 < value < np.inf else None


def _on_levels(x: Tensor, scale: float, lowest: float, producer: dict[Tensor, Node]) -> bool:
    """Whether all values of x are levels already."""
    node = producer.get(x)
    while node is not None and node.op in _KEEP_LEVELS and node.inputs[0] is not None and x is node.output:
        x = node.inputs[0]
        node = producer.get(x)
    return node is not None and node.op == "FakeQuantize" and node.attrs == {"scale": scale, "lowest": lowest}
