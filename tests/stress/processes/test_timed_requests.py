"""Deadlines and shares with real workers over hand-written graphs (docs/protocol/deadlines.md).

Requests are submitted before there is a worker, so that it finds all of them at once: then nothing depends on how fast anybody is.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
from harness import WATCHDOG, Client, Machine
from synthetic import Synthetic, random_plan

from aspen_mp.shm.bindings._channel import Result, Urgency
from aspen_mp.shm.bindings._control import ERRORS
from aspen_mp.workers._dse import Engine

S = 10**9
Submit = Callable[[Urgency], int]


def asking(client: Client, plan: Synthetic, ids: tuple[int, int]) -> Submit:
    """A function that submits one request more, of the same plan."""
    places = iter(range(256))

    def submit(urgency: Urgency) -> int:
        k = next(places)
        return client.channel.submit(*ids, client.index, client.put(plan, k, np.ones(plan.length, np.uint64)), urgency)

    return submit


def client_of(machine: Machine, plan: Synthetic, requests: int) -> Client:
    return Client(machine, 64 + requests * plan.request_bytes)


def test_earlier_deadlines_go_first_and_before_requests_without() -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    plan = random_plan(3)
    with Machine(1) as machine:
        client = client_of(machine, plan, 40)
        submit = asking(client, plan, machine.load(plan, 1, work_ns=1e5))
        asked = [Urgency(draw.randrange(3), draw.choice([0, draw.randrange(1000 * S, 2000 * S)])) for _ in range(40)]
        tickets = [submit(urgency) for urgency in asked]
        machine.start(0)
        results = [client.wait(ticket) for ticket in tickets]
        assert [result.error for result in results] == [0] * 40
        served = sorted(range(40), key=lambda k: results[k].finished_ns)
        wanted = sorted(range(40), key=lambda k: (asked[k].level, not asked[k].due_ns, asked[k].due_ns, k))
        assert served == wanted, f"seed {seed}"


def refused(client: Client, machine: Machine, submit: Submit, urgency: Urgency) -> Result:
    result = client.wait(submit(urgency))
    assert machine.table.workers()[0]["claims"] == 0, "nothing of it has run"
    return result


def test_deadlines_that_cannot_be_met_are_refused() -> None:
    plan = random_plan(3)
    with Machine(1) as machine:
        client, ids = client_of(machine, plan, 4), machine.load(plan, 1, model=7, work_ns=100.0 * S)
        submit = asking(client, plan, ids)
        machine.start(0)
        result = refused(client, machine, submit, Urgency(1, 50 * S))
        assert result.error == ERRORS["TOO_LATE"]
        assert 100 * S < result.needed < 1000 * S
        assert refused(client, machine, submit, Urgency(1, 1)).error == ERRORS["EXPIRED"]
        assert machine.table.model_counts()[7] == {"requests": 0, "queue_s": 0, "run_s": 0, "missed": 0, "refused": 1, "expired": 1}
        assert client.wait(submit(Urgency(1, 1, True))).error == 0, "its result is wanted, late or not"
        counts = machine.table.model_counts()[7]
        assert (counts["requests"], counts["missed"]) == (1, 1)


def test_a_client_need_not_wait_for_a_worker_to_be_refused() -> None:
    """The only worker is in a tile that lasts. Who was told the outlook before refuses its request itself, and that counts."""
    long, plan = random_plan(6, nodes=20, opaque=frozenset({3, 9, 19})), random_plan(3)
    with Machine(1, opaque=until_unwanted) as machine:
        client = client_of(machine, long, 2)
        endless, hopeless = asking(client, long, machine.load(long, 1)), client_of(machine, plan, 4)
        submit = asking(hopeless, plan, machine.load(plan, 1, model=7, work_ns=100.0 * S))
        machine.start(0)
        first = hopeless.wait(submit(Urgency(1, 50 * S)))
        ticket = endless(Urgency(1))
        end = time.monotonic() + WATCHDOG
        while machine.table.workers()[0]["idle"] != "busy" or client.channel.state(ticket) != "running":
            assert time.monotonic() < end
            time.sleep(0.001)
        second = hopeless.wait(submit(Urgency(1, 50 * S)))
        assert client.channel.state(ticket) == "running", "no worker has answered"
        assert first.error == second.error == ERRORS["TOO_LATE"]
        assert 100 * S < second.needed < 1000 * S
        client.channel.cancel(ticket)
        assert client.wait(ticket).error == ERRORS["CANCELLED"]
        assert hopeless.wait(submit(Urgency(1, 1))).error == ERRORS["EXPIRED"]
        assert machine.table.model_counts()[7]["refused"] == 2


def test_only_so_many_are_admitted_as_can_be_done() -> None:
    """Each takes 3 s: by 9 s two are done, with what predictions leave to spare. They run at once, because the plan is wrong."""
    plan = random_plan(3)
    with Machine(1) as machine:
        client = client_of(machine, plan, 12)
        submit = asking(client, plan, machine.load(plan, 1, work_ns=3.0 * S))
        tickets = [submit(Urgency(1, 9 * S)) for _ in range(12)]
        machine.start(0)
        errors = [client.wait(ticket).error for ticket in tickets]
        assert errors[:2] == [0, 0]
        # The first one that ends teaches the runtime how long they take; those that were looked at before that are refused.
        assert errors.count(ERRORS["TOO_LATE"]) + errors.count(0) == 12
        assert errors.count(ERRORS["TOO_LATE"]) >= 9


def until_unwanted(engine: Engine, instance: int, tile: int) -> None:
    """An opaque tile that ends when nobody wants its result."""
    end = time.monotonic() + WATCHDOG
    while not engine.unwanted():
        assert time.monotonic() < end
        time.sleep(0.001)
    engine.finish(instance, tile, ERRORS["CANCELLED"])


def test_a_request_ends_when_its_deadline_passes() -> None:
    plan = random_plan(6, nodes=20, opaque=frozenset({3, 9, 19}))
    with Machine(1, opaque=until_unwanted) as machine:
        client, ids = client_of(machine, plan, 2), machine.load(plan, 1, model=7, work_ns=1e5)
        submit = asking(client, plan, ids)
        machine.start(0)
        tickets = [submit(Urgency(1, S // 2)) for _ in range(2)]  # the second waits for the instance
        assert [client.wait(ticket).error for ticket in tickets] == [ERRORS["EXPIRED"]] * 2
        counts = machine.table.model_counts()[7]
        assert counts["missed"] + counts["expired"] == 2


def test_shares_are_kept() -> None:
    """Of two clients that ask for all they can get, one has a model with twice the share: it gets two of three turns throughout."""
    plan = random_plan(3)
    with Machine(1) as machine:
        asked: list[tuple[int, Client, int]] = []
        for number, share in enumerate((1.0, 2.0)):
            client = client_of(machine, plan, 60)
            submit = asking(client, plan, machine.load(plan, 1, model=number, share=share, work_ns=1.0 * S))
            asked += [(number, client, submit(Urgency(1))) for _ in range(60)]
        machine.start(0)
        results = [(client.wait(ticket).finished_ns, number) for number, client, ticket in asked]
        served = [number for _, number in sorted(results)]
        for n in range(15, 90, 15):
            assert abs(sum(served[:n]) - 2 * n / 3) <= 2, served


def test_a_client_with_more_requests_gets_no_more() -> None:
    plan = random_plan(3)
    with Machine(1) as machine:
        ids = machine.load(plan, 2, work_ns=1.0 * S)
        asked: list[tuple[int, Client, int]] = []
        for number, requests in enumerate((60, 20)):
            client = client_of(machine, plan, requests)
            submit = asking(client, plan, ids)
            asked += [(number, client, submit(Urgency(1))) for _ in range(requests)]
        machine.start(0)
        results = [(client.wait(ticket).finished_ns, number) for number, client, ticket in asked]
        served = [number for _, number in sorted(results)]
        assert abs(sum(served[:40]) - 20) <= 2, served
