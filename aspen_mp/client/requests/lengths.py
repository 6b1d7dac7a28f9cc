"""Plans for shape buckets, as a client knows them: what one of them is at another length needs no word with the planner process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from aspen_mp.client.requests.region import Region
from aspen_mp.control.planning.shape_buckets import slots
from aspen_mp.control.wire import protocol
from aspen_mp.shm.extents import values_at, word

Key = tuple[Any, ...]
"""Names and shapes of what is bound for a request, one stage after the other."""


@dataclass(slots=True)
class Lending:
    """Regions of a plan that outputs of its requests hold, and how many a forked child has too. Guarded by `stage._regions`."""

    regions: list[Region] = field(default_factory=list)
    shared: int = 0


class KnownBucket:
    """A plan for a shape bucket: what its stages, one a length, have in common.

    `idle`: of each where regions wait that any of them can use, the last one last, by its number; guarded by `stage._regions`.
    """

    def __init__(self, planned: protocol.Planned, key: Key, structure: bytes = b"") -> None:
        """`key`, `structure`: of the request that `planned` answers."""
        assert planned.bucket is not None
        self._planned = planned
        self._bucket = bucket = planned.bucket
        self.structure = structure
        found = [(number, dim) for (_, shape), row in zip(key, bucket.axes, strict=True) for dim, number in zip(shape, row, strict=True)]
        extents = [min(dim for number, dim in found if number == k) // bucket.unit for k in range(1, len(bucket.most) + 1)]
        less = (0, *(extent * bucket.unit for extent in extents))
        self._rest = [
            (name, tuple((dim - less[number], number) for dim, number in zip(shape, row, strict=True)))
            for (name, shape), row in zip(key, bucket.axes, strict=True)
        ]
        axes = [(number, i, axis) for i, row in enumerate(bucket.axes) for axis, number in enumerate(row)]
        self._places = [next((i, axis) for number, i, axis in axes if number == k) for k in range(1, len(extents) + 1)]
        self._largest = values_at(bucket.values, [bucket.most[k] for k in bucket.chosen])
        self.idle: dict[int, list[Region]] = {}
        self.lending = Lending()

    def at(self, key: Key) -> protocol.Planned | None:
        """What is planned for a request; None where it is none of this bucket."""
        bucket = self._bucket
        if len(key) != len(self._rest) or any(len(key[i][1]) <= axis for i, axis in self._places):
            return None
        extents = [(key[i][1][axis] - self._rest[i][1][axis][0]) // bucket.unit for i, axis in self._places]
        if not all(a <= e <= b for a, e, b in zip(bucket.least, extents, bucket.most, strict=True)):
            return None
        more = (0, *(extent * bucket.unit for extent in extents))
        for (name, shape), (own, rest) in zip(key, self._rest, strict=True):
            if name != own or shape != tuple([dim + more[number] for dim, number in rest]):
                return None
        planned, chosen = self._planned, [extents[k] for k in bucket.chosen]
        less = [large - here for large, here in zip(self._largest, values_at(bucket.values, chosen), strict=True)]
        inputs, outputs = slots(planned.inputs, bucket.inputs, less), slots(planned.outputs, bucket.outputs, less)
        return msgspec.structs.replace(planned, inputs=inputs, outputs=outputs, extent=word(chosen), bucket=None)
