"""Quantised networks, drawn as several quantisers write them. Every value is known as a range while the network grows
(`value_ranges.py`), so that scales fit their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from value_ranges import Evaluator, Range, limits, of

Array = np.ndarray[Any, np.dtype[Any]]
U8, I8, U16, I16, F32 = np.uint8, np.int8, np.uint16, np.int16, np.float32
FEW = {np.dtype(ml_dtypes.int4): TensorProto.INT4, np.dtype(ml_dtypes.uint4): TensorProto.UINT4}


class Network:
    """A network under construction. `values`: the range of every tensor."""

    def __init__(self, rng: np.random.Generator, opset: int = 21) -> None:
        self.rng, self.opset = rng, opset
        self.nodes: list[onnx.NodeProto] = []
        self.held: list[TensorProto] = []
        self.feeds: dict[str, Array] = {}
        self.values: dict[str, Range] = {}
        self._evaluator = Evaluator(opset)

    def feed(self, value: Any) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = np.asarray(value)
        self.values[name] = of(value)
        return name

    def constant(self, value: Any) -> str:
        array, name = np.asarray(value), f"c{len(self.held)}"
        self.held.append(numpy_helper.from_array(array, name))
        self.values[name] = of(array)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def several(self, op: str, *inputs: str, results: int = 1, domain: str = "", **attributes: Any) -> list[str]:
        outs = [f"t{len(self.nodes)}.{k}" for k in range(results)]
        node = helper.make_node(op, list(inputs), outs, name=f"{op}{len(self.nodes)}", domain=domain, **attributes)
        found = self._evaluator(node, [self.values[n] if n else None for n in inputs])
        assert len(found) == results
        self.nodes.append(node)
        self.values.update(zip(outs, found, strict=True))
        return outs

    def __call__(self, op: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        return self.several(op, *inputs, domain=domain, **attributes)[0]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape

    def flip(self, chance: float = 0.5) -> bool:
        return bool(self.rng.random() < chance)

    def choice(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def normal(self, *shape: int, scale: float = 1.0) -> Array:
        return np.asarray(self.rng.standard_normal(shape) * scale, F32)

    def model(self, outputs: Sequence[str]) -> onnx.ModelProto:
        kind = helper.np_dtype_to_tensor_dtype
        fed = [helper.make_tensor_value_info(n, kind(x.dtype), x.shape) for n, x in self.feeds.items()]
        results = [helper.make_tensor_value_info(n, kind(self.values[n].dtype), None) for n in outputs]
        graph = helper.make_graph(self.nodes, "drawn", fed, results, self.held)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=max(10, helper.find_min_ir_version_for(imports[:1])))


@dataclass
class Style:
    """How a quantiser writes networks.

    - `kinds`, `stored`: types of activations and of weights.
    - `symmetric`: zero points of activations are in the middle.
    - `offsets`: weights have zero points.
    - `narrow`: the lowest level of weights is not used.
    - `powers`: scales are powers of two.
    - `floats`: weights are stored as floats, with QuantizeLinear behind them.
    - `shared`: parts that are joined have one scale.
    - `absent`: zero points of 0 are left out.
    - `integer_bias`: biases have 32 bits.
    - `columns`: whether weights have a scale for each column. One of these is drawn.
    - `real`: type of values and scales.
    - `apart`: type of scales, where values are of f32.
    - `block`: rows of a weight that share a scale, 0: all.
    - `opset`: 0: any.
    """

    kinds: Sequence[Any] = (U8,)
    stored: Sequence[Any] = (I8,)
    symmetric: bool = False
    offsets: bool = False
    narrow: bool = False
    powers: bool = False
    floats: bool = False
    shared: bool = False
    absent: bool = False
    integer_bias: bool = True
    columns: Sequence[bool] = (False, True)
    real: Any = F32
    apart: Any = None
    block: int = 0
    opset: int = 0


@dataclass(frozen=True)
class Levels:
    """Names of a scale and a zero point; "": 0."""

    scale: str
    zero: str
    kind: np.dtype[Any]

    @property
    def names(self) -> list[str]:
        return [self.scale, self.zero] if self.zero else [self.scale]


class Quantiser:
    """Writes quantised values into a network, in one style."""

    def __init__(self, net: Network, style: Style) -> None:
        self.net, self.style = net, style
        self.levels_of: dict[str, Levels] = {}

    def _scale(self, value: Any) -> Array:
        scale = np.maximum(np.asarray(value, np.float64), 1e-3 if np.float16 in (self.style.real, self.style.apart) else 1e-6)
        if self.style.powers:
            scale = 2.0 ** np.ceil(np.log2(scale))
        return np.asarray(scale).astype(self.style.apart or self.style.real)

    def fit(self, *names: str, kind: Any = None) -> Levels:
        """Levels for the values of some tensors."""
        net, style = self.net, self.style
        kind = np.dtype(kind or net.choice(style.kinds))
        if kind.name.startswith("float8"):
            largest = max(float(np.abs(net.values[n].high).max(initial=0.0)) for n in names)
            scale = self._scale(largest / float(ml_dtypes.finfo(kind).max) * net.choice([1.0, 2.0]))
            return Levels(net.constant(scale), net.constant(np.zeros((), kind)), kind)
        low = min(0.0, *(float(net.values[n].low.min(initial=0.0)) for n in names))
        high = max(0.0, *(float(net.values[n].high.max(initial=0.0)) for n in names))
        least, most = limits(kind)
        if style.symmetric:
            scale = self._scale(max(-low, high) * 2 / (most - least))
            zero = (most + least + 1) / 2
        else:
            scale = self._scale((high - low) / (most - least))
            zero = float(np.clip(np.rint(least - low / float(scale)), least, most))
        if net.flip(0.1):  # values beyond the highest and the lowest level
            scale = self._scale(np.float64(scale) * 0.5)
        point = "" if style.absent and zero == 0 and kind == U8 else net.constant(np.asarray(zero).astype(kind))
        return Levels(net.constant(scale), point, kind)

    def q(self, x: str, levels: Levels) -> str:
        return self.net("QuantizeLinear", x, *levels.names)

    def dq(self, x: str, levels: Levels) -> str:
        y = self.net("DequantizeLinear", x, *levels.names, **self._to_floats)
        self.levels_of[y] = levels
        return y

    @property
    def _to_floats(self) -> dict[str, int]:
        return {"output_dtype": TensorProto.FLOAT} if self.style.apart else {}

    def by_blocks(self, x: str) -> str:
        """A pair whose scales belong to blocks of two along the last axis."""
        net, kind, value = self.net, np.dtype(self.net.choice([U8, I8])), self.net.values[x]
        least, most = limits(kind)
        count = -(-value.shape[-1] // 2)
        scale = self._scale(np.abs(net.normal(*value.shape[:-1], count)) * 4 / (most - least) + 0.01)
        zero = net.rng.integers(int(least), int(most), scale.shape).astype(kind)
        names, how = (net.constant(scale), net.constant(zero)), {"axis": len(value.shape) - 1, "block_size": 2}
        return net("DequantizeLinear", net("QuantizeLinear", x, *names, **how), *names, **how, **self._to_floats)

    def by_channels(self, x: str) -> str:
        """A pair whose scales and zero points belong to channels."""
        net, kind = self.net, np.dtype(self.net.choice([U8, I8]))
        least, most = limits(kind)
        value, axis = net.values[x], int(net.rng.integers(len(net.shape(x))))
        others = tuple(k for k in range(len(value.shape)) if k != axis)
        low, high = np.minimum(value.low.min(others), 0), np.maximum(value.high.max(others), 0)
        scale = self._scale((high - low) / (most - least))
        zero = np.clip(np.rint(least - low / scale.astype(np.float64)), least, most).astype(kind)
        names = net.constant(scale), net.constant(zero)
        return net("DequantizeLinear", net("QuantizeLinear", x, *names, axis=axis), *names, axis=axis, **self._to_floats)

    def pair(self, x: str, levels: Levels | None = None) -> str:
        levels = levels or self.fit(x)
        return self.dq(self.q(x, levels), levels)

    def weight(self, value: Array, axis: int | None) -> str:
        """A constant as levels. `axis`: that of columns, None where there is one scale."""
        net, style = self.net, self.style
        kind = np.dtype(net.choice(style.stored))
        columns = axis is not None and net.choice(style.columns)
        others = tuple(k for k in range(value.ndim) if k != axis) if columns else None
        least, most = limits(kind) if not kind.name.startswith("float8") else (-448.0, 448.0)
        if kind.kind == "u" or style.offsets:
            low, high = np.minimum(value.min(others), 0), np.maximum(value.max(others), 0)
            scale = self._scale((high - low) / (most - least))
            zero = np.clip(np.rint(least - low / scale.astype(np.float64)), least, most)
        else:
            scale = self._scale(np.abs(value).max(others) / most)
            zero = np.zeros_like(scale, np.float64)
            least += float(style.narrow)
        along = [-1 if k == axis else 1 for k in range(value.ndim)] if columns else ()
        factors, points = (np.asarray(v, np.float64).reshape(along) for v in (scale, zero))
        names = [net.constant(scale), net.constant(np.asarray(zero).astype(kind))]
        attributes = {"axis": axis} if columns else {}
        back = {**attributes, **self._to_floats}
        if kind.name.startswith("float8"):
            levels = (value / factors).astype(kind)
            return net("DequantizeLinear", net.constant(levels), names[0], **back)
        if kind.name == "int8" and not zero.any() and net.flip(0.3):
            names = names[:1]
        if style.floats and not (len(names) == 1 and kind != U8):
            return net(
                "DequantizeLinear", net("QuantizeLinear", net.constant(value.astype(style.real)), *names, **attributes), *names, **back
            )
        levels = np.clip(np.rint(value / factors) + points, least, most).astype(kind)
        return net("DequantizeLinear", net.constant(levels), *names, **back)

    def blocked(self, value: Array) -> str:
        """A matrix [K, N] whose scales belong to blocks of rows."""
        net, style = self.net, self.style
        kind = np.dtype(net.choice(style.stored))
        least, most = limits(kind)
        size = style.block
        parts = value.reshape(-1, size, value.shape[1])
        if kind.name.startswith("u"):
            low, high = np.minimum(parts.min(1), 0), np.maximum(parts.max(1), 0)
            scale = self._scale((high - low) / (most - least))
            zero = np.clip(np.rint(-low / scale.astype(np.float64)), least, most)
        else:
            scale = self._scale(np.abs(parts).max(1) / most)
            zero = np.zeros(scale.shape)
        wide = [np.repeat(np.asarray(v, np.float64), size, 0) for v in (scale, zero)]
        levels = np.clip(np.rint(value / wide[0]) + wide[1], least, most).astype(kind)
        names = [net.constant(scale)] + ([net.constant(zero.astype(kind))] if zero.any() or net.flip() else [])
        return net("DequantizeLinear", net.constant(levels), *names, axis=0, block_size=size)

    def bias(self, size: int, x: str) -> str:
        """Return a bias of floats, or of integers of 32 bits."""
        net = self.net
        value = net.normal(size, scale=0.3)
        if not self.style.integer_bias or x not in self.levels_of or net.flip(0.2):
            return net.constant(value.astype(self.style.real))
        step = np.float32(float(net.values[self.levels_of[x].scale].low) * 0.01)
        steps = np.asarray(step * np.abs(net.normal(size)) + step) if net.flip() else np.asarray(step)
        names = [net.constant(np.rint(value / steps).astype(np.int32)), net.constant(steps)]
        names += [net.constant(np.zeros(steps.shape, np.int32))] if net.flip() else []
        return net("DequantizeLinear", *names, **({"axis": 0} if steps.size > 1 else {}))
