"""Small graphs, each with something that plans must get right, and tilings of them at random."""

from __future__ import annotations

from typing import Any

import numpy as np
from graphs_by_hand import GraphBuilder

from aspen_mp.planner.ir.graph import Graph, Tensor
from aspen_mp.planner.layout.grids import TILE_AXES, Grid
from aspen_mp.planner.layout.storage import Storage
from aspen_mp.planner.ops.params import NO_ACT
from aspen_mp.planner.ops.products import run_time_panels
from aspen_mp.planner.ops.table import SPECS
from aspen_mp.planner.passes.precision.bf16 import use_bf16
from aspen_mp.planner.passes.precision.bf16_storage import BF16, store_as_bf16


def random_grids(seed: int, pieces: int = 3):
    """A tile policy that cuts every axis that may be cut anywhere."""

    def choose(storage: Storage, workers: int) -> list[Grid]:
        rng = np.random.default_rng(seed)
        grids = []
        for node in storage.steps:
            shape = node.output.shape
            fixed = SPECS[node.op].whole_axes(node)
            cuts = []
            for axis, d in enumerate(shape[:TILE_AXES]):
                points = {0, d}
                if axis not in fixed and d > 1 and node.op != "OPAQUE":
                    points |= set(rng.integers(1, d, rng.integers(0, pieces)).tolist())
                cuts.append(np.array(sorted(points), np.int64))
            if 0 in shape:
                cuts = [np.zeros(1, np.int64) for _ in cuts]
            grids.append(Grid(shape, tuple(cuts), tuple(rng.permutation(len(cuts)).tolist())))
        return grids

    return choose


def residual_block(b: GraphBuilder) -> Graph:
    x = b.input(1, 3, 12, 12)
    y = b.conv(x, 32)
    y = b.pool(b.unary(y))
    z = b.conv(b.conv(y, 8, kernel=1), 32, residual=y)
    z = b.conv(b.unary(z), 40, stride=2)
    z = b.reduce(z, (2, 3))
    return b.graph(b.linear(b.reshape(z, 1, 40), 10))


def blocks(b: GraphBuilder) -> Graph:
    """Winograd blocks of several sides and kernels, odd images, pads that differ, a residual."""
    x = b.input(2, 3, 11, 13)
    y = b.wino(x, 33, 4)
    z = b.wino(b.unary(y), 5, 2, (0, 1, 2, 0))
    y = b.wino(y, 33, 2, residual=y)
    v = b.wino(b.wino(z, 34, 4, (2, 0, 2, 0), kernel=(5, 1)), 6, 3, (0, 1, 1, 1), stride=2)
    return b.graph(b.wino(b.pool(y), 7, 4, (2, 2, 0, 1)), b.wino(z, 4, 6), b.wino(v, 3, 6, (0, 3, 0, 3), kernel=(1, 7)))


def dense_block(b: GraphBuilder) -> Graph:
    x = b.conv(b.input(2, 3, 8, 8), 16)
    features = [x]
    for _ in range(4):
        cat = b.concat(features, 1) if len(features) > 1 else features[0]
        features.append(b.conv(b.conv(b.unary(cat), 16, kernel=1), 8))
    return b.graph(b.pool(b.concat(features, 1), mode="average"))


def nested_concats(b: GraphBuilder) -> Graph:
    x = b.conv(b.input(1, 3, 6, 6), 8)
    for _ in range(3):
        x = b.concat([x, b.conv(x, 4)], 1)
    return b.graph(b.conv(x, 5, kernel=1))


def attention(b: GraphBuilder) -> Graph:
    s, h, d = 6, 3, 4
    x = b.input(2, s, h * d)
    q, k, v = (b.transpose(b.reshape(b.linear(x, h * d), 2, s, h, d), 0, 2, 1, 3) for _ in range(3))
    p = b.softmax(b.matmul(q, b.transpose(k, 0, 1, 3, 2)))
    y = b.reshape(b.transpose(b.matmul(p, v), 0, 2, 1, 3), 2, s, h * d)
    y = b.norm(b.linear(y, h * d, residual=x))
    return b.graph(b.linear(b.unary(b.linear(y, 48)), h * d, residual=y))


