"""Normalisations that exporters spell out: LayerNorm and RMSNorm over any axes become NORM, with the scale and shift that follow.

One row a spelling (patterns: `match.py`). The axes need not be the last ones, nor the numbers f32: NORM then stands between views and
conversions. Scale and shift are absorbed through views too, which makes one kernel of a GroupNorm around an InstanceNormalization.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Graph, Node, Shape, Tensor
from aspen_mp.planner.ops.params import NO_ACT
from aspen_mp.planner.passes.identities import uniform
from aspen_mp.planner.passes.patterns.match import (
    FLOATS,
    AnyOf,
    Call,
    Match,
    Matcher,
    Named,
    Number,
    Operand,
    Pattern,
    Product,
    Row,
    Table,
    spares,
)
from aspen_mp.planner.passes.rewrite import Rewriter, no_act, reshaped_constant

_F32 = np.dtype(np.float32)
_ROUNDED = 2.0**-11
"""Relative error of a factor that an exporter has rounded to half precision."""
X, CENTRED, FACTOR = Operand("x"), Operand("centred"), Number(name="factor")


def reduced(opcode: str, pattern: Pattern, name: str) -> Pattern:
    return Call("REDUCE", opcode, (pattern,), name=name)


def mean(pattern: Pattern, name: str) -> Pattern:
    """Over the axes of the call of this name, also as a sum times a number."""
    return AnyOf((reduced("MEAN", pattern, name), Product((reduced("SUM", pattern, name),), constant=Number(name=name))))


def mean_square(pattern: Pattern) -> Pattern:
    by_sum = Product((reduced("SUM_SQUARE", pattern, "squares"),), constant=Number(name="squares"))
    return AnyOf((mean(Product((pattern, pattern)), "squares"), by_sum))


def root(variance: Pattern) -> Pattern:
    return Call("UNARY", "SQRT", (AnyOf((with_eps(variance), variance)),))


def with_eps(variance: Pattern) -> Pattern:
    return Call("BINARY", "ADD", (Number(name="eps"), variance), either=True)


def inverse_root(variance: Pattern) -> Pattern:
    """Where it is a factor of its own, with other readers."""
    upside_down = Product((), under=(AnyOf((with_eps(variance), variance)),))
    return AnyOf((Product((), under=(root(variance),)), Call("UNARY", "SQRT", (upside_down,))))


def not_negative(pattern: Pattern) -> Pattern:
    clamped = Call("BINARY", "MAX", (Number(0.0), pattern), either=True)
    return AnyOf((clamped, Call("UNARY", "RELU", (pattern,)), pattern))


MEAN = mean(X, "mean")
MINUS_MEAN = Product((reduced("MEAN", X, "mean"),), constant=Number(-1.0))
DIFFERENCE = AnyOf((Call("BINARY", "SUB", (X, MEAN)), Call("BINARY", "ADD", (X, MINUS_MEAN), either=True)))
VARIANCE = AnyOf(
    (
        mean(Product((CENTRED, Named("centred", DIFFERENCE))), "squares"),
        mean(Product((CENTRED, Named("centred", Call("BINARY", "SUB", (MEAN, X))))), "squares"),
        Product((reduced("SUM_SQUARE", DIFFERENCE, "squares"),), constant=Number(name="squares")),
        not_negative(Call("BINARY", "SUB", (mean_square(X), Product((MEAN, MEAN))))),  # Flax, and Keras on JAX
    )
)
INVERSE = Named(
    "inverse", AnyOf((Product((), (root(VARIANCE),), FACTOR, "scale"), Product((inverse_root(VARIANCE),), (), FACTOR, "scale")))
)
SCALED = Product((INVERSE, X))
SCALED_MEAN = Product((Operand("inverse"), MEAN))
OFFSET = AnyOf(
    (
        Call("BINARY", "SUB", (Operand("shift"), SCALED_MEAN)),
        Call("BINARY", "ADD", (Product((Operand("inverse"), MEAN), constant=Number(-1.0)), Operand("shift")), either=True),
        Product((Operand("inverse"), MEAN), constant=Number(-1.0)),
    )
)


ROWS: dict[str, Row[str]] = {
    # x - mean over a root: PyTorch, Paddle, ONNX's own functions
    "layer, quotient": Row(Product((DIFFERENCE,), (root(VARIANCE),), FACTOR, "scale"), "layer"),
    "layer, reciprocal": Row(Product((inverse_root(VARIANCE), DIFFERENCE), (), FACTOR, "scale"), "layer"),
    # x s + (shift - mean s): TensorFlow, Keras
    "layer, moments": Row(Call("BINARY", "ADD", (SCALED, OFFSET), either=True), "layer"),
    "layer, moments without shift": Row(Call("BINARY", "SUB", (SCALED, SCALED_MEAN)), "layer"),
    "layer, moments of a batch": Row(Call("TERNARY", "FMA", (X, INVERSE, OFFSET)), "layer"),
    # x over a root: Llama, T5
    "rms, quotient": Row(Product((X,), (root(mean_square(X)),), FACTOR, "scale"), "rms"),
    "rms, reciprocal": Row(Product((inverse_root(mean_square(X)), X), (), FACTOR, "scale"), "rms"),
}
"""Spelling → mode of NORM."""
NORMS = Table(ROWS)


def fuse_norms(graph: Graph) -> None:
    rewriter = Rewriter(graph)
    matcher = Matcher(rewriter, rounding=True)

    def replace(node: Node, mode: str, m: Match) -> bool:
        axes = _axes(matcher, node, m)
        if axes is None or not spares(rewriter, m.nodes):
            return False
        _Builder(rewriter, node).norm(m, mode, axes)
        return True

    NORMS.rewrite(matcher, replace)
    rewriter.finish()
    if any(node.op == "NORM" for node in graph.nodes):
        rewriter = Rewriter(graph)
        for node in rewriter.live():
            if node.op == "BINARY" and node.attrs["opcode"] in {"MUL", "ADD"} and rewriter.alive(node) and no_act(node):
                _affine(rewriter, node)
        rewriter.finish()


def _axes(matcher: Matcher, node: Node, m: Match) -> frozenset[int] | None:
    """The normalised axes longer than 1, if all statistics of the match are over the same ones and of the whole of x."""
    x = m.tensors["x"]
    if x.shape != node.output.shape or matcher.widened(x).dtype not in FLOATS or 0 in x.shape:
        return None
    if any(not _broadcasts(t.shape, x.shape) for t in (*m.rests.get("scale", ()), *_given(m.tensors, "shift"))):
        return None
    if any(call.inputs[0] is None or call.inputs[0].shape != x.shape for call in m.calls.values()):
        return None
    found = {frozenset(a for a in call.attrs["axes"] if x.shape[a] > 1) for call in m.calls.values()}
    if len(found) != 1:
        return None
    axes = found.pop()
    count = prod(x.shape[a] for a in axes)
    near = min(_ROUNDED, 0.25 / count)  # 1 / (count - 1) is another variance
    sums = all(abs(m.numbers[name] * count - 1.0) <= near for name, call in m.calls.items() if call.attrs["opcode"] != "MEAN")
    return axes if axes and sums and m.numbers.get("eps", 0.0) >= 0.0 else None


def _given(tensors: dict[str, Tensor], name: str) -> tuple[Tensor, ...]:
    return (tensors[name],) if name in tensors else ()


def _broadcasts(shape: Shape, whole: Shape) -> bool:
    return len(shape) == len(whole) and all(d in {1, w} for d, w in zip(shape, whole, strict=True))


class _Builder:
    """Writes NORM, and the nodes around it, in front of a node or in its place."""

    def __init__(self, rewriter: Rewriter, node: Node) -> None:
        self.rewriter = rewriter
        self.node = node

    def insert(self, op: str, inputs: Sequence[Tensor | None], shape: Shape, dtype: np.dtype[Any] = _F32, **attrs: Any) -> Tensor:
        out = self.rewriter.insert(self.node, op, inputs, shape, attrs)
        out.dtype = dtype
        return out

    def norm(self, m: Match, mode: str, axes: frozenset[int]) -> None:
        x, rank = m.tensors["x"], len(self.node.output.shape)
        axis = min(axes)
        scale, shift = self.scale(m, rank), m.tensors.get("shift")
        inputs = [None if t is None else self.widened(t) for t in (x, scale, shift)]
        chain: list[_Step] = []
        if self.node.output.dtype != _F32:
            chain.append(_Step("CAST", {"saturate": True}, self.node.output.shape, self.node.output.dtype))
        if any(a not in axes and x.shape[a] > 1 for a in range(axis, rank)):
            kept = [a for a in range(rank) if a not in axes]
            perm = (*kept, *sorted(axes))
            axis = len(kept)
            inputs = [None if t is None else self.transposed(t, perm) for t in inputs]
            back = tuple(int(p) for p in np.argsort(perm))
            chain.append(_Step("view.transpose", {"perm": back}, self.node.output.shape, _F32))
        label = "LayerNormalization" if mode == "layer" else "RMSNormalization"
        self.place(inputs, {"axis": axis, "mode": mode, "eps": m.numbers.get("eps", 0.0)}, label, chain)

    def scale(self, m: Match, rank: int) -> Tensor | None:
        """All factors that follow as one tensor."""
        factor, factors = m.numbers["factor"], list(m.rests.get("scale", ()))
        if factor != 1.0:
            factors.append(Tensor(f"{self.node.output.name}|factor", (1,) * rank, _F32, data=np.full((1,) * rank, factor, np.float32)))
        while len(factors) > 1:
            first, second = (self.widened(t) for t in factors[:2])
            shape = np.broadcast_shapes(first.shape, second.shape)
            if first.is_const and second.is_const:
                factors[:2] = [computed(first, f"*{second.weight_key}", shape, partial(_times, second), second.weight_key)]
            else:
                factors[:2] = [self.insert("BINARY", [first, second], shape, opcode="MUL", act=NO_ACT)]
        return factors[0] if factors else None

    def widened(self, tensor: Tensor) -> Tensor:
        """The tensor in f32."""
        if tensor.dtype == _F32:
            return tensor
        if tensor.is_const:
            return computed(tensor, "|float32", tensor.shape, lambda value: value)
        node = self.rewriter.made_by(tensor, "CAST")
        source = node.inputs[0] if node is not None else None
        return source if source is not None and source.dtype == _F32 else self.insert("CAST", [tensor], tensor.shape, saturate=True)

    def transposed(self, tensor: Tensor, perm: Shape) -> Tensor:
        shape = tuple(tensor.shape[p] for p in perm)
        if tensor.is_const:
            moved = [p for p in perm if tensor.shape[p] != 1]
            if moved == sorted(moved):
                return reshaped_constant(tensor, shape)
            return computed(tensor, f"|transpose{list(perm)}", shape, lambda value: value.transpose(perm))
        return self.insert("view.transpose", [tensor], shape, tensor.dtype, perm=perm)

    def reshaped(self, tensor: Tensor, shape: Shape) -> Tensor:
        if tensor.shape == shape:
            return tensor
        if tensor.is_const:
            return reshaped_constant(tensor, shape)
        view = self.rewriter.made_by(tensor, "view.reshape")
        if view is not None and view.inputs[0] is not None:
            return self.reshaped(view.inputs[0], shape)
        return self.insert("view.reshape", [tensor], shape, tensor.dtype)

    def place(self, inputs: Sequence[Tensor | None], attrs: dict[str, Any], label: str, chain: Sequence[_Step]) -> None:
        """NORM and the nodes behind it, in the node's place. The chain's last step comes first, as one reads from the node upwards."""
        x = inputs[0]
        assert x is not None
        if not chain:
            self.rewriter.replace(self.node, "NORM", inputs, attrs, label)
            return
        given = list(inputs)
        while given[-1] is None:
            given.pop()
        out = self.insert("NORM", given, x.shape, **attrs)
        assert out.producer is not None
        out.producer.onnx_op = label
        for step in chain[:0:-1]:
            out = self.insert(step.op, [out], step.shape, step.dtype, **step.attrs)
        self.rewriter.replace(self.node, chain[0].op, [out], chain[0].attrs)


@dataclass(frozen=True, slots=True)
class _Step:
    """A view or conversion to write."""

    op: str
    attrs: dict[str, Any]
    shape: Shape
    dtype: np.dtype[Any]


def computed(tensor: Tensor, tag: str, shape: Shape, function: Any, other_key: str | None = "") -> Tensor:
    """A constant in f32, computed from another when it is written."""
    key = None if tensor.weight_key is None or other_key is None else f"{tensor.weight_key}{tag}"
    return Tensor(f"{tensor.name}{tag}", shape, _F32, weight_key=key, pack=partial(_write, tensor, function))


def _write(tensor: Tensor, function: Any, out: npt.NDArray[Any]) -> None:
    out[...] = function(tensor.value())


def _times(other: Tensor, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    product: npt.NDArray[Any] = value * other.value()
    return product


# -------------------------------------------------------------------------------------------------------------- scale and shift


def _affine(rewriter: Rewriter, node: Node) -> None:
    """norm(x) · scale or norm(x) + shift, where views or a conversion may stand between: free places of NORM."""
    opcode = node.attrs["opcode"]
    place = 1 if opcode == "MUL" else 2
    for k in (0, 1):
        tensor, other = node.inputs[k], node.inputs[1 - k]
        chain = _down_to_norm(rewriter, tensor)
        if tensor is None or chain is None or other is None or tensor.shape != node.output.shape:
            continue
        *steps, norm = chain
        inputs = _without_neutral(norm)
        if inputs[place] is not None or (place == 1 and inputs[2] is not None):
            continue
        if other.is_const or (not steps and other.size < node.output.size and other.dtype == _F32):
            _absorb(_Builder(rewriter, node), norm, steps, inputs, place, other)
            return


def _without_neutral(norm: Node) -> list[Tensor | None]:
    """x, scale and shift; without a scale of 1 or a shift of 0, as an operator must have whose scale and shift stand outside."""
    given = [*norm.inputs, *[None] * (3 - len(norm.inputs))]
    return [given[0], None if uniform(given[1]) == 1 else given[1], None if uniform(given[2]) == 0 else given[2]]


def _down_to_norm(rewriter: Rewriter, tensor: Tensor | None) -> list[Node] | None:
    """The views and conversions between the tensor and a NORM, and the NORM."""
    chain: list[Node] = []
    while tensor is not None and len(chain) < 4 and rewriter.only_use(tensor):
        node = rewriter.made_by(tensor, "NORM", "view.reshape", "view.transpose", "CAST")
        if node is None:
            return None
        chain.append(node)
        if node.op == "NORM":
            return chain
        if node.op == "CAST" and node.output.dtype not in FLOATS:
            return None
        tensor = node.inputs[0]
    return None


def _absorb(build: _Builder, norm: Node, steps: list[Node], inputs: list[Tensor | None], place: int, other: Tensor) -> None:
    """Takes `other` to where NORM has its scale and shift. A view stays behind NORM; where it reshapes, NORM works on a shape that has the
    axes of both sides."""
    node, whole, axis = build.node, norm.output.shape, norm.attrs["axis"]
    views = [s for s in steps if s.op != "CAST"]
    if len(views) > 1:
        return
    chain = [] if node.output.dtype == _F32 else [_Step("CAST", {"saturate": True}, node.output.shape, node.output.dtype)]
    other = build.widened(other)
    if views and views[0].op == "view.transpose":
        other = build.transposed(other, tuple(int(p) for p in np.argsort(views[0].attrs["perm"])))
        chain.append(_Step("view.transpose", views[0].attrs, node.output.shape, _F32))
    elif views:
        fine = _refinement(whole, node.output.shape)
        found = None if fine is None else _axis_in(fine, prod(whole[:axis]))
        if fine is None or found is None:
            return
        axis = found
        inputs = [
            None if t is None else build.reshaped(t, fine if i == 0 else _refined(t.shape, whole, fine)) for i, t in enumerate(inputs)
        ]
        other = build.reshaped(other, _refined(other.shape, node.output.shape, fine))
        if fine != node.output.shape:
            chain.append(_Step("view.reshape", {}, node.output.shape, _F32))
    inputs[place] = other
    build.place(inputs, {**norm.attrs, "axis": axis}, norm.onnx_op, chain)


def _refinement(first: Shape, second: Shape) -> Shape | None:
    """The fewest axes of which those of both shapes consist."""
    if 0 in first:
        return None
    ends = sorted({prod(s[:k]) for s in (first, second) for k in range(len(s) + 1)})
    if any(high % low for low, high in pairwise(ends)):
        return None
    fine = tuple(high // low for low, high in pairwise(ends)) or (1,)
    if fine == tuple(d for d in second if d != 1):
        return second
    return fine if len(fine) <= len(first) + len(second) else None


def _axis_in(shape: Shape, before: int) -> int | None:
    """The axis that has `before` elements before it."""
    return next((k for k in range(len(shape)) if prod(shape[:k]) == before), None)


def _refined(operand: Shape, whole: Shape, fine: Shape) -> Shape:
    """The shape of a broadcast operand of a tensor `whole` beside the tensor with axes `fine`."""
    out, axis, done = [], 0, 1
    for dim in fine:
        while axis < len(whole) and dim != 1 and whole[axis] == 1:
            axis += 1
        out.append(1 if dim == 1 or operand[axis] == 1 else dim)
        done *= dim
        if dim != 1 and done == whole[axis]:
            axis, done = axis + 1, 1
    return tuple(out)
