"""Connected clients, and the segments that hold their inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from aspen_mp.control.memory.async_free import AsyncReleaser
from aspen_mp.control.memory.resources import Resources
from aspen_mp.control.memory.segments import LARGE, Borrowed, check_pieces
from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.answers import guarded
from aspen_mp.control.wire.connection import Connection
from aspen_mp.shm.bindings import _control
from aspen_mp.shm.errors import AspenError, ProtocolError, RequestError, ResourceLimitError
from aspen_mp.shm.segments import Segment, format_bytes
from aspen_mp.system import descriptors

MOST_BORROWING_BYTES: Final = 1 << 44
"""Most bytes that data segments with clients' memory in them take together. Other segments are as long as memory is. These are as long as a
sparse file, which costs nothing, and each worker maps them all. So they have an eighth of its address space (47 bits), which leaves room
for everything else."""


@dataclass(eq=False, slots=True)
class Client:
    """A connected client, once greeted: its number in the control table, its own segment's, and its data segments' by index. `tally`: a
    descriptor of what it counts (`shm/bindings/_tally.pyi`)."""

    connection: Connection
    number: int
    segment: int
    data: dict[int, int]
    since: float
    tally: int


class ClientMemory:
    """Makes data segments, of memory of the runtime's and of clients' (pieces of descriptors that they send), and drops them."""

    def __init__(
        self,
        resources: Resources,
        releaser: AsyncReleaser,
        clients: Mapping[Connection, Client],
        *,
        publish: Callable[[], None],
        collect: Callable[[], None],
        relieve: Callable[[Callable[[], None]], bool],
    ) -> None:
        """`clients`: those that are connected. `publish` tells the workers of what has been added. `collect` lets go of what is no longer
        used. `relieve`: see `Eviction`."""
        self._table, self._segments, self._reserver = resources.table, resources.segments, resources.reserver
        self._releaser, self._clients = releaser, clients
        self._publish, self._collect, self._relieve = publish, collect, relieve
        self._coming_pieces = self._coming_bytes = 0  # of segments with clients' memory in them, while theirs is being reserved

    def make(self, client: Client, request: int, nbytes: int, borrowed: tuple[Borrowed, ...] = ()) -> None:
        """A segment for a client's inputs and outputs; the answer is DataReady. Takes over the descriptors of `borrowed`."""
        connection = client.connection

        def reserve() -> None:
            self._reserver.reserve("data", nbytes, ready, [(piece.at, piece.at + piece.nbytes) for piece in borrowed])

        def ready(created: Segment | AspenError) -> None:
            if isinstance(created, ResourceLimitError) and self._present(client) and self._relieve(reserve):
                return
            pieces = list(borrowed)  # whose descriptors are still ours
            if borrowed:
                self._coming_pieces -= len(borrowed)
                self._coming_bytes -= nbytes
            try:
                if isinstance(created, AspenError):
                    connection.fail(request, created)
                    return
                with created:
                    if self._present(client):  # it may have gone meanwhile
                        guarded(connection, request, partial(self._add, client, request, created, pieces))
                    elif created.nbytes > LARGE:
                        fd, created.fd = created.fd, -1
                        self._releaser.release(fd)
            finally:
                protocol.close_all([piece.fd for piece in pieces])

        if borrowed:
            self._coming_pieces += len(borrowed)
            self._coming_bytes += nbytes
        if nbytes:
            reserve()
        else:
            ready(RequestError("a data segment of 0 bytes"))

    def _present(self, client: Client) -> bool:
        return self._clients.get(client.connection) is client

    def _add(self, client: Client, request: int, created: Segment, pieces: list[Borrowed]) -> None:
        """Takes the descriptors of `pieces` over, and empties it."""
        fd, own = descriptors.dup(created.fd), tuple(pieces)
        pieces.clear()
        segment = self._segments.add("data", created.nbytes, fd, f"process {client.connection.pid}", own)
        try:
            index = self._table.add_data(client.number, segment)
        except AspenError:
            self._segments.drop(segment)
            self._publish()
            raise
        client.data[index] = segment
        self._publish()
        try:
            client.connection.send(protocol.DataReady(request, index, created.nbytes), (created.fd,))
        except OSError:
            self.drop(client, index)  # which nobody has heard of
            raise

    def drop(self, client: Client, index: int) -> None:
        """Raises RequestError where there is no such data segment."""
        if client.data.pop(index, None) is None:
            raise RequestError(f"data segment {index} does not exist")
        self._table.drop_data(client.number, index)
        self._collect()

    def borrow(self, client: Client, message: protocol.Borrow, fds: list[int]) -> None:
        """A data segment with a client's own memory in it. Takes `fds` over, and empties it, unless it raises ProtocolError or
        ResourceLimitError."""
        if len(fds) != len(message.pieces):
            raise ProtocolError(f"{len(message.pieces)} pieces and {len(fds)} descriptors")
        if self._segments.pieces + self._coming_pieces + len(fds) > _control.MAX_BORROWED:
            raise ResourceLimitError(
                f"workers already have {_control.MAX_BORROWED} pieces of clients' memory mapped. Use fewer shared arrays at a time"
            )
        mapped = self._segments.borrowing_bytes + self._coming_bytes
        if message.nbytes > MOST_BORROWING_BYTES - mapped:
            raise ResourceLimitError(
                f"{format_bytes(message.nbytes)} to be mapped with clients' memory in it: {format_bytes(mapped)} are already, of "
                f"{format_bytes(MOST_BORROWING_BYTES)} at most"
            )
        pieces = tuple(Borrowed(piece.at, piece.offset, piece.nbytes, fd) for piece, fd in zip(message.pieces, fds, strict=True))
        check_pieces(pieces, message.nbytes)
        fds.clear()
        self.make(client, message.id, message.nbytes, pieces)