def image_as_tokens(b: GraphBuilder) -> Graph:
    """An image is summed, and its pixels are rows of products; a sum of it and of what is row-major, too."""
    x = b.binary(b.input(1, 18, 6, 7), b.input(1, 18, 6, 7))
    tokens = b.transpose(b.reshape(x, 1, 18, 42), 0, 2, 1)
    moved = b.binary(tokens, b.input(1, 42, 18))
    return b.graph(b.linear(moved, 34), b.binary(b.linear(tokens, 18), moved))


def inverted_residuals(b: GraphBuilder) -> Graph:
    x = b.conv(b.input(2, 3, 13, 11), 8, stride=2)
    x = b.conv(b.stack(x, 40), 8, kernel=1, residual=x)
    return b.graph(b.conv(b.stack(x, 70, kernel=5, stride=2), 16, kernel=1))


def depthwise(b: GraphBuilder) -> Graph:
    x = b.conv(b.input(1, 3, 9, 9), 24, stride=2)
    y = b.conv(b.dwconv(b.conv(x, 48, kernel=1)), 24, kernel=1, residual=x)
    gate = b.conv(b.unary(b.conv(b.reduce(y, (2, 3)), 8, kernel=1), "TANH"), 24, kernel=1)
    y = b.binary(y, gate, "MUL")
    return b.graph(b.transpose(b.reshape(y, 1, 24, 25), 0, 2, 1), y)


def odd_outputs(b: GraphBuilder) -> Graph:
    x = b.input(2, 6)
    y = b.linear(x, 8)
    backwards = b.slice(y, (0, 7), (1, -2), (2, 4))
    repeated = b.expand(b.slice(x, (0, 0), (1, 1), (1, 6)), 4, 6)
    return b.graph(x, y, y, b.const(3, 3), b.transpose(y, 1, 0), backwards, repeated)


def concat_shapes(b: GraphBuilder) -> Graph:
    x = b.input(1, 4, 5, 5)
    c = b.conv(x, 8)
    heads = [b.reshape(b.transpose(b.conv(t, 6), 0, 2, 3, 1), 1, t.shape[2] * t.shape[3] * 2, 3) for t in (c, b.pool(c))]
    return b.graph(b.concat(heads, 1), b.concat([c, x, c, b.const(1, 2, 5, 5)], 1))


def shuffle(b: GraphBuilder) -> Graph:
    x = b.conv(b.input(1, 3, 6, 6), 16)
    left, right = b.slice(x, (0,) * 4, (1,) * 4, (1, 8, 6, 6)), b.slice(x, (0, 8, 0, 0), (1,) * 4, (1, 8, 6, 6))
    y = b.concat([left, b.conv(right, 8)], 1)
    y = b.reshape(b.transpose(b.reshape(y, 1, 2, 8, 6, 6), 0, 2, 1, 3, 4), 1, 16, 6, 6)
    return b.graph(b.conv(y, 4, groups=2))


def sequence_ops(b: GraphBuilder) -> Graph:
    x = b.input(3, 7)
    y = b.cumsum(b.pad(b.gather(x, (6, 0, 3, 3), 1), (1, 0), (0, 2)), 0)
    return b.graph(b.softmax(y, 0), b.concat([x, b.gather(x, (2, 0), 0)], 0))


def norms(b: GraphBuilder) -> Graph:
    """Over channels that are not last, over groups of them, with scale and shift that are computed."""
    x = b.conv(b.input(1, 3, 6, 7), 16)
    y = b.transpose(b.norm(b.transpose(x, 0, 2, 3, 1)), 0, 3, 1, 2)
    z = b.reshape(x, 1, 4, 4, 6, 7)
    z = b.node("NORM", [z, b.const(1, 4, 4, 1, 1), b.const(1, 4, 4, 1, 1)], z.shape, axis=2, mode="layer", eps=1e-3)
    w, c = b.linear(b.input(2, 5, 12), 12), b.input(2, 1, 12)
    w = b.node("NORM", [w, b.linear(c, 12), b.linear(c, 12)], w.shape, axis=2, mode="layer", eps=1e-3)
    return b.graph(b.conv(y, 8), b.conv(b.unary(b.reshape(z, 1, 16, 6, 7)), 8), b.linear(w, 9))


