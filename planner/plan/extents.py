"""The plan of a shape bucket at some extents: what workers make of its numbers (``workers/plans/instance.h``), as arrays."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.plan.shape_bucket import Extents
from aspen_mp.shm.extents import Row, values_at
from aspen_mp.shm.tables import LIMITS, NUMBER_TABLES

Array = npt.NDArray[Any]
_AXES = np.arange(LIMITS["tile_axes"])


class BucketPlan(Protocol):
    """The parts of a plan that depend on the extents, as they are at `most`."""

    ops: Array
    operands: Array
    params: Array
    tiles: Array
    values: Array
    numbers: Array

    @property
    def most(self) -> Extents: ...


def rows_of(values: Array) -> list[Row]:
    """Values of a plan, as `aspen_mp.shm.extents` has them."""
    return [(kind, u, v, a, b, c) for kind, u, v, _, a, b, c in values.tolist()]


def at(plan: BucketPlan, extents: Extents) -> tuple[Array, Array, Array]:
    """Operands, params and tiles. What lies beyond an output's end is cut off its tiles; one of which nothing is left has an empty box."""
    operands, params = plan.operands.copy(), plan.params.copy()
    rows = rows_of(plan.values)
    largest, here = (np.array(values_at(rows, found), np.int64) for found in (plan.most, extents))
    table, value = (plan.numbers[name].astype(np.int64) for name in ("table", "value"))
    ratios = table == NUMBER_TABLES["RATIO"]
    less = np.where(ratios, 0, plan.numbers["per"]) * (largest - here)[value]

    def of(name: str) -> tuple[Array, Array]:
        chosen = table == NUMBER_TABLES[name]
        return plan.numbers["index"][chosen].astype(np.int64), less[chosen]

    for name, field in (("DIM", "dims"), ("STRIDE", "strides")):
        index, change = of(name)
        operands[field][index // LIMITS["rank"], index % LIMITS["rank"]] -= change
    index, change = of("OFFSET")
    operands["offset"][index] -= change
    index, change = of("PARAM")
    params[index] -= change
    index, _ = of("RATIO")
    params[index] = (here[value[ratios]] / here[plan.numbers["per"][ratios]]).view(np.int64)
    return operands, params, _clipped(plan, operands)


def _clipped(plan: BucketPlan, operands: Array) -> Array:
    tiles = plan.tiles.copy()
    writes = np.flatnonzero(plan.ops["n_outputs"][tiles["op"]] > 0)
    output = operands[plan.ops["operand"][tiles["op"][writes]]]
    end = np.where(output["rank"][:, None] > _AXES, output["dims"][:, : len(_AXES)], np.iinfo(np.uint32).max)
    tiles["hi"][writes] = np.minimum(tiles["hi"][writes], end)
    tiles["lo"][writes] = np.minimum(tiles["lo"][writes], tiles["hi"][writes])
    return tiles
