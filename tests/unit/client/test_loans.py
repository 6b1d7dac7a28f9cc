"""Loans of a client's own shared memory: never more at a time than a client may have, however late the planner process gets them back."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from aspen_mp.client.requests import zero_copy
from aspen_mp.client.requests.zero_copy import MAX_LOANS, PAGE, Loans, Piece
from aspen_mp.control.wire import protocol
from aspen_mp.shm.segments import Segment

WATCHDOG_S = 60.0


class Planner:
    """Stands in for the planner process. Drops wait for `gate`."""

    def __init__(self) -> None:
        self.live: dict[int, Segment] = {}
        self.made = self.most = 0
        self.changed = threading.Condition()
        self.gate = threading.Event()
        self.gate.set()

    def make(self, nbytes: int, pieces: list[protocol.Piece], files: list[int]) -> tuple[int, Segment]:
        segment = Segment.create("data", nbytes, memfd=True)
        segment.close_fd()
        with self.changed:
            self.made += 1
            self.live[self.made] = segment
            self.most = max(self.most, len(self.live))
            return self.made, segment

    def drop(self, index: int) -> None:
        assert self.gate.wait(WATCHDOG_S)
        with self.changed:
            del self.live[index]
            self.changed.notify_all()


@pytest.fixture
def mapped() -> Iterator[mmap.mmap]:
    file = os.memfd_create("user")
    os.ftruncate(file, 4 * MAX_LOANS * PAGE)
    memory = mmap.mmap(file, 4 * MAX_LOANS * PAGE)
    os.close(file)
    yield memory
    memory.close()


def piece(memory: mmap.mmap, page: int) -> Piece:
    found = zero_copy.place(np.frombuffer(memory, np.uint8, PAGE, page * PAGE))
    assert found is not None
    return Piece(0, 0, PAGE, *found)


def test_loans_that_are_over_count_until_they_are_back(mapped: mmap.mmap) -> None:
    planner = Planner()
    loans = Loans(planner.make, planner.drop)
    taken = [loans.take(1, PAGE, [piece(mapped, k)]) for k in range(MAX_LOANS)]
    assert loans.take(1, PAGE, [piece(mapped, MAX_LOANS)]) is None, "all are in use"
    planner.gate.clear()
    for loan in taken:
        assert loan is not None
        loans.give(loan)
    loans.owner_ended(1)
    assert len(planner.live) == MAX_LOANS
    assert loans.take(2, PAGE, [piece(mapped, 0)]) is None, "none is back yet"
    planner.gate.set()
    with planner.changed:
        assert planner.changed.wait_for(lambda: not planner.live, WATCHDOG_S)
    again = []
    while len(again) < MAX_LOANS:  # the thread that returns them counts last
        if (loan := loans.take(2, PAGE, [piece(mapped, MAX_LOANS + len(again))])) is not None:
            again.append(loan)
    assert planner.most == MAX_LOANS
    loans.close()


def test_the_oldest_idle_one_makes_room(mapped: mmap.mmap) -> None:
    planner = Planner()
    loans = Loans(planner.make, planner.drop)
    for page in range(3 * MAX_LOANS):
        loan = loans.take(1, PAGE, [piece(mapped, page)])
        assert loan is not None
        loans.give(loan)
    assert sorted(planner.live) == list(range(2 * MAX_LOANS + 1, 3 * MAX_LOANS + 1))
    assert planner.most == MAX_LOANS
    loans.close()
