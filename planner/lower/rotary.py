"""RotaryEmbedding (opset 23): pairs of coordinates turned by angles that depend on the position (arXiv:2104.09864).

With x seen as pairs, out = x · cos + (x with the members of each pair swapped) · (−sin, sin). Swapping is a view with a negative stride,
so the operator is two element-wise kernels, whichever coordinates make a pair.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.lower.builder import F32, Builder, NoKernel, require_f32
from aspen_mp.planner.lower.elementwise import data, optional
from aspen_mp.planner.lower.registry import rule


@rule("RotaryEmbedding")
def _rotary_embedding(b: Builder, node: Node) -> Tensor:
    x, cos, sin, positions = data(node), data(node, 1), data(node, 2), optional(node, 3)
    require_f32(x, cos, sin)
    shape = x.shape
    if len(shape) == 3:  # [batch, tokens, heads · d] → [batch, tokens, heads, d]
        heads = int(node.attrs.get("num_heads", 0))
        if heads < 1 or shape[2] % heads:
            raise NoKernel(f"{heads} heads do not divide {shape[2]} columns")
        x = b.reshape(x, (*shape[:2], heads, shape[2] // heads))
    if len(x.shape) != 4 or 0 in x.shape:
        raise NoKernel("the input is not [batch, heads, tokens, d]")
    tokens, place = (1, 2) if len(shape) == 3 else (2, 1)  # the axis of tokens; where the axis of heads belongs in the angles
    width = int(node.attrs.get("rotary_embedding_dim", 0)) or x.shape[3]
    half = width // 2
    tables = []
    for whole in (cos, sin):
        table = whole if positions is None else b.emit("GATHER", [whole, positions], (*positions.shape, whole.shape[-1]), F32, axis=0)
        if len(table.shape) != 3 or table.shape[1:] != (x.shape[tokens], half) or width > x.shape[3] or width % 2:
            raise NoKernel(f"angles {list(table.shape)} do not fit {list(x.shape)}")
        tables.append(b.reshape(table, (*table.shape[:place], 1, *table.shape[place:])))
    turned = b.slice(x, (0,) * 4, (1,) * 4, (*x.shape[:3], width))
    y = turn(b, turned, tables[0], tables[1], interleaved=bool(node.attrs.get("interleaved", 0)))
    if width < x.shape[3]:
        rest = b.slice(x, (0, 0, 0, width), (1,) * 4, (*x.shape[:3], x.shape[3] - width))
        y = b.concat([y, rest], 3)
    return b.reshape(y, shape)


def turn(b: Builder, x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """x [.., d]; cos and sin [.., d / 2] broadcast to it. Pairs are (k, k + d / 2), or (2 k, 2 k + 1) if `interleaved`."""
    lead, half = x.shape[:-1], x.shape[-1] // 2
    axis = len(lead) + 1 if interleaved else len(lead)  # the members of a pair
    rank = len(lead) + 2
    pairs = b.reshape(x, (*lead, half, 2) if interleaved else (*lead, 2, half))
    sign_shape = (2,) if interleaved else (2, 1)
    signs = b.once(None, f"signs{sign_shape}", lambda: b.constant(np.array([-1.0, 1.0], np.float32).reshape(sign_shape)))

    def angles(table: Tensor, signed: bool) -> Tensor:
        wide = b.reshape(table, (*table.shape[:-1], half, 1) if interleaved else (*table.shape[:-1], 1, half))
        if not signed:
            return wide
        return b.constant(wide.value() * signs.value()) if table.is_const else b.binary("MUL", wide, signs)

    def paired(table: Tensor, signed: bool) -> Tensor:
        make = partial(angles, table, signed)
        return b.once(table, f"rotation{interleaved}{signed}", make) if table.is_const else make()

    starts, steps = [int(a == axis) for a in range(rank)], [-1 if a == axis else 1 for a in range(rank)]
    other = b.binary("MUL", b.slice(pairs, starts, steps, pairs.shape), paired(sin, True))
    return b.reshape(b.ternary("FMA", pairs, paired(cos, False), other), x.shape)
