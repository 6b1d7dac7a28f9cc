"""Parts of which the small models of simulated users and servers are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper


def model_bytes(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: Mapping[str, npt.NDArray[Any]] | None = None, name: str = "g"
) -> bytes:
    """A model of these nodes as the bytes of an ONNX file."""
    graph = helper.make_graph(nodes, name, inputs, outputs, [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model.SerializeToString()


def value_info(name: str, shape: list[int | str], kind: int = TensorProto.FLOAT) -> Any:
    """An input or an output of a model."""
    return helper.make_tensor_value_info(name, kind, shape)


def small_integers(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    """Whole numbers from -2 to 2. All orders of their sums give the same bits."""
    state = np.arange(1, int(np.prod(shape)) + 1, dtype=np.int64) * 7919 + seed * 104729
    return ((state >> 3) % 5 - 2).astype(np.float32).reshape(shape)
