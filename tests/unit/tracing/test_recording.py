"""What a trace makes of the planner process's events."""

from __future__ import annotations

from types import SimpleNamespace

from aspen_mp.tracing import recording


def test_a_worker_that_was_abandoned_has_gone() -> None:
    """Its row is the next one's; what that one records is not taken for its own."""
    about = {
        "workers": [{"worker": 0, "pid": 10, "cpu": 0, "core_class": "P"}],
        "events": [
            {"ticks": 50, "event": "worker-hung", "worker": 0, "pid": 10, "cpu": 0},
            {"ticks": 60, "event": "worker-abandoned", "worker": 0, "pid": 10, "cpu": 0, "why": "killed"},
            {"ticks": 70, "event": "worker-joined", "worker": 1, "pid": 11, "cpu": 0, "core_class": "P"},
            {"ticks": 90, "event": "worker-reaped", "worker": 0, "pid": 10, "cpu": 0},
        ],
    }
    workers, instants = recording._workers(about, SimpleNamespace(at=lambda ticks: ticks))  # type: ignore[arg-type]
    assert [(w.pid, w.left, w.end, w.why) for w in workers] == [(10, 60, "abandoned", "killed"), (11, None, "", "")]
    assert [(at, k, what) for at, k, what, _ in instants] == [(50, 0, "worker-hung"), (90, 0, "worker-reaped")]
