"""Folds nodes behind a convolution or Gemm, channel by channel, into its weights and bias: BatchNormalization, and Mul, Add, Sub, Div by
constants. At ONNX level, where weights are not packed yet; the folded weights are computed when they are written."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried

_F32 = np.dtype(np.float32)
_PRODUCTS = {"Conv", "ConvTranspose", "Gemm"}


def fold_affine(graph: Graph) -> None:
    """Rewrites y = Conv(x) * factor + offset as one Conv, again and again along a chain."""
    uses, producer = graph.uses(), graph.producers()
    dead: set[int] = set()
    for node in graph.nodes:
        found = _affine(node, producer)
        if found is None:
            continue
        product, factor, offset, key = found
        if uses[product.output] != 1 or product.output.dtype != _F32 or not _foldable(product):
            continue
        if factor is not None and product.op == "Gemm" and product.inputs[1] is not None and product.inputs[1].stored is not None:
            continue  # weights of up to 16 bits stay as they are: the factor is part of the kernel's epilogue
        _fold(product, node, factor, offset, key)
        dead.add(id(product))
    graph.nodes = [n for n in graph.nodes if id(n) not in dead]


def _foldable(product: Node) -> bool:
    weights, bias = product.inputs[1], product.inputs[2] if len(product.inputs) > 2 else None
    if weights is None or not weights.is_const or (bias is not None and not bias.is_const):
        return False
    if product.op == "Gemm":
        n = product.output.shape[1]
        return bias is None or (bias.size in {1, n} and bias.shape[-1:] in {(n,), (1,)})
    return True


def _affine(node: Node, producer: dict[Tensor, Node]) -> tuple[Node, npt.NDArray[Any] | None, npt.NDArray[Any] | None, str | None] | None:
    """(product, factor, offset, key of both constants) if `node` scales and shifts the channels of a product."""
    if node.op == "BatchNormalization":
        product = producer.get(node.inputs[0]) if node.inputs[0] is not None else None
        if product is None or product.op not in _PRODUCTS:
            return None
        constants = batch_norm(node)
        return None if constants is None else (product, *constants)
    if node.op not in {"Mul", "Add", "Sub", "Div"} or len(node.inputs) != 2:
        return None
    for k in (0, 1):
        product = producer.get(node.inputs[k]) if node.inputs[k] is not None else None  # type: ignore[arg-type]
        constant = node.inputs[1 - k]
        if product is None or product.op not in _PRODUCTS or constant is None or not constant.is_const or constant.dtype != _F32:
            continue
        if node.output.shape != product.output.shape or (k == 1 and node.op in {"Sub", "Div"}):
            continue
        vector = _per_channel(constant, product.output.shape)
        if vector is None:
            continue
        key = None if constant.weight_key is None else f"{node.op}:{constant.weight_key}"
        if node.op == "Mul":
            return product, vector, None, key
        if node.op == "Div":
            return product, 1.0 / vector, None, key
        return product, None, vector if node.op == "Add" else -vector, key
    return None


def _per_channel(constant: Tensor, shape: tuple[int, ...]) -> npt.NDArray[Any] | None:
    """A constant that varies along axis 1 alone, as a vector of as many channels."""
    dims = (1,) * (len(shape) - len(constant.shape)) + constant.shape
    if any(d != 1 for axis, d in enumerate(dims) if axis != 1):
        return None
    vector: npt.NDArray[Any] = np.broadcast_to(constant.value().reshape(-1).astype(np.float64), (shape[1],))
    return vector


def batch_norm(node: Node) -> tuple[npt.NDArray[Any], npt.NDArray[Any], str | None] | None:
    """Factor, offset (double precision) and weight key of an inference BatchNormalization with constant statistics, else None."""
    if node.attrs.get("training_mode", 0):
        return None
    parts = node.inputs[1:5]
    if any(t is None or not t.is_const or t.dtype != _F32 for t in parts) or any(t.name for t in node.outputs[1:]):
        return None
    scale, bias, mean, var = (t.value().astype(np.float64) for t in parts if t is not None)
    eps = float(node.attrs.get("epsilon", 1e-5))
    factor = scale / np.sqrt(var + eps)
    keys = [t.weight_key for t in parts if t is not None]
    return factor, bias - mean * factor, None if None in keys else f"batchnorm:{keys}:{eps}"


def _fold(product: Node, node: Node, factor: npt.NDArray[Any] | None, offset: npt.NDArray[Any] | None, key: str | None) -> None:
    """Turns `node` into the product with other weights."""
    weights, old = product.inputs[1], product.inputs[2] if len(product.inputs) > 2 else None
    assert weights is not None
    channels = node.output.shape[1]
    bias = np.zeros(channels) if old is None else np.broadcast_to(old.value().reshape(-1).astype(np.float64), (channels,))
    attrs = dict(product.attrs)
    if product.op == "Gemm" and old is not None:
        bias = bias * float(attrs.get("beta", 1.0))
        attrs["beta"] = 1.0
    if factor is not None:
        bias = bias * factor
        if product.op == "ConvTranspose":  # [C, M/G, …]: each group's inputs have their own outputs
            groups = int(attrs.get("group", 1))
            scale = np.repeat(factor.reshape(groups, -1), weights.shape[0] // groups, axis=0)
            weights = _scaled(weights, scale.reshape(*weights.shape[:2], *[1] * (len(weights.shape) - 2)), key)
        else:
            axis = 0 if product.op == "Conv" or attrs.get("transB", 0) else 1
            weights = _scaled(weights, factor.reshape([-1 if k == axis else 1 for k in range(len(weights.shape))]), key)
    if offset is not None:
        bias = bias + offset
    whole = (
        None
        if key is None or (old is not None and old.weight_key is None)
        else f"bias:{old.weight_key if old else ''}|{key}|{attrs.get('beta')}"
    )
    vector = Tensor(f"{node.output.name}|bias", (channels,), _F32, data=bias.astype(np.float32), weight_key=whole)
    label = f"{product.onnx_op} + {node.onnx_op}"
    reasons.tell(partial(_reason, product.name, node.name, label))
    node.op, node.inputs, node.attrs, node.source = product.op, [product.inputs[0], weights, vector], attrs, product.source
    node.outputs, node.onnx_op, node.name = node.outputs[:1], label, product.name


def _reason(product: str, name: str, label: str) -> Reason:
    tried = (Tried("an op of its own", "it would read and write all results again"),)
    return Reason("fusion", label, "constants for each channel join weights and bias", tried=tried, absorbed=(name,), node=product)


def _scaled(weights: Tensor, factor: npt.NDArray[Any], key: str | None) -> Tensor:
    whole = None if key is None or weights.weight_key is None else f"{weights.weight_key}*{key}"
    pack = partial(_multiply, weights, factor.astype(np.float32))
    return Tensor(f"{weights.name}|scaled", weights.shape, _F32, weight_key=whole, pack=pack)


def _multiply(weights: Tensor, factor: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    np.multiply(weights.value(), factor, out=out)
