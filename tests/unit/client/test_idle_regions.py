"""Regions that wait, and bursts whose memory goes back: no region is used twice, none is lost, and at rest each stage has one."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_client_memory import Segments

from aspen_mp.client.requests import memory
from aspen_mp.client.requests.idle_regions import IdleRegions
from aspen_mp.client.requests.region import Layout, Region
from aspen_mp.control.wire import protocol
from aspen_mp.shm.errors import ResourceLimitError

MEBI = 1 << 20


def layout(nbytes: int) -> Layout:
    slot = protocol.Slot("x", "uint8", [nbytes], 0, nbytes)
    return nbytes, [slot], []


class Client:
    """Stages over one memory, as a session has them, and what their requests have written."""

    def __init__(self, sizes: list[int]) -> None:
        self.segments = Segments()
        self.memory = memory.DataMemory(self.segments.make, self.segments.drop)
        self.stages = [IdleRegions(self.memory, layout(nbytes)) for nbytes in sizes]
        self.used: list[tuple[int, Region, int]] = []
        self.leave: frozenset[int] = frozenset()
        self.count = 0

    def begin(self, k: int) -> None:
        stage = self.stages[k]
        region = stage.take() or Region(self.memory.allocate(stage._layout[0]), stage._layout)
        self.count += 1
        region.inputs[0][:] = self.count % 251
        self.used.append((k, region, self.count % 251))

    def end(self, which: int) -> None:
        k, region, value = self.used.pop(which % len(self.used))
        assert (region.inputs[0] == value).all(), "another request has written to its region"
        self.stages[k].free.append(region)
        if self.leave:
            self.stages[k].leave(self.leave)

    def look(self) -> None:
        self.leave = self.memory.sparse()
        for stage in self.stages:
            stage.look(self.leave)
        self.memory.trim()

    @property
    def held(self) -> int:
        return sum(segment.nbytes for segment in self.segments.live.values())


steps = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 2), st.integers(1, 30)),
        st.tuples(st.just("end"), st.integers(0, 99), st.integers(1, 40)),
        st.tuples(st.just("look"), st.just(0), st.integers(1, 2)),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(steps=steps)
def test_any_sequence_of_bursts(steps: list[tuple[str, int, int]]) -> None:
    client = Client([300_000, 90_000, 1_500_000])
    for step, which, times in steps:
        for _ in range(times):
            if step == "begin":
                client.begin(which)
            elif step == "end" and client.used:
                client.end(which)
            elif step == "look":
                client.look()
        assert client.memory.spans == len(client.used) + sum(map(len, client.stages))
        assert client.held == client.memory.nbytes
    while client.used:
        client.end(0)
    for _ in range(6):
        client.look()
    used = {k for k, stage in enumerate(client.stages) if len(stage)}
    assert all(len(client.stages[k]) == 1 for k in used)
    assert client.memory.spans == len(used)
    assert client.held <= 2 * 1_890_000 + memory.MOST_UNUSED
    for k in used:  # the next request finds its region where the fast path looks
        assert len(client.stages[k].free) == 1


@pytest.mark.parametrize("size", [300_000, 3_000_000])
@pytest.mark.parametrize("resting", [0, 1])
def test_a_burst_goes_and_one_request_goes_on(size: int, resting: int) -> None:
    """Whether a look meets the last request under way or at rest: nearly nothing stays of the burst."""
    client = Client([size])
    for _ in range(120_000_000 // size):
        client.begin(0)
    burst = client.held
    while len(client.used) > 1 - resting:
        client.end(0)
    for _ in range(5):
        client.look()
        if not resting:
            client.end(0)
            client.begin(0)
    assert burst > 120_000_000
    assert client.held <= max(2 * size, memory.FIRST_BYTES) + MEBI


def test_requests_that_go_on_keep_their_regions() -> None:
    """So many at a time as before a look find regions after it, however often somebody looks."""
    client = Client([200_000])
    for _ in range(5):
        client.begin(0)
    while client.used:
        client.end(0)
    made, regions = client.segments.made, {region.span.offset for region in client.stages[0].free}
    for _ in range(10):
        client.look()
        for _ in range(5):
            client.begin(0)
        assert {region.span.offset for _, region, _ in client.used} == regions
        while client.used:
            client.end(-1)
    assert client.segments.made == made


def test_what_lives_keeps_its_memory() -> None:
    """A region in use in a segment that is to be left stays as it is; the segment goes when the region has come back."""
    client = Client([2_000_000])
    for _ in range(60):
        client.begin(0)
    while len(client.used) > 1:
        client.end(0)
    ((_, region, value),) = client.used
    for _ in range(5):
        client.look()
        assert region.span.index in client.segments.live
        assert (region.inputs[0] == value).all()
    client.end(0)
    for _ in range(3):
        client.look()
    assert client.held <= 5_000_000


def test_without_other_memory_regions_stay_where_they_are() -> None:
    client = Client([2_000_000])
    for _ in range(60):
        client.begin(0)
    kept = client.used.pop()[1]  # the last one, in the largest segment
    while client.used:
        client.end(0)
    for _ in range(2):
        client.look()
    client.stages[0].shed()
    client.stages[0].free.append(kept)

    def none(nbytes: int) -> object:
        raise ResourceLimitError("no more")

    client.memory._make = none  # type: ignore[assignment]
    for _ in range(3):
        client.look()
        assert len(client.stages[0].free) == 1


def test_a_burst_right_after_a_look_needs_few_segments() -> None:
    """A segment that was to be left is used again before there are many small ones."""
    client = Client([1_000_000])
    for _ in range(100):
        client.begin(0)
    while len(client.used) > 1:
        client.end(0)
    client.look()
    for _ in range(150):
        client.begin(0)
    assert len(client.segments.live) <= 12


def test_threads_never_get_the_same_region() -> None:
    client, stop, errors = Client([4096]), threading.Event(), []
    stage = client.stages[0]

    def work(number: int) -> None:
        rng = random.Random(number)
        try:
            for _ in range(800):
                mine = [stage.take() or Region(client.memory.allocate(4096), stage._layout) for _ in range(rng.randrange(1, 5))]
                for region in mine:
                    region.inputs[0][:] = number
                for region in mine:
                    assert np.array_equal(region.inputs[0], np.full(4096, number, np.uint8))
                    stage.free.append(region)
                if rng.random() < 0.2:
                    stage.leave(frozenset())
        except BaseException as error:
            errors.append(error)

    def look() -> None:
        while not stop.is_set():
            client.look()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    looker = threading.Thread(target=look)
    for thread in (looker, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    looker.join()
    assert not errors
    assert client.memory.spans == len(stage)
    for _ in range(2):
        client.look()
    assert client.memory.spans == len(stage) == 1
