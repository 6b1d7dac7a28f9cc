"""Batches of rows, as engines hand them over: columns as arrays with one row each along the first axis, and back.

Arrow columns are read without a copy where their memory lies as numpy needs it: numbers without nulls, lists of one length, tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_LISTS: Final = ("is_list", "is_large_list", "is_list_view", "is_large_list_view")
"""Tests of types of Arrow's lists. Older versions of pyarrow have no views."""
FORMATS: Final = 'batch_format="numpy", "pyarrow" or "pandas"'


class Batch(Protocol):
    """Rows in columns."""

    @property
    def names(self) -> list[str]:
        """The names of its columns."""

    @property
    def rows(self) -> int:
        """How many there are."""

    def column(self, name: str) -> Array:
        """The column as an array; ValueError says why it is none."""

    def result(self, keep: list[str], added: dict[str, Array]) -> Any:
        """Some columns as they are, and others, in the format of this batch."""


def batch_of(given: Any) -> Batch:
    """The batch of an engine. TypeError where it is of no known format."""
    if isinstance(given, Mapping):
        return _Numpy(given)
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

    def __init__(self, columns: Mapping[Any, Any]) -> None:
        self._columns = columns
        self._labels = _labels(columns)
        self.names = list(self._labels)
        self.rows = len(next(iter(columns.values()))) if columns else 0

    def column(self, name: str) -> Array:
        return array_of(self._columns[self._labels[name]])

    def result(self, keep: list[str], added: dict[str, Array]) -> dict[str, Array]:
        return {name: np.asarray(self._columns[self._labels[name]]) for name in keep} | added


class _Pandas:
    """A DataFrame. Values of more than one element are arrays or lists in its cells."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self._labels = _labels(frame.columns)
        self.names = list(self._labels)
        self.rows = len(frame)

    def column(self, name: str) -> Array:
        column = self._frame[self._labels[name]]
        if column.ndim > 1:
            raise ValueError(f"is there {column.shape[1]} times. Rename or drop the others in an earlier step")
        return array_of(column)

    def result(self, keep: list[str], added: dict[str, Array]) -> Any:
        result = self._frame[[self._labels[name] for name in keep]].copy(deep=False)
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
        if self.names.count(name) > 1:
            raise ValueError(f"is there {self.names.count(name)} times. Rename or drop the others in an earlier step")
        return _from_chunks(self._table.column(name))

    def result(self, keep: list[str], added: dict[str, Array]) -> Any:
        result = self._table.select(keep)
        for name, array in added.items():
            column = to_arrow(array)
            place = result.schema.get_field_index(name)
            result = result.append_column(name, column) if place < 0 else result.set_column(place, name, column)
        return result


def _labels(labels: Iterable[Any]) -> dict[str, Any]:
    """Labels of columns by the names that users give them: numbers are labels, too. A text goes before what is spelled like it."""
    found = list(labels)
    return {str(label): label for label in found} | {label: label for label in found if isinstance(label, str)}


def array_of(column: Any) -> Array:
    """A column of numpy, pandas or Arrow as an array. ValueError says why it is none: it has gaps, or rows of different shapes."""
    arrow, pandas = sys.modules.get("pyarrow"), sys.modules.get("pandas")
    if arrow is not None and isinstance(column, arrow.ChunkedArray):
        return _from_chunks(column)
    if arrow is not None and isinstance(column, arrow.Array):
        return from_arrow(column)
    if pandas is not None and isinstance(column, pandas.Series | pandas.api.extensions.ExtensionArray):
        return _from_pandas(column)
    if isinstance(column, np.ma.MaskedArray):
        _refuse_gaps(int(np.ma.getmaskarray(column).sum()))
    return _dense(np.asarray(column))


def _from_pandas(column: Any) -> Array:
    """A Series or an array of pandas, which has marks for gaps in its own dtypes."""
    import pandas

    if isinstance(column.dtype, pandas.ArrowDtype):
        return _from_chunks(pandas.array(column).__arrow_array__())
    if isinstance(column.dtype, np.dtype):
        return _dense(np.asarray(column))
    _refuse_gaps(int(column.isna().sum()))
    values = np.asarray(column)
    if values.dtype == object and hasattr(column.dtype, "numpy_dtype"):
        values = values.astype(column.dtype.numpy_dtype)
    return _dense(values)


def _refuse_gaps(count: int) -> None:
    if count:
        raise ValueError(f"has {count} nulls. Fill or drop them in an earlier step")


def _is_gap(value: Any) -> bool:
    return value is None or type(value).__name__ in {"NAType", "NaTType"}  # pandas' own, which compare with nothing


def _dense(column: Array) -> Array:
    """An array of objects, one for each row, as one array, if they are arrays or lists of one shape."""
    if column.dtype != object or not column.size or not column.ndim:
        return column
    _refuse_gaps(sum(map(_is_gap, column.flat)))
    if any(isinstance(value, str | bytes) for value in column.flat):
        _refuse_gaps(sum(isinstance(value, float) for value in column.flat))  # NaN is the gap that pandas has among strings
        return column
    rows = [array_of(row) for row in column]
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        raise ValueError(_ragged(shapes))
    return np.stack(rows)


def _ragged(shapes: set[tuple[int, ...]]) -> str:
    some = ", ".join(map(str, sorted(shapes)[:3]))
    return f"has rows of different shapes ({some}{', …' if len(shapes) > 3 else ''}). Pad or resize them to one shape in an earlier step"


def _from_chunks(column: Any) -> Array:
    """A chunked array; without a copy where it has one chunk."""
    return from_arrow(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())


def from_arrow(column: Any) -> Array:
    """An Arrow array (no chunked one) as numpy array with a row for each of its values. ValueError where that is impossible."""
    import pyarrow as arrow

    types, kind = arrow.types, column.type
    _refuse_gaps(column.null_count)
    if isinstance(column, arrow.FixedShapeTensorArray):
        return np.asarray(column.to_numpy_ndarray())
    if types.is_fixed_size_list(kind):
        values = from_arrow(column.flatten())
        return values.reshape(len(column), kind.list_size, *values.shape[1:])
    if any(getattr(types, name)(kind) for name in _LISTS if hasattr(types, name)):
        return _from_lists(column)
    if isinstance(column, arrow.ExtensionArray):
        # Ray's tensors: their own conversion knows their shapes and copies nothing where it can.
        return _dense(np.asarray(column.to_numpy(zero_copy_only=False)))
    if types.is_dictionary(kind):
        return from_arrow(column.dictionary_decode())
    return np.asarray(column.to_numpy(zero_copy_only=False))  # copies bits and strings only: there are no nulls


def _from_lists(column: Any) -> Array:
    """Lists of any length, if all have the same."""
    import pyarrow.compute

    lengths = np.asarray(pyarrow.compute.list_value_length(column).to_numpy(zero_copy_only=False))
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
