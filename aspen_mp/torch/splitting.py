"""Calls split by rows, where both the number of rows and another size change from call to call: few plans serve all of them.

A plan for a shape bucket serves a range of one length. Where the number of rows changes as well, each number would have plans of its own.
So a graph whose rows are proved independent (`rows.separable`) runs such calls as requests of `POLICY.rows` rows each. Where that many
rows do not divide a batch, the last request computes some rows again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from aspen_mp.torch.importer import Imported
from aspen_mp.torch.rows import Separable


@dataclass(frozen=True, slots=True)
class SplittingPolicy:
    """`rows`: of a request that is a part of a call. Numbers of rows that come often run whole: those of at least `often` calls, and of
    at least one in `share`. About the last `remembered` calls count."""

    rows: int = 2
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
        if batch <= POLICY.rows or not self._others or len(self._batches) == 1:
            return False
        count = self._batches[batch]
        return not (count >= POLICY.often and count * POLICY.share >= self._calls)


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

    def run(self, request: Callable[[Arrays], Arrays], arrays: Arrays) -> Arrays:
        """Return the results of a call by their names.

        Args:
            request: Runs the model once.
            arrays: All inputs of the call by their names.
        """
        name, axis = next(iter(self._axes.items()))
        batch = arrays[name].shape[axis]
        rest = [(*x.shape[: self._axes.get(k, 0)], *x.shape[self._axes.get(k, -1) + 1 :]) for k, x in arrays.items()]
        return self._parts(request, arrays, batch) if self._history.split(batch, rest) else request(arrays)

    def _parts(self, request: Callable[[Arrays], Arrays], arrays: Arrays, batch: int) -> Arrays:
        rows = POLICY.rows
        given = {**arrays, **{name: np.array([rows], np.int64) for name in self._sizes}}
        results: dict[str, Any] = {}
        for begin in range(0, batch, rows):
            first = min(begin, batch - rows)
            given |= {name: _part(arrays[name], axis, first, rows) for name, axis in self._axes.items()}
            for name, part in request(given).items():
                axis = self._joined.get(name)
                if axis is None:
                    results.setdefault(name, part)
                    continue
                step = part.shape[axis] // rows
                if name not in results:
                    results[name] = np.empty((*part.shape[:axis], batch * step, *part.shape[axis + 1 :]), part.dtype)
                results[name][(slice(None),) * axis + (slice(first * step, (first + rows) * step),)] = part
        return results


def splitting(separable: Separable | None, imported: Imported, history: History) -> Splitting | None:
    """Return how a model's calls are split, or None where they never are."""
    read = {item.place for item in imported.inputs}
    if separable is None or not separable.inputs & read:
        return None
    return Splitting(separable, imported, history)


def _place(axis: int, order: tuple[int, ...] | None) -> int:
    return axis if order is None else order.index(axis)


def _part(array: Any, axis: int, first: int, rows: int) -> Any:
    return np.ascontiguousarray(array[(slice(None),) * axis + (slice(first, first + rows),)])
