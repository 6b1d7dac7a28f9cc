"""Regions that wait for the next request, and how the memory of a burst goes back.

A request takes the region that came back last. So a look every few seconds finds what nobody needs: it sets all waiting regions aside but
one. Requests that find no other take them back. Those that lie aside at the next look have not been needed between the two, and their
memory is given back.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from aspen_mp.client.requests.memory import DataMemory
from aspen_mp.client.requests.region import Layout, Region
from aspen_mp.shm.errors import AspenError

LOOK_S: Final = 2.0
"""Seconds between two looks. Memory that no request needs goes back after two looks."""


class IdleRegions:
    """The regions of one stage that no request uses. Any thread may take, give and look: each step is one operation on a list."""

    def __init__(self, memory: DataMemory, layout: Layout) -> None:
        self._memory = memory
        self._layout = layout
        self.free: list[Region] = []
        """Regions for the next request, the warmest last. The fast path takes them from here itself."""
        self._aside: list[Region] = []

    def __len__(self) -> int:
        return len(self.free) + len(self._aside)

    def take(self) -> Region | None:
        """The region that came back last, if there is one."""
        for regions in (self.free, self._aside):
            try:
                return regions.pop()
            except IndexError:
                pass
        return None

    def shed(self) -> None:
        """Gives the memory of all of them back."""
        while (region := self.take()) is not None:
            self._give_back(region)

    def look(self, leave: Collection[int]) -> None:
        """Gives back what has lain aside since the last look, and sets aside what waits now, but for one region.

        Regions in the segments `leave` go at once, so that these can be returned. If there are no others, a region elsewhere takes the
        place of one, so that the next request finds it.
        """
        unused, self._aside = self._aside, []
        while unused:
            self._give_back(unused.pop())
        waiting = self._all_free()
        going = [region for region in waiting if region.span.index in leave]
        staying = [region for region in waiting if region.span.index not in leave]
        if going and not staying:
            try:
                staying.append(Region(self._memory.allocate(self._layout[0]), self._layout))
            except AspenError:
                staying.append(going.pop())
        for region in going:
            self._give_back(region)
        if staying:
            kept = min(staying, key=lambda region: region.span.index)
            self.free.insert(0, kept)
            self._aside += [region for region in staying if region is not kept]

    def leave(self, segments: Collection[int]) -> None:
        """Gives back regions in these segments. It is called when a request that was under way at the last look has ended."""
        for region in self._all_free():
            if region.span.index in segments:
                self._give_back(region)
            else:
                self.free.append(region)

    def _all_free(self) -> list[Region]:
        found: list[Region] = []
        while True:
            try:
                found.append(self.free.pop(0))
            except IndexError:
                return found

    def _give_back(self, region: Region) -> None:
        region.inputs.clear()
        region.outputs.clear()
        self._memory.give_back(region.span)
