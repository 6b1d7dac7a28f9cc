"""Requests of many extents of one plan at once, in real processes: right answers on every instance, whatever is asked for beside them."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
from bucketed_plans import bucketed, expected, feeds_of, graph_at, keys, outputs_of, places
from harness import Client, Machine
from slots import FIRST_SLOT, SLOT_BYTES
from synthetic import Synthetic, random_plan

from aspen_mp.planner.plan.plan import Plan
from aspen_mp.shm.bindings._control import ERRORS

LEAST, MOST = 3, 24


def synthetic(plan: Plan) -> Synthetic:
    header = plan.header()
    return Synthetic(bytes(plan.segment()), plan.n_tiles, int(header["arena_bytes"]), plan.request_bytes, 0, 0, 0)


class Asking:
    """A client's requests of a plan of `make`, each in the region of its number."""

    def __init__(self, machine: Machine, make: Any, plan: Plan, instances: int, regions: int) -> None:
        self.make, self.plan, self.synthetic = make, plan, synthetic(plan)
        self.ids = machine.load(self.synthetic, instances)
        self.client = Client(machine, 64 + regions * plan.request_bytes)
        self.flying: dict[int, tuple[int, int, list[bytes]]] = {}
        self.wanted: dict[tuple[int, int], list[bytes]] = {}

    def publish(self, k: int, extent: int, seed: int) -> None:
        graph, at = graph_at(self.make, extent), self.client.region(self.synthetic, k)
        feeds = feeds_of(graph, seed)
        if (extent, seed) not in self.wanted:
            self.wanted[extent, seed] = expected(self.make, extent, feeds)
        self.client.bytes[at : at + self.plan.request_bytes] = 255
        for info, x in zip(self.plan.inputs, feeds, strict=True):
            self.client.bytes[at + info.offset : at + info.offset + x.nbytes] = np.frombuffer(x.tobytes(), np.uint8)
        ticket = self.client.channel.submit(*self.ids, self.client.index, at, 1, extent)
        self.flying[k] = ticket, extent, self.wanted[extent, seed]

    def check(self, k: int) -> None:
        ticket, extent, wanted = self.flying.pop(k)
        assert self.client.wait(ticket).error == 0
        at = self.client.region(self.synthetic, k)
        region = self.client.bytes[at : at + self.plan.request_bytes]
        assert outputs_of(self.plan.outputs, graph_at(self.make, extent), region) == wanted, f"extent {extent}"


@pytest.mark.parametrize("make", [keys, places])
@pytest.mark.parametrize("workers", [1, 3])
def test_every_request_has_its_own_extent(make: Any, workers: int) -> None:
    """More requests in flight than instances, so each instance goes from extent to extent while others run at other ones."""
    rng = np.random.default_rng(workers)
    with Machine(4) as machine:
        for row in range(workers):
            machine.start(row)
        asking = Asking(machine, make, bucketed(make, LEAST, MOST, barriers=True), 2, 6)
        for k in range(300):
            if k >= 6:
                asking.check(k % 6)
            asking.publish(k % 6, int(rng.integers(LEAST, MOST + 1)), int(rng.integers(2)))
        for k in range(6):
            asking.check(k)


def test_other_extents_are_refused_and_cost_nobody_anything() -> None:
    plan = bucketed(keys, LEAST, MOST)
    with Machine(3) as machine:
        for row in range(2):
            machine.start(row)
        asking, other = Asking(machine, keys, plan, 2, 6), random_plan(3)
        ids, client = machine.load(other, 1), Client(machine, 64 + other.request_bytes)
        x = np.arange(other.length, dtype=np.uint64)
        for turn in range(20):
            for k in range(4):
                asking.publish(k, LEAST + (turn + 5 * k) % (MOST - LEAST + 1), 0)
            at = asking.client.region(asking.synthetic, 5)
            for extent in (0, 1, LEAST - 1, MOST + 1, 1 << 31, (1 << 32) - 1):
                ticket = asking.client.channel.submit(*asking.ids, asking.client.index, at, 1, extent)
                assert asking.client.wait(ticket).error == ERRORS["BAD_EXTENT"], f"extent {extent}"
            for extent, error in ((0, 0), (1, ERRORS["BAD_EXTENT"]), (1 << 31, ERRORS["BAD_EXTENT"])):
                ticket = client.channel.submit(*ids, client.index, client.put(other, 0, x), 1, extent)
                assert client.wait(ticket).error == error, "a plan for one extent's requests have none"
            assert (client.get(other, 0) == other.reference(x)).all()
            for k in range(4):
                asking.check(k)
        with pytest.raises(OverflowError):
            asking.client.channel.submit(*asking.ids, asking.client.index, at, 1, 1 << 32)
        assert asking.client.channel.in_flight == 0
        assert sum(row["claims"] for row in machine.table.workers()) == sum(row["ends"] for row in machine.table.workers()) == 20 * 5


