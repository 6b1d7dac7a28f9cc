"""Operators of our own in place of those of `onnx.reference` that are wrong or missing, and the evaluator that uses them. It uses them in
the graph, in bodies of Loop, Scan and If, and in functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from onnx import FunctionProto, ModelProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_dequantize_linear

from aspen_mp.workers.fallback import (
    arithmetic,
    boxes,
    interrupt,
    loops,
    ml,
    numpy_operators,
    randoms,
    recurrent,
    rounds,
    sampling,
    windows,
)


class _Recurrent(OpRun):
    def _run(self, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        op = type(self).__name__
        return recurrent.run(op, *inputs, **attributes)[: 3 if op == "LSTM" else 2]


class LSTM(_Recurrent):
    pass


class GRU(_Recurrent):
    pass


class RNN(_Recurrent):
    pass


class _WithBody(OpRun):
    def need_context(self) -> bool:
        """Bodies read outer values."""
        return True

    def _called(self, attributes: dict[str, Any]) -> loops.Body:
        return loops.Body(attributes["body"], attributes.get("context"), attributes.get("attributes"))


class Loop(_WithBody):
    def _run(self, trips: Any = None, condition: Any = None, *carried: Any, **attributes: Any) -> tuple[Any, ...]:
        return loops.loop(self._called(attributes), trips, condition, carried, self.run_params["opsets"])


class Scan(_WithBody):
    def _run(self, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        opsets = self.run_params["opsets"]
        if opsets.get("", 9) < 9:
            return loops.scan_of_batches(self._called(attributes), inputs[0], inputs[1:], attributes)
        return loops.scan(self._called(attributes), inputs, attributes, opsets)


class GlobalLpPool(OpRun):
    def _run(self, x: Any, p: float | None = None) -> tuple[Any, ...]:
        order = 2.0 if p is None else float(p)
        wide = np.abs(x.astype(np.float64))
        return (((wide**order).sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / order)).astype(x.dtype),)


class Det(OpRun):
    """numpy has none of halves."""

    def _run(self, x: Any) -> tuple[Any, ...]:
        return (np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype),)


class GridSample(OpRun):
    def _run(self, x: Any, grid: Any, **attributes: Any) -> tuple[Any, ...]:
        mode, padding = attributes.get("mode") or "linear", attributes.get("padding_mode") or "zeros"
        return (sampling.grid_sample(x, grid, mode, padding, bool(attributes.get("align_corners"))),)


class STFT(OpRun):
    def _run(self, signal: Any, step: Any, window: Any = None, length: Any = None, onesided: int | None = None) -> tuple[Any, ...]:
        size = None if length is None else int(np.asarray(length).reshape(()))
        spectra = sampling.stft(signal, int(np.asarray(step).reshape(())), window, size, onesided != 0)
        return (spectra.astype(signal.dtype),)


class Hardmax(OpRun):
    """Hardmax, where all axes from `axis` on are one before opset 13."""

    def _run(self, x: Any, axis: int | None = None) -> tuple[Any, ...]:
        if x.size == 0:
            return (x,)
        old = self.run_params["opsets"].get("", 13) < 13
        if axis is None or not any(a.name == "axis" for a in self.onnx_node.attribute):
            axis = 1 if old else -1
        rows = x.reshape(int(np.prod(x.shape[: axis % x.ndim if axis < x.ndim else axis])), -1) if old else np.moveaxis(x, axis, -1)
        out = np.zeros(rows.shape, x.dtype)
        np.put_along_axis(out, rows.argmax(-1)[..., None], 1, -1)
        return (out.reshape(x.shape) if old else np.ascontiguousarray(np.moveaxis(out, -1, axis)),)


class RoiAlign(OpRun):
    """Before opset 16 there is no half pixel, and no attribute that says so."""

    def _run(self, x: Any, rois: Any, batches: Any, **attributes: Any) -> tuple[Any, ...]:
        new = self.run_params["opsets"].get("", 16) >= 16
        half = new and (attributes.get("coordinate_transformation_mode") or "half_pixel") == "half_pixel"
        return (boxes.roi_align(x, rois, batches, attributes, half),)


class MaxRoiPool(OpRun):
    def _run(self, x: Any, rois: Any, pooled_shape: Any = None, spatial_scale: float | None = None) -> tuple[Any, ...]:
        scale = 1.0 if spatial_scale is None else float(spatial_scale)
        return (boxes.max_roi_pool(x, rois, tuple(pooled_shape), scale),)


class NonMaxSuppression(OpRun):
    """Numbers may be left out, and come as scalars or as vectors of one."""

    def _run(self, regions: Any, scores: Any, *numbers: Any, **attributes: Any) -> tuple[Any, ...]:
        given = [None if v is None or not np.size(v) else np.asarray(v).reshape(-1)[0] for v in numbers] + [None] * 3
        most, overlap, least = given[:3]
        limit, centred = None if least is None else float(least), bool(attributes.get("center_point_box"))
        return (boxes.non_max_suppression(regions, scores, int(most or 0), float(overlap or 0), limit, centred),)


class MaxPool(OpRun):
    def _run(self, x: Any, **attributes: Any) -> tuple[Any, ...]:
        return windows.max_pool(x, attributes)[: len(self.onnx_node.output)]


class ConvTranspose(OpRun):
    def _run(self, x: Any, weights: Any, bias: Any = None, **attributes: Any) -> tuple[Any, ...]:
        return (windows.conv_transpose(x, weights, bias, attributes).astype(x.dtype),)


class Col2Im(OpRun):
    def _run(self, x: Any, image: Any, block: Any, **attributes: Any) -> tuple[Any, ...]:
        return (windows.col2im(x, image.tolist(), block.tolist(), attributes),)


class DeformConv(OpRun):
    def _run(self, x: Any, weights: Any, offset: Any, bias: Any = None, mask: Any = None, **attributes: Any) -> tuple[Any, ...]:
        return (windows.deform_conv(x, weights, offset, bias, mask, attributes).astype(x.dtype),)


class ConvInteger(OpRun):
    def _run(self, x: Any, weights: Any, x_zero: Any = None, w_zero: Any = None, **attributes: Any) -> tuple[Any, ...]:
        return (windows.integer_convolution(x, weights, x_zero, w_zero, attributes),)


class QLinearConv(OpRun):
    def _run(self, x: Any, xs: Any, xz: Any, w: Any, ws: Any, wz: Any, ys: Any, yz: Any, bias: Any = None, **a: Any) -> tuple[Any, ...]:
        sums = windows.integer_convolution(x, w, xz, wz, a)
        ones = (1,) * (x.ndim - 2)
        if bias is not None:
            sums = sums + bias.reshape(-1, *ones)
        return (_requantised(sums, (xs * ws / ys).reshape(-1, *ones), yz),)


class MatMulInteger(OpRun):
    def _run(self, x: Any, y: Any, x_zero: Any = None, y_zero: Any = None) -> tuple[Any, ...]:
        return (_integer_product(x, y, x_zero, y_zero),)


class QLinearMatMul(OpRun):
    def _run(self, x: Any, xs: Any, xz: Any, y: Any, ys: Any, yz: Any, zs: Any, zz: Any) -> tuple[Any, ...]:
        if not zz.dtype.name.startswith("float8"):
            factor = _by_rows(xs, x) * ys / zs
            return (_requantised(_integer_product(x, y, xz, yz), factor, zz),)
        left = (x.astype(np.float64) - _by_rows(xz, x).astype(np.float64)) * _by_rows(xs, x).astype(np.float64)
        right = (y.astype(np.float64) - yz.astype(np.float64)) * ys.astype(np.float64)
        return (_saturated(np.matmul(left, right) / zs.astype(np.float64) + zz.astype(np.float64), zz.dtype),)


def _saturated(values: Any, dtype: Any) -> Any:
    """Doubles in a type of 8-bit floats; what is too large becomes the largest number."""
    most = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    return np.clip(values, -most, most).astype(np.float32).astype(dtype)


def _integer_product(x: Any, y: Any, x_zero: Any, y_zero: Any) -> Any:
    """Doubles hold such sums exactly, and products of theirs are BLAS's."""
    left = x.astype(np.float64) - (0 if x_zero is None else _by_rows(x_zero, x).astype(np.float64))
    right = y.astype(np.float64) - (0 if y_zero is None else y_zero.astype(np.float64))
    return np.matmul(left, right).astype(np.int32)


