"""Element types: numpy's dtypes, ONNX's numbers and onnxruntime's words for them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from aspen_mp.compat.onnxruntime.errors import Unavailable
from aspen_mp.shm import values

_ELEMENTS: Final = {
    "float32": ("float", 1),
    "uint8": ("uint8", 2),
    "int8": ("int8", 3),
    "uint16": ("uint16", 4),
    "int16": ("int16", 5),
    "int32": ("int32", 6),
    "int64": ("int64", 7),
    "object": ("string", 8),
    "bool": ("bool", 9),
    "float16": ("float16", 10),
    "float64": ("double", 11),
    "uint32": ("uint32", 12),
    "uint64": ("uint64", 13),
    "complex64": ("complex64", 14),
    "complex128": ("complex128", 15),
    "bfloat16": ("bfloat16", 16),
    "float8_e4m3fn": ("float8e4m3fn", 17),
    "float8_e4m3fnuz": ("float8e4m3fnuz", 18),
    "float8_e5m2": ("float8e5m2", 19),
    "float8_e5m2fnuz": ("float8e5m2fnuz", 20),
    "uint4": ("uint4", 21),
    "int4": ("int4", 22),
    "float4_e2m1fn": ("float4e2m1", 23),
    "float8_e8m0fnu": ("float8e8m0", 24),
    "uint2": ("uint2", 25),
    "int2": ("int2", 26),
}
"""By numpy's name of the dtype: onnxruntime's word, and the number in TensorProto.DataType."""
_NAMES: Final = {number: name for name, (_, number) in _ELEMENTS.items()}


def word(dtype: np.dtype[Any]) -> str:
    """onnxruntime's word for a dtype: "float", "string"."""
    name = "object" if dtype.kind in "OUSV" and dtype.name not in _ELEMENTS else dtype.name
    return _ELEMENTS[name][0] if name in _ELEMENTS else name


def number(dtype: np.dtype[Any]) -> int:
    """The number of a dtype in TensorProto.DataType; 0, UNDEFINED, where there is none."""
    name = "object" if dtype.kind in "OUSV" and dtype.name not in _ELEMENTS else dtype.name
    return _ELEMENTS.get(name, ("", 0))[1]


def dtype(element: Any) -> np.dtype[Any]:
    """The dtype of what onnxruntime takes for an element type: a number of TensorProto.DataType, or a numpy type."""
    if isinstance(element, int) and not isinstance(element, bool):
        if element not in _NAMES:
            raise Unavailable(f"there is no element type {element}")
        name = _NAMES[element]
        return np.dtype(object) if name == "object" else values.dtype_by_name(name)
    made: np.dtype[Any] = np.dtype(element)
    return made