def images(b: GraphBuilder) -> Graph:
    """Groups of channels over all pixels, in blocks that are no rows."""

    def standardized(x: Tensor, blocks: int, groups: int, *factors: Tensor | None) -> Tensor:
        moments = b.node("MOMENTS", [x], (x.shape[0], blocks, groups, 2), np.float64)
        return b.node("STANDARDIZE", [x, moments, *factors], x.shape, eps=1e-3, act=("RELU", 0.0, 0.0))

    x = b.conv(b.input(2, 3, 7, 9), 32)
    y = standardized(x, 5, 4, b.const(1, 32), b.const(1, 32))
    z = standardized(b.conv(y, 16, stride=2), 3, 16, b.reshape(b.reduce(b.conv(y, 16), (2, 3)), 2, 16), None, b.conv(y, 16, stride=2))
    return b.graph(b.conv(z, 5), standardized(b.input(1, 6, 40), 7, 1))


def sampled(b: GraphBuilder) -> Graph:
    """Images read between their pixels, between convolutions, of few channels, and as rows."""
    grid = {"mode": "linear", "padding": "zeros", "align_corners": False}
    x = b.conv(b.input(2, 3, 9, 8), 16)
    y = b.node("GRIDSAMPLE", [x, b.input(2, 5, 6, 2)], (2, 16, 5, 6), **grid)
    which = Tensor("which", (7,), np.dtype(np.int64), data=np.array([1, 0, 1, 0, 0, 0, 1]))
    z = b.node("ROIALIGN", [x, b.input(7, 4), which], (7, 16, 3, 2), mode="avg", ratio=2, scale=1.0, half_pixel=True)
    window = {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1, 1)}
    read = b.node("DEFORM", [x, b.conv(x, 18), None], (2, 144, 9, 8), groups=1, parts=1, **window)
    few = b.node("GRIDSAMPLE", [b.slice(x, (0,) * 4, (1,) * 4, (2, 3, 9, 8)), b.input(2, 4, 5, 2)], (2, 3, 4, 5), **grid)
    return b.graph(b.conv(y, 8), b.linear(b.reshape(z, 7, 96), 9), b.conv(read, 8, kernel=1), few)


def fitting_levels(b: GraphBuilder) -> Graph:
    """Scale and zero point of all of a tensor, which the bytes of each of its elements wait for."""

    def quantised(x: Tensor, axis: int, blocks: int) -> Tensor:
        scale = b.node("QPARAMS", [b.node("MINMAX", [x], (blocks, 2), axis=axis)], ())
        assert scale.producer is not None
        zero = Tensor(f"{scale.name} zero", (), np.dtype(np.uint8), producer=scale.producer)
        scale.producer.outputs.append(zero)
        ones = (1,) * len(x.shape)
        beside = b.reshape(scale, *ones), b.reshape(zero, *ones)
        return b.node("DEQUANTIZE", [b.node("QUANTIZE", [x, *beside], x.shape, np.uint8, times=False), *beside], x.shape)

    x = b.conv(b.input(1, 3, 7, 9), 32)
    return b.graph(b.conv(quantised(x, 2, 5), 8), b.unary(quantised(b.linear(b.input(2, 7, 12), 24), 1, 7)))


def strassen_products(b: GraphBuilder) -> Graph:
    x = b.input(2, 7, 24)
    y = b.by_strassen(b.norm(x), 80)
    return b.graph(b.by_strassen(b.unary(y), 24), b.by_strassen(b.transpose(x, 1, 0, 2), 96))