def _by_rows(parameter: Any, x: Any) -> Any:
    """Scale or zero point of a left factor: one of all, or one of each row."""
    return parameter.reshape(-1, 1) if parameter.ndim == 1 and parameter.size > 1 and x.ndim > 1 else parameter


def _requantised(sums: Any, factor: Any, zero: Any) -> Any:
    info = np.iinfo(zero.dtype)
    steps = np.rint(sums.astype(np.float32) * factor.astype(np.float32)) + zero.astype(np.float32)
    return np.clip(np.where(np.isnan(steps), info.min, steps), info.min, info.max).astype(zero.dtype)


class Pad(OpRun):
    """Sides may be below zero: they are cut off first, and what is left is padded."""

    def _run(self, x: Any, pads: Any = None, value: Any = None, axes: Any = None, mode: str | None = None, **a: Any) -> tuple[Any, ...]:
        where = range(x.ndim) if axes is None else [int(k) % x.ndim for k in np.asarray(axes).reshape(-1)]
        sides = [int(p) for p in np.asarray(pads).reshape(-1)]
        if len(sides) != 2 * len(where):
            raise ValueError(f"{len(sides)} pads for {len(where)} axes")
        both = [(0, 0)] * x.ndim
        for k, axis in enumerate(where):
            both[axis] = (sides[k], sides[k + len(where)])
        if any(d + min(p, 0) + min(q, 0) < 0 for d, (p, q) in zip(x.shape, both, strict=True)):
            raise ValueError(f"{both} cuts more off than there is in {x.shape}")
        kept = x[tuple(slice(max(-p, 0), d + min(q, 0)) for d, (p, q) in zip(x.shape, both, strict=True))]
        widths = [(max(p, 0), max(q, 0)) for p, q in both]
        if (mode or "constant") != "constant":
            return (np.pad(kept, widths, mode),)  # type: ignore[call-overload]
        fill = x.dtype.type(0) if value is None or not np.size(value) else np.asarray(value).reshape(())
        return (np.pad(kept, widths, constant_values=fill).astype(x.dtype),)


