"""A network of the zoo as decoders are made small: weights of products in 4 bits, in blocks of terms with a scale each."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

OPSET = 21  # the first with 4 bits and scales of blocks
BLOCK = 32
_MOST = 7


def in_int4(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, rewritten in place. Constant matrices on the right of MatMul become DequantizeLinear of i4, with a scale (f32) for each
    column and 32 terms. onnxruntime makes its MatMulNBits of the two. A table of tokens stays as it is where rows of it are looked up; the
    product with it has a copy in 4 bits."""
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    turned = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Transpose" and n.input[0] in weights}
    nodes, made = list[onnx.NodeProto](), dict[str, str]()
    for node in graph.node:
        source = turned.get(node.input[1], node.input[1]) if node.op_type == "MatMul" else ""
        if source in weights and len(weights[source].dims) == 2:
            if node.input[1] not in made:
                value = numpy_helper.to_array(weights[source])
                made[node.input[1]] = name = f"{source}/f32"
                levels, scales = in_blocks(value.T if node.input[1] in turned else value)
                graph.initializer.append(numpy_helper.from_array(levels, f"{source}/i4"))
                graph.initializer.append(numpy_helper.from_array(scales, f"{source}/scale"))
                given = [f"{source}/i4", f"{source}/scale"]
                nodes.append(helper.make_node("DequantizeLinear", given, [name], name=f"{name}/DequantizeLinear", axis=0, block_size=BLOCK))
            node.input[1] = made[node.input[1]]
        nodes.append(node)
    read = {name for node in nodes for name in node.input}
    kept = [n for n in nodes if n.op_type != "Transpose" or n.output[0] in read]
    read = {name for node in kept for name in node.input}
    left = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.initializer.extend(left)
    return model


def in_blocks(value: npt.NDArray[np.float32]) -> tuple[npt.NDArray[ml_dtypes.int4], npt.NDArray[np.float32]]:
    """The nearest levels of [K, N], and scales [ceil(K / 32), N]: the largest term of a block is level 7."""
    depth, columns = value.shape
    blocks = -(-depth // BLOCK)
    wide = np.zeros((blocks * BLOCK, columns), np.float32)
    wide[:depth] = value
    shaped = wide.reshape(blocks, BLOCK, columns)
    scales = np.maximum(np.abs(shaped).max(axis=1), np.float32(1e-8)) / np.float32(_MOST)
    levels = np.rint(shaped / scales[:, None]).reshape(-1, columns)[:depth]
    return levels.astype(ml_dtypes.int4), scales.astype(np.float32)
