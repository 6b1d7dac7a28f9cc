"""The protocol's names of data types, and its spelling of strings as bytes."""

from __future__ import annotations

import struct
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from aspen_mp.serving.protocol.turns import STRINGS, Work
from aspen_mp.shm.errors import RequestError

NAMES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BYTES": np.dtype(object),
}
_BY_DTYPE: Final = {dtype: name for name, dtype in NAMES.items()}
_LENGTH: Final = struct.Struct("<I")


def name_of(dtype: np.dtype[Any]) -> str | None:
    """The protocol's name of a dtype; None where it has none."""
    return _BY_DTYPE.get(dtype)


def unpacked_strings(data: memoryview, n: int, where: str) -> Work[npt.NDArray[Any]]:
    """`n` strings from bytes: before each stands its length, 4 bytes, little-endian. RequestError where the bytes are not that."""
    found = np.empty(n, object)
    at = 0
    for k in range(n):
        if k % STRINGS == STRINGS - 1:
            yield
        if at + _LENGTH.size > len(data):
            raise RequestError(f"{where}: its bytes end before string {k} of {n}. Put 4 bytes with the length before each string")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            raise RequestError(f"{where}: string {k} is said to have {length} bytes, and {len(data) - at} are left")
        try:
            found[k] = str(data[at : at + length], "utf-8")
        except UnicodeDecodeError:
            raise RequestError(f"{where}: string {k} is not UTF-8, which strings of ONNX models are") from None
        at += length
    if at != len(data):
        raise RequestError(f"{where}: {len(data) - at} bytes follow the last of its {n} strings")
    return found


def packed_strings(array: npt.NDArray[Any]) -> Work[bytes]:
    """The opposite of `unpacked_strings`."""
    parts: list[bytes] = []
    for k, item in enumerate(array.ravel()):
        if k % STRINGS == STRINGS - 1:
            yield
        text = item if isinstance(item, bytes) else str(item).encode()
        parts += (_LENGTH.pack(len(text)), text)
    return b"".join(parts)
