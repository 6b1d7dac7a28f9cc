"""OrtValue: a value that is kept from request to request. On the CPU it is an array, and nothing is copied into it or out of it.

Memory that an OrtValue makes itself (`ortvalue_from_shape_and_type`) is shared memory where it is large. So workers read it in place when
it is given to a request; see `aspen_mp.client.requests.zero_copy`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.client.requests.zero_copy import BORROW_BYTES
from aspen_mp.compat.onnxruntime.errors import Unavailable
from aspen_mp.compat.onnxruntime.values import elements
from aspen_mp.compat.onnxruntime.values.devices import on_cpu
from aspen_mp.compat.onnxruntime.values.sparse import SparseTensor

Array = npt.NDArray[Any]


class _Capsule:
    """A source of a bare DLPack capsule for numpy."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def allocate(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """An array of zeros, in shared memory from the size on from which requests read it in place."""
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < BORROW_BYTES or dtype.hasobject:
        return np.zeros(tuple(shape), dtype)
    fd = os.memfd_create("aspen-ortvalue", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, nbytes)
        memory = mmap.mmap(fd, nbytes)  # keeps a descriptor of its own, by which the runtime finds the file
    finally:
        os.close(fd)
    return np.frombuffer(memory, dtype, prod(shape)).reshape(tuple(shape))


class OrtValue:
    """A tensor, a sequence, a map, a sparse tensor or nothing. Made by the class methods, or by runs that give OrtValues."""

    __slots__ = ("__weakref__", "_seen", "_type", "_value")

    def __init__(self, value: Any, type_: str | None = None) -> None:
        """`value`: an array, or what a request gives for other types. `type_`: onnxruntime's words for its type, where they are known."""
        self._value: Any = value._value if isinstance(value, OrtValue) else value
        self._type = type_
        self._seen = True  # somebody else may know where the array lies

    # ---- making them

    @classmethod
    def ortvalue_from_numpy(cls, data: Array, device_type: Any = "cpu", device_id: int = 0, vendor_id: int = -1) -> OrtValue:
        """Holds the array itself where it lies in C order, a copy otherwise. Unavailable for strings, and for other devices."""
        on_cpu(device_type, device_id)
        if not isinstance(data, np.ndarray) or (data.dtype.kind in "OUSV" and elements.word(data.dtype) == "string"):
            raise Unavailable("OrtValues are made of numpy arrays of numbers; strings go to `run` as they are")
        return cls(np.ascontiguousarray(data).reshape(data.shape))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, onnx_element_type: int) -> OrtValue:
        """The array's bytes as another type of the same size, such as bfloat16 from uint16."""
        dtype = elements.dtype(onnx_element_type)
        if dtype.itemsize != data.dtype.itemsize:
            raise Unavailable(f"items of {data.dtype} have {data.dtype.itemsize} bytes, those of {dtype} {dtype.itemsize}")
        return cls(np.ascontiguousarray(data).view(dtype).reshape(data.shape))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any, device_type: Any = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Zeros. `element_type`: a numpy type, or a number of TensorProto.DataType. Unavailable for strings, and for other devices."""
        on_cpu(device_type, device_id)
        dtype = elements.dtype(element_type)
        if dtype.hasobject:
            raise Unavailable("OrtValues of strings cannot be made; strings go to `run` as they are")
        made = cls(allocate([int(n) for n in shape], dtype))
        made._seen = False
        return made

    @classmethod
    def ortvalue_from_shape_and_onnx_type(cls, shape: Sequence[int], element_type: int, device: Any) -> OrtValue:
        return cls.ortvalue_from_shape_and_type(shape, element_type, device)

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: SparseTensor) -> OrtValue:
        return cls(sparse_tensor)

    @classmethod
    def from_dlpack(cls, data: Any, is_bool_tensor: bool = False) -> OrtValue:
        """Holds the memory of another library's tensor, or of a DLPack capsule. `is_bool_tensor`: its bytes are booleans."""
        source = data if hasattr(data, "__dlpack__") else _Capsule(data)
        try:
            array = np.from_dlpack(source)
        except (BufferError, TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"not a tensor in the memory of the CPU: {error}") from None
        return cls(array.view(np.bool_) if is_bool_tensor else array)

    # ---- what they hold

    def numpy(self) -> Array:
        """The array itself; RuntimeError where it is not a tensor."""
        if isinstance(self._value, np.ndarray):
            self._seen = True
            return self._value
        raise Unavailable(f"only tensors are arrays, not a value of type {self.data_type()}")

    def data_ptr(self) -> int:
        return int(self.numpy().__array_interface__["data"][0])

    def shape(self) -> list[int]:
        return list(self._value.dense_shape() if isinstance(self._value, SparseTensor) else self._tensor().shape)

    def data_type(self) -> str:
        """In onnxruntime's words: "tensor(float)"."""
        if isinstance(self._value, np.ndarray):
            return f"tensor({elements.word(self._value.dtype)})"
        if isinstance(self._value, SparseTensor):
            return self._value.data_type()
        return self._type or ("seq(tensor(float))" if isinstance(self._value, list) else "map(int64,float)")

    def element_type(self) -> int:
        """The number in TensorProto.DataType."""
        return elements.number(self._tensor().dtype)

    def tensor_size_in_bytes(self) -> int:
        return self._tensor().nbytes

    def device_name(self) -> str:
        return "cpu"

    def has_value(self) -> bool:
        return self._value is not None

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        return isinstance(self._value, SparseTensor)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list) and all(isinstance(item, np.ndarray) for item in self._value)

    def as_sparse_tensor(self) -> SparseTensor:
        if not isinstance(self._value, SparseTensor):
            raise Unavailable("this value is not a sparse tensor")
        return self._value

    def update_inplace(self, data: Any) -> None:
        """Copies `data`, an array or an OrtValue of as many bytes, into this one's memory."""
        source = data.numpy() if isinstance(data, OrtValue) else data
        if not isinstance(source, np.ndarray):
            raise TypeError("data must be a numpy array or an OrtValue")
        target = self._tensor()
        if source.nbytes != target.nbytes:
            raise Unavailable(f"{source.nbytes} bytes do not fit into the {target.nbytes} of this value")
        target.reshape(-1).view(np.uint8)[...] = np.ascontiguousarray(source).reshape(-1).view(np.uint8)

    # ---- protocols

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**{key: value for key, value in options.items() if value is not None})

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor().__dlpack_device__()

    to_dlpack = __dlpack__

    # ---- for this package

    def _tensor(self) -> Array:
        if not isinstance(self._value, np.ndarray):
            raise Unavailable(f"a value of type {self.data_type()} is not a tensor")
        return self._value

    def _take(self, result: Any) -> None:
        """The result of a request that this value was bound to: by reference where nobody else knows the memory there was, by copy else."""
        known = self._tensor()
        if not isinstance(result, np.ndarray) or result.dtype != known.dtype or result.shape != known.shape:
            found = f"{result.dtype} {list(result.shape)}" if isinstance(result, np.ndarray) else type(result).__name__
            raise Unavailable(f"the output is {found}, the value bound to it {known.dtype} {list(known.shape)}")
        if self._seen:
            known[...] = result
        else:
            self._value = result

    def _get_c_value(self) -> OrtValue:
        return self

    @property
    def _ortvalue(self) -> OrtValue:
        return self


class OrtValueVector(Sequence[OrtValue]):
    """A list of OrtValues, as onnxruntime's lower layer has it."""

    def __init__(self, values: Sequence[OrtValue] = ()) -> None:
        self._values = list(values)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[OrtValue]:
        return iter(self._values)

    def __getitem__(self, at: Any) -> Any:
        return self._values[at]

    def push_back(self, value: OrtValue | Array) -> None:
        self._values.append(value if isinstance(value, OrtValue) else OrtValue(value))

    def reserve(self, size: int) -> None:
        """Does nothing."""

    def shrink_to_fit(self) -> None:
        """Does nothing."""

    def element_type_at(self, at: int) -> int:
        return self._values[at].element_type()

    def dlpack_at(self, at: int) -> Any:
        return self._values[at].to_dlpack()


def plain(value: Any) -> Any:
    """The value as a request takes it: the contents of an OrtValue, onnxruntime's too; anything else as it is."""
    if isinstance(value, OrtValue):
        return value._value
    if type(value).__name__ == "OrtValue" and hasattr(value, "numpy"):
        return value.numpy()
    return value


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copies the tensors of `src` into those of `dst`, one by one."""
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source)
