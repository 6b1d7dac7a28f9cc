"""aspen-mp: ONNX networks on all cores of a machine, without operator barriers.

    import aspen_mp
    with aspen_mp.Runtime(workers=2) as rt:
        model = rt.load("resnet50.onnx")
        y = model.run({"x": x})

Importing this package is cheap: numpy, onnx and the rest are imported when something needs them.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own costs more to import than this file
__version__ = "0.2.0"
__all__ = [
    "ArrivingRequest",
    "ExecutionMode",
    "FrameReport",
    "GraphOptimizationLevel",
    "InferenceSession",
    "Model",
    "ModelStream",
    "Planning",
    "RequestFuture",
    "RunOptions",
    "Runtime",
    "SessionOptions",
    "ValueInfo",
    "__version__",
    "connect",
    "errors",
    "explain",
    "get_available_providers",
    "get_device",
    "mask_of_blocks",
    "mask_of_motion",
    "optimize",
    "quantize",
]

if TYPE_CHECKING:
    from typing import Any

    from aspen_mp import errors as errors
    from aspen_mp.client.future import RequestFuture as RequestFuture
    from aspen_mp.client.model import Model as Model
    from aspen_mp.client.runtime import Runtime as Runtime
    from aspen_mp.client.runtime import connect as connect
    from aspen_mp.client.signature import ValueInfo as ValueInfo
    from aspen_mp.client.streams.arriving_request import ArrivingRequest as ArrivingRequest
    from aspen_mp.client.streams.masks import mask_of_blocks as mask_of_blocks
    from aspen_mp.client.streams.masks import mask_of_motion as mask_of_motion
    from aspen_mp.client.streams.model_stream import FrameReport as FrameReport
    from aspen_mp.client.streams.model_stream import ModelStream as ModelStream
    from aspen_mp.compat.onnxruntime.environment import get_device as get_device
    from aspen_mp.compat.onnxruntime.options import ExecutionMode as ExecutionMode
    from aspen_mp.compat.onnxruntime.options import GraphOptimizationLevel as GraphOptimizationLevel
    from aspen_mp.compat.onnxruntime.options import NodeArg as NodeArg
    from aspen_mp.compat.onnxruntime.options import RunOptions as RunOptions
    from aspen_mp.compat.onnxruntime.options import SessionOptions as SessionOptions
    from aspen_mp.compat.onnxruntime.providers import get_available_providers as get_available_providers
    from aspen_mp.compat.onnxruntime.session import InferenceSession as InferenceSession
    from aspen_mp.compat.onnxruntime.values.ort_value import OrtValue as OrtValue
    from aspen_mp.planner.job.options import Planning as Planning
    from aspen_mp.quantization.quantizing import quantize as quantize
    from aspen_mp.torch import explain as explain
    from aspen_mp.torch import optimize as optimize

_WHERE = {
    "Runtime": "aspen_mp.client.runtime",
    "connect": "aspen_mp.client.runtime",
    "Model": "aspen_mp.client.model",
    "ArrivingRequest": "aspen_mp.client.streams.arriving_request",
    "ModelStream": "aspen_mp.client.streams.model_stream",
    "FrameReport": "aspen_mp.client.streams.model_stream",
    "mask_of_blocks": "aspen_mp.client.streams.masks",
    "mask_of_motion": "aspen_mp.client.streams.masks",
    "RequestFuture": "aspen_mp.client.future",
    "ValueInfo": "aspen_mp.client.signature",
    "Planning": "aspen_mp.planner.job.options",
    "optimize": "aspen_mp.torch",
    "explain": "aspen_mp.torch",
    "quantize": "aspen_mp.quantization.quantizing",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "errors":
        return importlib.import_module("aspen_mp.errors")
    if name in _WHERE:
        value = getattr(importlib.import_module(_WHERE[name]), name)
        globals()[name] = value
        return value
    from aspen_mp.compat.onnxruntime.names import WHERE  # onnxruntime's names, for `import aspen_mp as ort`

    if name in WHERE:
        value = getattr(importlib.import_module(WHERE[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'aspen_mp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
