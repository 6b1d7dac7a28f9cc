"""An ONNX graph as a `torch.fx.GraphModule`: PyTorch's own operators in the order of the file, for comparison with eager PyTorch and
`torch.compile`.

Graphs of static shapes only. Values that are known before a run (shapes, constants and whatever follows from them) are computed once, here.
Everything else becomes one call of a PyTorch function, so that the compiler sees the graph that PyTorch's exporter had written.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = NDArray[Any]
Value = Any  # a torch.fx.Node, or an array that is known already
Rule = Callable[["Converter", onnx.NodeProto, list[Value], dict[str, Any]], Value]
FOLD_LIMIT = 1 << 24  # bytes of a constant that is worth computing before the run


def convert(model: onnx.ModelProto) -> torch.fx.GraphModule:
    """A module whose forward takes the graph's inputs and returns its outputs, both as tensors in the order of the file.

    NotImplementedError names every operator that has no rule here, or the option of one that is not served.
    """
    missing = sorted({node.op_type for node in model.graph.node if node.op_type not in RULES})
    if missing:
        raise NotImplementedError(f"no PyTorch form of {', '.join(missing)}")
    return Converter(model).module()


class Converter:
    """One conversion: the fx graph under construction and what each name stands for."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.proto = model
        self.opset = next((o.version for o in model.opset_import if not o.domain), 1)
        self.graph = torch.fx.Graph()
        self.root = torch.nn.Module()
        self.values: dict[str, Value] = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self.tensors: dict[int, tuple[Array, torch.fx.Node]] = {}  # the array is kept, so that its id stays its own
        self.shapes = _shapes(model) if any(node.op_type == "Shape" for node in model.graph.node) else {}

    def module(self) -> torch.fx.GraphModule:
        graph = self.proto.graph
        for value in graph.input:
            if value.name not in self.values:
                self.values[value.name] = self.graph.placeholder(f"x{len(self.values)}")
        for node in graph.node:
            self._node(node)
        self.graph.output(tuple(self.tensor(self.values[value.name]) for value in graph.output))
        self.graph.lint()
        module = torch.fx.GraphModule(self.root, self.graph)
        return module.eval().requires_grad_(False)

    def _node(self, node: onnx.NodeProto) -> None:
        inputs = [self.values[name] if name else None for name in node.input]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Shape" and node.input[0] in self.shapes:
            results: Any = np.array(self.shapes[node.input[0]], np.int64)
        elif all(x is None or isinstance(x, np.ndarray) for x in inputs) and sum(x.nbytes for x in inputs if x is not None) < FOLD_LIMIT:
            results = self._known(node, inputs)
        else:
            results = RULES[node.op_type](self, node, inputs, attributes)
        if not isinstance(results, list):
            results = [results]
        for name, result in zip(node.output, results, strict=False):
            self.values[name] = result

    def _known(self, node: onnx.NodeProto, inputs: list[Any]) -> list[Any]:
        names = {name: x for name, x in zip(node.input, inputs, strict=True) if name}
        unknown = [helper.make_empty_tensor_value_info(name) for name in names]
        results = [helper.make_empty_tensor_value_info(name) for name in node.output]
        graph = helper.make_graph([node], "known", unknown, results)
        one = helper.make_model(graph, opset_imports=self.proto.opset_import, ir_version=self.proto.ir_version)
        return [np.asarray(x) for x in ReferenceEvaluator(one).run(None, names)]

    # ---- for the rules

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.fx.Node:
        """One call in the graph. Arrays become tensors of the module; scalars of float32 become numbers, as PyTorch code has them."""
        return self.graph.call_function(function, tuple(self.tensor(a, scalar=True) for a in args), kwargs)

    def tensor(self, value: Value, *, scalar: bool = False) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        if scalar and value.ndim == 0 and value.dtype == np.float32:
            return float(value)
        if id(value) not in self.tensors:
            name = f"constant_{len(self.tensors)}"
            self.root.register_buffer(name, torch.from_numpy(np.array(value)))
            self.tensors[id(value)] = (value, self.graph.get_attr(name))
        return self.tensors[id(value)][1]

    def ints(self, value: Value, node: onnx.NodeProto) -> list[int]:
        """An integer input whose value is known."""
        if not isinstance(value, np.ndarray):
            raise NotImplementedError(f"{node.op_type} {node.name!r}: an argument is only known when it runs")
        return [int(v) for v in value.ravel()]


