"""Calls split by rows, where both the number of rows and another size change from call to call: few plans serve all of them.

A plan for a shape bucket serves a range of one length. Where the number of rows changes as well, each number would have plans of its own.
So a graph whose rows are proved independent (`rows.separable`) runs such calls as parts, requests of equally many rows each. Where these
do not divide a batch, the last part computes some rows again. All parts are in flight together. Workers find tiles of the next ones where
those of one are too few for all cores, and weights that lie in a cache serve several.

The number of rows of a part is chosen once for a graph, when the first call is split, because another one has other plans. It follows from
the batches so far. The length and the number of workers have no say: parts in flight together fill the cores, whatever their lengths.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aspen_mp.shm.errors import QueueFull
from aspen_mp.torch.importer import Imported
from aspen_mp.torch.rows import Separable

if TYPE_CHECKING:
    from aspen_mp import Model


@dataclass(frozen=True, slots=True)
class SplittingPolicy:
    """`rows`: of a part. `more_rows`: of a part where batches have `many` rows on average, so that few rows are computed again.
    `in_flight`: parts of a call at a time, whose inputs and results take memory. Numbers of rows that come often run whole: those of at
    least `often` calls, and of at least one in `share`. About the last `remembered` calls count."""

    rows: int = 2
    more_rows: int = 4
    many: int = 16
    in_flight: int = 16
    often: int = 8
    share: int = 4
    remembered: int = 64


POLICY: Final = SplittingPolicy()
"""The one that is in use."""
Arrays = Mapping[str, Any]


class History:
    """The shapes that calls of a graph have had. Threads share it without a lock: it decides how a call runs, not what it gives."""

    def __init__(self) -> None:
        self._batches: Counter[int] = Counter()
        self._calls = 0
        self._rest: Any = None
        self._others = False
        self.rows = 0
        """Of a part; 0 until a call has been split."""

    def split(self, batch: int, rest: Any) -> bool:
        """Note a call, and return whether it is to be split.

        Args:
            batch: Its number of rows.
            rest: Its other sizes, as any value that can be compared.
        """
        if self._rest is None:
            self._rest = rest
        self._others = self._others or rest != self._rest
        if self._calls >= POLICY.remembered:
            self._batches = Counter({rows: count // 2 for rows, count in self._batches.items() if count > 1})
            self._calls = sum(self._batches.values())
        self._batches[batch] += 1
        self._calls += 1
        if batch in (1, self.rows or POLICY.rows) or not self._others or len(self._batches) == 1:
            return False
        count = self._batches[batch]
        if count >= POLICY.often and count * POLICY.share >= self._calls:
            return False
        if not self.rows:
            self.rows = POLICY.more_rows if self._mean() >= POLICY.many else POLICY.rows
        return batch != self.rows

    def _mean(self) -> float:
        return sum(rows * count for rows, count in self._batches.items()) / self._batches.total()


class Splitting:
    """How calls of one loaded model are split.

    Args:
        separable: What its graph has for each row.
        imported: The names and orders of axes that its inputs and outputs have.
        history: Of the graph's calls.
    """

    def __init__(self, separable: Separable, imported: Imported, history: History) -> None:
        self._history = history
        self._axes = {item.name: _place(0, item.order) for item in imported.inputs if item.place in separable.inputs}
        self._sizes = [item.name for item in imported.inputs if item.place in separable.sizes]
        self._joined = {
            output.name: _place(axis, output.order)
            for output, axis in zip(imported.outputs, separable.outputs, strict=True)
            if output.name and axis is not None
        }

    def run(self, model: Model, arrays: Arrays) -> Arrays:
        """Return the results of a call by their names.

        Args:
            model: The loaded graph.
            arrays: All inputs of the call by their names.
        """
        name, axis = next(iter(self._axes.items()))
        batch = arrays[name].shape[axis]
        rest = [(*x.shape[: self._axes.get(k, 0)], *x.shape[self._axes.get(k, -1) + 1 :]) for k, x in arrays.items()]
        return self._parts(model, arrays, batch) if self._history.split(batch, rest) else model.run(arrays)

    def _parts(self, model: Model, arrays: Arrays, batch: int) -> Arrays:
        rows = self._history.rows
        results: dict[str, Any] = {}
        waiting: deque[tuple[int, Any]] = deque()

        def take() -> None:
            first, future = waiting.popleft()
            self._join(results, future.result(), first, rows, batch)

        try:
            for begin in range(0, batch, rows):
                first = max(min(begin, batch - rows), 0)
                given = {**arrays, **{name: np.array([rows], np.int64) for name in self._sizes}}
                given |= {name: _part(arrays[name], axis, first, rows) for name, axis in self._axes.items()}
                while len(waiting) >= POLICY.in_flight:
                    take()
                try:
                    waiting.append((first, model.submit_part(given, first=not begin)))
                except QueueFull:
                    while waiting:
                        take()
                    self._join(results, model.run(given), first, rows, batch)
            while waiting:
                take()
        finally:
            for _, future in waiting:  # one has failed
                future.cancel()
        return results

    def _join(self, results: dict[str, Any], part: Arrays, first: int, rows: int, batch: int) -> None:
        """Puts the results of a part in their places; `results` are made when the first part is there."""
        for name, found in part.items():
            axis = self._joined.get(name)
            if axis is None:
                results.setdefault(name, found)
                continue
            step, before = found.shape[axis] // rows, (slice(None),) * axis
            if name not in results:
                results[name] = np.empty((*found.shape[:axis], batch * step, *found.shape[axis + 1 :]), found.dtype)
            kept = min(rows, batch) * step
            results[name][(*before, slice(first * step, first * step + kept))] = found[(*before, slice(kept))]


def splitting(separable: Separable | None, imported: Imported, history: History) -> Splitting | None:
    """Return how a model's calls are split, or None where they never are."""
    read = {item.place for item in imported.inputs}
    if separable is None or not separable.inputs & read or any(output.view and output.name for output in imported.outputs):
        return None
    return Splitting(separable, imported, history)


def _place(axis: int, order: tuple[int, ...] | None) -> int:
    return axis if order is None else order.index(axis)


def _part(array: Any, axis: int, first: int, rows: int) -> Any:
    """Rows of an array, the first ones again where it has too few."""
    if array.shape[axis] < rows:
        return array.take(np.arange(rows) % array.shape[axis], axis)
    return np.ascontiguousarray(array[(slice(None),) * axis + (slice(first, first + rows),)])
