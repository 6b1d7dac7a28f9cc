"""Stopped workers are noted while others come and go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aspen_mp.control.pool import workers


def test_workers_come_and_go_while_stopped_ones_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is told of a stopped worker may end a recovery, which starts workers for those that have died."""
    rows: dict[int, Any] = {row: SimpleNamespace(row=row, stopped=None, doomed=None) for row in range(4)}
    told: list[list[int]] = []

    def worker_stopped() -> None:
        told.append([row for row, worker in rows.items() if worker.stopped])
        del rows[3]
        rows[7] = SimpleNamespace(row=7, stopped=None, doomed=None)

    monkeypatch.setattr(workers, "_is_stopped", lambda worker: worker.row in {0, 2})
    loop = SimpleNamespace(later=lambda seconds, act: (seconds, act))
    stub: Any = SimpleNamespace(_rows=rows, _loop=loop, _listener=SimpleNamespace(worker_stopped=worker_stopped), _still_stopped=None)
    monkeypatch.setattr(workers, "partial", lambda *what: what)
    workers.WorkerPool._look_for_stopped(stub)
    assert told == [[0, 2]]
    assert [worker.stopped is not None for worker in rows.values()] == [True, False, True, False]
    workers.WorkerPool._look_for_stopped(stub)
    assert len(told) == 1, "they are known"
