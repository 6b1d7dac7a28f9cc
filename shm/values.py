"""Values other than plain tensors of known shape, as bytes: strings, sequences, optionals, maps, tensors whose shape only running tells.

An OBJECT operand is a buffer of given capacity that holds one such value:

    0   magic "ASPENVAL"        u64 bytes used (this header included)        u64 bytes of the description
    24  description: msgpack, see below
    …   data of the numeric tensors, each at a multiple of 64 bytes from the start

The description is one node:

- ``nil``: an empty optional
- ``["t", dtype, shape, offset]``: a numeric tensor, row-major at that offset
- ``["s", shape, strings]``: a string tensor
- ``["q", [node …]]``: a sequence
- ``["m", [[key, node] …]]``: a map; keys int or str
- ``["z", keys, tensor]``: a sequence of maps with the same keys, whose values are the rows of a tensor [maps, keys]
- ``["v", x]``: a bare bool, int, float or str

Nothing is ever unpickled, and `decode` believes nothing it reads. Every offset, shape, count and type is checked against the
buffer, since a client can write what it likes into its own memory.

Python side: numeric tensors are ndarrays (all of numpy's and ml_dtypes' number types). String tensors are ndarrays of dtype object that
hold `str`, or `bytes` that are not UTF-8; numbers and None among them become their text. Sequences are lists, an empty optional is None,
maps are dicts. `Maps` is what a sequence of maps with the same keys can be written from; it is read as a list of dicts.
"""

from __future__ import annotations

import datetime
import math
import numbers
import struct
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, overload

import msgpack
import numpy as np
import numpy.typing as npt

from aspen_mp.shm.bindings._maps import listed
from aspen_mp.shm.errors import RequestError
from aspen_mp.shm.words import a

MAGIC = b"ASPENVAL"
MAGIC_LARGER = b"ASPENBIG"  # no value: the buffer was too small, and the second word says how many bytes are needed
_HEADER = struct.Struct("<8sQQ")
_ALIGN = 64
MAX_DEPTH = 16
MAX_ITEMS = 1 << 22  # values of one sequence or map, and strings of one tensor
_INT64_MAX = (1 << 63) - 1

