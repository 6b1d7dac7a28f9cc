"""A server's counts of its requests, by version of a model, in memory that all front ends share.

Each front end writes into a part of its own, and anyone reads all of them. So whichever front end is asked tells the totals. The part
outlives its front end: the one that takes its place goes on with it, and counts requests that the other has lost.
"""

from __future__ import annotations

import asyncio
import os
from enum import IntEnum
from types import TracebackType
from typing import Final

from aspen_mp.serving.protocol import statuses
from aspen_mp.serving.protocol.body import Disconnected
from aspen_mp.system import clock, descriptors, filesystem

MOST_ROWS: Final = 1024
"""Versions that a part counts, from the server's start. Later ones are not counted."""
MOST_SIZES: Final = 64
"""Sizes of batches of a version that are told apart. Executions of further sizes count in the totals alone."""
_NAME_BYTES: Final = 280
"""A name has 255 bytes at most, a version 18."""


class Field(IntEnum):
    """The numbers of a row, each of which only grows, except `PENDING` and `SEQUENCES`. Durations are in nanoseconds.

    A request is in `SUCCESS`, in one of the four failures behind it, or in `PENDING`.
    """

    SUCCESS = 0
    REJECTED = 1
    CANCELED = 2
    BACKEND = 3
    OTHER = 4
    PENDING = 5
    SUCCESS_NS = 6
    FAIL_NS = 7
    READ = 8
    """Requests whose inputs have been read …"""
    READ_NS = 9
    WRITTEN = 10
    """… and whose answers have been made."""
    WRITTEN_NS = 11
    QUEUED_NS = 12
    """How long the first requests of batches have waited for others."""
    ROWS = 13
    """Rows of executions with a result, where the version is run in batches; elsewhere as `EXECUTIONS`."""
    EXECUTIONS = 14
    RUN_NS = 15
    LAST_MS = 16
    """When the last one succeeded, since 1970."""
    SEQUENCES = 17
    """Sequences that are open."""
    PIECES = 18
    """Requests with a result that ran while their bodies came."""


FAILURES: Final = (Field.REJECTED, Field.CANCELED, Field.BACKEND, Field.OTHER)
_NAME_WORDS: Final = 1 + _NAME_BYTES // 8
_SIZES_AT: Final = _NAME_WORDS + len(Field)
_ROW_WORDS: Final = _SIZES_AT + 3 * MOST_SIZES
_PART_BYTES: Final = MOST_ROWS * _ROW_WORDS * 8


def make(parts: int) -> int:
    """Memory for `parts` front ends: a descriptor, which is the caller's to close. Pages that nobody writes take no memory."""
    fd = descriptors.memfd_create("aspen-serve-counts", os.MFD_CLOEXEC)
    try:
        filesystem.truncate(fd, parts * _PART_BYTES)
    except BaseException:
        descriptors.close(fd)
        raise
    return fd


class Totals:
    """The numbers of a version, of all front ends together. `batches`: {rows: (executions, nanoseconds)}."""

    def __init__(self) -> None:
        self.values = [0] * len(Field)
        self.batches: dict[int, tuple[int, int]] = {}

    def __getitem__(self, field: Field) -> int:
        return self.values[field]

    @property
    def failed(self) -> int:
        """Requests without a result, for whatever reason."""
        return sum(self.values[field] for field in FAILURES)


class Row:
    """This front end's counts of a version. Used on its event loop alone."""

    def __init__(self, words: memoryview, *, in_batches: bool) -> None:
        self._words = words
        self._numbers = words[_NAME_WORDS:_SIZES_AT]
        self._in_batches = in_batches
        self._sizes = {words[_SIZES_AT + 3 * k]: _SIZES_AT + 3 * k for k in range(MOST_SIZES) if words[_SIZES_AT + 3 * k]}

    def add(self, field: Field, n: int = 1) -> None:
        """Adds to a number."""
        self._numbers[field] += n

    def executed(self, rows: int, ns: int) -> None:
        """The runtime has given a result."""
        size = rows if self._in_batches else 1
        self.add(Field.EXECUTIONS)
        self.add(Field.ROWS, size)
        self.add(Field.RUN_NS, ns)
        at = self._sizes.get(size)
        if at is None:
            if len(self._sizes) == MOST_SIZES:
                return
            at = self._sizes[size] = _SIZES_AT + 3 * len(self._sizes)
            self._words[at] = size
        self._words[at + 1] += 1
        self._words[at + 2] += ns

    def begins(self) -> Counted:
        """A request, from here to the end of its ``with`` block."""
        return Counted(self)

    def inherit(self) -> None:
        """Requests that were pending when this part's front end died are lost."""
        self.add(Field.OTHER, self._numbers[Field.PENDING])
        self._numbers[Field.PENDING] = self._numbers[Field.SEQUENCES] = 0


