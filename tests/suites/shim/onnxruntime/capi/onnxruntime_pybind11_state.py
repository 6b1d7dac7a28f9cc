"""The same names under the other module's name."""

from __future__ import annotations

from typing import Any

from onnxruntime.capi import _pybind_state


def __getattr__(name: str) -> Any:
    return getattr(_pybind_state, name)
