"""The allocator over a client's data segments: spans never overlap, and everything given back can be had again."""

from __future__ import annotations

import os
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from aspen_mp.client.requests import memory
from aspen_mp.shm.bindings import _control
from aspen_mp.shm.segments import Segment

WATCHDOG_S = 60.0


class Segments:
    """Stands in for the planner process."""

    def __init__(self) -> None:
        self.live: dict[int, Segment] = {}
        self.made = 0

    def make(self, nbytes: int) -> tuple[int, Segment]:
        segment = Segment.create("data", nbytes, memfd=True)
        segment.close_fd()
        self.made += 1
        index = next(i for i in range(1, self.made + 1) if i not in self.live)  # as the planner process numbers them
        self.live[index] = segment
        return index, segment

    def drop(self, index: int) -> None:
        del self.live[index]


def test_what_can_be_had_at_once():
    segments = Segments()
    pool = memory.DataMemory(segments.make, segments.drop)
    assert not pool.has(1)
    span = pool.allocate(1000)
    left = memory.FIRST_BYTES - _control.DATA_FIRST - span.nbytes
    assert pool.has(left)
    assert not pool.has(left + 1)
    busy, free = threading.Event(), threading.Event()

    def make_another() -> None:
        pool.allocate(memory.FIRST_BYTES)

    def slow(nbytes: int) -> tuple[int, Segment]:
        busy.set()
        assert free.wait(WATCHDOG_S)
        return segments.make(nbytes)

    pool._make = slow
    thread = threading.Thread(target=make_another)
    thread.start()
    assert busy.wait(WATCHDOG_S)
    assert not pool.has(1)  # it would have to wait for the other thread
    free.set()
    thread.join()
    assert pool.has(left)
    pool.close()


def test_the_number_of_a_segment_that_was_left_comes_again():
    segments = Segments()
    pool = memory.DataMemory(segments.make, segments.drop)
    kept, large = pool.allocate(1000), memory.LEAST_LEFT + memory.MOST_UNUSED
    span = pool.allocate(large)
    pool.give_back(span)
    assert span.index in pool.sparse()
    pool.trim()
    assert pool.allocate(large).index == span.index
    assert kept.index != span.index
    pool.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 700_000), st.tuples(st.just("free"), st.integers(0, 50))), max_size=60))
def test_spans_are_disjoint_and_come_back(steps):
    segments = Segments()
    pool = memory.DataMemory(segments.make, segments.drop)
    held: list[memory.Span] = []
    for step in steps:
        if isinstance(step, int):
            span = pool.allocate(step)
            assert span.nbytes >= step
            assert span.offset % memory.ALIGN == 0
            assert span.offset >= _control.DATA_FIRST
            assert span.offset + span.nbytes <= len(span.buffer)
            for other in held:
                apart = span.offset + span.nbytes <= other.offset or other.offset + other.nbytes <= span.offset
                assert other.index != span.index or apart
            held.append(span)
        elif held:
            pool.give_back(held.pop(step[1] % len(held)))
    for span in held:
        pool.give_back(span)
    # all ranges have grown together again: each segment can be had whole
    for index, segment in segments.live.items():
        whole = pool.allocate(segment.nbytes - _control.DATA_FIRST)
        assert whole.index == index or len(segments.live) > 1
        pool.give_back(whole)
    made = segments.made
    pool.trim()
    assert segments.live == {}
    assert segments.made == made
    pool.close()


def test_segments_grow_so_that_their_number_stays_small():
    segments = Segments()
    pool = memory.DataMemory(segments.make, segments.drop)
    spans = [pool.allocate(1 << 19) for _ in range(100)]
    assert segments.made <= 8
    assert len({(s.index, s.offset) for s in spans}) == 100
    pool.close()


def test_views_keep_a_closed_segment_mapped():
    segments = Segments()
    pool = memory.DataMemory(segments.make, segments.drop)
    span = pool.allocate(100)
    span.buffer[span.offset] = 7
    before = len(os.listdir("/proc/self/fd"))
    pool.close()
    assert span.buffer[span.offset] == 7
    assert len(os.listdir("/proc/self/fd")) == before
