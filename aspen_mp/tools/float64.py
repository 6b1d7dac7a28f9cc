"""Evaluates a model in nearly exact arithmetic: every operator in float64, by numpy, whatever the model's own float types are.

This is the reference of `aspen-mp run --check float64` and `aspen-mp bench agreement`. It knows nothing of plans: ONNX's own evaluator
walks the model as it was written. Convolutions and average pools are matrix products and sums over windows in place of its loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference.op_run import OpRun

from aspen_mp.shm.errors import UnsupportedModelError
from aspen_mp.workers.fallback import windows
from aspen_mp.workers.fallback.operators import OPERATORS, Evaluator

Array = npt.NDArray[Any]
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
_TYPED = {"to", "dtype", "output_dtype", "precision"}
"""Attributes that name the type of an output."""


def evaluate(model: onnx.ModelProto, feeds: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """The values of the outputs `names` for inputs `feeds`; those of floats as float64.

    Raises UnsupportedModelError, naming the operator, where the model has one that ONNX's evaluator does not know, such as onnxruntime's
    own.
    """
    return evaluator(model, names)(feeds)


def evaluator(model: onnx.ModelProto, names: Sequence[str]) -> Callable[[Mapping[str, Any]], list[Any]]:
    """`evaluate` for inputs that come one after the other: the model is read once."""
    wide = _widened(model)

    def run(feeds: Mapping[str, Any]) -> list[Any]:
        given = {name: _wide(value) for name, value in feeds.items()}
        try:
            with np.errstate(all="ignore"):
                return list(_Wide(wide).run(list(names), given))
        except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            raise UnsupportedModelError(
                f"model {model.graph.name!r} cannot be evaluated in float64: {error}. "
                "Compare with onnxruntime instead (--check onnxruntime)"
            ) from error

    return run


def _wide(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_wide(v) for v in value]
    if not isinstance(value, np.ndarray) or value.dtype == object:
        return value
    floats = value.dtype.kind == "f" or value.dtype.name == "bfloat16"
    return value.astype(np.float64) if floats else value


# ------------------------------------------------------------------------------------------------------------ the model


def _widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all floats as doubles."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    _widen_graph(out.graph)
    for function in out.functions:
        _widen_nodes(function.node)
    return out


def _widen_graph(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for sparse in graph.sparse_initializer:
        _widen_tensor(sparse.values)
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        kind = value.type.tensor_type
        if kind.elem_type in _FLOATS:
            kind.elem_type = TensorProto.DOUBLE
    _widen_nodes(graph.node)


def _widen_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        if node.op_type == "ConstantOfShape" and not node.attribute:
            node.attribute.append(helper.make_attribute("value", helper.make_tensor("value", TensorProto.DOUBLE, [1], [0.0])))
        for attribute in node.attribute:
            if attribute.name in _TYPED and attribute.type == onnx.AttributeProto.INT and attribute.i in _FLOATS:
                attribute.i = TensorProto.DOUBLE
            elif node.op_type == "Constant" and attribute.name in {"value_float", "value_floats"}:
                values = np.asarray(helper.get_attribute_value(attribute), np.float64)
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(values)))
            elif attribute.HasField("t"):
                _widen_tensor(attribute.t)
            elif attribute.HasField("g"):
                _widen_graph(attribute.g)
            for graph in attribute.graphs:
                _widen_graph(graph)


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in _FLOATS:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


# --------------------------------------------------------------------------------------------------------- the operators


class Conv(OpRun):
    """One matrix product for each tap of the window, which needs no copy of all windows at once."""

    def _run(self, x: Any, weights: Any, bias: Any = None, **attributes: Any) -> tuple[Any, ...]:
        groups, outputs = int(attributes.get("group") or 1), weights.shape[0]
        w = windows.window(x.shape[2:], weights.shape[2:], attributes)
        view = windows.patches(x, w, 0)  # [N, C, O1 … On, K1 … Kn]
        n = x.ndim - 2
        images, space = x.shape[0], view.shape[2 : 2 + n]
        factors = weights.reshape(groups, outputs // groups, weights.shape[1], *w.kernel)
        out = np.zeros((images, groups, outputs // groups, prod(space)))
        for tap in w.taps():
            last: Any = (..., *tap)
            out += factors[last] @ view[last].reshape(images, groups, weights.shape[1], -1)
        y = out.reshape(images, outputs, *space)
        return (y if bias is None else y + bias.reshape(-1, *(1,) * n),)


class AveragePool(OpRun):
    def _run(self, x: Any, **attributes: Any) -> tuple[Any, ...]:
        spatial, n = x.shape[2:], x.ndim - 2
        w = windows.window(spatial, attributes["kernel_shape"], attributes)
        out = []
        for d, r, s, b, e in zip(spatial, w.reach, w.strides, w.begin, w.end, strict=True):
            whole, rest = divmod(d + b + e - r, s)
            more = bool(attributes.get("ceil_mode") and rest and (whole + 1) * s < d + b)  # the last window has to start inside
            out.append(whole + 1 + more)
        taps = tuple(range(-n, 0))
        counted, inside = np.ones(spatial), w
        if attributes.get("count_include_pad"):
            counted = np.ones([d + b + e for d, b, e in zip(spatial, w.begin, w.end, strict=True)])
            inside = windows.Window(w.kernel, w.strides, w.dilations, (0,) * n, (0,) * n)
        count = windows.patches(counted, inside, 0, out).sum(taps)
        return (windows.patches(x, w, 0, out).sum(taps) / count,)


class _Wide(Evaluator):
    operators = (*OPERATORS, Conv, AveragePool)
