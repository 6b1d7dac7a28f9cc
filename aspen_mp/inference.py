"""Where `InferenceSession` and its options were before `aspen_mp.compat`; programs may still import them from here."""

from __future__ import annotations

from aspen_mp.compat.onnxruntime.environment import get_device
from aspen_mp.compat.onnxruntime.options import ExecutionMode, GraphOptimizationLevel, ModelMetadata, NodeArg, RunOptions, SessionOptions
from aspen_mp.compat.onnxruntime.providers import get_available_providers
from aspen_mp.compat.onnxruntime.session import InferenceSession

__all__ = [
    "ExecutionMode",
    "GraphOptimizationLevel",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "RunOptions",
    "SessionOptions",
    "get_available_providers",
    "get_device",
]
