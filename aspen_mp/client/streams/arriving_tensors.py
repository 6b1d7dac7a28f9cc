"""Inputs of a request that are written in pieces, and outputs that come in pieces."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aspen_mp.client import arguments
from aspen_mp.client.streams.changed_inputs import RANK, image_axes
from aspen_mp.shm.errors import RequestError

Array = npt.NDArray[Any]
LEAST_ROWS: Final = 8
"""Fewest rows of an input that are worth a band, but for the last ones."""
BANDS: Final = 64
"""Most bands that the rows of an input make, about."""


class ArrivingInput:
    """An input of which rows arrive in any order, each once. Rows are elements along `axis`. Its owner holds a lock for each call."""

    def __init__(self, model: str, name: str, array: Array) -> None:
        """`array`: where rows go."""
        self.name = name
        self.array = array
        self.axis = image_axes(array.shape)[0]
        self._where = f"model {model!r}: input {name!r}"
        self._chosen = False  # the axis can no longer change
        self._next = 0  # behind the last write
        self._rows()
        self.told = 0
        """Rows that the latest band had."""

    def _rows(self) -> None:
        self.length = self.array.shape[self.axis] if self.array.ndim else 1
        self._taken = np.zeros(self.length, bool)
        self._arrived = np.zeros(self.length, bool)
        self.first_missing = 0 if self.array.size else self.length

    @property
    def complete(self) -> bool:
        return self.first_missing == self.length

    @property
    def due(self) -> bool:
        """Whether enough rows have arrived since the latest band for another one."""
        more = self.first_missing - self.told
        return more >= max(LEAST_ROWS, self.length // BANDS) or (more > 0 and self.complete)

    def missing(self) -> str:
        """A message that says which rows are missing."""
        n = int(self.length - self._arrived.sum())
        return f"{self._where} lacks {n} of {self.length} rows (axis {self.axis}), the first at {self.first_missing}"

    def take(self, rows: Any, at: int | None, axis: int | None) -> tuple[Array, Array, tuple[int, int]]:
        """Check rows that are to be written. Return them, the place where they go, and their range. Nobody else may write these then."""
        array = self._checked(rows)
        self._choose(axis, array.shape)
        if not self.array.ndim and array.size == 1:
            array = array.reshape(())
        others = [n for k, n in enumerate(array.shape) if k != self.axis]
        if array.ndim != self.array.ndim or others != [n for k, n in enumerate(self.array.shape) if k != self.axis]:
            wanted = ", ".join("rows" if k == self.axis else str(n) for k, n in enumerate(self.array.shape))
            raise RequestError(f"{self._where}: rows must have shape [{wanted}], not {tuple(array.shape)}")
        first = self._next if at is None else arguments.whole("at", at, 0)
        last = first + (array.shape[self.axis] if array.ndim else 1)
        if last > self.length:
            raise RequestError(f"{self._where}: rows {first} to {last - 1} do not all exist. It has {self.length} (axis {self.axis})")
        if self._taken[first:last].any():
            again = first + int(np.argmax(self._taken[first:last]))
            raise RequestError(f"{self._where}: row {again} has been written before. Write each row once")
        self._taken[first:last] = True
        self._next, self._chosen = last, True
        return array, self.array[self._place(first, last)], (first, last)

    def _place(self, first: int, last: int) -> tuple[Any, ...]:
        return (*(slice(None),) * self.axis, slice(first, last)) if self.array.ndim else (...,)

    def _checked(self, rows: Any) -> Array:
        dtype = self.array.dtype
        if isinstance(rows, np.ndarray):
            if rows.dtype != dtype:
                raise RequestError(f"{self._where} must be {dtype}, not {rows.dtype}. Convert it with .astype")
            return rows
        try:
            return np.asarray(rows, dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise RequestError(f"{self._where} is {dtype}, and these rows cannot be converted: {error}") from None

    def _choose(self, axis: int | None, shape: tuple[int, ...]) -> None:
        """The first write says which axis rows are of: by `axis`, or by the one axis along which it has fewer elements than the input."""
        rank, chosen = self.array.ndim, self.axis
        if axis is not None and rank:
            chosen = arguments.whole("axis", axis, -rank, rank - 1) % rank
        elif not self._chosen and len(shape) == rank:
            fewer = [k for k, (some, whole) in enumerate(zip(shape, self.array.shape, strict=True)) if some != whole]
            chosen = fewer[0] if len(fewer) == 1 else chosen
        if chosen == self.axis:
            return
        if self._chosen:
            raise RequestError(f"{self._where}: rows were those of axis {self.axis} before, not {chosen}")
        self.axis = chosen
        self._rows()

    def arrive(self, span: tuple[int, int]) -> None:
        """Rows that were taken have been copied."""
        self._arrived[slice(*span)] = True
        rest = self._arrived[self.first_missing :]
        self.first_missing = self.length if rest.all() else self.first_missing + int(np.argmin(rest))

    def give_up(self, span: tuple[int, int]) -> None:
        """Rows that were taken have not been copied."""
        self._taken[slice(*span)] = False

    def move(self, array: Array) -> None:
        """Go on elsewhere, where nothing has been computed. Nobody writes rows meanwhile."""
        array[...] = self.array
        self.array, self.told = array, 0

    def tell(self, bounds: npt.NDArray[np.int32], mode: int) -> None:
        """Write for REACH what is missing now, and what was missing at the band before. A number has one row."""
        rank = self.array.ndim
        bounds[0] = mode
        for k, there in enumerate((self.first_missing, self.told)):
            begin = 1 + 2 * k * RANK
            lo, hi = bounds[begin : begin + max(rank, 1)], bounds[begin + RANK : begin + RANK + max(rank, 1)]
            lo[:], hi[:] = 0, self.array.shape or 1
            lo[self.axis] = there
            if there == self.length:
                hi[self.axis] = there
        self.told = self.first_missing


class ArrivingOutput:
    """An output of which rows are copied as they are computed. Rows are elements along the axis by which the first of them come."""

    def __init__(self) -> None:
        self._view = self.array = np.empty(0)
        self.axis = -1
        self.rows = 0
        self.whole = False

    def attach(self, view: Array) -> None:
        """From now on it is read here, in the request's region."""
        if not self.rows:
            self.array = np.empty(view.shape, view.dtype)
        self._view = view

    def take(self, axis: int, rows: int) -> tuple[int, int, bool]:
        """Copy what is new where `rows` along `axis` are computed; axis -1: all are. Return what the fields become, which the caller sets
        with a lock held."""
        if self.whole:
            return self.axis, self.rows, True
        if axis >= 0 and self.rows and axis != self.axis:
            return self.axis, self.rows, False  # until all is there
        along = self.axis if axis < 0 else axis
        place = (*(slice(None),) * along, slice(self.rows, None if axis < 0 else rows)) if along >= 0 else ...
        self.array[place] = self._view[place]
        if axis < 0:
            return along, self.array.shape[along] if along >= 0 else 0, True
        return (axis, max(rows, self.rows), False) if rows else (self.axis, self.rows, False)


def rows_of(array: Array, axis: int, first: int, last: int | None) -> Array:
    """Rows that nobody may write to. Axis -1: the whole array."""
    view = array[(*(slice(None),) * axis, slice(first, last))] if axis >= 0 else array.view()
    view.flags.writeable = False
    return view
