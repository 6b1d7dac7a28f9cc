"""Plans for shape buckets, as a client knows them: what one of them is at another length needs no word with the planner process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from aspen_mp.client.requests.region import Region
from aspen_mp.control.planning.shape_buckets import slots
from aspen_mp.control.wire import protocol

Key = tuple[Any, ...]
"""Names and shapes of a request's inputs."""


@dataclass(slots=True)
class Lending:
    """Regions of a plan that outputs of its requests hold, and how many a forked child has too. Guarded by `stage._regions`."""

    regions: list[Region] = field(default_factory=list)
    shared: int = 0


class KnownBucket:
    """A plan for a shape bucket: what its stages, one a length, have in common.

    `idle`: of each where regions wait that any of them can use, the last one last, by its number; guarded by `stage._regions`.
    """

    def __init__(self, planned: protocol.Planned, key: Key) -> None:
        """`key`: of the request that `planned` answers."""
        assert planned.bucket is not None
        self._planned = planned
        self._bucket = planned.bucket
        axes = planned.bucket.axes
        self._rest = [
            (name, tuple((dim - planned.extent if long else dim, long) for dim, long in zip(shape, row, strict=True)))
            for (name, shape), row in zip(key, axes, strict=True)
        ]
        self._input, self._axis = next((i, axis) for i, row in enumerate(axes) for axis, long in enumerate(row) if long)
        self.idle: dict[int, list[Region]] = {}
        self.lending = Lending()

    def at(self, key: Key) -> protocol.Planned | None:
        """What is planned for a request; None where it is none of this bucket."""
        if len(key) != len(self._rest) or len(key[self._input][1]) <= self._axis:
            return None
        extent = key[self._input][1][self._axis] - self._rest[self._input][1][self._axis][0]
        if not self._bucket.least <= extent <= self._bucket.most:
            return None
        for (name, shape), (own, rest) in zip(key, self._rest, strict=True):
            if name != own or shape != tuple([dim + extent if long else dim for dim, long in rest]):
                return None
        planned, less = self._planned, self._bucket.most - extent
        inputs, outputs = slots(planned.inputs, self._bucket.inputs, less), slots(planned.outputs, self._bucket.outputs, less)
        return msgspec.structs.replace(planned, inputs=inputs, outputs=outputs, extent=extent, bucket=None)
