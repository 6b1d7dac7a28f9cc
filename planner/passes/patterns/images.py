"""Normalisations of images by groups of channels: GroupNormalization, InstanceNormalization and LayerNorm over whole images.

As NORM such a layer is a tile for each image and group, over axes that lie side by side only where channels precede pixels. MOMENTS and
STANDARDIZE take images as convolutions lay them out, and their tiles are pixels.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Graph, Node, Shape, Tensor
from aspen_mp.planner.ops.params import NO_ACT
from aspen_mp.planner.passes.patterns.match import FLOATS
from aspen_mp.planner.passes.patterns.norms import computed
from aspen_mp.planner.passes.rewrite import Rewriter

BLOCK_BYTES = 64 << 10
"""Pixels of one tile of MOMENTS, about, in bytes, unless that would be more than `MOST_BLOCKS`."""
MOST_BLOCKS = 64
"""Most blocks of an image: every tile of STANDARDIZE puts them together."""
_OPS = frozenset({"InstanceNormalization", "GroupNormalization", "LayerNormalization"})
_TOKENS = 3
"""The rank of a row of tokens, whose LayerNorm looks like an InstanceNormalization."""


def fuse_images(graph: Graph) -> None:
    """NORM over all pixels of groups of channels, views around it included, becomes MOMENTS and STANDARDIZE."""
    if not any(node.op == "NORM" for node in graph.nodes):
        return
    rewriter = Rewriter(graph)
    for node in rewriter.live():
        x = node.inputs[0] if node.inputs else None
        if node.op == "view.reshape" and rewriter.alive(node) and x is not None and rewriter.only_use(x):
            norm = rewriter.made_by(x, "NORM")
            if norm is not None:
                _replace(rewriter, node, norm)
    for node in rewriter.live():
        if node.op == "NORM" and rewriter.alive(node):
            _replace(rewriter, node, node)
    rewriter.finish()


def blocks(shape: Shape) -> int:
    """How many parts of its pixels an image of [N, C, spatial axes] has the moments of: a matter of the shape alone, and not of N."""
    pixels = prod(shape[2:])
    return max(min(-(-4 * shape[1] * pixels // BLOCK_BYTES), pixels, MOST_BLOCKS), 1)


def _replace(rewriter: Rewriter, node: Node, norm: Node) -> None:
    """`node`, the NORM or the reshape behind it, gives an image."""
    shape, x = node.output.shape, norm.inputs[0]
    if norm.attrs["mode"] != "layer" or len(shape) < _TOKENS or 0 in shape or norm.onnx_op not in _OPS or x is None:
        return
    if norm.onnx_op == "LayerNormalization" and len(shape) == _TOKENS:
        return
    image = _image(rewriter, x, shape)
    if image is None:
        return
    kept = prod(norm.output.shape[: norm.attrs["axis"]])
    groups, rest = divmod(kept, shape[0])
    if rest or not groups or shape[1] % groups:
        return
    factors = [_by_channel(rewriter, node, norm, t, shape) for t in norm.inputs[1:]]
    if any(t is not None and f is None for t, f in zip(norm.inputs[1:], factors, strict=True)):
        return
    label = norm.onnx_op
    x = image
    if x.dtype != np.float32:
        x = rewriter.insert(node, "CAST", [x], shape, {"saturate": True})
        x.dtype = np.dtype(np.float32)
    moments = rewriter.insert(node, "MOMENTS", [x], (shape[0], blocks(shape), groups, 2), {})
    moments.dtype = np.dtype(np.float64)
    assert moments.producer is not None
    moments.producer.onnx_op = label
    rewriter.replace(node, "STANDARDIZE", [x, moments, *factors], {"eps": norm.attrs["eps"], "act": NO_ACT}, label)


def _image(rewriter: Rewriter, x: Tensor, shape: Shape) -> Tensor | None:
    """The tensor of this shape that a tensor is a reshape of, if any. A conversion between them is made anew behind it."""
    while x.shape != shape:
        node = rewriter.made_by(x, "view.reshape", "CAST")
        source = node.inputs[0] if node is not None else None
        if source is None or source.dtype not in FLOATS:
            return None
        x = source
    return x


def _by_channel(rewriter: Rewriter, node: Node, norm: Node, factor: Tensor | None, shape: Shape) -> Tensor | None:
    """Scale or shift of a NORM as [1 or N, C]; None where it varies by pixels."""
    if factor is None:
        return None
    whole, axis, images, channels = norm.output.shape, norm.attrs["axis"], shape[0], shape[1]
    first = _axes_of_one(whole, images, factor.shape)
    rows = 1 if first is not None else images
    by_group = len(whole) - axis if all(d == 1 for d in factor.shape[axis:]) else None
    for end in (_axes_of_one(whole[::-1], prod(shape[2:]), factor.shape[::-1]), by_group):
        if end is None:
            continue
        given = whole[: len(whole) - end]
        if factor.is_const:
            write = partial(_spread, given=given, shape=(images, channels), rows=rows)
            return computed(factor, f"|channels{list(factor.shape)}{rows}x{channels}", (rows, channels), write)
        if factor.size == rows * channels and factor.dtype == np.float32:
            return rewriter.insert(node, "view.reshape", [factor], (rows, channels), {})
    return None


def _axes_of_one(whole: Shape, size: int, factor: Shape) -> int | None:
    """How many of the first axes have `size` elements together, if the factor has one element along each of them."""
    return next((k for k in range(len(whole), -1, -1) if prod(whole[:k]) == size and all(d == 1 for d in factor[:k])), None)


def _spread(value: npt.NDArray[Any], given: Shape, shape: tuple[int, int], rows: int) -> npt.NDArray[Any]:
    """A factor by image and channel, or by image and group, for every channel of `shape` [N, C]; of the first `rows` images."""
    whole = np.broadcast_to(value.reshape(value.shape[: len(given)]), given)
    return np.repeat(whole.reshape(-1), prod(shape) // whole.size).reshape(shape)[:rows]
