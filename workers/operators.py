"""Operators of our own in place of those of `onnx.reference` that are wrong or missing, and the evaluator that uses them everywhere: in the
graph, in bodies of Loop, Scan and If, and in functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_dequantize_linear, op_roi_align

from aspen_mp.workers import loops, recurrent, sampling


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
    """Before opset 13 all axes from `axis` on are one."""

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


class RoiAlign(op_roi_align.RoiAlign):
    """Before opset 16 there is no half pixel, and no attribute that says so."""

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        if self.run_params["opsets"].get("", 16) < 16:
            attributes["coordinate_transformation_mode"] = "output_half_pixel"
        result: tuple[Any, ...] = super()._run(*inputs, **attributes)  # type: ignore[no-untyped-call]
        return result


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
    GatherElements,
    DequantizeLinear,
    Optional,
]


class Evaluator(ReferenceEvaluator):
    """ONNX's evaluator with our operators; it makes others of its own class for bodies and functions."""

    def __init__(self, proto: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["new_ops"] = OPERATORS
        super().__init__(_with_names(proto), *args, **kwargs)


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
