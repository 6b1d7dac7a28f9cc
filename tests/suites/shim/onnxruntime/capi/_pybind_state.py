"""Names of onnxruntime's lower layer that tests and tools use. What packs weights is no runtime and comes from the real package."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path
from typing import Any

import onnxruntime
from aspen_mp.compat.onnxruntime import *  # noqa: F403
from aspen_mp.compat.onnxruntime.errors import (
    DeviceReset,
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    ModelLoaded,
    ModelRequiresCompilation,
    NoModel,
    NoSuchFile,
    NotFound,
    RuntimeException,
)
from aspen_mp.compat.onnxruntime.errors import Unsupported as NotImplemented
from aspen_mp.compat.onnxruntime.options import SessionOptions
from aspen_mp.compat.onnxruntime.values.ort_value import OrtValueVector

__all__ = [
    "DeviceReset",
    "EPFail",
    "EngineError",
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NotFound",
    "NotImplemented",
    "OrtValueVector",
    "RuntimeException",
    "get_default_session_options",
    "is_dlpack_uint8_tensor",
]


def get_default_session_options() -> SessionOptions:
    return SessionOptions()


def is_dlpack_uint8_tensor(capsule: Any) -> bool:
    return False


def __getattr__(name: str) -> Any:
    if not name.startswith(("quantize_", "pack_")):
        raise AttributeError(f"aspen-mp's surface has no {name!r}")
    return getattr(_packers(), name)


def _packers() -> Any:
    for folder in onnxruntime.__path__[1:]:
        for path in Path(folder, "capi").glob("onnxruntime_pybind11_state*.so"):
            loader = importlib.machinery.ExtensionFileLoader("onnxruntime_pybind11_state", str(path))
            spec = importlib.util.spec_from_loader("onnxruntime_pybind11_state", loader)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
            return module
    raise AttributeError("weights are packed by the real onnxruntime, which is not installed")
