"""Attention: softmax of masked, scaled products, times values, becomes one ATTENTION node.

The pattern is read from the last product upwards. The tables below list the nodes that may stand between it and the first, one row a
spelling. Views (heads split off, merged with the batch, or transposed) may stand anywhere between. Nothing between the two products may
have another reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Graph, Node, Shape, Tensor
from aspen_mp.planner.ops.params import NO_ACT
from aspen_mp.planner.passes.patterns.match import Call, Match, Number, Operand, closed, matches
from aspen_mp.planner.passes.rewrite import Rewriter, no_act

S, MASK, KEEP = Operand("scores"), Operand("mask"), Operand("keep")

GUARDS = {
    "nan": Call("TERNARY", "WHERE", (Call("UNARY", "ISNAN", (S,)), Number(0.0), S)),  # PyTorch: rows that are masked everywhere give zeros
}
"""Nodes that may follow the softmax: name of ATTENTION's guard → spelling."""

MASKS = {
    "added": Call("BINARY", "ADD", (S, MASK), either=True),  # BERT, TensorFlow: 0 or a large negative number
    "subtracted": Call("BINARY", "SUB", (S, MASK)),
    "kept": Call("TERNARY", "WHERE", (MASK, S, Number(name="fill"))),  # GPT-2
    "dropped": Call("TERNARY", "WHERE", (MASK, Number(name="fill"), S)),  # masked_fill
    "mixed": Call("BINARY", "SUB", (Call("BINARY", "MUL", (S, KEEP), either=True), MASK)),  # early GPT-2: s b - 10000 (1 - b)
}
"""Nodes that may come between the scores and the softmax, any number of times."""

CAPS = {
    "tanh": Call("BINARY", "MUL", (Call("UNARY", "TANH", (S,)), Number(name="cap")), either=True),
}
"""Soft limits of the scores, before masks. The division by the limit counts as a scale."""

SCALES = {
    "multiplied": Call("BINARY", "MUL", (S, Number(name="factor")), either=True),
    "divided": Call("BINARY", "DIV", (S, Number(name="divisor"))),
}
"""Scales that the product has not absorbed yet, because views stand between."""

NEVER = -1e30
"""An addend that no score matters beside: the sum is the addend."""
_MOST = 1 << 26  # bytes of a constant mask that are looked at


@dataclass(frozen=True, slots=True)
class Mask:
    """One of MASKS and the tensors of its names; `lead`: leading axes of the scores there."""

    spelling: str
    tensor: Tensor
    keep: Tensor | None
    fill: float
    lead: Shape


@dataclass(frozen=True, slots=True)
class Found:
    """The result of reading so far. ``masks``: from the softmax upwards. ``swapped``: keys times queries, transposed afterwards."""

    nodes: tuple[Node, ...]
    guard: str = "none"
    masks: tuple[Mask, ...] = ()
    cap: float = 0.0
    scale: float = 1.0
    swapped: bool = False
    product: Node | None = None

    def over(self, nodes: Sequence[Node], **changes: Any) -> Found:
        return replace(self, nodes=(*self.nodes, *nodes), **changes)


def fuse_attention(graph: Graph) -> None:
    rewriter = Rewriter(graph)
    builder = _Builder(rewriter)
    for node in rewriter.live():
        if rewriter.alive(node) and _plain_product(node) and node.attrs["alpha"] == 1.0:
            for found in _probabilities(rewriter, node.inputs[0], Found((node,))):
                if closed(rewriter, found.nodes) and builder.build(node, found):
                    break
    rewriter.finish()


def _plain_product(node: Node) -> bool:
    return node.op == "GEMM" and not node.attrs["packed_b"] and len(node.inputs) == 2 and no_act(node)


# ------------------------------------------------------------------------------------------------------------------ reading


def _lead_view(rewriter: Rewriter, tensor: Tensor | None) -> Node | None:
    """A reshape that leaves the last two axes alone."""
    node = rewriter.made_by(tensor, "view.reshape")
    source = node.inputs[0] if node is not None else None
    if node is None or source is None or len(source.shape) < 2 or len(node.output.shape) < 2:
        return None
    return node if source.shape[-2:] == node.output.shape[-2:] else None


