"""Every segment that workers map, by its id in the control table, with its descriptor and what it is for."""

from __future__ import annotations

import mmap
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from aspen_mp.control.memory.async_free import AsyncReleaser
from aspen_mp.shm.bindings import _control
from aspen_mp.shm.bindings._mapping import is_memory
from aspen_mp.shm.errors import RequestError
from aspen_mp.shm.segments import Segment
from aspen_mp.system import descriptors


@dataclass(frozen=True, slots=True)
class Borrowed:
    """`nbytes` of the file `fd` from `offset` on lie at `at` of a data segment. All multiples of a page."""

    at: int
    offset: int
    nbytes: int
    fd: int


@dataclass(slots=True)
class Held:
    """A segment of `nbytes` bytes; `owner` says in status what it belongs to."""

    id: int
    role: str
    nbytes: int
    fd: int
    owner: str
    borrowed: tuple[Borrowed, ...] = ()

    @property
    def own_bytes(self) -> int:
        """The bytes that are memory of the runtime's."""
        return self.nbytes - sum(piece.nbytes for piece in self.borrowed)


LARGE: Final = 16 << 20
"""Memory of more bytes is given back by another process."""


class SegmentStore:
    """Owns descriptors. `attach` and `detach` tell all workers; `publish` makes them look. `detach` returns a number by which `unmapped`
    is told that none of them has the segment any more, 0 where none has. `releaser` closes descriptors of large segments."""

    def __init__(
        self,
        table: _control.ControlTable,
        attach: Callable[[Held], None],
        detach: Callable[[int], int],
        releaser: AsyncReleaser,
    ) -> None:
        self._table = table
        self._attach = attach
        self._detach = detach
        self._releaser = releaser
        self._settled: list[Callable[[], object]] = []
        self._held: dict[int, Held] = {}
        self._leaving: dict[int, int] = {}  # descriptors of large segments, by the number of their detachment

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    def __getitem__(self, segment: int) -> Held:
        return self._held[segment]

    def get(self, segment: int) -> Held | None:
        return self._held.get(segment)

    def add(self, role: str, nbytes: int, fd: int, owner: str, borrowed: tuple[Borrowed, ...] = ()) -> int:
        """Takes over `fd` and those of `borrowed` (closed here even if this raises). Workers get them before anything can refer to the
        segment; publish() must follow."""
        try:
            segment = self._table.add_segment(role, nbytes)
        except BaseException:
            _close(fd, borrowed)
            raise
        held = self._held[segment] = Held(segment, role, nbytes, fd, owner, borrowed)
        try:
            self._attach(held)
        except BaseException:
            self.drop(segment)
            raise
        return segment

    def drop(self, segment: int) -> None:
        """Gives up a segment that nothing refers to."""
        self._table.drop_segment(segment)
        self.forget(segment)

    def forget(self, segment: int) -> None:
        """Tells workers to unmap a segment that the control table has marked already, and closes it."""
        held = self._held.pop(segment)
        number = self._detach(segment)
        if held.own_bytes <= LARGE:
            _close(held.fd, held.borrowed)
            return
        # The last one to let go frees the memory: that is to be none of the workers.
        _close(-1, held.borrowed)
        if number:
            self._leaving[number] = held.fd
        else:
            self._releaser.release(held.fd)

    def withdraw(self, segment: int) -> tuple[int, int]:
        """As `forget`, for one that is to be used again, when nothing refers to it any more: its size and its descriptor, the caller's."""
        held = self._held.pop(segment)
        self._detach(segment)
        return held.nbytes, held.fd

    def discard(self, nbytes: int, fd: int) -> None:
        """Closes what `withdraw` gave, which is not used again after all."""
        if nbytes <= LARGE:
            descriptors.close(fd)
        else:
            self._releaser.release(fd)

    def unmapped(self, number: int) -> None:
        """No worker has a segment any more that was given up."""
        fd = self._leaving.pop(number, -1)
        if fd >= 0:
            self._releaser.release(fd)
        if not self._leaving:
            settled, self._settled = self._settled, []
            for then in settled:
                self._releaser.released(then)

    @property
    def settling(self) -> bool:
        """Whether memory of large segments that were given up has yet to come back."""
        return bool(self._leaving) or self._releaser.busy

    def settled(self, then: Callable[[], object]) -> None:
        """Calls `then`, now or later, when the memory of all large segments that were given up has come back."""
        if self._leaving:
            self._settled.append(then)
        else:
            self._releaser.released(then)

    def close(self) -> None:
        for held in self._held.values():
            _close(held.fd, held.borrowed)
        self._held.clear()
        for fd in self._leaving.values():
            descriptors.close(fd)
        self._leaving.clear()

    @property
    def pieces(self) -> int:
        """Pieces of clients' files that workers have mapped."""
        return sum(len(held.borrowed) for held in self._held.values())

    @property
    def borrowing_bytes(self) -> int:
        """Bytes that workers have mapped of the segments in which such pieces lie, which their memory does not limit."""
        return sum(held.nbytes for held in self._held.values() if held.borrowed)


def sealed(role: str, nbytes: int) -> Segment:
    """A segment that clients get hold of: a sealed memfd, which they cannot shrink under the workers' feet."""
    return Segment.create(role, nbytes, memfd=True)


def check_pieces(pieces: Sequence[Borrowed], nbytes: int) -> None:
    """Refuses what workers could not map, or could have to wait for. RequestError says why. Whether the files stay as long as they are is
    their owner's to see to (`shm/protocol/borrow.h`)."""
    end = _control.PAGE  # the segment's own first page holds its magic
    for k, piece in enumerate(pieces):
        where = f"piece {k} of a data segment"
        if piece.at % _control.PAGE or piece.offset % _control.PAGE or piece.nbytes % _control.PAGE or not piece.nbytes:
            raise RequestError(f"{where}: {piece.nbytes} bytes of a file from {piece.offset} on, at {piece.at}: not whole pages")
        if piece.at < end or piece.at + piece.nbytes > nbytes:
            raise RequestError(f"{where}: {piece.nbytes} bytes at {piece.at} lie over another piece or outside the segment ({nbytes})")
        end = piece.at + piece.nbytes
        about = descriptors.fstat(piece.fd)
        if not stat.S_ISREG(about.st_mode) or not is_memory(piece.fd):
            raise RequestError(f"{where}: its file is not in memory. Use a file in tmpfs, or a memfd")
        if -(-about.st_size // _control.PAGE) * _control.PAGE < piece.offset + piece.nbytes:
            raise RequestError(f"{where}: its file has {about.st_size} bytes, not {piece.offset + piece.nbytes}")
        try:
            descriptors.mmap(
                piece.fd, min(_control.PAGE, about.st_size - piece.offset), mmap.MAP_SHARED, mmap.PROT_READ, offset=piece.offset
            ).close()
        except (OSError, ValueError) as error:
            raise RequestError(f"{where}: its file cannot be mapped: {error}") from None


def _close(fd: int, borrowed: tuple[Borrowed, ...]) -> None:
    if fd >= 0:
        descriptors.close(fd)
    for piece in borrowed:
        descriptors.close(piece.fd)
