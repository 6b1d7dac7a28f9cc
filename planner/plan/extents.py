"""The plan of a shape bucket at one extent: what workers make of its slopes (``workers/plans/instance.h``), as arrays."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from aspen_mp.shm.tables import LIMITS, SLOPE_TABLES

Array = npt.NDArray[Any]
_AXES = np.arange(LIMITS["tile_axes"])


class BucketPlan(Protocol):
    """What of a plan depends on the extent, as it is at `most`, and its slopes."""

    ops: Array
    operands: Array
    params: Array
    tiles: Array
    slopes: Array

    @property
    def most(self) -> int: ...


def at(plan: BucketPlan, extent: int) -> tuple[Array, Array, Array]:
    """Operands, params and tiles. What lies beyond an output's end is cut off its tiles; one of which nothing is left has an empty box."""
    operands, params = plan.operands.copy(), plan.params.copy()
    table, every, rest = (plan.slopes[name].astype(np.int64) for name in ("table", "every", "rest"))
    more = -plan.slopes["per"] * ((plan.most - extent + rest) // np.maximum(every, 1))

    def of(name: str) -> tuple[Array, Array]:
        chosen = table == SLOPE_TABLES[name]
        return plan.slopes["index"][chosen].astype(np.int64), more[chosen]

    for name, field in (("DIM", "dims"), ("STRIDE", "strides")):
        index, change = of(name)
        operands[field][index // LIMITS["rank"], index % LIMITS["rank"]] += change
    index, change = of("OFFSET")
    operands["offset"][index] += change
    index, change = of("PARAM")
    params[index] += change
    return operands, params, _clipped(plan, operands)


def _clipped(plan: BucketPlan, operands: Array) -> Array:
    tiles = plan.tiles.copy()
    writes = np.flatnonzero(plan.ops["n_outputs"][tiles["op"]] > 0)
    output = operands[plan.ops["operand"][tiles["op"][writes]]]
    end = np.where(output["rank"][:, None] > _AXES, output["dims"][:, : len(_AXES)], np.iinfo(np.uint32).max)
    tiles["hi"][writes] = np.minimum(tiles["hi"][writes], end)
    tiles["lo"][writes] = np.minimum(tiles["lo"][writes], tiles["hi"][writes])
    return tiles
