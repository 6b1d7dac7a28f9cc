"""TensorProto → numpy, without copies wherever the bytes allow it."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from aspen_mp.planner.frontends.external import Folder
from aspen_mp.planner.frontends.wire import REFERENCE
from aspen_mp.shm.errors import ExternalDataError, ModelInvalidError, UnsupportedModelError
from aspen_mp.shm.tables import CODE_BY_NUMPY

OBJECT = np.dtype(object)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_MAX_ELEMENTS = 2**62
_PACKED = {TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1, getattr(TensorProto, "INT2", -1), getattr(TensorProto, "UINT2", -1)}


@lru_cache(maxsize=64)
def numpy_dtype(elem_type: int) -> np.dtype[Any]:
    """Numpy's dtype of an ONNX element type; object for strings. Raises KeyError for unknown ones."""
    if elem_type == TensorProto.STRING:
        return OBJECT
    return np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))


@lru_cache(maxsize=64)
def elem_type(dtype: np.dtype[Any]) -> int:
    """ONNX element type of a numpy dtype."""
    if dtype == OBJECT:
        return int(TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(dtype))


def is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether workers can hold tensors of this dtype: fixed-size numbers that have a code in plans."""
    return dtype in CODE_BY_NUMPY


def describe(tensor: TensorProto) -> str:
    return f"tensor {tensor.name!r}"


def shape_of(tensor: TensorProto) -> tuple[int, ...]:
    """Checked dimensions of a constant."""
    shape = tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise ModelInvalidError(f"{describe(tensor)}: negative dimension in shape {list(shape)}")
    if prod(shape) > _MAX_ELEMENTS:
        raise ModelInvalidError(f"{describe(tensor)}: shape {list(shape)} has more elements than 64 bits can count")
    return shape


def dtype_of(tensor: TensorProto) -> np.dtype[Any]:
    try:
        return numpy_dtype(tensor.data_type)
    except (KeyError, TypeError, ValueError):
        raise UnsupportedModelError(f"{describe(tensor)}: unknown element type {tensor.data_type}") from None


def is_packed(tensor: TensorProto) -> bool:
    """Whether several elements share a byte."""
    return tensor.data_type in _PACKED


def stored_bytes(tensor: TensorProto) -> int:
    """How many bytes the tensor's raw data must have."""
    n = prod(shape_of(tensor))
    if tensor.data_type in _PACKED:
        bits = 2 if tensor.data_type in {getattr(TensorProto, "INT2", -1), getattr(TensorProto, "UINT2", -1)} else 4
        return (n * bits + 7) // 8
    return n * dtype_of(tensor).itemsize


def entries_of(tensor: TensorProto) -> dict[str, str]:
    return {e.key: e.value for e in tensor.external_data}


class Store:
    """The bytes that a model's tensors refer to: spans of the model file, data of a ModelProto in memory, external files."""

    def __init__(self, spans: list[memoryview | TensorProto], folder: Folder) -> None:
        self.spans = spans
        self.folder = folder

    def array(self, tensor: TensorProto) -> npt.NDArray[Any]:
        """The value of a constant: read-only views of the file where the element type allows it."""
        shape, dtype = shape_of(tensor), dtype_of(tensor)
        if tensor.data_location != TensorProto.EXTERNAL:
            if tensor.HasField("raw_data"):
                return self._from_bytes(tensor, tensor.raw_data, shape, dtype)
            try:
                return numpy_helper.to_array(tensor).reshape(shape)
            except (ValueError, TypeError) as error:
                raise ModelInvalidError(f"{describe(tensor)}: data do not fit shape {list(shape)} ({error})") from None
        entries = entries_of(tensor)
        if entries.get("location") == REFERENCE:
            span = self.span(tensor, entries)
            return self._from_bytes(tensor, span.raw_data if isinstance(span, TensorProto) else span, shape, dtype)
        data = self.folder.view(tensor.name, entries)
        if len(data) != stored_bytes(tensor):
            raise ExternalDataError(
                f"{describe(tensor)}: {len(data)} bytes of external data in {entries.get('location')!r}, but shape {list(shape)} of "
                f"{dtype} needs {stored_bytes(tensor)}"
            )
        return self._from_bytes(tensor, data, shape, dtype)

    def in_memory(self, tensor: TensorProto) -> bool:
        """Whether the bytes lie in a message of the protobuf library, which copies them at every access."""
        if tensor.data_location != TensorProto.EXTERNAL or (entries := entries_of(tensor)).get("location") != REFERENCE:
            return False
        return isinstance(self.span(tensor, entries), TensorProto)

    def span(self, tensor: TensorProto, entries: dict[str, str]) -> memoryview | TensorProto:
        text = entries.get("span", "")
        if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) >= len(self.spans):
            raise ModelInvalidError(f"{describe(tensor)}: damaged reference to its data")
        return self.spans[int(text)]

    def _from_bytes(self, tensor: TensorProto, data: bytes | memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        need = stored_bytes(tensor)
        if len(data) != need:
            raise ModelInvalidError(f"{describe(tensor)}: {len(data)} bytes of data, but shape {list(shape)} of {dtype} needs {need}")
        if tensor.data_type in _PACKED:
            whole = TensorProto()
            whole.CopyFrom(tensor)
            whole.ClearField("external_data")
            whole.ClearField("data_location")
            whole.raw_data = bytes(data)
            return numpy_helper.to_array(whole)
        return np.frombuffer(data, dtype.newbyteorder("<") if dtype.kind in "iufc" and dtype.itemsize > 1 else dtype).reshape(shape)

    def whole(self, tensor: TensorProto) -> TensorProto:
        """The tensor with its data inside, for models that leave this process."""
        if tensor.data_location != TensorProto.EXTERNAL:
            return tensor
        value = self.array(tensor)
        return numpy_helper.from_array(np.ascontiguousarray(value), tensor.name)


def opset_id(domain: str, version: int) -> onnx.OperatorSetIdProto:
    return helper.make_opsetid(domain, version)