class BatchNormalization(OpRun):
    """Inference alone, of any opset; a batch's own statistics are lowered to kernels."""

    def _run(self, x: Any, scale: Any, bias: Any, mean: Any, var: Any, epsilon: float | None = None, **a: Any) -> tuple[Any, ...]:
        eps = 1e-5 if epsilon is None else epsilon
        shape = (-1, *(1,) * (x.ndim - 2))
        wide = np.float32 if x.dtype.itemsize < 4 else x.dtype
        if a.get("training_mode"):
            momentum = 0.9 if a.get("momentum") is None else a["momentum"]
            axes = (0, *range(2, x.ndim))
            now, spread = x.astype(wide).mean(axes), x.astype(wide).var(axes)
            y = _normalised(x.astype(wide), scale, bias, now, spread, eps, shape)
            following = (old * momentum + new * (1 - momentum) for old, new in ((mean, now), (var, spread)))
            return (y.astype(x.dtype), *(v.astype(mean.dtype) for v in following))[: max(len(self.onnx_node.output), 1)]
        return (_normalised(x.astype(wide), scale, bias, mean, var, eps, shape).astype(x.dtype),)


def _normalised(x: Any, scale: Any, bias: Any, mean: Any, var: Any, eps: float, shape: tuple[int, ...]) -> Any:
    s, b, m, v = (np.asarray(p).astype(x.dtype).reshape(shape) for p in (scale, bias, mean, var))
    return (x - m) / np.sqrt(v + x.dtype.type(eps)) * s + b