def products_of_bytes(b: GraphBuilder) -> Graph:
    """With zero points of rows that are computed, a residual, a gate, rows that are columns elsewhere, and the sums themselves."""
    x = b.input(2, 7, 24)
    zero = b.whole(b.reduce(x, (2,)), np.uint8)
    y = b.by_bytes(b.whole(x, np.uint8), 80, zero=zero)
    z = b.by_bytes(b.whole(y, np.int8), 24, residual=x, columns=False)
    gated = b.by_bytes(b.transpose(b.whole(z, np.uint8), 1, 0, 2), 33, residual=b.linear(b.transpose(x, 1, 0, 2), 33))
    assert gated.producer is not None
    gated.producer.attrs.update(residual_last=True, gated=True)
    sums = b.by_bytes(b.whole(b.transpose(y, 0, 2, 1), np.int8), 40, dtype=np.int32)
    return b.graph(gated, sums, b.node("CAST", [sums], sums.shape, saturate=True))


def products_of_batches_of_bytes(b: GraphBuilder) -> Graph:
    """Of activations, each with factors of its own: rows and columns that are those of other axes elsewhere, a bias, bytes, sums."""

    def product(x: Tensor, y: Tensor, **attrs: Any) -> Tensor:
        panels = b.node("QPACK", [y], (*y.shape[:-2], *run_time_panels(*y.shape[-2:])), np.int8, granules=(32, 4))
        shape = (*x.shape[:-1], y.shape[-1])
        if attrs.get("dtype"):
            return b.node("QMATMUL", [x, panels], shape, np.int32, zeros=True, act=NO_ACT)
        beside = [b.const(1, 1, 1, y.shape[-1], weight=True), None, b.const(1, 1, 1, 1)]
        return b.node("QMATMUL", [x, panels, *beside], shape, zeros=True, act=NO_ACT)

    x = b.input(2, 7, 3, 20)
    heads = b.whole(b.transpose(x, 0, 2, 1, 3), np.uint8)
    scores = product(heads, b.transpose(b.whole(b.transpose(x, 0, 2, 1, 3), np.int8), 0, 1, 3, 2))
    seen = product(b.whole(scores, np.uint8), heads)
    return b.graph(seen, product(b.whole(seen, np.int8), b.transpose(heads, 0, 1, 3, 2), dtype=np.int32))


def products_of_bits(b: GraphBuilder) -> Graph:
    """Weights of 4 bits: one row, rows that are columns elsewhere, a residual and a gate, terms that fill no block."""
    x = b.input(2, 7, 24)
    y = b.by_bits(b.unary(x), 80)
    z = b.by_bits(y, 24, residual=x, points=False)
    gated = b.by_bits(b.transpose(z, 1, 0, 2), 33, residual=b.linear(b.transpose(x, 1, 0, 2), 33))
    assert gated.producer is not None
    gated.producer.attrs.update(residual_last=True, gated=True)
    one = b.by_bits(b.reduce(gated, (0, 1)), 70, bias=False)
    return b.graph(gated, one, b.by_bits(b.transpose(y, 0, 2, 1), 40))


def images_of_bytes(b: GraphBuilder) -> Graph:
    """With a zero point that is computed, a residual, windows with holes, bytes that are made of bytes, and the sums themselves."""
    x = b.input(2, 3, 9, 8)
    zero = b.reshape(b.whole(b.reduce(x, (0, 1, 2, 3)), np.uint8), 1)
    y = b.conv_bytes(b.whole(x, np.uint8), 40, zero=zero)
    z = b.conv_bytes(b.whole(y, np.int8), 3, kernel=(1, 1), residual=x, columns=False)
    small = b.conv_bytes(b.whole(z, np.uint8), 33, kernel=(3, 2), stride=2, dtype=np.uint8)
    late = b.conv_bytes(small, 40, dilation=2, residual=b.conv(z, 40, stride=2), columns=False)
    assert late.producer is not None
    assert small.shape[2:] == (5, 4)
    late.producer.attrs.update(residual_last=True)
    sums = b.conv_bytes(small, 5, kernel=(1, 1), stride=2, dtype=np.int32)
    return b.graph(late, sums, b.node("CAST", [small], small.shape, saturate=True))


