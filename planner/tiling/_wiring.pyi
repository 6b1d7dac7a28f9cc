"""Tile graphs as the simulator takes them; `edges.EdgeBuilder` is its face."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]

class Piece:
    def __init__(
        self,
        steps: Array,
        parents: Array,
        children: Array,
        nbytes: Array,
        joins: list[tuple[int, int, int]],
        member_of: Array,
        member_steps: Array,
        members: Array,
        member_bytes: Array,
        reads: Array,
        readers: Array,
    ) -> None: ...

def connect(found: Sequence[Any], grids: Sequence[Any], sources: Array, limit: int) -> tuple[Any, ...] | None: ...
def wire(
    base: Array, pieces: Sequence[Piece | None], sources: Sequence[Array]
) -> tuple[Array, Array, Array, Array, list[int], tuple[Array, Array, Array]]: ...