class CumSum(OpRun):
    """The axis may come as a vector of one."""

    def _run(self, x: Any, axis: Any, exclusive: int | None = None, reverse: int | None = None) -> tuple[Any, ...]:
        return (numpy_operators.cumsum(x, np.asarray(axis), exclusive, reverse),)


class OneHot(OpRun):
    """The depth may come as a vector of one, in any type."""

    def _run(self, indices: Any, depth: Any, values: Any, axis: int | None = None) -> tuple[Any, ...]:
        count = int(np.asarray(depth).reshape(()))
        k = -1 if axis is None else axis
        k = k + indices.ndim + 1 if k < 0 else k
        which = np.expand_dims(np.asarray(indices).astype(np.int64), k)
        steps = np.arange(count).reshape(-1, *(1,) * (indices.ndim - k))
        return (np.where((which == steps) | (which + count == steps), values[1], values[0]),)


class Unique(OpRun):
    """In order of values, or of where each comes first."""

    def _run(self, x: Any, axis: int | None = None, sorted: int | None = None) -> tuple[Any, ...]:
        found, first, inverse, counts = np.unique(
            x, return_index=True, return_inverse=True, return_counts=True, axis=None if axis is None or x.ndim == 0 else axis
        )
        inverse = inverse.reshape(-1)
        if sorted == 0:
            order = np.argsort(first)
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            found, first, counts, inverse = np.take(found, order, 0 if axis is None else axis), first[order], counts[order], place[inverse]
        results = (found, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64))
        return results[: len(self.onnx_node.output)]


class _Softmax(OpRun):
    """Softmax, where all axes from `axis` on are one before opset 13."""

    def _run(self, x: Any, axis: int | None = None) -> tuple[Any, ...]:
        old = self.run_params["opsets"].get("", 13) < 13
        if axis is None or not any(a.name == "axis" for a in self.onnx_node.attribute):
            axis = 1 if old else -1
        if x.size == 0:
            return (x,)
        over = tuple(range(axis + x.ndim if axis < 0 else axis, x.ndim)) if old else axis
        wide = x.astype(np.float32) if x.dtype.itemsize < 4 else x
        shifted = wide - wide.max(over, keepdims=True)
        exponents = np.exp(shifted)
        total = exponents.sum(axis=over, keepdims=True)
        return ((shifted - np.log(total) if type(self).__name__ == "LogSoftmax" else exponents / total).astype(x.dtype),)


class Softmax(_Softmax):
    pass


class LogSoftmax(_Softmax):
    pass


class GatherElements(OpRun):
    """ONNX's evaluator counts indices around, takes no axis of more than 32 entries, and no indices that are fewer on other axes."""

    def _run(self, x: Any, indices: Any, axis: int | None = None) -> tuple[Any, ...]:
        axis = axis or 0
        if indices.size and (indices.min() < -x.shape[axis] or indices.max() >= x.shape[axis]):
            raise IndexError(f"index outside axis {axis} of {x.shape[axis]}")
        at = list(np.indices(indices.shape, sparse=True))
        at[axis] = indices
        return (x[tuple(at)],)


class DequantizeLinear(op_dequantize_linear.DequantizeLinear_25):
    """ONNX's evaluator has those of opset 19 and later; the newest one does what all older ones do."""


class Optional(OpRun):
    """An optional is the value that it holds, or None; ONNX's evaluator puts it into a list."""

    def _run(self, value: Any = None, type: Any = None) -> tuple[Any, ...]:
        return (value,)

    def _check_and_fix_outputs(self, res: tuple[Any, ...]) -> tuple[Any, ...]:
        return res


OPERATORS: list[type[OpRun]] = [
    LSTM,
    GRU,
    RNN,
    Loop,
    Scan,
    GlobalLpPool,
    Det,
    GridSample,
    STFT,
    Hardmax,
    RoiAlign,
    MaxRoiPool,
    NonMaxSuppression,
    MaxPool,
    ConvTranspose,
    Col2Im,
    DeformConv,
    ConvInteger,
    QLinearConv,
    MatMulInteger,
    QLinearMatMul,
    Pad,
    BatchNormalization,
    CumSum,
    OneHot,
    Unique,
    Softmax,
    LogSoftmax,
    GatherElements,
    DequantizeLinear,
    Optional,
    *ml.OPERATORS,
    *randoms.OPERATORS,
]


