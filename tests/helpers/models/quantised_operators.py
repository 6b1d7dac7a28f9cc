"""Networks of quantised operators, drawn: those between two quantisations, and those that quantise while they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import contrib_ranges
import numpy as np
from quantised_nets import I8, U8, Levels, Network, Quantiser, Style
from value_ranges import Range, dequantised, limits

assert contrib_ranges
OWN: Final = "com.microsoft"
F32 = np.float32
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Bytes:
    """A quantised tensor: its name, scale and zero point."""

    name: str
    levels: Levels

    @property
    def names(self) -> list[str]:
        return [self.name, *self.levels.names]


class Operators(Quantiser):
    """Writes operators whose inputs and outputs are levels."""

    def real(self, x: Bytes) -> Range:
        scale, zero = (self.net.values[n] for n in x.levels.names)
        return dequantised(self.net.values[x.name], scale, zero)

    def levels_for(self, low: float, high: float, kind: Any) -> Levels:
        """Levels that hold a range of real numbers."""
        least, most = limits(np.dtype(kind))
        scale = self._scale((max(high, 0.0) - min(low, 0.0)) / (most - least))
        zero = np.clip(np.rint(least - min(low, 0.0) / float(scale)), least, most)
        return Levels(self.net.constant(scale), self.net.constant(np.asarray(zero).astype(kind)), np.dtype(kind))

    def about(self, x: Bytes, times: float = 1.0) -> Levels:
        """Levels of a range like that of x."""
        real = self.real(x)
        return self.levels_for(float(real.low.min()) * times, float(real.high.max()) * times, x.levels.kind)

    def stored(self, value: Array, axis: int | None) -> list[str]:
        """A weight, its scale and its zero point."""
        kind, net = np.dtype(self.net.choice(self.style.stored)), self.net
        others = tuple(k for k in range(value.ndim) if k != axis) if axis is not None else None
        least, most = limits(kind)
        if kind == U8 or self.style.offsets:
            low, high = np.minimum(value.min(others), 0), np.maximum(value.max(others), 0)
            scale = self._scale((high - low) / (most - least))
            zero = np.clip(np.rint(least - low / scale), least, most)
        else:
            scale, zero = self._scale(np.abs(value).max(others) / most), np.zeros(np.shape(value.max(others)))
        along = [-1 if k == axis else 1 for k in range(value.ndim)] if axis is not None else ()
        levels = np.clip(np.rint(value / scale.reshape(along)) + np.reshape(zero, along), least, most).astype(kind)
        return [net.constant(levels), net.constant(scale), net.constant(np.asarray(zero).astype(kind))]


def convolution(b: Operators, x: Bytes, others: Sequence[Bytes]) -> Bytes:
    net = b.net
    channels, *spatial = net.shape(x.name)[1:]
    groups = net.choice([1, 1, channels])
    out = groups if groups > 1 else int(net.rng.integers(1, 19))
    kernel = [int(net.rng.integers(1, 4)) for _ in spatial]
    w = b.stored(
        net.normal(out, channels // groups, *kernel, scale=(channels // groups * np.prod(kernel)) ** -0.5), 0 if net.flip() else None
    )
    steps = net.values[x.levels.scale].low * net.values[w[1]].low
    bias = [net.constant(np.rint(net.normal(out, scale=0.3) / steps).astype(np.int32))] if net.flip(0.7) else []
    y = b.about(x, 1.5)
    attributes = {
        "group": groups,
        "kernel_shape": kernel,
        "pads": [k // 2 for k in kernel] * 2,
        "strides": [net.choice([1, 1, 2]) for _ in kernel],
    }
    return Bytes(net("QLinearConv", *x.names, *w, *y.names, *bias, **attributes), y)


def product(b: Operators, x: Bytes, others: Sequence[Bytes]) -> Bytes:
    """With a constant matrix, or with the tensor itself, transposed."""
    net = b.net
    depth, rank, y = net.shape(x.name)[-1], len(net.shape(x.name)), b.about(x, 1.5)
    if net.flip(0.3):
        turned = net("Transpose", x.name, perm=[*range(rank - 2), rank - 1, rank - 2])
        return Bytes(net("QLinearMatMul", *x.names, turned, *x.levels.names, *y.names), y)
    columns = int(net.rng.integers(1, 20))
    return Bytes(
        net("QLinearMatMul", *x.names, *b.stored(net.normal(depth, columns, scale=depth**-0.5), 1 if net.flip() else None), *y.names), y
    )


def gemm(b: Operators, x: Bytes, others: Sequence[Bytes]) -> Bytes:
    net = b.net
    flat = net("Flatten", x.name, axis=1)
    depth, columns, swapped = net.shape(flat)[1], int(net.rng.integers(1, 20)), int(net.flip())
    value = net.normal(depth, columns, scale=depth**-0.5)
    w = b.stored(value.T.copy() if swapped else value, (1 - swapped) if net.flip() and not b.style.offsets else None)
    alpha = net.choice([1.0, 1.0, 0.5, -1.5])
    steps = net.values[x.levels.scale].low * net.values[w[1]].low * abs(alpha)
    bias = net.constant(np.rint(net.normal(columns, scale=0.3) / steps).astype(np.int32)) if net.flip(0.7) else ""
    y = b.about(x, 1.5)
    return Bytes(net("QGemm", flat, *x.levels.names, *w, bias, *y.names, domain=OWN, alpha=alpha, transB=swapped), y)


def arithmetic(b: Operators, x: Bytes, others: Sequence[Bytes]) -> Bytes:
    net = b.net
    other = net.choice([t for t in others if net.shape(t.name) == net.shape(x.name) and t.levels.kind == x.levels.kind] or [x])
    y = b.about(x, 1.6)
    return Bytes(net(net.choice(["QLinearAdd", "QLinearMul"]), *x.names, *other.names, *y.names, domain=OWN), y)


def function(b: Operators, x: Bytes, others: Sequence[Bytes]) -> Bytes:
    net = b.net
    op = net.choice(["QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"])
    y = b.about(x) if op == "QLinearLeakyRelu" else b.levels_for(0.0, 1.0, x.levels.kind)
    attributes = {"QLinearLeakyRelu": {"alpha": 0.2}, "QLinearSoftmax": {"axis": -1, "opset": 13}}.get(op, {})
    return Bytes(net(op, *x.names, *y.names, domain=OWN, **attributes), y)


def pool(b: Operators, x: Bytes, others: Sequence[Bytes]) -> Bytes:
    net, shape = b.net, b.net.shape(x.name)
    n, y = len(shape) - 2, b.about(x)
    op = net.choice(["MaxPool", "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearReduceMean"])
    last = int(net.flip(0.3) and len(shape) == 4)
    if op == "QLinearReduceMean" or min(shape[1:]) < 2:
        return Bytes(net("QLinearReduceMean", *x.names, *y.names, domain=OWN, axes=[-1], keepdims=1), y)
    if op == "MaxPool":
        return Bytes(net(op, x.name, kernel_shape=[2] * n, strides=[1] * n, pads=[1] * n + [0] * n), x.levels)
    if op == "QLinearGlobalAveragePool":
        return Bytes(net(op, *x.names, *y.names, domain=OWN, channels_last=last), y)
    return Bytes(
        net(op, *x.names, *y.names, domain=OWN, channels_last=last, kernel_shape=[2] * n, strides=[1] * n, pads=[1] * n + [0] * n), y
    )


def joined(b: Operators, x: Bytes, others: Sequence[Bytes]) -> Bytes:
    net = b.net
    fitting = [t for t in others if t.levels.kind == x.levels.kind and net.shape(t.name) == net.shape(x.name)] or [x]
    parts = [x, net.choice(fitting)]
    y = b.about(x)
    return Bytes(net("QLinearConcat", *y.names, *[n for part in parts for n in part.names], domain=OWN, axis=1), y)


def chosen(b: Operators, x: Bytes, others: Sequence[Bytes]) -> Bytes:
    net = b.net
    fitting = [t for t in others if t.levels.kind == x.levels.kind and net.shape(t.name) == net.shape(x.name)] or [x]
    condition, y = net.constant(net.rng.random(net.shape(x.name)) < 0.5), b.about(x)
    return Bytes(net("QLinearWhere", condition, *x.names, *net.choice(fitting).names, *y.names, domain=OWN), y)


def moved(b: Operators, x: Bytes, others: Sequence[Bytes]) -> Bytes:
    """Bytes that are moved as they are."""
    net, shape = b.net, b.net.shape(x.name)
    op = net.choice(["Transpose", "Slice", "Gather", "Pad", "Reshape"])
    if op == "Transpose":
        return Bytes(net(op, x.name, perm=[0, *(1 + net.rng.permutation(len(shape) - 1)).tolist()]), x.levels)
    if op == "Slice":
        return Bytes(net(op, x.name, net.ints(0), net.ints(max(1, shape[-1] - 1)), net.ints(-1)), x.levels)
    if op == "Gather":
        return Bytes(net(op, x.name, net.constant(net.rng.integers(0, shape[1], 3)), axis=1), x.levels)
    if op == "Pad":
        pads = [0, 0, *[1] * (len(shape) - 2), 0, 0, *[1] * (len(shape) - 2)]
        return Bytes(net(op, x.name, net.ints(*pads), x.levels.zero), x.levels)
    return Bytes(net(op, x.name, net.ints(*shape[:-2], shape[-1], shape[-2])), x.levels)


Operator = Callable[[Operators, Bytes, Sequence[Bytes]], Bytes]
_ALL: Final[list[Operator]] = [convolution, convolution, product, gemm, arithmetic, arithmetic, function, pool, pool, joined, chosen, moved]


def between(seed: int, style: Style) -> tuple[Network, list[str]]:
    """A network of operators between two quantisations; its input and outputs are levels or floats."""
    net = Network(np.random.default_rng([seed, *repr(style).encode()]))
    b, kind = Operators(net, style), net.choice(style.kinds)
    shape = (int(net.rng.integers(1, 3)), int(net.rng.integers(2, 7)), *net.choice([(9,), (7, 6), (6, 7), (5, 5)]))
    levels = b.levels_for(-2.0, 2.0, kind)
    if net.flip():
        info = np.iinfo(kind)
        x = Bytes(net.feed(net.rng.integers(info.min, info.max, shape, kind, endpoint=True)), levels)
    else:
        x = Bytes(b.q(net.feed(net.normal(*shape)), levels), levels)
    there, outputs = [x], []
    for _ in range(int(net.rng.integers(2, 6))):
        x = net.choice(there[-2:])
        there.append(net.choice(_ALL if len(net.shape(x.name)) > 2 else [product, gemm, arithmetic, function])(b, x, there))
        if net.flip(0.2):
            outputs.append(there[-1].name)
        if net.flip(0.2):
            outputs.append(b.dq(there[-1].name, there[-1].levels))
    return net, list(dict.fromkeys([*outputs, there[-1].name]))


# ----------------------------------------------------------------------------------------------- quantised while they run


def _fitted(net: Network, x: str) -> list[str]:
    return net.several("DynamicQuantizeLinear", x, results=3)


def _real(net: Network, sums: str, x_scale: str, w_scale: str) -> str:
    return net("Mul", net("Cast", sums, to=1), net("Mul", x_scale, w_scale))


def _dynamic_product(b: Operators, x: str) -> str:
    net = b.net
    depth, columns = net.shape(x)[-1], int(net.rng.integers(1, 20))
    q, scale, zero = _fitted(net, x)
    w, w_scale, w_zero = b.stored(net.normal(depth, columns, scale=depth**-0.5), 1 if net.flip() else None)
    bias = net.constant(net.normal(columns)) if net.flip() else ""
    kind = net.choice(["operators", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"])
    if kind == "DynamicQuantizeMatMul":
        return net(kind, x, w, w_scale, w_zero, bias, domain=OWN)
    if kind == "MatMulIntegerToFloat":
        return net(kind, q, w, scale, w_scale, zero, w_zero, bias, domain=OWN)
    y = _real(net, net("MatMulInteger", q, w, zero, w_zero), scale, w_scale)
    return net("Add", y, bias) if bias else y


def _dynamic_convolution(b: Operators, x: str) -> str:
    net = b.net
    channels, *spatial = net.shape(x)[1:]
    out, kernel = int(net.rng.integers(1, 9)), [int(net.rng.integers(1, 4)) for _ in spatial]
    q, scale, zero = _fitted(net, x)
    w, w_scale, w_zero = b.stored(net.normal(out, channels, *kernel, scale=(channels * np.prod(kernel)) ** -0.5), None)
    y = _real(net, net("ConvInteger", q, w, zero, w_zero, kernel_shape=kernel, pads=[k // 2 for k in kernel] * 2), scale, w_scale)
    return net("Add", y, net.constant(net.normal(out, *[1] * len(spatial)))) if net.flip() else y


def _dynamic_attention(b: Operators, x: str) -> str:
    net, width = b.net, b.net.shape(x)[-1]
    heads = net.choice([1, 2]) if width % 2 == 0 else 1
    q, scale, zero = _fitted(net, x)
    w, w_scale, w_zero = b.stored(net.normal(width, 3 * width, scale=width**-0.5), None)
    bias = net.constant(net.normal(3 * width))
    return net("QAttention", q, w, bias, scale, w_scale, "", zero, w_zero, domain=OWN, num_heads=heads)


def _packed_product(b: Operators, x: str) -> str:
    """Weights of few bits."""
    net = b.net
    depth, columns, size, bits = net.shape(x)[-1], int(net.rng.integers(1, 20)), 16, net.choice([4, 4, 8])
    blocks = -(-depth // size)
    w = net.constant(net.rng.integers(0, 256, (columns, blocks, size * bits // 8)).astype(U8))
    scales = net.constant((net.rng.random(columns * blocks) * 0.02 + 0.001).astype(F32))
    zeros = [net.constant(net.rng.integers(0, 256, columns * -(-blocks * bits // 8)).astype(U8))] if net.flip() else []
    return net("MatMulNBits", x, w, scales, *zeros, domain=OWN, K=depth, N=columns, bits=bits, block_size=size)


def dynamic(seed: int, style: Style) -> tuple[Network, list[str]]:
    net = Network(np.random.default_rng([seed, *repr(style).encode()]))
    b = Operators(net, style)
    images = net.flip(0.4)
    shape: Sequence[int] = (2, int(net.rng.integers(1, 6)), 8, 7) if images else (2, 5, int(net.rng.integers(3, 40)))
    x, outputs = net.feed(net.normal(*shape)), []
    for _ in range(int(net.rng.integers(1, 4))):
        if images:
            x = _dynamic_convolution(b, x)
        else:
            x = net.choice([_dynamic_product, _dynamic_product, _dynamic_attention, _packed_product])(b, x)
        x = net(net.choice(["Relu", "Tanh", "Relu"]), x)
        if net.flip(0.2):
            outputs.append(x)
    return net, list(dict.fromkeys([*outputs, x]))


STATIC: Final = {
    "u8s8": Style(),
    "s8s8": Style(kinds=(I8,)),
    "u8u8": Style(stored=(U8,)),
    "offsets": Style(kinds=(U8, I8), stored=(U8, I8), offsets=True),
}
