"""How connections become clients, and what goes when a client does."""

from __future__ import annotations

from functools import partial

import aspen_mp
from aspen_mp.control.memory.clients import Client
from aspen_mp.control.memory.segments import sealed
from aspen_mp.control.process.parts import Parts
from aspen_mp.control.wire import identity, protocol
from aspen_mp.control.wire.answers import guarded
from aspen_mp.control.wire.connection import Connection
from aspen_mp.shm.bindings import _control, _tables
from aspen_mp.shm.errors import AspenError, ProtocolError
from aspen_mp.system import clock, descriptors, processes


class Admission:
    """A connection that says `Hello` is welcomed once the first workers have started: it becomes a client, with a segment and a number."""

    def __init__(self, parts: Parts, address: identity.Address) -> None:
        """`address`: where processes reach the runtime to which a client hands one of its handles."""
        self._parts, self._address = parts, address
        self._greeted: list[Connection] = []  # that wait for the first workers

    def hello(self, connection: Connection, hello: protocol.Hello) -> None:
        """The first message of a connection. ProtocolError where it is not one of the same build."""
        if connection.greeted:
            raise ProtocolError("Hello twice")
        self._parts.base.drain.check()
        ours = f"{_tables.LAYOUT_HASH:016x}"
        if hello.version != protocol.VERSION or hello.layout != ours:
            raise ProtocolError(
                f"this runtime is aspen-mp {aspen_mp.__version__} (protocol {protocol.VERSION}, layout {ours}), "
                f"the client is aspen-mp {hello.package} (protocol {hello.version}, layout {hello.layout}). Use one build on both sides"
            )
        connection.greeted = True
        connection.challenge = hello.challenge
        if self._parts.workers.pool.starting:
            self._greeted.append(connection)
        else:
            self._welcome(connection)

    def workers_started(self) -> None:
        """Whoever waits is welcomed."""
        waiting, self._greeted = self._greeted, []
        for connection in waiting:
            guarded(connection, None, partial(self._welcome, connection))

    def _welcome(self, connection: Connection) -> None:
        if connection.closed:
            return
        clients, pool, models = self._parts.base.clients, self._parts.workers.pool, self._parts.models
        self._parts.base.drain.check()
        with sealed("client", _control.CLIENT_BYTES) as own:
            tally = models.requests.make()
            try:
                segment = self._parts.memory.segments.add("client", own.nbytes, descriptors.dup(own.fd), f"process {connection.pid}")
                try:
                    number = self._parts.workers.table.add_client(segment, own.mapping)
                except AspenError:
                    self._parts.memory.segments.drop(segment)
                    pool.publish()
                    raise
            except BaseException:
                descriptors.close(tally)
                raise
            pool.publish()
            client = clients[connection] = Client(connection, number, segment, {}, clock.time(), tally)
            connection.send(self._about(client), (own.fd, self._parts.workers.doorbell.fd, tally))
        if len(clients) == 1:
            models.imports.while_idle(lambda: not models.store.names())

    def _about(self, client: Client) -> protocol.Welcome:
        said, config = client.connection.challenge, self._parts.config
        proof = identity.proof(self._address.secret, said) if said else ""
        facts = (config.name, str(self._address), processes.getpid(), client.number, aspen_mp.__version__)
        return protocol.Welcome(*facts, proof, config.max_queued)

    def gone(self, connection: Connection) -> None:
        """A connection has ended. With the starter's the runtime ends."""
        base, models = self._parts.base, self._parts.models
        client = base.clients.pop(connection, None)
        if client is not None:
            models.requests.close(client.tally)
            self._parts.workers.table.drop_client(client.number)
            models.schedules.client_gone(client.number)
            models.store.client_gone(client.number)
            self._parts.memory.traces.client_gone(client.number)
            self._parts.memory.collector.collect()
            base.drain.gone(connection)
        if connection is base.listener.starter:
            base.loop.stop()
