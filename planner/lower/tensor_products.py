"""Einsum, said as products that have kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from aspen_mp.planner.frontends import equations
from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.lower.builder import Builder, NoKernel, require_f32
from aspen_mp.planner.lower.elementwise import data
from aspen_mp.planner.lower.registry import rule


@rule("Einsum")
def _einsum(b: Builder, node: Node) -> Tensor:
    """One or two operands without diagonals: transpose, sum, multiply matrices."""
    tensors = [data(node, k) for k in range(len(node.inputs))]
    require_f32(*tensors)
    terms, result = equations.parse(node.attrs["equation"], [len(t.shape) for t in tensors])
    if len(tensors) > 2 or any(len(set(t)) != len(t) for t in (*terms, result)) or any(t.size == 0 for t in tensors):
        raise NoKernel("the equation has more than two operands, a diagonal, or nothing")
    sizes = equations.sizes(terms, [t.shape for t in tensors])
    tensors, terms = _without_repeated(b, tensors, terms, sizes)
    if len(tensors) == 1:
        out, letters = _summed(b, tensors[0], terms[0], result)
        return b.transpose(out, [letters.index(c) for c in result])
    others = [set(terms[1]), set(terms[0])]
    x, left = _summed(b, tensors[0], terms[0], "".join(others[0]) + result)
    y, right = _summed(b, tensors[1], terms[1], "".join(others[1]) + result)
    batch = [c for c in left if c in right and c in result]
    inner = [c for c in left if c in right and c not in result]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    a = _matrix(b, x, left, (batch, rows, inner), sizes)
    c = _matrix(b, y, right, (batch, inner, columns), sizes)
    order = [*batch, *rows, *columns]
    out = b.reshape(b.gemm(a, c), [sizes[k] for k in order])
    return b.transpose(out, [order.index(k) for k in result])


def _without_repeated(b: Builder, tensors: list[Tensor], terms: list[str], sizes: dict[str, int]) -> tuple[list[Tensor], list[str]]:
    """Operands without their axes of length 1 that another operand has longer. A product ignores such an axis, and sums are taken once,
    over the other's."""
    kept, letters = [], []
    for tensor, term in zip(tensors, terms, strict=True):
        axes = [k for k, letter in enumerate(term) if tensor.shape[k] == sizes[letter]]
        kept.append(b.reshape(tensor, [tensor.shape[k] for k in axes]))
        letters.append("".join(term[k] for k in axes))
    return kept, letters


def _summed(b: Builder, tensor: Tensor, term: str, wanted: str) -> tuple[Tensor, str]:
    """The tensor summed over the letters that nobody wants."""
    axes = [k for k, letter in enumerate(term) if letter not in wanted]
    if not axes:
        return tensor, term
    return b.reduce("SUM", tensor, axes, keepdims=False), "".join(c for c in term if c in wanted)


def _matrix(b: Builder, tensor: Tensor, letters: str, groups: Sequence[Sequence[str]], sizes: dict[str, int]) -> Tensor:
    """A tensor as a batch of matrices: one axis a group of letters, no batch axis where there is none."""
    moved = b.transpose(tensor, [letters.index(c) for group in groups for c in group])
    shape = [prod(sizes[c] for c in group) for group in groups]
    return b.reshape(moved, shape if groups[0] else shape[1:])
