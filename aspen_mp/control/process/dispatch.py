"""Messages of clients, and who serves them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from aspen_mp.control.memory.clients import Client
from aspen_mp.control.models.plans import Asker
from aspen_mp.control.process import status
from aspen_mp.control.process.admission import Admission
from aspen_mp.control.process.machine import MachineWatch
from aspen_mp.control.process.parts import Parts
from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.answers import guarded
from aspen_mp.control.wire.connection import MAX_UNANSWERED, Connection
from aspen_mp.shm.errors import AspenError, ProtocolError, ResourceLimitError
from aspen_mp.shm.segments import Segment

Handler = Callable[[Client, Any, list[int]], None]
"""Serves a message of a client. It empties the list where it takes over the descriptors that came with the message. Descriptors that it
adds to the list are closed after it."""


class Dispatcher:
    """Hears the connections (`Hearer`)."""

    def __init__(self, parts: Parts, admission: Admission, watch: MachineWatch) -> None:
        self._parts, self._admission, self._watch = parts, admission, watch
        self._handlers: dict[type[protocol.Message], Handler] = {
            protocol.Load: self._load,
            protocol.Adopt: self._adopt,
            protocol.Lend: self._lend,
            protocol.MakePlan: self._make_plan,
            protocol.Unload: self._unload,
            protocol.Explain: self._explain,
            protocol.Data: self._data,
            protocol.Borrow: self._borrow,
            protocol.DropData: self._drop_data,
            protocol.Resize: self._resize,
            protocol.RunTogether: self._run_together,
            protocol.RunApart: self._run_apart,
            protocol.Status: self._status,
            protocol.TraceBegin: self._begin_trace,
            protocol.TraceEnd: self._end_trace,
            protocol.TracePlan: self._traced_plan,
            protocol.TraceDrop: self._drop_trace,
            protocol.Stop: self._stop,
            protocol.Quiet: self._quiet,
        }

    def heard(self, connection: Connection, message: protocol.Message, fds: list[int]) -> None:
        """A message has come, with these descriptors."""
        try:
            guarded(connection, getattr(message, "id", None), partial(self._dispatch, connection, message, fds))
        finally:
            protocol.close_all(fds)

    def gone(self, connection: Connection) -> None:
        """A connection has ended."""
        self._admission.gone(connection)

    def _dispatch(self, connection: Connection, message: protocol.Message, fds: list[int]) -> None:
        if isinstance(message, protocol.Hello):
            self._admission.hello(connection, message)
            return
        client = self._parts.base.clients.get(connection)
        if client is None:
            raise ProtocolError(f"{type(message).__name__} before Hello")
        connection.unanswered += 1
        if connection.unanswered > MAX_UNANSWERED:
            raise ResourceLimitError(
                f"{MAX_UNANSWERED} requests of this client already wait for their answers. Wait for some of them first"
            )
        handler = self._handlers.get(type(message))
        if handler is None:
            raise ProtocolError(f"unexpected {type(message).__name__}")
        handler(client, message, fds)

    # ---- models

    def _load(self, client: Client, message: protocol.Load, fds: list[int]) -> None:
        self._parts.base.drain.check()
        taken = list(fds)
        fds.clear()
        self._parts.models.store.load(message, taken, _asker(client, message.id))

    def _adopt(self, client: Client, message: protocol.Adopt, fds: list[int]) -> None:
        self._parts.base.drain.check()
        self._parts.models.store.adopt(message.model, _asker(client, message.id))

    def _lend(self, client: Client, message: protocol.Lend, fds: list[int]) -> None:
        fd = self._parts.models.store.lend(message.model, client.number)
        fds.append(fd)
        client.connection.send(protocol.Done(message.id), (fd,))

    def _make_plan(self, client: Client, message: protocol.MakePlan, fds: list[int]) -> None:
        self._parts.models.store.plan(message, _asker(client, message.id))

    def _unload(self, client: Client, message: protocol.Unload, fds: list[int]) -> None:
        self._parts.models.requests.note_names()
        self._parts.models.store.unload(message.model, client.number)
        client.connection.send(protocol.Done(message.id))

    def _explain(self, client: Client, message: protocol.Explain, fds: list[int]) -> None:
        text = self._parts.models.store.plans.op_name(message.plan, message.generation, message.op, client.number)
        client.connection.send(protocol.Done(message.id, text=text))

    # ---- memory of requests

    def _data(self, client: Client, message: protocol.Data, fds: list[int]) -> None:
        self._parts.models.memory.make(client, message.id, message.nbytes)

    def _borrow(self, client: Client, message: protocol.Borrow, fds: list[int]) -> None:
        self._parts.models.memory.borrow(client, message, fds)

    def _drop_data(self, client: Client, message: protocol.DropData, fds: list[int]) -> None:
        self._parts.models.memory.drop(client, message.index)
        client.connection.send(protocol.Done(message.id))

    # ---- workers, schedules, status

    def _resize(self, client: Client, message: protocol.Resize, fds: list[int]) -> None:
        self._watch.resize(message)
        client.connection.send(protocol.Done(message.id, len(self._parts.workers.pool)))

    def _run_together(self, client: Client, message: protocol.RunTogether, fds: list[int]) -> None:
        self._parts.models.store.check_loaded(message.models, client.number)
        number = self._parts.models.schedules.begin(client.number, message.models, message.objective)
        client.connection.send(protocol.Done(message.id, number))

    def _run_apart(self, client: Client, message: protocol.RunApart, fds: list[int]) -> None:
        self._parts.models.schedules.end(client.number, message.number)
        client.connection.send(protocol.Done(message.id))

    def _status(self, client: Client, message: protocol.Status, fds: list[int]) -> None:
        client.connection.send(protocol.StatusReply(message.id, status.encoded(self._parts)))

    # ---- traces

    def _begin_trace(self, client: Client, message: protocol.TraceBegin, fds: list[int]) -> None:
        connection, traces = client.connection, self._parts.memory.traces

        def ready(segment: Segment | AspenError) -> None:
            if isinstance(segment, AspenError):
                connection.fail(message.id, segment)
            else:
                guarded(connection, message.id, partial(tell, segment))

        def tell(segment: Segment) -> None:
            try:
                connection.send(protocol.TraceReady(message.id, segment.nbytes), (segment.fd,))
            except BaseException:
                traces.drop(client.number)  # nobody would ever end it
                raise

        traces.begin(client.number, connection.pid, message.records, self._parts.models.store.plans.name_of, ready)

    def _end_trace(self, client: Client, message: protocol.TraceEnd, fds: list[int]) -> None:
        plans, fd = self._parts.memory.traces.end(client.number)
        fds.append(fd)
        client.connection.send(protocol.TraceEnded(message.id, plans), (fd,))

    def _traced_plan(self, client: Client, message: protocol.TracePlan, fds: list[int]) -> None:
        fd = self._parts.memory.traces.plan(client.number, message.index)
        fds.append(fd)
        client.connection.send(protocol.TracedPlan(message.id), (fd,))

    def _drop_trace(self, client: Client, message: protocol.TraceDrop, fds: list[int]) -> None:
        self._parts.memory.traces.drop(client.number)
        client.connection.send(protocol.Done(message.id))

    # ---- the end

    def _stop(self, client: Client, message: protocol.Stop, fds: list[int]) -> None:
        client.connection.send(protocol.Done(message.id))
        if message.drain:
            self._parts.base.drain.begin(message.grace_s)
        else:
            self._parts.base.loop.stop()

    def _quiet(self, client: Client, message: protocol.Quiet, fds: list[int]) -> None:
        client.connection.send(protocol.Done(message.id))
        self._parts.base.drain.quiet(client.connection)


def _asker(client: Client, request: int) -> Asker:
    connection = client.connection
    return Asker(client.number, request, connection.send, partial(connection.fail, request))