def depthwise_bytes(b: GraphBuilder) -> Graph:
    """Channels by themselves: a computed zero point, bytes made of bytes, a residual, several outputs a channel, sums themselves."""
    x = b.input(2, 40, 9, 8)
    zero = b.reshape(b.whole(b.reduce(x, (0, 1, 2, 3)), np.uint8), 1)
    y = b.conv_bytes(b.whole(x, np.uint8), 40, (5, 3), zero=zero, dtype=np.uint8, depthwise=True)
    z = b.conv_bytes(y, 40, (3, 3), residual=x, columns=False, depthwise=True)
    more = b.conv_bytes(b.whole(z, np.int8), 80, (3, 3), stride=2, dilation=2, columns=False, depthwise=True)
    return b.graph(more, b.conv_bytes(y, 40, (1, 1), dtype=np.int32, depthwise=True))


def products_of_pairs(b: GraphBuilder) -> Graph:
    """Rounded factors: odd numbers of terms and channels, windows with strides and padding, rows that are columns elsewhere, a gate."""
    x = b.input(2, 17, 9, 8)
    y = b.conv(x, 40)
    z = b.conv(b.conv(y, 33, stride=2), 17, kernel=1, residual=b.conv(x, 17, stride=2))
    late = b.conv(z, 40, kernel=5, residual=b.conv(y, 40, kernel=1, stride=2))
    assert late.producer is not None
    late.producer.attrs.update(residual_last=True)
    rows = b.transpose(b.reshape(late, 2, 40, 20), 0, 2, 1)
    gated = b.linear(b.linear(rows, 33), 33, residual=b.linear(b.unary(rows), 33))
    assert gated.producer is not None
    gated.producer.attrs.update(residual_last=True, gated=True)
    graph = b.graph(late, gated, b.linear(b.reduce(gated, (0, 1)), 70), b.linear(b.transpose(gated, 1, 0, 2), 50))
    use_bf16(graph)
    ops = {node.op for node in graph.nodes}
    assert ops >= {"BGEMM", "BCONV"}
    assert not ops & {"GEMM", "CONV"}
    return graph


def stored_pairs(b: GraphBuilder) -> Graph:
    """Activations that are stored as bf16, also through depthwise convolutions, joins and views."""
    y = b.conv(b.input(2, 17, 9, 8), 40)
    z = b.conv(b.dwconv(b.conv(y, 48, kernel=1)), 40, kernel=1, residual=y)
    joined = b.conv(b.concat([y, b.conv(z, 33)], 1), 40, stride=2)
    rows = b.linear(b.transpose(b.reshape(joined, 2, 40, 20), 0, 2, 1), 64)
    graph = b.graph(b.linear(b.linear(rows, 33), 64, residual=rows), b.conv(z, 40))
    use_bf16(graph)
    store_as_bf16(graph)
    made = [t for node in graph.nodes for t in node.outputs]
    assert {t for t in made if t.dtype != BF16} == set(graph.outputs)
    return graph


def scalars(b: GraphBuilder) -> Graph:
    x = b.input()
    return b.graph(b.binary(b.unary(x), b.const()), b.reshape(x, 1, 1))


def empty(b: GraphBuilder) -> Graph:
    x, z = b.input(2, 3), b.input(0, 3)
    return b.graph(b.unary(z), b.concat([x, z], 0), b.reduce(b.unary(z), (0,)))


GRAPHS = [
    residual_block,
    dense_block,
    nested_concats,
    attention,
    depthwise,
    inverted_residuals,
    odd_outputs,
    concat_shapes,
    shuffle,
    strassen_products,
]
GRAPHS += [sequence_ops, scalars, empty, blocks, norms, images, sampled, image_as_tokens, fitting_levels]
GRAPHS += [products_of_bytes, products_of_batches_of_bytes, images_of_bytes, depthwise_bytes, products_of_bits, products_of_pairs]
GRAPHS += [stored_pairs]
