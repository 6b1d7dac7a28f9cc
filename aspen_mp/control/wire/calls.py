"""The calls by which a client asks the planner process of its runtime, and the contents of their answers."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.client import ControlClient, ProgressCallback
from aspen_mp.planner.job.options import Objective
from aspen_mp.planner.job.request import PlanRequest
from aspen_mp.shm.segments import Segment
from aspen_mp.system import descriptors


class Calls:
    """The calls over one connection, `control`. They raise the answer's typed error, and RuntimeLost when the runtime ends."""

    control: ControlClient

    def load(
        self,
        path: str,
        fd: int,
        name: str,
        request: PlanRequest,
        share: float,
        progress: ProgressCallback | None,
    ) -> protocol.Loaded:
        """Loads the model file `path`, or, where that is empty, what the memfd `fd` holds; it stays the caller's."""
        fds = () if path else (fd,)
        loaded, _ = self.control.call(
            lambda number: protocol.Load(number, path, name, request, share),
            protocol.Loaded,
            fds=fds,
            progress=progress,
        )
        return loaded

    def adopt(self, model: int) -> protocol.Loaded:
        """Takes over a model that another client has loaded."""
        loaded, _ = self.control.call(lambda number: protocol.Adopt(number, model), protocol.Loaded)
        return loaded

    def lend(self, model: int) -> int:
        """A descriptor of the sealed file in memory that a model was loaded from, for reading; it is the caller's."""
        _, fd = self.control.call(lambda number: protocol.Lend(number, model), protocol.Done, receive=list.pop)
        return fd

    def resize(self, add: int, remove: int, total: int, cores: list[int]) -> int:
        """How many workers there are afterwards."""
        done, _ = self.control.call(lambda number: protocol.Resize(number, add, remove, total, cores), protocol.Done)
        return done.value

    def run_together(self, models: list[int], objective: Objective) -> int:
        """A number to end it by."""
        done, _ = self.control.call(lambda number: protocol.RunTogether(number, models, objective), protocol.Done)
        return done.value

    def run_apart(self, number: int) -> None:
        """The models of this `run_together` run together no longer."""
        self.control.call(lambda request: protocol.RunApart(request, number), protocol.Done)

    def status(self) -> dict[str, Any]:
        reply, _ = self.control.call(protocol.Status, protocol.StatusReply)
        status: dict[str, Any] = json.loads(reply.json)
        return status

    def stop(self) -> None:
        """Ends the runtime for everybody."""
        self.control.call(protocol.Stop, protocol.Done)

    def drain(self, grace_s: float) -> None:
        """Has the runtime end when what is in flight has ended, in `grace_s` seconds at the latest; `gone` is set when it has."""
        self.control.call(lambda number: protocol.Stop(number, True, grace_s), protocol.Done)

    # ---- tracing

    def begin_trace(self, records: int) -> Segment:
        """The segment that workers record into from now on, in rings of `records` records (0: a default)."""
        receive = partial(_mapped, "trace", writable=False)
        _, segment = self.control.call(lambda number: protocol.TraceBegin(number, records), protocol.TraceReady, receive=receive)
        return segment

    def end_trace(self) -> dict[str, Any]:
        """Stops recording; what the records mean, as `traces.Traces.end` describes it."""
        _, text = self.control.call(protocol.TraceEnd, protocol.TraceEnded, receive=_contents)
        about: dict[str, Any] = json.loads(text)
        return about

    def traced_plan(self, index: int) -> bytes:
        """The bytes of a plan segment that was there while the trace ran."""
        _, content = self.control.call(lambda number: protocol.TracePlan(number, index), protocol.TracedPlan, receive=_contents)
        return content

    def drop_trace(self) -> None:
        """Lets go of the trace."""
        self.control.call(protocol.TraceDrop, protocol.Done)

    # ---- data segments

    def make_data(self, nbytes: int) -> tuple[int, Segment]:
        receive = partial(_mapped, "data", writable=True)
        ready, segment = self.control.call(lambda number: protocol.Data(number, nbytes), protocol.DataReady, receive=receive)
        return ready.index, segment

    def make_loan(self, nbytes: int, pieces: list[protocol.Piece], files: list[int]) -> tuple[int, Segment]:
        ready, segment = self.control.call(
            lambda number: protocol.Borrow(number, nbytes, pieces),
            protocol.DataReady,
            fds=tuple(files),
            receive=partial(_mapped, "data", writable=True),
        )
        return ready.index, segment


def _mapped(role: str, fds: list[int], *, writable: bool) -> Segment:
    """The segment of the one file that came, without its descriptor."""
    segment = Segment.from_fd(fds[0], role, writable=writable)
    segment.close_fd()
    return segment


def _contents(fds: list[int]) -> bytes:
    """The bytes of the one file that came, which is closed."""
    try:
        size = descriptors.fstat(fds[0]).st_size
        data = b""
        while len(data) < size:
            part = descriptors.pread(fds[0], size - len(data), len(data))
            if not part:
                break
            data += part
        return data
    finally:
        protocol.close_all(fds)
