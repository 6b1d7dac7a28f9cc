"""Inputs that ONNX declares to be scalars, given as vectors of one element, as callers and exporters do: they become scalars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from aspen_mp.planner.ir.graph import Tensor

INPUTS: Final = {
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), (0,)),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "STFT": (1, 3),
}
"""Operators of the default domain whose shape inference refuses such vectors, and which of their inputs are scalars. Others take both."""


def flattened(node: NodeProto, inputs: Sequence[Tensor | None]) -> list[NodeProto] | None:
    """The default-domain node with scalars in place of vectors of one, behind the nodes that make them; None where it has none.

    `inputs` are known, maybe by shape alone.
    """
    scalar = INPUTS.get(node.op_type)
    if scalar is None:
        return None
    found = [k for k in scalar if k < len(inputs) and (t := inputs[k]) is not None and t.shape == (1,)]
    if not found:
        return None
    copy = NodeProto()
    copy.CopyFrom(node)
    shape = f"{node.output[0]}\0scalar"
    none = numpy_helper.from_array(np.zeros(0, np.int64))
    nodes = [helper.make_node("Constant", [], [shape], name=shape, value=none)]
    for k in found:
        copy.input[k] = f"{shape}{k}"
        nodes.append(helper.make_node("Reshape", [node.input[k], shape], [copy.input[k]], name=copy.input[k]))
    return [*nodes, copy]
