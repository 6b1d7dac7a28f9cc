"""Shared by the rooms of the planner process."""

from __future__ import annotations

from dataclasses import dataclass

from aspen_mp.control.memory.async_alloc import AsyncAllocator
from aspen_mp.control.memory.segments import SegmentStore
from aspen_mp.control.wire.event_log import EventLog
from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.shm.bindings import _control


@dataclass(frozen=True, slots=True)
class Resources:
    """`table`: the control table. `reserver`: makes large segments in a process of its own."""

    loop: Loop
    table: _control.ControlTable
    segments: SegmentStore
    reserver: AsyncAllocator
    event_log: EventLog
