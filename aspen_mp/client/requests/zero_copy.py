"""Arrays that lie in memory which a process shares already (`multiprocessing.shared_memory`, memfd, a file in /dev/shm): workers read them
where they lie.

A request's region is one range of a data segment. So a *loan* is a data segment of its own, in which pages of the array's file stand in the
place of the input, and the runtime's memory in all others: slots, checks and recovery know nothing of it. Workers map those pages
read-only; where the file is cut short under their feet they read zeros and say so (`shm/protocol/borrow.h`), which fails the request and
nothing else. Making a loan takes a message to the planner process and one to each worker; it is kept for the next request on the same
array.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aspen_mp.client.requests._fast_path import address
from aspen_mp.control.wire import protocol
from aspen_mp.shm.bindings import _control
from aspen_mp.shm.bindings._mapping import is_memory
from aspen_mp.shm.errors import AspenError, RequestError, ResourceLimitError
from aspen_mp.shm.segments import Segment
from aspen_mp.system import descriptors, filesystem, threads

PAGE: Final = max(_control.PAGE, mmap.PAGESIZE)
BORROW_BYTES: Final = 1 << 20
"""Smaller inputs are copied: that takes less time than a loan."""
MAX_LOANS: Final = 32
"""Loans that a client keeps: half of its data segments."""

# ---- where an array lies


class File:
    """A file in memory that part of this process's address space is mapped from, with a descriptor of our own."""

    def __init__(self, begin: int, end: int, offset: int, fd: int) -> None:
        about = descriptors.fstat(fd)
        self.key = (about.st_dev, about.st_ino)
        self.begin = begin
        self.end = end
        self.offset = offset
        self.fd = fd
        self.loans: weakref.WeakSet[Loans] = weakref.WeakSet()

    def ended(self) -> None:
        """Nobody in this process maps it any more. Called by the garbage collector."""
        descriptors.close(self.fd)
        for loans in list(self.loans):
            loans.file_ended(self.key)


_files: weakref.WeakKeyDictionary[descriptors.mmap, File | None] = weakref.WeakKeyDictionary()


def place(array: npt.NDArray[Any]) -> tuple[File, int] | None:
    """The file whose pages the array lies in, and where in it; None for arrays in other memory, or whose bytes are not in a row there."""
    if not array.flags.c_contiguous:
        return None
    owner: Any = array
    while not isinstance(owner, descriptors.mmap):
        if isinstance(owner, np.ndarray):
            owner = owner.base
        elif isinstance(owner, memoryview):
            owner = owner.obj
        else:
            return None
    if owner.closed:
        raise RequestError("the shared memory of an input has been closed. Keep it open until the result is there")
    at = address(array)
    try:
        file = _files[owner]
    except KeyError:
        file = _files[owner] = _find(at)
        if file is not None:
            weakref.finalize(owner, file.ended)
    if file is None or not file.begin <= at <= file.end - array.nbytes:
        return None
    return file, at - file.begin + file.offset


def _find(at: int) -> File | None:
    """The shared mapping around an address, and a descriptor of its file: Python's mmap keeps one, if not under which number."""
    with filesystem.open("/proc/self/maps") as maps:
        for line in maps:
            span, permissions, offset, device, inode, *_ = line.split(maxsplit=5)
            begin, end = (int(part, 16) for part in span.split("-"))
            if begin <= at < end:
                break
        else:
            return None
    if permissions[3] != "s" or inode == "0":
        return None
    wanted = (*(int(part, 16) for part in device.split(":")), int(inode))
    for entry in filesystem.listdir("/proc/self/fd"):
        with suppress(OSError):
            # Another thread may close that number, or open something else under it, at any time: what counts is what we have got.
            fd = descriptors.fcntl(int(entry), fcntl.F_DUPFD_CLOEXEC, 3)
            try:
                about = descriptors.fstat(fd)
                if (os.major(about.st_dev), os.minor(about.st_dev), about.st_ino) == wanted and is_memory(fd):
                    file, fd = File(begin, end, int(offset, 16), fd), -1
                    return file
            finally:
                if fd >= 0:
                    descriptors.close(fd)
    return None


# ---- loans


@dataclass(frozen=True, slots=True)
class Piece:
    """An input of a region: number, place in the region, bytes, and where its pages are."""

    number: int
    at: int
    nbytes: int
    file: File
    offset: int

    @property
    def key(self) -> tuple[Any, ...]:
        return self.number, self.file.key, self.offset


Key = tuple[Any, ...]
Make = Callable[[int, list[protocol.Piece], list[int]], tuple[int, Segment]]


@dataclass(eq=False, slots=True, weakref_slot=True)
class Loan:
    """A data segment with borrowed pages. `region`: what its user keeps with it. `dead`: not to be used again."""

    key: Key
    index: int
    segment: Segment
    files: frozenset[tuple[int, int]]
    region: Any = None
    dead: bool = field(default=False)

    @property
    def torn(self) -> bool:
        """Whether a worker has found that a file has no such pages any more. Of a loan that has been closed nobody knows."""
        try:
            return _control.torn(self.segment.buf)
        except ValueError:
            return False


