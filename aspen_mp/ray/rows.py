"""Rows of a batch as requests of a model: which arrays they feed, how many rows a request has, and results put together again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aspen_mp.errors import RequestError
from aspen_mp.ray.columns import Array

if TYPE_CHECKING:
    from aspen_mp.client.model import Model
    from aspen_mp.client.signature import ValueInfo


def fitted(model: str, info: ValueInfo, column: str, array: Array) -> Array:
    """A column as what the input takes: dtypes that hold the values, and the shape of a row.

    RequestError where it cannot be that without loss: fractions as integers, integers out of range, another number of elements.
    """
    where = f"model {model!r}: column {column!r} for input {info.name!r}"
    if array.dtype != info.dtype:
        if info.dtype == object or array.dtype.kind in "OUS":
            if info.dtype == object and array.dtype.kind in "OUS":
                return array
            raise RequestError(f"{where} is {array.dtype}, the input is {info.dtype}. Convert it in an earlier step")
        if not np.can_cast(array.dtype, info.dtype, "same_kind") or not _in_range(array, info.dtype):
            raise RequestError(f"{where} is {array.dtype}, which {info.dtype} cannot hold. Convert it in an earlier step")
        array = array.astype(info.dtype)
    if info.shape is None or len(info.shape) == array.ndim:
        return array
    return _reshaped(where, info.shape[1:], array)


def _in_range(array: Array, dtype: np.dtype[Any]) -> bool:
    """Whether integers of `array` are integers of `dtype`."""
    if dtype.kind not in "iu" or array.dtype.kind not in "iu" or not array.size:
        return True
    limits = np.iinfo(dtype)
    return bool(array.min() >= limits.min and array.max() <= limits.max)


def _reshaped(where: str, row: Sequence[int | str | None], array: Array) -> Array:
    """Rows of a list column in the shape that the input has for them, where that is known but for one dimension."""
    open_ = [dimension for dimension in row if not isinstance(dimension, int)]
    shown = "[" + ", ".join("?" if dimension is None else str(dimension) for dimension in row) + "]"
    try:
        if len(open_) > 1:
            raise ValueError
        shape = [dimension if isinstance(dimension, int) else -1 for dimension in row]
        return array.reshape(len(array), *shape) if len(array) else array.reshape(0, *(max(0, d) for d in shape))
    except ValueError:
        raise RequestError(f"{where} has rows of shape {list(array.shape[1:])}, the input {shown}. Reshape it in an earlier step") from None


@dataclass(frozen=True, slots=True)
class Requests:
    """How rows become requests.

    `fixed`: rows that each request has, as the model says; None where its first axis is open. `most`: rows that a request has at most;
    None: all rows of the batch.
    """

    fixed: int | None
    most: int | None

    @classmethod
    def of(cls, model: str, inputs: Sequence[ValueInfo], rows: int | None) -> Requests:
        """Requests of a model whose `inputs` have a row along their first axis. RequestError where they have not, or not all the same."""
        fixed: dict[int, str] = {}
        for info in inputs:
            if info.shape is not None and not info.shape:
                raise RequestError(
                    f"model {model!r}: input {info.name!r} is one number, not one for each row. Give constants={{{info.name!r}: …}}"
                )
            if info.shape is not None and isinstance(info.shape[0], int):
                fixed[info.shape[0]] = info.name
        if len(fixed) > 1:
            said = ", ".join(f"{name!r} {size}" for size, name in fixed.items())
            raise RequestError(f"model {model!r}: first axes should be rows, but differ ({said}). Give those without in constants")
        size = next(iter(fixed), None)
        if size is not None and rows not in (None, size):
            raise RequestError(f"model {model!r} takes {size} rows in each request, not rows_per_request={rows}. Leave it out")
        return cls(size, rows)

    def sizes(self, rows: int, largest: int) -> list[tuple[int, int]]:
        """(rows, rows with padding) of each request. `largest`: rows that a request of this model has had.

        Requests of new sizes need plans of their own; so what is left over is filled up to the next power of two.
        """
        full = self.fixed or self.most or max(rows, largest, 1)
        sizes = [(full, full)] * (rows // full)
        left = rows % full
        if left:
            sizes.append((left, full if self.fixed else min(full, 1 << (left - 1).bit_length())))
        return sizes


def feeds(columns: Mapping[str, Array], constants: Mapping[str, Any], sizes: Sequence[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """The feeds of each request. Missing rows repeat the last one."""
    first = 0
    for rows, padded in sizes:
        given: dict[str, Any] = dict(constants)
        for name, array in columns.items():
            part = array[first : first + rows]
            given[name] = part if rows == padded else np.concatenate([part, np.repeat(part[-1:], padded - rows, axis=0)])
        yield given
        first += rows


def run(model: Model, given: Iterator[dict[str, Any]], outputs: list[str], sizes: Sequence[tuple[int, int]]) -> dict[str, Array]:
    """The outputs of all rows. RequestError where an output has not one row for each of the input."""
    if len(sizes) == 1:
        rows, padded = sizes[0]
        results = model.run(next(given), outputs)
        return {name: _rows(model.name, name, results[name], padded)[:rows] for name in outputs}
    whole: dict[str, Array] = {}
    first, total = 0, sum(rows for rows, _ in sizes)
    with model.map(given, outputs, copy=False) as stream:
        for (rows, padded), result in zip(sizes, stream, strict=True):
            for name in outputs:
                part = _rows(model.name, name, result[name], padded)[:rows]
                if name not in whole:
                    whole[name] = np.empty((total, *part.shape[1:]), part.dtype)
                column = whole[name]
                if column.shape[1:] != part.shape[1:]:
                    shapes = f"{list(part.shape[1:])} in one request and {list(column.shape[1:])} in another"
                    raise RequestError(f"model {model.name!r}: output {name!r} has rows of shape {shapes}. Leave it out of outputs")
                column[first : first + rows] = part
            first += rows
    return whole


def _rows(model: str, name: str, value: Any, rows: int) -> Array:
    shape = np.shape(value)
    if not shape or shape[0] != rows:
        raise RequestError(
            f"model {model!r}: output {name!r} has shape {list(shape)}, which is not one row for each of {rows}. Name the others in outputs"
        )
    return np.asarray(value)


def nothing(info: ValueInfo) -> Array:
    """An output of a batch without rows. Dimensions that are not known are 0."""
    row = (info.shape or (0,))[1:]
    return np.empty((0, *(dimension if isinstance(dimension, int) else 0 for dimension in row)), info.dtype)