def _probabilities(rewriter: Rewriter, tensor: Tensor | None, found: Found) -> Iterator[Found]:
    view = _lead_view(rewriter, tensor)
    if view is not None:
        yield from _probabilities(rewriter, view.inputs[0], found.over([view]))
    if found.guard == "none":
        for guard, pattern in GUARDS.items():
            for m in matches(rewriter, tensor, pattern):
                yield from _probabilities(rewriter, m.tensors["scores"], found.over(m.nodes, guard=guard))
    softmax = rewriter.made_by(tensor, "SOFTMAX")
    if softmax is not None and not softmax.attrs["log"] and softmax.attrs["axis"] == len(softmax.output.shape) - 1:
        yield from _masked(rewriter, softmax.inputs[0], found.over([softmax]))


def _masked(rewriter: Rewriter, tensor: Tensor | None, found: Found) -> Iterator[Found]:
    if tensor is None or len(tensor.shape) < 2:
        return
    view = _lead_view(rewriter, tensor)
    if view is not None:
        yield from _masked(rewriter, view.inputs[0], found.over([view]))
    for spelling, pattern in MASKS.items():
        for m in matches(rewriter, tensor, pattern):
            scores = m.tensors["scores"]
            if scores.shape == tensor.shape:
                mask = Mask(spelling, m.tensors["mask"], m.tensors.get("keep"), m.numbers.get("fill", -inf), tensor.shape[:-2])
                yield from _masked(rewriter, scores, found.over(m.nodes, masks=(*found.masks, mask)))
    for pattern in CAPS.values():
        for m in matches(rewriter, tensor, pattern):
            cap = m.numbers["cap"]
            if cap > 0.0 and m.tensors["scores"].shape == tensor.shape:
                yield from _scaled(rewriter, m.tensors["scores"], found.over(m.nodes, cap=cap, scale=cap))
    yield from _scaled(rewriter, tensor, found)


def _scaled(rewriter: Rewriter, tensor: Tensor | None, found: Found) -> Iterator[Found]:
    if tensor is None:
        return
    view = _lead_view(rewriter, tensor)
    if view is not None:
        yield from _scaled(rewriter, view.inputs[0], found.over([view]))
    turned = rewriter.made_by(tensor, "view.transpose")
    if turned is not None and tuple(turned.attrs["perm"]) == _swapped(len(tensor.shape)):
        yield from _scaled(rewriter, turned.inputs[0], found.over([turned], swapped=not found.swapped))
    for pattern in SCALES.values():
        for m in matches(rewriter, tensor, pattern):
            factor = _factor(m)
            if m.tensors["scores"].shape == tensor.shape and isfinite(factor):
                yield from _scaled(rewriter, m.tensors["scores"], found.over(m.nodes, scale=found.scale * factor))
    product = rewriter.made_by(tensor, "GEMM")
    if product is not None and _plain_product(product):
        yield found.over([product], scale=found.scale * product.attrs["alpha"], product=product)


def _factor(m: Match) -> float:
    divisor = m.numbers.get("divisor", 1.0)
    return m.numbers.get("factor", 1.0) / divisor if divisor else inf


