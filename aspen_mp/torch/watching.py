"""Which elements of a model's constants each call looks at, so that changes show that PyTorch does not count.

PyTorch counts no writes through `.data`, numpy or DLPack. A step of an optimizer changes nearly all elements of a tensor, and so the few
that are looked at. Beside the first and the last, one lies in each of six equal parts of the tensor. So each third of it in one piece holds
one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from aspen_mp.client.requests._fast_path import Watched

ELEMENTS: Final = 8
"""Of each constant, its first and last among them: more would take a call longer, for each is a line of memory that no cache holds."""
_STEP: Final = (math.sqrt(5) - 1) / 2
"""Multiples of it lie evenly in the unit interval when their whole parts are dropped, and never in step with the rows of a matrix."""


def watch(args: tuple[Any, ...], places: Sequence[int]) -> Watched:
    """The constants at `places` among the arguments of a call."""
    return Watched(args, [(place, args[place].element_size(), offsets(args[place])) for place in places])


def offsets(tensor: Any) -> list[int]:
    """How many bytes behind the first element of a tensor the elements lie that are looked at."""
    shape, strides, size = tensor.shape, tensor.stride(), tensor.element_size()
    found = []
    for number in _numbers(tensor.numel()):
        rest, offset = number, 0
        for length, stride in zip(reversed(shape), reversed(strides), strict=True):
            rest, index = divmod(rest, length)
            offset += index * stride
        found.append(offset * size)
    return sorted(found)


def _numbers(count: int) -> list[int]:
    """Places of the elements that are looked at, of `count` in their usual order."""
    if count <= ELEMENTS:
        return list(range(count))
    inner = ELEMENTS - 2
    return sorted({0, *(int((k + (k + 1) * _STEP % 1) * count / inner) for k in range(inner)), count - 1})
