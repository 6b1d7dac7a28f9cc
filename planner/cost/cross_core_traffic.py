"""The reads between tiles of a graph: whose output, and how many bytes of it. A core finds in its own cache the bytes that it has computed
or fetched before. It fetches all others from the cache of the core that wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_TYPES: dict[str, Any] = {"begin": np.uint32, "sources": np.uint32, "nbytes": np.float32}


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """Rows in CSR form: row k reads `nbytes[begin[k] : begin[k + 1]]` bytes of `sources[begin[k] : begin[k + 1]]`. The first `tiles` rows
    are the tiles; those that follow are groups, sets of tiles that several others read as a whole. A source is a tile, or a group, for
    which `nbytes` says nothing; those of groups are tiles.

    ValueError where the arrays do not fit each other.
    """

    tiles: int
    begin: npt.NDArray[np.uint32]
    sources: npt.NDArray[np.uint32]
    nbytes: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        for name, dtype in _TYPES.items():
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype))
        begin, rows = self.begin, len(self.begin) - 1
        if not 0 <= self.tiles <= rows or begin[0] != 0 or (begin[1:] < begin[:-1]).any():
            raise ValueError(f"{self.tiles} tiles in rows that begin at {begin.tolist()}")
        if not len(self.sources) == len(self.nbytes) == begin[-1]:
            raise ValueError(f"{len(self.sources)} sources, {len(self.nbytes)} numbers of bytes, {begin[-1]} entries")
        if (self.sources >= rows).any() or (self.sources[begin[self.tiles] :] >= self.tiles).any():
            raise ValueError("a source is not a row, or one of a group is not a tile")
        if not (np.isfinite(self.nbytes).all() and (self.nbytes >= 0).all()):
            raise ValueError("bytes are finite and not negative")

    @classmethod
    def none(cls) -> Flow:
        """Where it is not known."""
        return cls(0, np.zeros(1, np.uint32), np.zeros(0, np.uint32), np.zeros(0, np.float32))
