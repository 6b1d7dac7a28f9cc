"""onnxruntime, as others are compared with it."""

from __future__ import annotations

import onnxruntime


def exact_sums() -> onnxruntime.SessionOptions:
    """For onnxruntime: where a processor has no instruction that sums four products of bytes, those of unlike signs saturate two by two.
    With this they do not: signed ones that are constant become unsigned, as one of its optimisations."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    return options
