"""onnxruntime's module of this name, as far as tests import from it."""

from __future__ import annotations

from aspen_mp.compat.onnxruntime.providers import check_and_normalize_provider_args
from aspen_mp.compat.onnxruntime.session import InferenceSession
from aspen_mp.compat.onnxruntime.values.binding import IOBinding
from aspen_mp.compat.onnxruntime.values.ort_value import OrtValue

__all__ = ["IOBinding", "InferenceSession", "OrtValue", "check_and_normalize_provider_args"]
