"""onnxruntime's module of this name, as far as tests import from it."""

from __future__ import annotations

from aspen_mp.compat.binding import IOBinding
from aspen_mp.compat.providers import check_and_normalize_provider_args
from aspen_mp.compat.session import InferenceSession
from aspen_mp.compat.values import OrtValue

__all__ = ["IOBinding", "InferenceSession", "OrtValue", "check_and_normalize_provider_args"]
