"""How far planning is. Whoever plans says where that is told; nobody has to listen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

Report = Callable[[str, int, int], None]
"""(step, done, total): the present step, and its progress."""
EVERY: Final = 256
"""Items between two reports of how many are done: a millisecond of work, or some."""
_T = TypeVar("_T")


def _nobody(step: str, done: int, total: int) -> None:
    pass


_told: Report = _nobody


def tell(report: Report | None) -> None:
    """Makes `report` hear of later planning in this process."""
    global _told  # noqa: PLW0603
    _told = report or _nobody


def at(step: str, done: int = 0, total: int = 1) -> None:
    """Tell that `done` of `total` parts of a step are done."""
    _told(step, done, total)


def over(items: Sequence[_T], step: str) -> Iterator[_T]:
    """The items, each a part of a step."""
    for done, item in enumerate(items):
        if not done % EVERY:
            _told(step, done, len(items))
        yield item