def test_an_extent_that_changes_after_the_claim_changes_nothing() -> None:
    """The client writes another into its slot while its request runs: who executes the rest of the tiles does not look there."""
    slot_words, extent_word = SLOT_BYTES // 4, FIRST_SLOT // 4 + 44 // 4
    with Machine(3) as machine:
        for row in range(2):
            machine.start(row)
        asking = Asking(machine, keys, bucketed(keys, LEAST, MOST), 2, 2)
        words = np.frombuffer(asking.client.segment.buf, np.uint32)
        for turn in range(200):
            for k in range(2):
                asking.publish(k, LEAST + (turn + 9 * k) % (MOST - LEAST + 1), 0)
            said = [words[extent_word + slot_words * s] for s in range(256)]
            assert sorted(said)[-2:] == sorted(extent for _, extent, _ in asking.flying.values())
            while any(asking.client.channel.state(ticket) == "submitted" for ticket, _, _ in asking.flying.values()):
                pass
            words[extent_word : extent_word + 256 * slot_words : slot_words] = 1 + turn % MOST
            for k in range(2):
                asking.check(k)
            words[extent_word : extent_word + 256 * slot_words : slot_words] = 0


def kill_and_recover(machine: Machine, row: int, restart: bool) -> int:
    """The row's worker dies, and another takes its place. Returns how many requests it died in."""
    pid, sock = machine.workers.pop(row)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    sock.close()
    machine.table.epoch_begin()
    machine.table.worker_gone(row, died=True)
    while machine.table.epoch_stopped():
        pass
    segments = machine.table.recovery_segments(restart=restart)
    found = machine.table.recover({number: machine.segments[number].buf for number in segments}, restart=restart)
    machine.table.epoch_end()
    machine.start(row)
    return found["continued"] + found["restarted"] + found["resubmitted"]


def test_a_request_keeps_its_extent_whoever_dies() -> None:
    """It stands in the instance, which recovery leaves alone: tiles that run again, and a worker that comes later, find it there."""
    most = 4000
    with Machine(2) as machine:
        for row in range(2):
            machine.start(row)
        asking = Asking(machine, places, bucketed(places, LEAST, most, barriers=True), 3, 6)
        rng = np.random.default_rng(8)
        met = turn = 0
        while turn < 30 or met < 3:  # whether it meets a request is chance
            turn += 1
            assert turn < 3000
            for pid, _ in machine.workers.values():
                os.kill(pid, signal.SIGSTOP)
            for k in range(6):
                asking.publish(k, int(rng.choice([LEAST, 50, 1700, 3100, most])), 0)
            for pid, _ in machine.workers.values():
                os.kill(pid, signal.SIGCONT)
            while all(asking.client.channel.state(ticket) == "submitted" for ticket, _, _ in asking.flying.values()):
                pass
            met += kill_and_recover(machine, turn % 2, restart=turn % 3 == 0)
            for k in range(6):
                asking.check(k)


def test_short_requests_say_nothing_of_how_fast_a_core_is() -> None:
    """What the plan expects is of whole tiles."""
    plan = bucketed(keys, LEAST, MOST)
    plan.ops["cost_ns"] = 2e6  # each tile is a look
    with Machine(1) as machine:
        machine.start(0)
        asking = Asking(machine, keys, plan, 1, 1)
        for extent in (LEAST, MOST - 1, LEAST + 4):
            asking.publish(0, extent, 0)
            asking.check(0)
        assert machine.table.paces()[0][3:] == (0, 0)
        asking.publish(0, MOST, 0)
        asking.check(0)
        _, _, _, paced, expected_ns = machine.table.paces()[0]
        kernels = int((plan.ops["n_outputs"][plan.tiles["op"]] > 0).sum())
        assert expected_ns == kernels * 2_000_000
        kernel_ns = machine.table.workers()[0]["kernel_ns"]
        assert 0 < paced < kernel_ns, "kernels of the short requests are left out"
