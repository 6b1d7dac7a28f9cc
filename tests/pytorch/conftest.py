"""Modules of tests are small, and run in a runtime all the same."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(autouse=True)
def no_work_is_small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, calls of little work would stay with PyTorch, and tests would compare PyTorch with itself."""
    if importlib.util.find_spec("torch") is not None and request.node.get_closest_marker("by_work") is None:
        monkeypatch.setattr("aspen_mp.torch.work.SMALL", 0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Calls of graphs in the runtime."""
    from aspen_mp.torch.compiled import Compiled

    seen: list[int] = []
    call = Compiled.__call__
    monkeypatch.setattr(Compiled, "__call__", lambda graph, *args: seen.append(1) or call(graph, *args))
    return seen
