"""The zoo: well-known networks as ONNX models with random weights, built on the spot without a deep-learning framework.

model = build("resnet50", batch=3)
feeds = inputs(model)
"""

from __future__ import annotations

from .zoo import Description, build, describe, inputs, miniature, names

__all__ = ["Description", "build", "describe", "inputs", "miniature", "names"]