class Loans:
    """A session's loans. `make(nbytes, pieces, descriptors)`, `drop(index)`: of the planner process."""

    def __init__(self, make: Make, drop: Callable[[int], None]) -> None:
        self._make = make
        self._drop = drop
        self._lock = threads.RLock()  # an output may end wherever the garbage collector runs
        self._idle: OrderedDict[Key, list[Loan]] = OrderedDict()
        self._all: weakref.WeakSet[Loan] = weakref.WeakSet()
        self._n = 0  # with those that are over, until the planner process has them back: it limits what all clients have together
        self._over: list[Loan] = []  # to be ended by a thread
        self._closed = False

    def take(self, owner: int, nbytes: int, pieces: Sequence[Piece]) -> Loan | None:
        """A data segment of a page and `nbytes` in which `pieces` are borrowed; `owner` tells apart who keeps what in `Loan.region`.
        None where it cannot be had: then the inputs are copied. RequestError where a file has become shorter than its array."""
        for piece in pieces:
            there = descriptors.fstat(piece.file.fd).st_size
            if there < piece.offset + piece.nbytes:
                raise RequestError(f"the shared memory of an input has only {there} bytes, fewer than its array. Make it larger")
        key = (owner, *(piece.key for piece in pieces))
        evicted: Loan | None = None
        with self._lock:
            if self._closed:
                return None
            idle = self._idle.get(key)
            if idle:
                self._idle.move_to_end(key)
                return self._popped(key, idle)
            if self._n >= MAX_LOANS:
                if not self._idle:
                    return None
                oldest = next(iter(self._idle))
                evicted = self._popped(oldest, self._idle[oldest])
            else:
                self._n += 1
        try:
            if evicted is not None:
                self._end(evicted)
            wanted = [protocol.Piece(PAGE + piece.at, piece.offset, -(-piece.nbytes // PAGE) * PAGE) for piece in pieces]
            index, segment = self._make(PAGE + nbytes, wanted, [piece.file.fd for piece in pieces])
        except BaseException as error:
            with self._lock:
                self._n -= 1
            if isinstance(error, RequestError | ResourceLimitError):
                return None
            raise
        loan = Loan(key, index, segment, frozenset(piece.file.key for piece in pieces))
        with self._lock:
            self._all.add(loan)
        for piece in pieces:
            piece.file.loans.add(self)
        return loan

    def _popped(self, key: Key, idle: list[Loan]) -> Loan:
        loan = idle.pop()
        if not idle:
            del self._idle[key]
        return loan

    def give(self, loan: Loan) -> None:
        """Its request and its outputs have ended. May be called by the garbage collector."""
        with self._lock:
            if self._closed:
                return
            loan.dead |= loan.torn  # whatever became of the request, and whether anybody looked at its answer
            if not loan.dead:
                self._idle.setdefault(loan.key, []).append(loan)
                return
        self._end_later([loan])

    def file_ended(self, key: tuple[int, int]) -> None:
        """The file is mapped here no longer: its memory is to be free. May be called by the garbage collector."""
        self._retire(lambda loan: key in loan.files)

    def owner_ended(self, owner: int) -> None:
        self._retire(lambda loan: loan.key[0] == owner)

    def _retire(self, chosen: Callable[[Loan], bool]) -> None:
        ended = []
        with self._lock:
            for loan in list(self._all):
                loan.dead |= chosen(loan)
            for key in list(self._idle):
                for loan in [loan for loan in self._idle[key] if loan.dead]:
                    self._idle[key].remove(loan)
                    ended.append(loan)
                if not self._idle[key]:
                    del self._idle[key]
        if ended:
            self._end_later(ended)

    def _end_later(self, loans: list[Loan]) -> None:
        """On a thread of its own: whoever notices that a loan is over may hold any lock."""
        with self._lock:
            self._over += loans
        with suppress(RuntimeError):  # no thread can be had: the next one ends these, too. Or the interpreter is going down
            threads.Thread(target=self._end_all, name="aspen-mp loans", daemon=True).start()

    def _end_all(self) -> None:
        while True:
            with self._lock:
                if not self._over:
                    return
                loan = self._over.pop()
            try:
                with suppress(AspenError):
                    self._end(loan)
            finally:
                with self._lock:
                    self._n -= 1

    def _end(self, loan: Loan) -> None:
        loan.region = None
        loan.segment.close()
        self._drop(loan.index)

    def abandon(self) -> None:
        """In a forked child: they are the parent's, whose threads may have held the lock."""
        self._lock = threads.RLock()
        self._closed = True

    def close(self) -> None:
        """Unmaps everything; the planner process reclaims the memory when the client has gone."""
        with self._lock:
            self._closed = True
            for loan in list(self._all):
                loan.region = None
                loan.segment.close()
            self._idle.clear()
