"""Pages of a client's file in a mapping: which faults on them are handled, and that all others end the process as ever."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

import numpy as np
import pytest

from aspen_mp.shm.bindings import _control
from aspen_mp.shm.bindings._mapping import Mapping
from aspen_mp.shm.segments import Segment

PAGE = _control.PAGE


def in_child(act: Callable[[Segment, int], bool], ignored: int = 0) -> int:
    """Wait status of a process in which pages 1 to 3 of a segment are borrowed, filled with 7; it exits with 0 where `act` returns True.
    `ignored`: a signal that it has been told to ignore before."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    status = 1
    try:
        if ignored:
            signal.signal(ignored, signal.SIG_IGN)
        file = os.memfd_create("file")
        os.write(file, b"\7" * 3 * PAGE)
        segment = Segment.create("data", 5 * PAGE, memfd=True)
        segment.mapping.borrow(PAGE, file, 0, 3 * PAGE)
        status = not act(segment, file)
    finally:
        os._exit(status)


def test_writing() -> None:
    """The rest of the piece becomes private memory; the file stays what it is, and the segment says so."""

    def write(segment: Segment, file: int) -> bool:
        ok = not _control.torn(segment.buf)
        segment.buf[2 * PAGE + 5] = 1
        ok &= _control.torn(segment.buf)
        ok &= bytes(segment.buf[PAGE : 2 * PAGE]) == b"\7" * PAGE
        ok &= bytes(segment.buf[2 * PAGE : 2 * PAGE + 6]) == bytes(5) + b"\1"
        segment.buf[4 * PAGE - 1] = 1
        segment.buf[PAGE] = 1
        return ok and os.pread(file, 3 * PAGE, 0) == b"\7" * 3 * PAGE and segment.buf[4 * PAGE] == 0

    assert in_child(write) == 0


def test_missing_pages() -> None:
    def read(segment: Segment, file: int) -> bool:
        os.ftruncate(file, PAGE)
        ok = segment.buf[PAGE] == 7 and not _control.torn(segment.buf)
        ok &= segment.buf[2 * PAGE] == 0 and _control.torn(segment.buf)
        segment.buf[3 * PAGE] = 1  # and a tile that writes there goes on as well
        return ok

    assert in_child(read) == 0


def test_faults_elsewhere() -> None:
    def nowhere(segment: Segment, file: int) -> bool:
        return bool(ctypes.string_at(8, 1))

    def read_only(segment: Segment, file: int) -> bool:
        other = Mapping(segment.fd, segment.nbytes, False)
        ctypes.memset(int(np.frombuffer(other, np.uint8).ctypes.data), 1, 1)
        return True

    for act in (nowhere, read_only):
        status = in_child(act)
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGSEGV


@pytest.mark.parametrize("number", [signal.SIGBUS, signal.SIGSEGV])
def test_sent_by_others(number: int) -> None:
    def sent(segment: Segment, file: int) -> bool:
        os.kill(os.getpid(), number)
        return True

    status = in_child(sent)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == number


@pytest.mark.parametrize("number", [signal.SIGBUS, signal.SIGSEGV])
def test_what_was_to_be_done_before(number: int) -> None:
    """With each of the two signals by itself."""

    def sent(segment: Segment, file: int) -> bool:
        os.kill(os.getpid(), number)
        return True

    assert in_child(sent, ignored=number) == 0
    other = signal.SIGBUS + signal.SIGSEGV - number
    assert os.WTERMSIG(in_child(sent, ignored=other)) == number
