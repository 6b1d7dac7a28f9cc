"""Loading an imported graph: constants reach the planner process through shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from onnx import TensorProto

from aspen_mp.torch.builder import ONNX_TYPES

if TYPE_CHECKING:
    from aspen_mp import Model, Runtime
    from aspen_mp.torch.importer import Imported


def load(runtime: Runtime, imported: Imported, tensors: Mapping[str, Any], **options: Any) -> Model:
    """The model in a runtime. `tensors`: constants by name."""
    proto = type(imported.proto)()
    proto.CopyFrom(imported.proto)
    for name, tensor in tensors.items():
        data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        proto.graph.initializer.append(TensorProto(name=name, data_type=ONNX_TYPES[tensor.dtype], dims=tensor.shape, raw_data=data))
    return runtime.load(proto.SerializeToString(), **options)