class Counted:
    """A request that is counted by how it ends. Its steps are `read`, the run, and, after `has_run`, the answer."""

    __slots__ = ("_began", "_row", "_since")

    def __init__(self, row: Row) -> None:
        self._row = row

    def __enter__(self) -> Counted:
        self._began = self._since = clock.monotonic_ns()
        self._row.add(Field.PENDING)
        return self

    def has_read(self) -> None:
        """Its inputs are there."""
        self._row.add(Field.READ)
        self._row.add(Field.READ_NS, clock.monotonic_ns() - self._since)

    def has_run(self) -> None:
        """Its results are there."""
        self._since = clock.monotonic_ns()

    def has_written(self) -> None:
        """Its answer is there."""
        self._row.add(Field.WRITTEN)
        self._row.add(Field.WRITTEN_NS, clock.monotonic_ns() - self._since)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        row = self._row
        row.add(Field.PENDING, -1)
        ns = clock.monotonic_ns() - self._began
        if error is None:
            row.add(Field.SUCCESS)
            row.add(Field.SUCCESS_NS, ns)
            row._numbers[Field.LAST_MS] = clock.time_ns() // 1_000_000
        else:
            row.add(outcome(error))
            row.add(Field.FAIL_NS, ns)


def outcome(error: BaseException) -> Field:
    """How a request has failed that ended with this error."""
    if isinstance(error, Disconnected | asyncio.CancelledError):
        return Field.CANCELED
    status = statuses.of(error).status
    if status in {429, 504}:
        return Field.REJECTED
    return Field.BACKEND if status == 500 else Field.OTHER


class Ledger:
    """The memory of `make`, of which this process writes into one part. None: memory of its own, for a process that is alone."""

    def __init__(self, fd: int | None = None, part: int = 0) -> None:
        nbytes = _PART_BYTES if fd is None else descriptors.fstat(fd).st_size
        self._words = memoryview(descriptors.mmap(-1 if fd is None else fd, nbytes)).cast("Q")
        self._own = part
        self._parts = nbytes // _PART_BYTES
        self._used = 0
        for words in self._named(part):
            Row(words, in_batches=False).inherit()
            self._used += 1

    def _row(self, part: int, k: int) -> memoryview:
        at = part * MOST_ROWS + k
        return self._words[at * _ROW_WORDS : (at + 1) * _ROW_WORDS]

    def _named(self, part: int) -> list[memoryview]:
        """The rows that a part uses: the first ones."""
        found = []
        for k in range(MOST_ROWS):
            words = self._row(part, k)
            if not words[0]:
                break
            found.append(words)
        return found

    def row(self, name: str, version: int, *, in_batches: bool) -> Row:
        """The row of a version, which is found again where it was counted before. `in_batches`: whether its rows are inferences."""
        key = f"{name}/{version}".encode()
        for words in self._named(self._own):
            if _key(words) == key:
                return Row(words, in_batches=in_batches)
        if self._used == MOST_ROWS or len(key) > _NAME_BYTES:
            return Row(memoryview(bytearray(8 * _ROW_WORDS)).cast("Q"), in_batches=in_batches)
        words = self._row(self._own, self._used)
        self._used += 1
        words[1:_NAME_WORDS].cast("B")[: len(key)] = key
        words[0] = len(key)  # the row is there for others from now on
        return Row(words, in_batches=in_batches)

    def totals(self, name: str, version: int) -> Totals:
        """The numbers of a version."""
        key = f"{name}/{version}".encode()
        found = Totals()
        for part in range(self._parts):
            for words in self._named(part):
                if _key(words) == key:
                    _add(found, words)
        return found


def _key(words: memoryview) -> bytes:
    return bytes(words[1:_NAME_WORDS].cast("B")[: words[0]])


def _add(totals: Totals, words: memoryview) -> None:
    for field in Field:
        value = words[_NAME_WORDS + field]
        totals.values[field] = max(totals[field], value) if field is Field.LAST_MS else totals[field] + value
    for k in range(MOST_SIZES):
        size, executions, ns = words[_SIZES_AT + 3 * k : _SIZES_AT + 3 * k + 3]
        if size:
            before = totals.batches.get(size, (0, 0))
            totals.batches[size] = before[0] + executions, before[1] + ns