def _swapped(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


# ---------------------------------------------------------------------------------------------------------------- rewriting


@dataclass(slots=True)
class _Masking:
    """ATTENTION's parameters about masks."""

    causal: bool = False
    offset: int = 0
    fill: float = -inf
    fixed: bool = False
    """`fill` has been decided."""
    mask: Tensor | None = None
    mask_first: bool = False

    def takes(self, fill: float) -> bool:
        """Whether this fill can be the node's."""
        if self.fixed and self.fill != fill:
            return False
        self.fill, self.fixed = fill, True
        return True


class _Builder:
    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self.values: dict[Tensor, npt.NDArray[Any] | None] = {}
        self.at: Node | None = None

    def build(self, root: Node, found: Found) -> bool:
        """Rewrites `root`, or says that it cannot be said with one ATTENTION."""
        assert found.product is not None
        self.at = root
        q, b, values = found.product.inputs[0], found.product.inputs[1], root.inputs[1]
        assert q is not None
        assert b is not None
        assert values is not None
        product_lead, root_lead = found.product.output.shape[:-2], root.output.shape[:-2]
        leads = {m.lead for m in found.masks} or {product_lead}
        if len(leads) != 1 or root.inputs[0] is None or root.inputs[0].shape[:-2] != root_lead:
            return False
        lead = leads.pop()
        if not prod(lead) == prod(product_lead) == prod(root_lead) or 0 in (*root.output.shape, q.shape[-1], b.shape[-1]):
            return False
        shapes = _in_lead(q.shape, product_lead, lead), _in_lead(b.shape, product_lead, lead), _in_lead(values.shape, root_lead, lead)
        if None in shapes or len(lead) > 6:
            return False
        if found.swapped:  # (K Q^T)^T
            queries, keys = self.turned(self.reshaped(b, shapes[1])), self.reshaped(q, shapes[0])
        else:
            queries, keys = self.reshaped(q, shapes[0]), self.turned(self.reshaped(b, shapes[1]))
        values = self.reshaped(values, shapes[2])
        masking = self.masking(found, (*lead, queries.shape[-2], keys.shape[-2]))
        if masking is None:
            return False
        self.finish(root, found, (queries, keys, values), masking, lead)
        return True

    def finish(self, root: Node, found: Found, operands: tuple[Tensor, Tensor, Tensor], masking: _Masking, lead: Shape) -> None:
        queries, keys, values = operands
        mask = masking.mask
        rows, columns = queries.shape[-2], values.shape[-1]
        grouped = self.grouped(keys, values, lead)
        if grouped is not None:  # one more axis: query heads that share a key head
            keys, values = grouped
            groups = lead[-1] // keys.shape[-4]
            lead = (*lead[:-1], keys.shape[-4], groups)
            queries = self.reshaped(queries, (*_split(queries.shape[:-2], groups), *queries.shape[-2:]))
            mask = None if mask is None else self.reshaped(mask, (*_split(mask.shape[:-2], groups), *mask.shape[-2:]))
        attrs = {
            "scale": found.scale,
            "causal": masking.causal,
            "offset": masking.offset,
            "fill": masking.fill,
            "softcap": found.cap,
            "guard": found.guard,
            "mask_first": masking.mask_first,
        }
        shape = (*lead, rows, columns)
        inputs = [queries, keys, values, mask]
        if shape == root.output.shape:
            self.rewriter.replace(root, "ATTENTION", inputs, attrs, "Attention")
        else:
            while inputs[-1] is None:
                inputs.pop()
            inner = self.rewriter.insert(root, "ATTENTION", inputs, shape, attrs)
            assert inner.producer is not None
            inner.producer.onnx_op = "Attention"
            self.rewriter.replace(root, "view.reshape", [inner], {})
            self.rewriter.skip_view(root)

    # ---------------------------------------------------------------------------------------------------------- operands

    def insert(self, op: str, inputs: Sequence[Tensor | None], shape: Shape, **attrs: Any) -> Tensor:
        assert self.at is not None
        return self.rewriter.insert(self.at, op, inputs, shape, attrs)

    def reshaped(self, tensor: Tensor, shape: Shape | None) -> Tensor:
        assert shape is not None
        if tensor.shape == shape:
            return tensor
        view = self.rewriter.made_by(tensor, "view.reshape")
        if view is not None and view.inputs[0] is not None:
            return self.reshaped(view.inputs[0], shape)
        return self.insert("view.reshape", [tensor], shape)

    def turned(self, tensor: Tensor) -> Tensor:
        """The last two axes swapped."""
        perm = _swapped(len(tensor.shape))
        view = self.rewriter.made_by(tensor, "view.transpose")
        if view is not None and view.inputs[0] is not None:
            source, perm = view.inputs[0], tuple(view.attrs["perm"][p] for p in perm)
            tensor = source
            if perm == tuple(range(len(perm))):
                return source
        return self.insert("view.transpose", [tensor], tuple(tensor.shape[p] for p in perm), perm=perm)

    def grouped(self, keys: Tensor, values: Tensor, lead: Shape) -> tuple[Tensor, Tensor] | None:
        """Keys and values before their heads were repeated, with an axis of 1 for the repeats."""
        k, v = self.repeated(keys), self.repeated(values)
        if k is None or v is None or k.shape[:-2] != v.shape[:-2] or len(k.shape) > 8 or len(lead) < 1 or k.shape[-4] == 0:
            return None
        fits = len(k.shape) == len(lead) + 3 and lead[-1] % k.shape[-4] == 0
        return (k, v) if fits else None

    def repeated(self, tensor: Tensor) -> Tensor | None:
        """x [.., H, 1, N, D] if the tensor is reshape(expand(x to [.., H, G, N, D])) to [.., H G, N, D]."""
        view = self.rewriter.made_by(tensor, "view.reshape")
        expand = self.rewriter.made_by(view.inputs[0], "view.expand") if view is not None else None
        source = expand.inputs[0] if expand is not None else None
        if expand is None or source is None or len(source.shape) < 4:
            return None
        wide = expand.output.shape
        if len(wide) != len(source.shape) or source.shape != (*wide[:-3], 1, *wide[-2:]):
            return None
        return source if tensor.shape == (*wide[:-4], wide[-4] * wide[-3], *wide[-2:]) else None

    # ------------------------------------------------------------------------------------------------------------- masks

    def constant(self, tensor: Tensor | None) -> npt.NDArray[Any] | None:
        """The value of a constant, also behind views and a cast."""
        if tensor is None or tensor.nbytes > _MOST:
            return None
        if tensor not in self.values:
            self.values[tensor] = self._constant(tensor)
        return self.values[tensor]

    def _constant(self, tensor: Tensor) -> npt.NDArray[Any] | None:
        if tensor.is_const:
            return tensor.value()
        node = self.rewriter.made_by(tensor, "view.slice", "view.expand", "view.reshape", "CAST")
        source = self.constant(node.inputs[0]) if node is not None else None
        if node is None or source is None:
            return None
        if node.op == "view.reshape":
            return source.reshape(tensor.shape)
        if node.op == "view.expand":
            return np.broadcast_to(source, tensor.shape)
        if node.op == "CAST":
            return source.astype(tensor.dtype) if tensor.dtype.kind == "b" else None
        a = node.attrs
        return source[np.ix_(*(s + t * np.arange(d) for s, t, d in zip(a["starts"], a["steps"], tensor.shape, strict=True)))]

    def masking(self, found: Found, shape: Shape) -> _Masking | None:
        """All masks as one causal mask and one tensor, or None."""
        out = _Masking()
        for mask in reversed(found.masks):  # in the order in which they apply
            ok = self.choose(out, mask, shape) if mask.spelling in {"kept", "dropped", "mixed"} else self.add(out, mask, shape)
            if not ok:
                return None
        return out

    def choose(self, out: _Masking, mask: Mask, shape: Shape) -> bool:
        """A mask that says which scores stay."""
        value, fill = self.constant(mask.tensor), mask.fill
        tensor: Tensor | None = mask.tensor
        if mask.spelling == "mixed":
            keep = self.constant(mask.keep)
            mixed = None if keep is None or value is None else _mixed(keep, value)
            if mixed is None:
                return False
            value, fill, tensor = *mixed, None
        elif mask.spelling == "dropped" and value is not None:
            value, tensor = ~value.astype(np.bool_), None
        if value is not None:
            if value.all():
                return True
            offset = causal_offset(value, shape)
            if offset is not None:
                return self.see_before(out, offset, fill)
        if tensor is None:
            tensor = Tensor(f"{mask.tensor.name}|kept", mask.tensor.shape, np.dtype(np.bool_), data=value) if value is not None else None
        elif mask.spelling == "dropped":
            tensor = self.insert("UNARY", [mask.tensor], mask.tensor.shape, opcode="NOT", a=0.0, b=0.0)
        if tensor is None or tensor.dtype != np.bool_:
            return False
        if out.mask is None:
            out.mask = tensor
            return out.takes(fill)
        wide = np.broadcast_shapes(out.mask.shape, tensor.shape)
        if out.mask.dtype == np.bool_:
            out.mask = self.insert("BINARY", [out.mask, tensor], wide, opcode="AND", act=NO_ACT)
            return out.takes(fill)
        if fill != -inf:
            return False
        out.mask = self.chosen(tensor, out.mask, wide)
        return True

    def add(self, out: _Masking, mask: Mask, shape: Shape) -> bool:
        """A mask that is added."""
        tensor, value = mask.tensor, self.constant(mask.tensor)
        if tensor.dtype != np.float32:
            return False
        if value is not None and mask.spelling == "added" and out.mask is None and not out.causal:
            kept = value == 0
            fills = np.unique(value[~kept]) if not kept.all() else value.reshape(-1)[:0]
            if fills.size == 0:
                return True
            offset = causal_offset(kept, shape)
            if offset is not None and fills.size == 1 and fills[0] < NEVER:
                return self.see_before(out, offset, float(fills[0]))
        if mask.spelling == "subtracted":
            tensor = self.insert("UNARY", [tensor], tensor.shape, opcode="NEG", a=0.0, b=0.0)
        if out.mask is None:
            out.mask = tensor
            return True
        wide = np.broadcast_shapes(out.mask.shape, tensor.shape)
        if out.mask.dtype == np.bool_:
            if out.fill != -inf:
                return False
            out.mask = self.chosen(out.mask, tensor, wide)
        else:
            if out.mask_first:
                return False
            out.mask = self.insert("BINARY", [out.mask, tensor], wide, opcode="ADD", act=NO_ACT)
        return True

    def see_before(self, out: _Masking, offset: int, fill: float) -> bool:
        out.offset = min(out.offset, offset) if out.causal else offset
        out.causal = True
        out.mask_first = out.mask is not None and out.mask.dtype != np.bool_
        return out.takes(fill)

    def chosen(self, keep: Tensor, addend: Tensor, shape: Shape) -> Tensor:
        """The addend where `keep`, else -inf."""
        below = Tensor("-inf", (1,) * len(shape), np.dtype(np.float32), data=np.full((1,) * len(shape), -inf, np.float32))
        assert self.at is not None
        out = self.rewriter.insert(self.at, "TERNARY", [keep, addend, below], shape, {"opcode": "WHERE", "act": NO_ACT})
        out.dtype = np.dtype(np.float32)
        return out


def _in_lead(shape: Shape, old: Shape, new: Shape) -> Shape | None:
    """The shape of a product's operand when the product's leading axes are `new` in place of `old`."""
    lead, own = shape[:-2], shape[-2:]
    if old == new:
        return shape
    if lead == old:
        return (*new, *own)
    return (*(1 for _ in new), *own) if all(d == 1 for d in lead) else None


def _split(lead: Shape, groups: int) -> Shape:
    """Leading axes with the last one, heads, cut into groups."""
    return (*lead[:-1], 1, 1) if lead[-1] == 1 else (*lead[:-1], lead[-1] // groups, groups)


def _mixed(keep: npt.NDArray[Any], mask: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], float] | None:
    """(kept, fill) if the mask is 0 where `keep` is 1, and one number where it is 0."""
    keep, mask = np.broadcast_arrays(keep, mask)
    kept = keep == 1
    fills = np.unique(mask[~kept])
    if fills.size != 1 or not bool(np.all(kept | (keep == 0))) or bool(np.any(mask[kept] != 0)):
        return None
    return kept, -float(fills[0])


def causal_offset(kept: npt.NDArray[Any], shape: Shape) -> int | None:
    """The offset if row i of the last two axes keeps columns up to i + offset, for all leading indices."""
    rows, keys = shape[-2:]
    if kept.ndim < 2 or kept.shape[-2:] != (rows, keys) or any(d != 1 for d in kept.shape[:-2]):
        return None
    kept = kept.reshape(rows, keys).astype(np.bool_)
    offset = int(kept[0].sum()) - 1
    if offset < 0:
        return None
    return offset if bool((kept == (np.arange(keys) <= np.arange(rows)[:, None] + offset)).all()) else None
