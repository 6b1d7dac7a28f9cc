"""The scheduling engine in real processes: right answers whatever the number of workers, their order, joins, leaves and policies."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from harness import WATCHDOG, Client, Machine
from process_tools import wait_until_idle
from synthetic import Synthetic, random_plan

from aspen_mp.shm.bindings._control import ERRORS
from aspen_mp.shm.segments import Segment


def drive(machine: Machine, client: Client, plan: Synthetic, ids: tuple[int, int], requests: int, seed: int, depth: int = 6) -> None:
    """Keeps `depth` requests in flight and checks each answer."""
    rng = np.random.default_rng(seed)
    flying: dict[int, tuple[int, np.ndarray]] = {}
    for k in range(requests + depth):
        if k >= depth and k - depth in flying:
            ticket, x = flying.pop(k - depth)
            result = client.wait(ticket)
            assert result.error == 0, result
            assert (client.get(plan, (k - depth) % depth) == plan.reference(x)).all(), f"seed {seed}, request {k - depth}"
        if k < requests:
            x = rng.integers(0, 1 << 63, plan.length, dtype=np.uint64)
            at = client.put(plan, k % depth, x)
            flying[k] = (client.channel.submit(*ids, client.index, at, int(rng.integers(3))), x)


def settle(machine: Machine, instances: int) -> None:
    """A client sees its answer a moment before the instance is free again."""
    deadline = time.monotonic() + WATCHDOG
    while machine.table.status()["instances"] != {"free": instances, "claimed": 0, "running": 0, "done": 0}:
        assert time.monotonic() < deadline, machine.table.status()


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_many_requests(workers: int) -> None:
    plan = random_plan(workers)
    with Machine(8) as machine:
        for row in range(workers):
            machine.start(row)
        ids, client = machine.load(plan, 3), Client(machine, 64 + 6 * plan.request_bytes)
        drive(machine, client, plan, ids, 400, seed=workers)
        settle(machine, 3)
        rows = machine.table.workers()
        assert sum(r["tiles"] for r in rows) == 400 * plan.n_tiles
        assert sum(r["ends"] for r in rows) == sum(r["claims"] for r in rows) == 400
        assert machine.table.status()["ready_rows"] == []


@pytest.mark.parametrize("policy", ["fifo", "lifo", "random"])
@pytest.mark.parametrize("steal", [True, False])
def test_any_order_gives_the_same(policy: str, steal: bool) -> None:
    plan = random_plan(11, nodes=40)
    with Machine(4) as machine:
        machine.table.set_policy(policy, seed=3)
        machine.table.set_stealing(steal)
        for row in range(3):
            machine.start(row)
        ids, client = machine.load(plan), Client(machine, 64 + 6 * plan.request_bytes)
        drive(machine, client, plan, ids, 150, seed=5)
        if not steal:
            assert sum(r["steals"] for r in machine.table.workers()) == 0


def test_workers_join_and_leave_under_load() -> None:
    plan = random_plan(3)
    with Machine(6) as machine:
        machine.start(0)
        ids, client = machine.load(plan, 4), Client(machine, 64 + 6 * plan.request_bytes)
        rng = np.random.default_rng(1)
        for step in range(24):
            row = int(rng.integers(1, 6))
            if row in machine.workers:
                machine.stop_worker(row)
            else:
                machine.start(row)
            drive(machine, client, plan, ids, 20, seed=step)
        for row in [r for r in machine.workers if r]:
            machine.stop_worker(row)
        drive(machine, client, plan, ids, 20, seed=99)


def test_last_worker_leaves_with_requests_in_flight() -> None:
    """Tiles left in the row of the only worker are found by the next one, on whatever row."""
    plan = random_plan(8)
    with Machine(3) as machine:
        machine.start(0)
        ids, client = machine.load(plan, 2), Client(machine, 64 + 2 * plan.request_bytes)
        x = np.arange(plan.length, dtype=np.uint64)
        for turn in range(10):
            tickets = [client.channel.submit(*ids, client.index, client.put(plan, k, x)) for k in range(2)]
            machine.stop_worker(turn % 2)
            machine.start(1 - turn % 2)
            for k, ticket in enumerate(tickets):
                assert client.wait(ticket).error == 0
                assert (client.get(plan, k) == plan.reference(x)).all()


def test_plans_come_and_go_while_others_run() -> None:
    base = random_plan(1)
    with Machine(3) as machine:
        for row in range(2):
            machine.start(row)
        ids, client = machine.load(base), Client(machine, 64 + 6 * base.request_bytes)
        for k in range(12):
            plan = random_plan(100 + k, nodes=12)
            extra, other = machine.load(plan), Client(machine, 64 + 6 * plan.request_bytes)
            drive(machine, other, plan, extra, 10, seed=k)
            tickets = [other.channel.submit(*extra, other.index, other.put(plan, i, np.ones(plan.length, np.uint64))) for i in range(6)]
            machine.table.drop_plan(extra[0])
            drive(machine, client, base, ids, 10, seed=k)
            assert {other.wait(t).error for t in tickets} <= {0, ERRORS["PLAN_GONE"]}
            machine.table.drop_client(other.number)
            deadline = time.monotonic() + WATCHDOG
            while machine.table.status()["draining"] or machine.table.status()["clients"] > 1:
                machine.collect()
                assert time.monotonic() < deadline
        assert machine.table.status()["plans"] == 1
        assert len(machine.segments) == 1 + 2 + 2  # plan, arenas, client and data of the one that stayed


@pytest.mark.parametrize("what", ["plan", "client", "data"])
def test_what_is_dropped_while_it_is_used_is_reported_when_it_is_free(what: str) -> None:
    from aspen_mp.workers._dse import Engine

    go, let_go = os.pipe()

    def execute(engine: Engine, instance: int, tile: int) -> None:
        os.read(go, 1)
        engine.finish(instance, tile)

    plan = random_plan(6, nodes=10, opaque=frozenset({0}))
    try:
        with Machine(2, opaque=execute) as machine:
            machine.start(0)
            ids, client = machine.load(plan, 2), Client(machine, 64 + plan.request_bytes)
            client.channel.submit(*ids, client.index, client.put(plan, 0, np.ones(plan.length, np.uint64)))
            deadline = time.monotonic() + WATCHDOG
            while machine.table.status()["instances"]["running"] != 1:
                assert time.monotonic() < deadline
            if what == "plan":
                machine.table.drop_plan(ids[0])
            elif what == "client":
                machine.table.drop_client(client.number)
            else:
                machine.table.drop_data(client.number, client.index)
            assert machine.collect() == []
            os.write(let_go, b".")
            machine.wait_drained(0)
            assert len(machine.collect()) == {"plan": 3, "client": 2, "data": 1}[what]
    finally:
        os.close(go)
        os.close(let_go)


def test_cancelled_requests_end_and_their_instances_are_free_again() -> None:
    plan = random_plan(4, nodes=60, parts=6)
    with Machine(2) as machine:
        for row in range(2):
            machine.start(row)
        ids, client = machine.load(plan, 2), Client(machine, 64 + 16 * plan.request_bytes)
        x = np.arange(plan.length, dtype=np.uint64)
        seen = set()
        for _ in range(40):
            tickets = [client.channel.submit(*ids, client.index, client.put(plan, k, x)) for k in range(8)]
            for ticket in tickets[::2]:
                client.channel.cancel(ticket)
            for k, ticket in enumerate(tickets):
                result = client.wait(ticket)
                seen.add(result.error)
                assert result.error == 0 or (k % 2 == 0 and result.error == ERRORS["CANCELLED"])
                if result.error == 0:
                    assert (client.get(plan, k) == plan.reference(x)).all()
        assert seen == {0, ERRORS["CANCELLED"]}
        drive(machine, client, plan, ids, 20, seed=0)


def test_two_clients_get_their_own_answers() -> None:
    plan = random_plan(21)
    with Machine(2) as machine:
        for row in range(2):
            machine.start(row)
        ids = machine.load(plan, 2)
        clients = [Client(machine, 64 + 8 * plan.request_bytes) for _ in range(3)]
        inputs = {}
        for k in range(8):
            for c, client in enumerate(clients):
                x = np.full(plan.length, 1000 * c + k, np.uint64)
                inputs[c, k] = (client.channel.submit(*ids, client.index, client.put(plan, k, x)), x)
        for (c, k), (ticket, x) in inputs.items():
            assert clients[c].wait(ticket).error == 0
            assert (clients[c].get(plan, k) == plan.reference(x)).all()


def test_an_entry_without_a_client_leads_nowhere() -> None:
    """A look at the entry of a client that has gone must not find the segment of another, which may have the number that its own had."""
    plan = random_plan(5)
    with Machine(1) as machine:
        ids, other = machine.load(plan, 1), machine.load(plan, 1)
        gone = [Client(machine, 4096) for _ in range(2)]
        numbers = [client.number for client in gone]
        freed = []
        for client in gone:
            machine.table.drop_client(client.number)
            freed.append(machine.collect())
        assert [len(each) for each in freed] == [2, 2]
        for _ in freed[0]:  # what was the first one's goes elsewhere
            assert machine.announce(Segment.create("data", 4096)) in freed[0]
        client = Client(machine, 64 + 4 * plan.request_bytes)
        assert client.number == numbers[0]
        assert machine.segments[min(freed[1])] is client.segment  # the number that the second one's had
        xs = np.random.default_rng(0).integers(0, 1 << 63, (4, plan.length), dtype=np.uint64)
        tickets = [client.channel.submit(*ids, client.index, client.put(plan, k, x), 1) for k, x in enumerate(xs)]
        machine.table.drop_plan(other[0])  # every entry is looked at
        machine.start(0)
        for k, (ticket, x) in enumerate(zip(tickets, xs, strict=True)):
            assert client.wait(ticket).error == 0
            assert (client.get(plan, k) == plan.reference(x)).all()


def test_idle_runtime_sleeps() -> None:
    """Parked workers are blocked in the kernel and have no turn on a processor."""
    plan = random_plan(2)
    with Machine(2) as machine:
        pids = [machine.start(row) for row in range(2)]
        ids, client = machine.load(plan), Client(machine, 64 + 6 * plan.request_bytes)
        drive(machine, client, plan, ids, 10, seed=1)
        deadline = time.monotonic() + WATCHDOG
        while any(r["idle"] != "parked" for r in machine.table.workers()) or machine.table.status()["sleepers"] != 2:
            assert time.monotonic() < deadline
            time.sleep(0.001)

        wait_until_idle(pids)  # a worker says that it parks, then beats once more
        beats = [r["heartbeat"] for r in machine.table.workers()]
        wait_until_idle(pids)
        assert [r["heartbeat"] for r in machine.table.workers()] == beats
        drive(machine, client, plan, ids, 10, seed=2)  # and they wake up


def test_opaque_tiles_run_in_python() -> None:
    from aspen_mp.workers._dse import Engine

    functions = {"ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "BIT_XOR": np.bitwise_xor}

    def execute(engine: Engine, instance: int, tile: int) -> None:
        _, blob, (out,), (left, right) = engine.operands(instance, tile)
        assert engine.name(instance, tile).endswith("(Synthetic)")
        functions[bytes(blob).decode()](left, right, out=out)
        engine.finish(instance, tile)

    plan = random_plan(6, nodes=20, opaque=frozenset({3, 9, 19}))
    with Machine(3, opaque=execute) as machine:
        for row in range(3):
            machine.start(row)
        ids, client = machine.load(plan), Client(machine, 64 + 6 * plan.request_bytes)
        drive(machine, client, plan, ids, 60, seed=6)
        assert sum(r["opaque"] for r in machine.table.workers()) == 180


def test_failed_tiles_fail_their_request_alone() -> None:
    from aspen_mp.workers._dse import Engine

    def execute(engine: Engine, instance: int, tile: int) -> None:
        _, _, (out,), (left, _) = engine.operands(instance, tile)
        if left[0] == 7:
            engine.finish(instance, tile, ERRORS["NEEDS_SPACE"], 12345)
        elif left[0] == 8:
            engine.finish(instance, tile, ERRORS["OPAQUE_FAILED"], 0, "bad luck: é" * 60)
        else:
            out[:] = left
            engine.finish(instance, tile)

    plan = random_plan(6, nodes=10, opaque=frozenset({0}))
    with Machine(2, opaque=execute) as machine:
        for row in range(2):
            machine.start(row)
        ids, client = machine.load(plan, 2), Client(machine, 64 + 12 * plan.request_bytes)
        tickets = [client.channel.submit(*ids, client.index, client.put(plan, k, np.full(plan.length, k, np.uint64))) for k in range(12)]
        results = [client.wait(t) for t in tickets]
        assert [r.error for r in results] == [0] * 7 + [ERRORS["NEEDS_SPACE"], ERRORS["OPAQUE_FAILED"]] + [0] * 3
        assert (results[7].needed, results[7].op, results[7].message) == (12345, 0, "")
        assert results[8].message.startswith("bad luck: é")
        assert results[8].op == 0
        assert results[0].op == -1


def test_the_world_stops_and_goes_on() -> None:
    """An odd epoch parks every worker, an even one lets it go on; nothing is lost when no tile was in flight."""
    plan = random_plan(5)
    with Machine(3) as machine:
        for row in range(3):
            machine.start(row)
        ids, client = machine.load(plan), Client(machine, 64 + 6 * plan.request_bytes)
        for turn in range(5):
            drive(machine, client, plan, ids, 10, seed=turn)
            machine.table.epoch_begin()
            deadline = time.monotonic() + WATCHDOG
            while machine.table.epoch_stopped():
                assert time.monotonic() < deadline
            machine.table.epoch_end()
        drive(machine, client, plan, ids, 10, seed=9)


def test_the_stop_word_ends_every_worker() -> None:
    with Machine(4) as machine:
        for row in range(4):
            machine.start(row)
        pids = [pid for pid, _ in machine.workers.values()]
        machine.close()
        assert all(not os.path.exists(f"/proc/{pid}") for pid in pids)
