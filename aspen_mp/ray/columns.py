"""Batches of rows, as engines hand them over: columns as arrays with one row each along the first axis, and back.

Arrow columns are read without a copy where their memory lies as numpy needs it: numbers without nulls, lists of one length, tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
FORMATS: Final = 'batch_format="numpy", "pyarrow" or "pandas"'


class Batch(Protocol):
    """Rows in columns."""

    @property
    def names(self) -> list[str]:
        """Of its columns."""

    @property
    def rows(self) -> int:
        """How many there are."""

    def column(self, name: str) -> Array:
        """The column as an array; ValueError says why it is none."""

    def result(self, keep: list[str], added: dict[str, Array]) -> Any:
        """Some columns as they are, and others, in the format of this batch."""


def batch_of(given: Any) -> Batch:
    """What an engine gave, as a batch. TypeError where it is of no known format."""
    if isinstance(given, Mapping):
        return _Numpy({str(name): np.asarray(column) for name, column in given.items()})
    arrow, pandas = sys.modules.get("pyarrow"), sys.modules.get("pandas")  # who gives such a batch has imported them
    if arrow is not None and isinstance(given, arrow.RecordBatch):
        return _Arrow(arrow.Table.from_batches([given]))
    if arrow is not None and isinstance(given, arrow.Table):
        return _Arrow(given)
    if pandas is not None and isinstance(given, pandas.DataFrame):
        return _Pandas(given)
    raise TypeError(f"a batch must be a dict of arrays, an Arrow table or a DataFrame, not {type(given).__name__}. Give {FORMATS}")


class _Numpy:
    """{name: array}."""

    def __init__(self, columns: dict[str, Array]) -> None:
        self._columns = columns
        self.names = list(columns)
        self.rows = len(next(iter(columns.values()))) if columns else 0

    def column(self, name: str) -> Array:
        return _dense(self._columns[name])

    def result(self, keep: list[str], added: dict[str, Array]) -> dict[str, Array]:
        return {name: self._columns[name] for name in keep} | added


class _Pandas:
    """A DataFrame. Values of more than one element are arrays or lists in its cells."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self.names = list(map(str, frame.columns))
        self.rows = len(frame)

    def column(self, name: str) -> Array:
        return _dense(self._frame[name].to_numpy())

    def result(self, keep: list[str], added: dict[str, Array]) -> Any:
        result = self._frame[keep].copy(deep=False)
        for name, array in added.items():
            result[name] = array if array.ndim == 1 else list(array)
        return result


class _Arrow:
    """An Arrow table."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.names = list(table.column_names)
        self.rows = table.num_rows

    def column(self, name: str) -> Array:
        column = self._table.column(name)
        return from_arrow(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())

    def result(self, keep: list[str], added: dict[str, Array]) -> Any:
        result = self._table.select(keep)
        for name, array in added.items():
            column = to_arrow(array)
            place = result.schema.get_field_index(name)
            result = result.append_column(name, column) if place < 0 else result.set_column(place, name, column)
        return result


def _dense(column: Array) -> Array:
    """An array of objects, one for each row, as one array, if they are arrays or lists of one shape."""
    if column.dtype != object or not len(column) or isinstance(column[0], str | bytes | None):
        return column
    rows = [np.asarray(_dense(row) if isinstance(row, np.ndarray) else row) for row in column]
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        raise ValueError(_ragged(shapes))
    return np.stack(rows)


def _ragged(shapes: set[tuple[int, ...]]) -> str:
    some = ", ".join(map(str, sorted(shapes)[:3]))
    return f"has rows of different shapes ({some}{', …' if len(shapes) > 3 else ''}). Pad or resize them to one shape in an earlier step"


def from_arrow(column: Any) -> Array:
    """An Arrow array (no chunked one) as numpy array with a row for each of its values. ValueError where that is impossible."""
    import pyarrow as arrow

    types, kind = arrow.types, column.type
    if column.null_count:
        raise ValueError(f"has {column.null_count} nulls. Fill or drop them in an earlier step")
    if isinstance(column, arrow.FixedShapeTensorArray):
        return np.asarray(column.to_numpy_ndarray())
    if types.is_fixed_size_list(kind):
        values = from_arrow(column.flatten())
        return values.reshape(len(column), kind.list_size, *values.shape[1:])
    if types.is_list(kind) or types.is_large_list(kind):
        return _from_lists(column)
    if isinstance(column, arrow.ExtensionArray):
        # Ray's tensors: their own conversion knows their shapes and copies nothing where it can.
        return _dense(np.asarray(column.to_numpy(zero_copy_only=False)))
    if types.is_dictionary(kind):
        return from_arrow(column.dictionary_decode())
    return np.asarray(column.to_numpy(zero_copy_only=False))  # copies bits and strings only: there are no nulls


def _from_lists(column: Any) -> Array:
    """Lists of any length, if all have the same."""
    lengths = np.diff(np.asarray(column.offsets.to_numpy(zero_copy_only=False)))
    values = from_arrow(column.flatten())
    if len(lengths) and (lengths != lengths[0]).any():
        raise ValueError(_ragged({(int(length),) for length in np.unique(lengths)}))
    return values.reshape(len(column), -1 if len(column) else 0, *values.shape[1:])


def to_arrow(array: Array) -> Any:
    """An array as an Arrow column: numbers, lists of a fixed length, or tensors of a fixed shape; without a copy of numbers."""
    import pyarrow as arrow

    if array.ndim == 1:
        return arrow.array(array)
    array = np.ascontiguousarray(array)
    if array.dtype == object or array.dtype.kind in "US":
        return arrow.array(array.tolist())
    if array.ndim == 2 and array.shape[1]:
        return arrow.FixedSizeListArray.from_arrays(arrow.array(array.reshape(-1)), array.shape[1])
    if array.size:
        return arrow.FixedShapeTensorArray.from_numpy_ndarray(array)
    kind = arrow.fixed_shape_tensor(arrow.from_numpy_dtype(array.dtype), array.shape[1:])
    return arrow.ExtensionArray.from_storage(kind, arrow.array([None] * len(array), kind.storage_type))
