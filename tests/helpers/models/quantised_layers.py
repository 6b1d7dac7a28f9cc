"""Layers of quantised networks: what stands between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from quantised_nets import Quantiser

F32 = np.float32
Layer = Callable[[Quantiser, str, Sequence[str]], str]
"""A layer of a tensor. The names behind it are those of other tensors that are there."""


def _windows(b: Quantiser, kernel: Sequence[int], spatial: Sequence[int]) -> dict[str, Any]:
    net = b.net
    dilations = [net.choice([1, 1, 2]) for _ in kernel]
    wide = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if net.flip(0.15):
        return {"kernel_shape": list(kernel), "strides": [net.choice([1, 2]) for _ in kernel], "auto_pad": "SAME_UPPER"}
    pads = [[int(net.rng.integers(0, k)) for k in kernel] for _ in range(2)]
    for axis, (d, w) in enumerate(zip(spatial, wide, strict=True)):
        while d + pads[0][axis] + pads[1][axis] < w:
            pads[1][axis] += 1
    return {
        "kernel_shape": list(kernel),
        "dilations": dilations,
        "strides": [net.choice([1, 1, 2]) for _ in kernel],
        "pads": pads[0] + pads[1],
    }


def conv(b: Quantiser, x: str, others: Sequence[str]) -> str:
    """A convolution over one to three axes: plain, in groups, or channel by channel."""
    net = b.net
    channels, *spatial = net.shape(x)[1:]
    groups = net.choice([1, 1, channels, 2 if channels % 2 == 0 else 1])
    out = groups * int(net.rng.integers(1, 4)) if groups > 1 else int(net.rng.integers(1, 19))
    kernel = [int(net.rng.integers(1, 4)) for _ in spatial]
    terms = channels // groups * int(np.prod(kernel))
    w = b.weight(net.normal(out, channels // groups, *kernel, scale=terms**-0.5), 0)
    more = [b.bias(out, x)] if net.flip(0.7) else []
    y = net("Conv", x, w, *more, group=groups, **_windows(b, kernel, spatial))
    return _activated(b, y)


def _activated(b: Quantiser, y: str) -> str:
    net = b.net
    kind = net.choice(["", "", "Relu", "Clip"])
    if kind == "Relu":
        return net("Relu", y)
    if kind == "Clip":
        return net("Clip", y, net.constant(b.style.real(0)), net.constant(b.style.real(1.5)))
    return y


def transposed(b: Quantiser, x: str, others: Sequence[str]) -> str:
    net = b.net
    channels, *spatial = net.shape(x)[1:]
    out, kernel = int(net.rng.integers(1, 5)), [2 for _ in spatial]
    w = b.weight(net.normal(channels, out, *kernel, scale=channels**-0.5), 1)
    return net("ConvTranspose", x, w, *([b.bias(out, x)] if net.flip() else []), strides=[2] * len(spatial))


def matmul(b: Quantiser, x: str, others: Sequence[str]) -> str:
    """A product with a constant matrix on the right, which may stand there transposed."""
    net = b.net
    depth, columns = net.shape(x)[-1], int(net.rng.integers(1, 20))
    if b.style.block and depth % b.style.block == 0:
        w = b.blocked(net.normal(depth, columns, scale=depth**-0.5))
    elif net.flip(0.25):
        w = net("Transpose", b.weight(net.normal(columns, depth, scale=depth**-0.5), 0), perm=[1, 0])
    else:
        w = b.weight(net.normal(depth, columns, scale=depth**-0.5), 1)
    y = net("MatMul", x, w)
    if net.flip():
        y = net("Add", y, b.bias(columns, x))
    return _activated(b, y)


def gemm(b: Quantiser, x: str, others: Sequence[str]) -> str:
    net = b.net
    y = net("Flatten", x, axis=int(net.rng.integers(1, len(net.shape(x)))))
    if x in b.levels_of and net.flip(0.7):
        y = b.pair(y, b.levels_of[x])
    depth, columns = net.shape(y)[1], int(net.rng.integers(1, 20))
    swapped = int(net.flip())
    shape = (columns, depth) if swapped else (depth, columns)
    w = b.weight(net.normal(*shape, scale=depth**-0.5), 1 - swapped)
    attributes = {"alpha": net.choice([1.0, 0.5]), "beta": net.choice([1.0, 2.0])} if net.flip(0.3) else {}
    return net("Gemm", y, w, *([b.bias(columns, y)] if net.flip(0.7) else []), transB=swapped, **attributes)


def of_two(b: Quantiser, x: str, others: Sequence[str]) -> str:
    """A product of two activations, as attention has."""
    net = b.net
    rank = len(net.shape(x))
    turned = net("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])
    if net.flip() and x in b.levels_of:
        turned = b.pair(turned, b.levels_of[x])
    return net("MatMul", x, turned)


def arithmetic(b: Quantiser, x: str, others: Sequence[str]) -> str:
    net = b.net
    alike = [t for t in others if net.shape(t) == net.shape(x)] or [x]
    y = net(net.choice(["Add", "Mul", "Sub", "Max", "Add"]), x, net.choice(alike))
    return net("Relu", y) if net.flip(0.3) else y


def with_constant(b: Quantiser, x: str, others: Sequence[str]) -> str:
    """A factor or a sum for each channel, quantised or not."""
    net = b.net
    value = net.normal(net.shape(x)[1], *[1] * (len(net.shape(x)) - 2))
    y = b.pair(net.constant(value.astype(b.style.real))) if net.flip() else net.constant(value.astype(b.style.real))
    return net(net.choice(["Add", "Mul", "Sub"]), x, y)


def function(b: Quantiser, x: str, others: Sequence[str]) -> str:
    net = b.net
    op = net.choice(["Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "Erf", "Elu", "Relu", "HardSigmoid", "Neg", "Softplus"])
    y = net(op, x)
    if op == "Sigmoid" and net.flip():
        y = net("Mul", x, b.pair(y) if net.flip() else y)
    return y


def clip(b: Quantiser, x: str, others: Sequence[str]) -> str:
    """Bounds inside the range of levels."""
    net = b.net
    return net("Clip", x, net.constant(b.style.real(-0.4)), net.constant(b.style.real(0.6)))


def prelu(b: Quantiser, x: str, others: Sequence[str]) -> str:
    net = b.net
    slope = b.net.normal(net.shape(x)[1], *[1] * (len(net.shape(x)) - 2), scale=0.3).astype(b.style.real)
    return net("PRelu", x, b.pair(net.constant(slope)) if net.flip() else net.constant(slope))


def pool(b: Quantiser, x: str, others: Sequence[str]) -> str:
    net = b.net
    op = net.choice(["MaxPool", "AveragePool", "GlobalAveragePool", "MaxPool"])
    if op == "GlobalAveragePool":
        return net(op, x)
    n = len(net.shape(x)) - 2
    if min(net.shape(x)[2:]) < 2:
        return net("GlobalMaxPool", x)
    more = {"count_include_pad": int(net.flip())} if op == "AveragePool" else {}
    pads = [int(net.flip(0.5)) for _ in range(2 * n)]
    return net(op, x, kernel_shape=[2] * n, strides=[net.choice([1, 2])] * n, pads=pads, **more)


def mean(b: Quantiser, x: str, others: Sequence[str]) -> str:
    net = b.net
    axes = net.ints(*range(2, len(net.shape(x)))) if net.flip() else net.ints(-1)
    return net("ReduceMean", x, axes, keepdims=1)


def softmax(b: Quantiser, x: str, others: Sequence[str]) -> str:
    return b.net("Softmax", x, axis=-1)


def norm(b: Quantiser, x: str, others: Sequence[str]) -> str:
    net, last = b.net, b.net.shape(x)[-1]
    scale = net.constant((np.abs(net.normal(last)) + 0.5).astype(b.style.real))
    return net("LayerNormalization", x, scale, *([net.constant(net.normal(last).astype(b.style.real))] if net.flip() else []), axis=-1)


def joined(b: Quantiser, x: str, others: Sequence[str]) -> str:
    """Concat. In some styles all parts have the same scale, and one more pair each."""
    net = b.net
    fitting = [
        t
        for t in others
        if len(net.shape(t)) == len(net.shape(x)) and net.shape(t)[:1] + net.shape(t)[2:] == net.shape(x)[:1] + net.shape(x)[2:]
    ]
    parts = [x, *[net.choice(fitting or [x]) for _ in range(int(net.rng.integers(1, 3)))]]
    if b.style.shared:
        levels = b.fit(*parts)
        parts = [b.pair(part, levels) for part in parts]
    return net("Concat", *parts, axis=1)


def chosen(b: Quantiser, x: str, others: Sequence[str]) -> str:
    net = b.net
    alike = [t for t in others if net.shape(t) == net.shape(x)]
    condition = net.constant(net.rng.random(net.shape(x)[1:]) < 0.5)
    other = net.choice(alike) if alike else net.constant(b.style.real(-0.7))
    return net("Where", condition, x, other) if net.flip() else net("Where", condition, other, x)


def moved(b: Quantiser, x: str, others: Sequence[str]) -> str:
    """One of many ways to move values."""
    net, shape = b.net, b.net.shape(x)
    rank = len(shape)
    op = net.choice(["Reshape", "Transpose", "Slice", "Split", "Gather", "Pad", "Resize", "Expand", "Tile", "Unsqueeze", "DepthToSpace"])
    if op == "Reshape":
        return net(op, net(op, x, net.ints(shape[0], -1)), net.ints(*shape[:-2], shape[-1], shape[-2]))
    if op == "Transpose":
        return net(op, x, perm=[0, *(1 + net.rng.permutation(rank - 1)).tolist()])
    if op == "Slice":
        return net(op, x, net.ints(0), net.ints(max(1, shape[-1] - 1)), net.ints(-1), net.ints(net.choice([1, 2])))
    if op == "Split" and shape[1] > 1:
        parts = net.several(op, x, net.ints(1, shape[1] - 1), results=2, axis=1)
        return parts[1]
    if op == "Gather":
        return net(op, x, net.constant(net.rng.integers(0, shape[1], 3)), axis=1)
    if op == "Pad":
        value = net.choice([0.0, 0.37, -0.25])
        return net(op, x, net.ints(0, 0, *[1] * (rank - 2), 0, 0, *[1] * (rank - 2)), net.constant(b.style.real(value)))
    if op == "Resize" and rank == 4:
        scales = net.constant(np.array([1, 1, 2, 2], F32))
        mode = net.choice(["nearest", "nearest", "linear"])
        return net(op, x, "", scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    if op == "Expand":
        return net(op, x, net.ints(2, *shape[1:]))
    if op == "Tile":
        return net(op, x, net.ints(1, 2, *[1] * (rank - 2)))
    if op == "DepthToSpace" and rank == 4 and shape[1] % 4 == 0:
        return net(op, x, blocksize=2)
    return net("Squeeze", net("Unsqueeze", x, net.ints(0)), net.ints(0))


IMAGES: Final[dict[str, tuple[Layer, int]]] = {
    "conv": (conv, 5),
    "transposed": (transposed, 1),
    "gemm": (gemm, 1),
    "of_two": (of_two, 1),
    "matmul": (matmul, 1),
    "arithmetic": (arithmetic, 3),
    "with_constant": (with_constant, 1),
    "function": (function, 2),
    "clip": (clip, 1),
    "prelu": (prelu, 1),
    "pool": (pool, 2),
    "mean": (mean, 1),
    "softmax": (softmax, 1),
    "joined": (joined, 2),
    "chosen": (chosen, 1),
    "moved": (moved, 3),
}
"""Layers of images by name, and how often each is drawn."""
ROWS: Final[dict[str, tuple[Layer, int]]] = {
    "matmul": (matmul, 5),
    "gemm": (gemm, 1),
    "of_two": (of_two, 2),
    "arithmetic": (arithmetic, 2),
    "with_constant": (with_constant, 1),
    "function": (function, 2),
    "clip": (clip, 1),
    "mean": (mean, 1),
    "softmax": (softmax, 2),
    "norm": (norm, 2),
    "joined": (joined, 1),
    "chosen": (chosen, 1),
    "moved": (moved, 2),
}
"""Those of sequences [batch, place, width]."""
