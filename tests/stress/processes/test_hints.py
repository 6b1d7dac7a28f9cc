"""Hints with real workers over hand-written graphs (docs/protocol/hints.md): whatever they say, every request ends well."""

from __future__ import annotations

import random

import numpy as np
import pytest
from harness import Client, Machine
from synthetic import random_plan

from aspen_mp.shm.tables import LIMITS

DEPTHS = LIMITS["depths"]
Hints = list[tuple[int, int, bool]]
REQUESTS = 200


def nonsense(draw: random.Random) -> Hints:
    """Masks that exclude everybody, one worker at most, everything yields."""
    return [(draw.choice([0, 1, 0x8000]), draw.choice([0, 1, 255]), draw.random() < 0.5) for _ in range(DEPTHS)]


@pytest.mark.parametrize(("workers", "steal"), [(1, True), (3, True), (3, False)])
def test_hints_of_nonsense_change_no_result(workers: int, steal: bool) -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    plans = [random_plan(draw.randrange(1 << 30)) for _ in range(2)]
    with Machine(workers) as machine:
        machine.table.set_stealing(steal)
        client = Client(machine, 64 + REQUESTS * max(plan.request_bytes for plan in plans))
        ids = [machine.load(plan, 2, memory=draw.getrandbits(DEPTHS)) for plan in plans]
        for row in range(workers):
            machine.start(row)
        x = np.arange(plans[0].length, dtype=np.uint64)
        for begin in range(0, REQUESTS, 8):
            machine.table.set_tokens(draw.choice([0, 1, 1, 2]))
            machine.table.set_hints({number: nonsense(draw) for number, _ in ids}, [draw.randrange(-1, 16) for _ in range(workers)])
            asked = []
            for k in range(begin, begin + 8):
                which = k % 2
                offset = client.put(plans[which], k, x)
                asked.append((which, k, client.channel.submit(*ids[which], client.index, offset)))
            for which, k, ticket in asked:
                assert client.wait(ticket).error == 0, f"seed {seed}"
                assert np.array_equal(client.get(plans[which], k), plans[which].reference(x)), f"seed {seed}"
        machine.table.set_tokens(0)
        for row in range(workers):
            machine.stop_worker(row)
        found = machine.table.hints()
        assert found["version"] == REQUESTS // 8
        assert not any(found["holders"]), "tokens are given back"
        assert found["at_work"] == 0


def test_hints_are_read_back() -> None:
    with Machine(1) as machine:
        number, _ = machine.load(random_plan(3), 1, memory=0b101)
        memory, most, yields = 1 << 24, 16, 1 << 25
        assert machine.table.hints()["words"][number][:4] == [memory, 0, memory, 0]
        assert machine.table.set_hints({number: [(3, 2, False), (0, 0, True)]}, [1]) == 1
        assert machine.table.hints()["words"][number][:4] == [memory | 3 | 2 << most, yields, memory, 0]
        assert machine.table.set_hints({}) == 2
        assert machine.table.hints()["words"][number][:4] == [memory, 0, memory, 0]
        with pytest.raises(ValueError, match="256 workers"):
            machine.table.set_hints({number: [(0, 256, False)]})