def _shapes(model: onnx.ModelProto) -> dict[str, list[int]]:
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    found: dict[str, list[int]] = {}
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        dims = value.type.tensor_type.shape.dim
        if all(dim.HasField("dim_value") for dim in dims):
            found[value.name] = [dim.dim_value for dim in dims]
    return found


def _refuse(node: onnx.NodeProto, what: str) -> NotImplementedError:
    return NotImplementedError(f"{node.op_type} {node.name!r}: {what}")


# ------------------------------------------------------------------------------------------------ rules


def _plain(function: Callable[..., Any]) -> Rule:
    return lambda c, node, x, attributes: c.call(function, *x)


def _softmax(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    axis = attributes.get("axis", -1 if c.opset >= 13 else 1)
    if c.opset < 13 and axis != -1:
        raise _refuse(node, "opset below 13 flattens the axes from `axis` on")
    return c.call(torch.softmax, x[0], dim=axis)


def _hard_sigmoid(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    scaled = c.call(torch.add, c.call(torch.mul, x[0], attributes.get("alpha", 0.2)), attributes.get("beta", 0.5))
    return c.call(torch.clamp, scaled, 0.0, 1.0)


def _padded(c: Converter, node: onnx.NodeProto, x: Value, attributes: dict[str, Any], n: int, fill: float) -> tuple[Value, list[int]]:
    """The input and symmetric pads for PyTorch; pads that are not symmetric are written into the input first."""
    if attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise _refuse(node, "auto_pad")
    pads = list(attributes.get("pads") or [0] * 2 * n)
    begin, end = pads[:n], pads[n:]
    if begin == end:
        return x, begin
    both = [p for pair in zip(reversed(begin), reversed(end), strict=True) for p in pair]
    return c.call(F.pad, x, both, value=fill), [0] * n


def _conv(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    n = len(x[1].shape) - 2
    data, pads = _padded(c, node, x[0], attributes, n, 0.0)
    function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[n]
    bias = x[2] if len(x) > 2 else None
    options = {"stride": list(attributes.get("strides") or [1] * n), "dilation": list(attributes.get("dilations") or [1] * n)}
    return c.call(function, data, x[1], bias, padding=pads, groups=attributes.get("group", 1), **options)


def _max_pool(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    kernel = list(attributes["kernel_shape"])
    data, pads = _padded(c, node, x[0], attributes, len(kernel), -np.inf)
    function = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[len(kernel)]
    strides, dilations = list(attributes.get("strides") or [1] * len(kernel)), list(attributes.get("dilations") or [1] * len(kernel))
    return c.call(function, data, kernel, strides, pads, dilations, bool(attributes.get("ceil_mode", 0)))


def _average_pool(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    kernel = list(attributes["kernel_shape"])
    include = bool(attributes.get("count_include_pad", 0))
    data, pads = _padded(c, node, x[0], attributes, len(kernel), 0.0)
    if data is not x[0] and not include:
        raise _refuse(node, "pads that differ at the two ends")
    function = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[len(kernel)]
    strides = list(attributes.get("strides") or [1] * len(kernel))
    return c.call(function, data, kernel, strides, pads, bool(attributes.get("ceil_mode", 0)), include)


def _gemm(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    a, b = x[0], x[1]
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    a = c.call(torch.t, a) if attributes.get("transA", 0) else a
    bias = x[2] if len(x) > 2 and beta != 0.0 else None
    if alpha == 1.0 and beta == 1.0 and isinstance(b, np.ndarray) and (bias is None or bias.ndim == 1):  # as torch.nn.Linear has it
        return c.call(F.linear, a, b if attributes.get("transB", 0) else np.ascontiguousarray(b.T), bias)
    product = c.call(torch.matmul, a, c.call(torch.t, b) if attributes.get("transB", 0) else b)
    product = c.call(torch.mul, product, alpha) if alpha != 1.0 else product
    if bias is None:
        return product
    return c.call(torch.add, product, bias if beta == 1.0 else c.call(torch.mul, bias, beta))


def _divide(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    known = next((v for v in x if isinstance(v, np.ndarray)), None)
    if known is not None and known.dtype.kind in "iu":
        return c.call(torch.div, *x, rounding_mode="trunc")
    return c.call(torch.div, *x)


def _clip(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    bounds = [*x[1:], None, None][:2] if c.opset >= 11 else [attributes.get("min"), attributes.get("max")]
    low, high = (float(b) if isinstance(b, np.ndarray) else b for b in bounds)
    return c.call(torch.clamp, x[0], low, high)


def _reshape(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    shape = c.ints(x[1], node)
    if 0 in shape and not attributes.get("allowzero", 0):
        shape = [c.call(torch.Tensor.size, x[0], axis) if d == 0 else d for axis, d in enumerate(shape)]
    return c.call(torch.reshape, x[0], shape)


def _flatten(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    if attributes.get("axis", 1) != 1:
        raise _refuse(node, "axis")
    return c.call(torch.flatten, x[0], 1)


def _split(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    axis = attributes.get("axis", 0)
    if len(x) > 1 and x[1] is not None:
        parts = c.call(torch.split, x[0], c.ints(x[1], node), dim=axis)
    else:
        parts = c.call(torch.chunk, x[0], attributes.get("num_outputs", len(node.output)), dim=axis)
    return [c.call(operator.getitem, parts, k) for k in range(len(node.output))]


def _slice(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    if c.opset < 10:
        raise _refuse(node, "opset below 10")
    starts, ends = c.ints(x[1], node), c.ints(x[2], node)
    axes = c.ints(x[3], node) if len(x) > 3 and x[3] is not None else list(range(len(starts)))
    steps = c.ints(x[4], node) if len(x) > 4 and x[4] is not None else [1] * len(starts)
    if min(steps) < 1 or min(axes) < 0:
        raise _refuse(node, "negative steps or axes")
    cuts = [slice(None)] * (max(axes) + 1)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        cuts[axis] = slice(start, end, step)
    return c.call(operator.getitem, x[0], tuple(cuts))


def _gather(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    axis, index = attributes.get("axis", 0), x[1]
    if isinstance(index, np.ndarray) and index.ndim == 0:
        return c.call(torch.select, x[0], axis, int(index))
    if axis == 0:
        return c.call(F.embedding, index, x[0])
    if isinstance(index, np.ndarray) and index.ndim == 1:
        return c.call(torch.index_select, x[0], axis, index)
    raise _refuse(node, "indices of this rank along this axis")


def _axes(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> list[int]:
    return list(attributes["axes"]) if "axes" in attributes else c.ints(x[1], node)


def _unsqueeze(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    value = x[0]
    for axis in sorted(_axes(c, node, x, attributes)):
        value = c.call(torch.unsqueeze, value, axis)
    return value


def _squeeze(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    return c.call(torch.squeeze, x[0], tuple(_axes(c, node, x, attributes)))


def _reduce_mean(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    return c.call(torch.mean, x[0], _axes(c, node, x, attributes), bool(attributes.get("keepdims", 1)))


def _cast(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    dtype = torch.from_numpy(np.zeros(0, helper.tensor_dtype_to_np_dtype(attributes["to"]))).dtype
    return c.call(torch.Tensor.to, x[0], dtype)


def _expand(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    shape = c.ints(x[1], node)
    if 1 in shape:  # ONNX keeps the input's own dimension there
        return c.call(operator.getitem, c.call(torch.broadcast_tensors, x[0], np.zeros(shape, np.float32)), 0)
    return c.call(torch.Tensor.expand, x[0], shape)


def _pad(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    pads = c.ints(x[1], node)
    n = len(pads) // 2
    both = [p for axis in reversed(range(n)) for p in (pads[axis], pads[n + axis])]
    mode = attributes.get("mode", b"constant").decode()
    fill = float(x[2]) if len(x) > 2 and x[2] is not None else 0.0
    if mode != "constant" or (len(x) > 3 and x[3] is not None):
        raise _refuse(node, "mode or axes")
    return c.call(F.pad, x[0], both, value=fill)


def _resize(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    scales = [float(s) for s in x[2].ravel()] if len(x) > 2 and isinstance(x[2], np.ndarray) and x[2].size else []
    place, mode = attributes.get("coordinate_transformation_mode", b"half_pixel").decode(), attributes.get("mode", b"nearest").decode()
    if len(scales) != 4 or scales[:2] != [1.0, 1.0]:
        raise _refuse(node, "only images by given scales")
    if mode == "nearest" and place == "asymmetric" and attributes.get("nearest_mode", b"round_prefer_floor") == b"floor":
        return c.call(F.interpolate, x[0], scale_factor=scales[2:], mode="nearest")
    if mode == "linear" and place in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        return c.call(F.interpolate, x[0], scale_factor=scales[2:], mode="bilinear", align_corners=place == "align_corners")
    raise _refuse(node, f"{mode}, {place}")


def _layer_norm(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    if len(node.output) > 1:
        raise _refuse(node, "mean and deviation as results")
    scale, bias = x[1], x[2] if len(x) > 2 else None
    return c.call(F.layer_norm, x[0], list(scale.shape), scale, bias, attributes.get("epsilon", 1e-5))


def _batch_norm(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    data, scale, bias, mean, variance = x
    return c.call(F.batch_norm, data, mean, variance, scale, bias, False, 0.0, attributes.get("epsilon", 1e-5))


def _gelu(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    return c.call(F.gelu, x[0], approximate=attributes.get("approximate", b"none").decode())


def _where(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    return c.call(torch.where, *x)


def _transpose(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    if "perm" not in attributes:
        raise _refuse(node, "no perm")
    perm = list(attributes["perm"])
    if perm == [0, 2, 3, 1]:
        # Heads split off and the keys transposed, which exporters write as one: as a model writes it, in two. Inductor's attention pattern
        # takes any permutation before the product for the latter alone.
        return c.call(torch.transpose, c.call(torch.permute, x[0], [0, 2, 1, 3]), -1, -2)
    return c.call(torch.permute, x[0], perm)


def _concat(c: Converter, node: onnx.NodeProto, x: Sequence[Value], attributes: dict[str, Any]) -> Value:
    return c.call(torch.cat, [c.tensor(v) for v in x], dim=attributes["axis"])


def _identity(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    return x[0]


def _global_average(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    return c.call(F.adaptive_avg_pool2d, x[0], 1)


def _leaky(c: Converter, node: onnx.NodeProto, x: list[Value], attributes: dict[str, Any]) -> Value:
    return c.call(F.leaky_relu, x[0], attributes.get("alpha", 0.01))


RULES: dict[str, Rule] = {
    "Add": _plain(torch.add),
    "And": _plain(torch.logical_and),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Constant": _identity,  # folded
    "Conv": _conv,
    "Div": _divide,
    "Dropout": _identity,
    "Equal": _plain(torch.eq),
    "Erf": _plain(torch.erf),
    "Exp": _plain(torch.exp),
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain(F.hardswish),
    "Identity": _identity,
    "IsNaN": _plain(torch.isnan),
    "LayerNormalization": _layer_norm,
    "LeakyRelu": _leaky,
    "Log": _plain(torch.log),
    "MatMul": _plain(torch.matmul),
    "MaxPool": _max_pool,
    "Mul": _plain(torch.mul),
    "Neg": _plain(torch.neg),
    "Not": _plain(torch.logical_not),
    "Pad": _pad,
    "Pow": _plain(torch.pow),
    "ReduceMean": _reduce_mean,
    "Relu": _plain(torch.relu),
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": _identity,  # folded
    "Sigmoid": _plain(torch.sigmoid),
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Sqrt": _plain(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": _plain(torch.sub),
    "Tanh": _plain(torch.tanh),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
