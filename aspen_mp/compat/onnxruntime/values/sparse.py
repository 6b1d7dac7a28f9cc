"""Sparse tensors as arrays of their values and indices. Requests compute with dense ones: sessions convert inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.compat.onnxruntime.errors import InvalidArgument, Unavailable
from aspen_mp.compat.onnxruntime.values import elements
from aspen_mp.compat.onnxruntime.values.devices import on_cpu

Array = npt.NDArray[Any]


class OrtSparseFormat(IntEnum):
    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4


def _frozen(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, slots=True)
class SparseCooView:
    _indices: Array

    def indices(self) -> Array:
        """int64: positions in the flattened tensor, or [n, rank]."""
        return _frozen(self._indices)


@dataclass(frozen=True, slots=True)
class SparseCsrView:
    _inner: Array
    _outer: Array

    def inner(self) -> Array:
        """int64: the column of each value."""
        return _frozen(self._inner)

    def outer(self) -> Array:
        """int64 [rows + 1]: where each row begins."""
        return _frozen(self._outer)


class SparseTensor:
    """Made by `sparse_coo_from_numpy` and `sparse_csr_from_numpy`."""

    __slots__ = ("_format", "_indices", "_shape", "_values")

    def __init__(self, shape: Any, values: Array, form: OrtSparseFormat, *indices: Array) -> None:
        self._shape = [int(n) for n in shape]
        self._values = values.astype(object) if values.dtype.kind in "US" else values
        self._format = form
        self._indices = indices

    @classmethod
    def sparse_coo_from_numpy(cls, dense_shape: Any, values: Array, coo_indices: Array, ort_device: Any) -> SparseTensor:
        on_cpu(ort_device)
        if coo_indices.size not in {values.size, 2 * values.size}:
            raise Unavailable(f"{values.size} values need {values.size} or {2 * values.size} indices, not {coo_indices.size}")
        return cls(dense_shape, values, OrtSparseFormat.ORT_SPARSE_COO, coo_indices)

    @classmethod
    def sparse_csr_from_numpy(
        cls, dense_shape: Any, values: Array, inner_indices: Array, outer_indices: Array, ort_device: Any
    ) -> SparseTensor:
        on_cpu(ort_device)
        rows = int(dense_shape[0])
        if inner_indices.size != values.size or outer_indices.size != rows + 1:
            raise Unavailable(f"{values.size} values in {rows} rows need {values.size} inner indices and {rows + 1} outer ones")
        return cls(dense_shape, values, OrtSparseFormat.ORT_SPARSE_CSRC, inner_indices, outer_indices)

    @classmethod
    def _of_dense(cls, dense: Array) -> SparseTensor:
        """The elements that are not zero, with places in the flattened tensor."""
        flat = dense.reshape(-1)
        places = np.flatnonzero(flat)
        return cls(dense.shape, flat[places], OrtSparseFormat.ORT_SPARSE_COO, places.astype(np.int64))

    def _dense(self) -> Array:
        """The tensor with all of its zeros. InvalidArgument where an index is outside it."""
        dense = np.zeros(self._shape, self._values.dtype)
        try:
            if self._format == OrtSparseFormat.ORT_SPARSE_CSRC:
                inner, outer = self._indices
                dense[np.repeat(np.arange(len(outer) - 1), np.diff(outer)), inner] = self._values
            elif self._indices[0].size == self._values.size:
                dense.reshape(-1)[self._indices[0].reshape(-1)] = self._values
            else:
                dense[tuple(self._indices[0].reshape(-1, len(self._shape)).T)] = self._values
        except (IndexError, ValueError) as error:
            raise InvalidArgument(f"the indices of a sparse tensor do not fit its shape {self._shape}: {error}") from None
        return dense

    def values(self) -> Array:
        return _frozen(self._values)

    def as_coo_view(self) -> SparseCooView:
        if self._format != OrtSparseFormat.ORT_SPARSE_COO:
            raise Unavailable("the tensor is not in COO format")
        return SparseCooView(*self._indices)

    def as_csrc_view(self) -> SparseCsrView:
        if self._format != OrtSparseFormat.ORT_SPARSE_CSRC:
            raise Unavailable("the tensor is not in CSR(C) format")
        return SparseCsrView(*self._indices)

    def as_blocksparse_view(self) -> Any:
        raise Unavailable("the tensor is not in BlockSparse format")

    def to_cuda(self, ort_device: Any) -> SparseTensor:
        raise Unavailable("aspen-mp has memory of the CPU alone")

    def format(self) -> OrtSparseFormat:
        return self._format

    def dense_shape(self) -> list[int]:
        return list(self._shape)

    def data_type(self) -> str:
        return f"sparse_tensor({elements.word(np.asarray(self._values).dtype)})"

    def device_name(self) -> str:
        return "cpu"

    def _get_c_tensor(self) -> SparseTensor:
        return self