class Evaluator(ReferenceEvaluator):
    """ONNX's evaluator with our operators (`operators`); it makes others of its own class for bodies and functions."""

    operators: Sequence[type[OpRun]] = OPERATORS

    def __init__(self, proto: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["new_ops"] = list(self.operators)
        super().__init__(_with_names(proto), *args, **kwargs)
        opset = self.opsets_.get("", 0)
        self._declare(proto)
        self.steps = [rounds.Known(node, _called(node, opset), tuple(node.input), tuple(node.output)) for node in self.rt_nodes_]

    def run(self, output_names: Any, feed_inputs: dict[str, Any], attributes: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As ONNX's, with numpy alone where that computes a node."""
        interrupt.step()
        if args or any(kwargs.values()) or attributes is not None or not self.plain:
            return super().run(output_names, feed_inputs, attributes, *args, **kwargs)
        results: dict[str, Any] = {"": None, **self.rt_inits_, **feed_inputs}
        for node, call, names, outputs in self.steps:  # errors are told by what `node` is when they are raised
            interrupt.step()
            found = NotImplemented
            if call is not None:
                inputs = [results[name] for name in names]
                if numpy_operators.plain(inputs):
                    found = call(*inputs)
            if found is NotImplemented:
                found = self._reference(node, names, results)
            elif not isinstance(found, tuple):
                results[outputs[0]] = np.asarray(found)
                continue
            results.update(zip(outputs, found, strict=False))
        return [results[name] for name in (self.output_names if output_names is None else output_names)]

    @property
    def plain(self) -> bool:
        """Whether nothing but results is asked of it."""
        return not (self.verbose or self.check_shape_annotations_)

    def _declare(self, proto: Any) -> None:
        """Tells operators of `ml` what the model says that they give."""
        graph = proto.graph if isinstance(proto, ModelProto) else proto
        infos = (*graph.value_info, *(() if isinstance(graph, FunctionProto) else graph.output))
        types = {info.name: kind for info in infos if (kind := info.type.tensor_type.elem_type)}
        for node in self.rt_nodes_:
            kind = types.get(node.onnx_node.output[0], 0) if isinstance(node, ml.Compiled) else 0
            if kind:
                node.declared = np.dtype(helper.tensor_dtype_to_np_dtype(kind))

    @staticmethod
    def _reference(node: Any, names: tuple[str, ...], results: dict[str, Any]) -> Any:
        missing = next((name for name in names if name not in results), None)
        if missing is not None:
            raise RuntimeError(f"input {missing!r} is not known")
        inputs = [results[name] for name in names]
        return node.run(*inputs, context=results) if node.need_context() else node.run(*inputs)


def _called(node: Any, opset: int) -> numpy_operators.Call | None:
    """Nodes that ONNX defines by functions are nodes of such a function's evaluator."""
    proto = getattr(node, "onnx_node", None)
    if proto is None or node.has_linked_attribute:
        return None
    return arithmetic.compile_node(proto, opset) or numpy_operators.compile_node(proto, opset)


def _with_names(proto: Any) -> Any:
    """The model, graph or function with names for outputs that have none. ONNX's evaluator stores such a result under the empty name, and
    hands it to whatever misses an input afterwards."""
    if not any("" in node.output for node in _nodes(proto)):
        return proto
    copy = type(proto)()
    copy.CopyFrom(proto)
    for k, node in enumerate(_nodes(copy)):
        node.output[:] = [name or f"\0unused.{k}.{i}" for i, name in enumerate(node.output)]
    return copy


def _nodes(proto: Any) -> Any:
    return proto.graph.node if isinstance(proto, ModelProto) else getattr(proto, "node", ())
