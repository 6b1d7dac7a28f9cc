"""A network of the zoo as onnxruntime's tools quantise it: statically, from what values occur with the zoo's inputs, or while it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy.typing as npt
import onnx

Feeds = Mapping[str, npt.NDArray[Any]]
CALIBRATED = 8
"""Inputs that ranges of values are taken from, drawn with the seeds from 0 on: with one alone, other inputs leave its ranges."""


def in_int8(model: onnx.ModelProto, feeds: Sequence[Feeds]) -> onnx.ModelProto:
    """The model with weights of i8, a scale for each channel, and activations of u8 between QuantizeLinear and DequantizeLinear, whose
    scales `feeds` tell. Without any it has DynamicQuantizeLinear. The tools' own preparation comes first. ValueError without
    onnxruntime."""
    try:
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError:
        raise ValueError("quantised networks are made by onnxruntime's tools. Install it with: pip install onnxruntime") from None

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(feeds)

        def get_next(self) -> dict[str, npt.NDArray[Any]] | None:
            found = next(self.left, None)
            return None if found is None else dict(found)

    with TemporaryDirectory() as folder:
        plain, prepared, done = (os.path.join(folder, f"{name}.onnx") for name in ("plain", "prepared", "done"))
        onnx.save(model, plain)
        quant_pre_process(plain, prepared, skip_symbolic_shape=True)
        if not feeds:
            quantize_dynamic(prepared, done, weight_type=QuantType.QInt8)
        else:
            types = {"weight_type": QuantType.QInt8, "activation_type": QuantType.QUInt8}
            quantize_static(prepared, done, Reader(), quant_format=QuantFormat.QDQ, per_channel=True, **types)
        return onnx.load(done)