# ONNX's number types, by numpy's name of each. The small ml_dtypes keep one element a byte, as numpy does.
_NUMPY = ("float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")
_COMPLEX = ("complex64", "complex128")
_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
_ML_DTYPES = ("bfloat16", *_FLOAT8, "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "int4", "uint4", "int2", "uint2")
_DTYPES: dict[str, np.dtype[Any]] = {}


def _dtypes() -> dict[str, np.dtype[Any]]:
    if not _DTYPES:
        import ml_dtypes

        _DTYPES.update({name: np.dtype(name) for name in (*_NUMPY, *_COMPLEX)})
        _DTYPES.update({name: np.dtype(getattr(ml_dtypes, name)) for name in _ML_DTYPES if hasattr(ml_dtypes, name)})
    return _DTYPES


def dtype_by_name(name: str) -> np.dtype[Any]:
    """The number type called `name` ("float32", "bfloat16", "int4" …); RequestError if there is none."""
    try:
        return _dtypes()[name]
    except KeyError:
        raise RequestError(f"no number type is called {name!r}") from None


class Maps(Sequence[dict[Any, Any]]):
    """A sequence of maps from the same `keys`; `table` [maps, keys] has their values, which come out as Python's numbers."""

    def __init__(self, keys: Sequence[Any], table: npt.NDArray[Any]) -> None:
        if table.ndim != 2 or table.shape[1] != len(keys) or table.dtype.kind not in "fiub":
            raise RequestError(f"{len(keys)} keys do not fit a table of {table.dtype} and shape {list(table.shape)}")
        self.keys = list(keys)
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, index: SupportsIndex) -> dict[Any, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Maps: ...
    def __getitem__(self, index: Any) -> Any:
        rows = self.table[index]
        return Maps(self.keys, rows) if isinstance(index, slice) else dict(zip(self.keys, rows.tolist(), strict=True))

    def listed(self) -> list[dict[Any, Any]]:
        """All maps as dicts."""
        return listed(self.keys, self.table)


Keys = list[int | str] | npt.NDArray[np.object_]
"""The keys of the maps of a sequence; or the strings (an array) that numbers are places of."""


def told(keys: Keys, numbers: npt.NDArray[Any]) -> Any:
    """The caller's result for numbers of a plan."""
    return keys[numbers] if isinstance(keys, np.ndarray) else listed(keys, numbers)


def places(codes: dict[str, int], strings: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The place of each string among the words of `codes`, or that behind the last. Items that are not strings count as in `Encoded`."""
    other = len(codes)
    texts = [item if isinstance(item, str) else _text(item) for item in strings.reshape(-1).tolist()]
    words = [text.decode(errors="surrogateescape") if isinstance(text, bytes) else text for text in texts]
    return np.array([codes.get(word, other) for word in words], np.int64).reshape(strings.shape)


def _pad(n: int) -> int:
    return -n % _ALIGN


class Encoded:
    """A value ready to be written: `nbytes` tells the room it takes, `write(buffer)` puts it there (tensor data is copied only then)."""

    __slots__ = ("_arrays", "_description", "nbytes")

    def __init__(self, value: object) -> None:
        self._arrays: list[tuple[int, npt.NDArray[Any]]] = []
        # Offsets count from the start of the data, because the description's own length is not known before they are: 64-aligned after it.
        self.nbytes = 0
        try:
            self._description: bytes = msgpack.packb(self._node(value, 0), use_bin_type=True)
        except UnicodeEncodeError:
            raise RequestError("a string holds a lone surrogate, which UTF-8 cannot express") from None
        start = _HEADER.size + len(self._description)
        start += _pad(start)
        self._arrays = [(start + offset, array) for offset, array in self._arrays]
        self.nbytes += start

    def _node(self, value: object, depth: int) -> object:
        if depth > MAX_DEPTH:
            raise RequestError(f"a value is nested deeper than {MAX_DEPTH} levels")
        if value is None:
            return None
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(np.asarray(value))
        if isinstance(value, (bool, int, float, str)):
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
                raise RequestError("an integer does not fit 64 bits")
            return ["v", value]
        if isinstance(value, Maps):
            return ["z", [self._key(key) for key in self._bounded(value.keys)], self._array(self._bounded(value).table)]
        if isinstance(value, (list, tuple)):
            return ["q", [self._node(item, depth + 1) for item in self._bounded(value)]]
        if isinstance(value, dict):
            return ["m", [[self._key(key), self._node(item, depth + 1)] for key, item in self._bounded(value).items()]]
        raise RequestError(f"a value of type {type(value).__name__} is not an ONNX value")

    def _array(self, array: npt.NDArray[Any]) -> object:
        if array.dtype.kind in "OUST":
            self._bounded(array.reshape(-1))
            strings = array.reshape(-1).tolist()
            if not {str, bytes}.issuperset(map(type, strings)):
                strings = [_text(s) for s in strings]
            return ["s", list(array.shape), strings]
        name = array.dtype.name
        if _dtypes().get(name) != array.dtype.newbyteorder("="):
            raise RequestError(f"arrays of dtype {array.dtype} are not ONNX values")
        offset = self.nbytes
        array = np.asarray(array, dtype=array.dtype.newbyteorder("="))
        self._arrays.append((offset, array))
        self.nbytes += array.nbytes + _pad(array.nbytes)
        return ["t", name, list(array.shape), offset]

    @staticmethod
    def _key(key: object) -> int | str:
        if isinstance(key, np.generic):
            key = key.item()
        if isinstance(key, bool) or not isinstance(key, (int, str)):
            raise RequestError(f"a map's key is {a(type(key).__name__)}, not an integer or string")
        return key

    @staticmethod
    def _bounded(value: Any) -> Any:
        if len(value) > MAX_ITEMS:
            raise RequestError(f"a value has {len(value)} items; the most is {MAX_ITEMS}")
        return value

    def write(self, buffer: Any) -> int:
        """Write into `buffer` (any writable buffer of at least `nbytes` bytes); returns `nbytes`."""
        view = memoryview(buffer).cast("B")
        if len(view) < self.nbytes:
            raise RequestError(f"a value of {self.nbytes} bytes does not fit a buffer of {len(view)}")
        _HEADER.pack_into(view, 0, MAGIC, self.nbytes, len(self._description))
        view[_HEADER.size : _HEADER.size + len(self._description)] = self._description
        for offset, array in self._arrays:
            if array.nbytes:
                np.frombuffer(view, array.dtype, array.size, offset).reshape(array.shape)[...] = array
        return self.nbytes


def _text(item: object) -> str | bytes:
    """An item of an array of strings. Tables hold missing values and numbers among them, which are taken by what they print, as
    onnxruntime takes them: "nan", "None", "1.5"."""
    if isinstance(item, (str, bytes)):
        return item.item() if isinstance(item, np.generic) else item
    if item is None or isinstance(item, (np.generic, numbers.Number, datetime.date, datetime.time)):
        try:
            return str(item)
        except ValueError as error:  # an integer of thousands of digits
            raise RequestError(f"an array of strings holds a number that cannot be written: {error}") from None
    raise RequestError(f"an array of strings holds a {type(item).__name__}: give str, bytes, numbers or None")


def encode(value: object) -> bytes:
    """`value` as bytes; RequestError if it is not an ONNX value."""
    encoded = Encoded(value)
    buffer = bytearray(encoded.nbytes)
    encoded.write(buffer)
    return bytes(buffer)


def encoded_size(value: object) -> int:
    """Bytes that `encode(value)` takes, without copying tensor data."""
    return Encoded(value).nbytes


def used_bytes(buffer: Any) -> int:
    """Bytes of `buffer` that its value takes, from the header alone; RequestError if it holds none."""
    view = memoryview(buffer).cast("B")
    if len(view) < _HEADER.size:
        raise RequestError(f"a value's buffer has {len(view)} bytes, fewer than its header")
    magic, used, described = _HEADER.unpack_from(view, 0)
    if magic != MAGIC or not _HEADER.size <= used <= len(view) or described > used - _HEADER.size:
        raise RequestError("a buffer holds no value")
    return int(used)


def write_needed(buffer: Any, nbytes: int) -> None:
    """Note in `buffer` that its value would have taken `nbytes` (left out where there is not even room for that note)."""
    view = memoryview(buffer).cast("B")
    if len(view) >= _HEADER.size:
        _HEADER.pack_into(view, 0, MAGIC_LARGER, nbytes, 0)


def needed_bytes(buffer: Any) -> int:
    """Bytes that a buffer which was too small should have had, as `write_needed` left it; 0 if it says nothing."""
    view = memoryview(buffer).cast("B")
    if len(view) < _HEADER.size:
        return 0
    magic, needed, _ = _HEADER.unpack_from(view, 0)
    return int(needed) if magic == MAGIC_LARGER else 0


def decode(buffer: Any, *, copy: bool = True) -> Any:
    """The value in `buffer`; RequestError where the bytes are damaged. Bytes past the value are ignored.

    With `copy=False` numeric tensors are read-only views of `buffer`, good only as long as it stays mapped and unchanged.
    """
    view = memoryview(buffer).cast("B").toreadonly()
    view = view[: used_bytes(view)]
    described = _HEADER.unpack_from(view, 0)[2]
    start = _HEADER.size + described
    start += _pad(start)
    try:
        node = msgpack.unpackb(
            view[_HEADER.size : _HEADER.size + described],
            raw=False,
            max_array_len=MAX_ITEMS,
            max_map_len=0,
            max_ext_len=0,
            max_str_len=described,
            max_bin_len=described,
        )
    except (ValueError, msgpack.UnpackException, RecursionError) as error:  # FormatError and StackError are ValueErrors
        raise RequestError(f"a value's description is damaged: {error}") from None
    return _Decoder(view, start, copy).value(node, 0)


class _Decoder:
    def __init__(self, view: memoryview, start: int, copy: bool) -> None:
        self._view = view
        self._start = start
        self._copy = copy

    def value(self, node: Any, depth: int) -> Any:
        if node is None:
            return None
        if depth > MAX_DEPTH or not isinstance(node, list) or not node or not isinstance(node[0], str):
            raise RequestError("a value's description is damaged")
        read = _READERS.get((node[0], len(node)))
        if read is None:
            raise RequestError(f"a value's description has an unknown part {node[0]!r}")
        return read(self, node, depth)

    def _tensor(self, node: list[Any], depth: int) -> npt.NDArray[Any]:
        _, name, shape, offset = node
        if not isinstance(name, str) or type(offset) is not int or offset < 0 or offset % _ALIGN:
            raise RequestError("a tensor's description is damaged")
        dtype = dtype_by_name(name)
        dims = self._shape(shape)
        size = math.prod(dims)
        if size * dtype.itemsize > len(self._view) - self._start - offset and size:
            raise RequestError(f"a tensor of shape {dims} reaches past the end of its buffer")
        if not size:
            return np.empty(dims, dtype)
        array = np.frombuffer(self._view, dtype, size, self._start + offset).reshape(dims)
        return array.copy() if self._copy else array

    def _strings(self, node: list[Any], depth: int) -> npt.NDArray[Any]:
        dims = self._shape(node[1])
        strings = node[2]
        if not isinstance(strings, list) or len(strings) != math.prod(dims) or not all(isinstance(s, (str, bytes)) for s in strings):
            raise RequestError("a string tensor's description is damaged")
        array = np.empty(len(strings), dtype=object)
        array[:] = strings
        return array.reshape(dims)

    def _sequence(self, node: list[Any], depth: int) -> list[Any]:
        if not isinstance(node[1], list):
            raise RequestError("a sequence's description is damaged")
        return [self.value(item, depth + 1) for item in node[1]]

    def _map(self, node: list[Any], depth: int) -> dict[int | str, Any]:
        table: dict[int | str, Any] = {}
        for pair in node[1] if isinstance(node[1], list) else [None]:
            if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) not in (int, str) or pair[0] in table:
                raise RequestError("a map's description is damaged")
            table[pair[0]] = self.value(pair[1], depth + 1)
        return table

    def _maps(self, node: list[Any], depth: int) -> list[dict[Any, Any]]:
        keys, table = node[1], node[2]
        if not isinstance(keys, list) or not all(type(key) in (int, str) for key in keys):
            raise RequestError("a sequence of maps is damaged")
        if not isinstance(table, list) or len(table) != 4 or table[0] != "t":
            raise RequestError("a sequence of maps is damaged")
        values = self._tensor(table, depth)
        if values.ndim != 2 or len(values) > MAX_ITEMS:
            raise RequestError("a sequence of maps is damaged")
        return Maps(keys, values).listed()

    def _scalar(self, node: list[Any], depth: int) -> bool | int | float | str:
        x = node[1]
        if not isinstance(x, (bool, int, float, str)):
            raise RequestError("a scalar's description is damaged")
        return x

    @staticmethod
    def _shape(shape: Any) -> tuple[int, ...]:
        if (
            not isinstance(shape, list)
            or len(shape) > 64
            or not all(type(d) is int and d >= 0 for d in shape)
            or math.prod(shape) > _INT64_MAX >> 4
        ):
            raise RequestError("a tensor's shape is damaged")
        if any(d > _INT64_MAX >> 4 for d in shape):  # hidden by a zero elsewhere
            raise RequestError("a tensor's shape is damaged")
        return tuple(shape)


_READERS: dict[tuple[str, int], Callable[[_Decoder, list[Any], int], Any]] = {
    ("t", 4): _Decoder._tensor,
    ("s", 3): _Decoder._strings,
    ("q", 2): _Decoder._sequence,
    ("m", 2): _Decoder._map,
    ("z", 3): _Decoder._maps,
    ("v", 2): _Decoder._scalar,
}
