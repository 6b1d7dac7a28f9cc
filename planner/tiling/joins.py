"""The end of a tile graph's making: one END tile, at most `fanout` children a tile, and both directions of the edges as CSR arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aspen_mp.shm.tables import LIMITS

Ints = npt.NDArray[np.int64]
FANOUT = LIMITS["fanout"]


@dataclass(frozen=True, slots=True)
class Edges:
    """``children[child_begin[t] : child_begin[t + 1]]`` are those of tile t, best first; the same for ``parents``. Tiles from
    ``op_tiles`` on are JOINs, the last one is END; ``origin``: for each JOIN and END, the tile whose depth it takes."""

    child_begin: Ints
    children: Ints
    parent_begin: Ints
    parents: Ints
    origin: Ints

    @property
    def n(self) -> int:
        return len(self.child_begin) - 1


def finish(parents: Ints, children: Ints, op_tiles: int, origin: Ints) -> Edges:
    """Adds END and the JOIN trees of tiles with too many children. `origin`: see `Edges`, for the JOINs so far."""
    n = op_tiles + len(origin)
    parents, children, origin = _drop_idle_joins(parents, children, op_tiles, origin)
    n = op_tiles + len(origin)
    end = -1  # until the number of JOINs is known
    sinks = np.setdiff1d(np.arange(n), parents)
    parents, children = np.concatenate([parents, sinks]), np.concatenate([children, np.full(len(sinks), end)])
    more: list[Ints] = []
    while True:
        order = np.lexsort((children, parents))
        parents, children = parents[order], children[order]
        counts = np.bincount(parents, minlength=n)
        full = counts > FANOUT
        if not full.any():
            break
        begin = np.cumsum(counts) - counts
        place = np.arange(len(parents)) - begin[parents]
        move = full[parents]
        # Each run of FANOUT children of a tile gets a JOIN of its own.
        chunk = parents[move] * len(parents) + place[move] // FANOUT
        unique, inverse = np.unique(chunk, return_inverse=True)
        joins = n + np.arange(len(unique))
        above = unique // len(parents)
        parents = parents.copy()
        parents[move] = joins[inverse]
        parents, children = np.concatenate([parents, above]), np.concatenate([children, joins])
        more.append(np.where(above < op_tiles, above, 0))
        for k in np.flatnonzero(above >= op_tiles).tolist():
            more[-1][k] = np.concatenate([origin, *more[:-1]])[above[k] - op_tiles]
        n += len(unique)
    origin = np.concatenate([origin, *more, np.array([max(op_tiles - 1, 0)], np.int64)])
    children = np.where(children == end, n, children)
    n += 1
    return _csr(parents, children, n, origin)


def _drop_idle_joins(parents: Ints, children: Ints, op_tiles: int, origin: Ints) -> tuple[Ints, Ints, Ints]:
    """Takes out JOINs that lost all children because longer paths imply them."""
    n = op_tiles + len(origin)
    while True:
        busy = np.bincount(parents, minlength=n) > 0
        busy[:op_tiles] = True
        keep = busy[children]
        if keep.all():
            break
        parents, children = parents[keep], children[keep]
    number = np.cumsum(busy) - 1
    return number[parents], number[children], origin[busy[op_tiles:]]


def _csr(parents: Ints, children: Ints, n: int, origin: Ints) -> Edges:
    by_parent = np.lexsort((children, parents))
    by_child = np.lexsort((parents, children))
    zero = np.zeros(1, np.int64)
    child_begin = np.concatenate([zero, np.cumsum(np.bincount(parents, minlength=n))])
    parent_begin = np.concatenate([zero, np.cumsum(np.bincount(children, minlength=n))])
    return Edges(child_begin, children[by_parent], parent_begin, parents[by_child], origin)
