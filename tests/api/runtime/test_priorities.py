"""Requests of a higher priority beside ones of a lower: they come first, and the lower ones go on all the same."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_models

import aspen_mp

X = {"x": np.random.default_rng(0).standard_normal((1, 48, 64, 64), dtype=np.float32)}


def order_of_tiles(path: Path) -> list[str]:
    """The models of all tiles, in the order of their beginnings, each run of the same once."""
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat", "").startswith("tile")]
    models = [event["args"]["model"] for event in sorted(events, key=lambda event: event["ts"])]
    return [model for k, model in enumerate(models) if k == 0 or model != models[k - 1]]


def test_a_higher_priority_comes_first(tmp_path: Path) -> None:
    """One worker: no tile of the lower one comes between those of the higher one.

    Lower classes have a turn after 32 times `preempt_ms`, which a machine that does other work may take for any request. Not here.
    """
    chain = small_models.conv_chain(layers=24, channels=48, size=64)
    with aspen_mp.Runtime(workers=1, preempt_ms=1000) as runtime:
        low, high = runtime.load(chain, name="low"), runtime.load(chain, name="high", planning=aspen_mp.Planning(search="none"))
        expected = low.run(X)["y"]
        assert (high.run(X)["y"] == expected).all()
        with runtime.trace(tmp_path / "trace.json"):
            waiting = [low.submit(X, priority="low") for _ in range(4)]
            results = [high.run(X, priority="high"), *(future.result() for future in waiting)]
    assert all((result["y"] == expected).all() for result in results)
    assert order_of_tiles(tmp_path / "trace.json").count("high") == 1


def test_lower_priorities_go_on() -> None:
    """Beside higher ones that never pause, for as long as it takes."""
    chain = small_models.conv_chain(layers=4, channels=48, size=64)
    with aspen_mp.Runtime(workers=1, preempt_ms=0.01) as runtime:
        model = runtime.load(chain, instances=4)
        model.run(X)
        low = [model.submit(X, priority=name) for name in ("normal", "low")]
        high = deque(model.submit(X, priority="high") for _ in range(3))
        while not all(future.done() for future in low):
            high.append(model.submit(X, priority="high"))
            high.popleft().result()
        expected = low[0].result()["y"]
        assert all((future.result()["y"] == expected).all() for future in [*low, *high])


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (-1, ValueError, "preempt_ms must be 0 to 1000 milliseconds, not -1"),
        (float("nan"), ValueError, "preempt_ms must be 0 to 1000 milliseconds"),
        ("1", TypeError, "preempt_ms must be a number of milliseconds"),
        (True, TypeError, "preempt_ms must be a number of milliseconds"),
    ],
)
def test_values_of_preempt_ms(value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        aspen_mp.Runtime(workers=1, preempt_ms=value)


def test_long_tiles_are_cut_beside_a_higher_priority() -> None:
    """The plan of the lower one is made again, and gives the same bits."""
    chain = small_models.conv_chain(layers=3, channels=48, size=64)
    with aspen_mp.Runtime(workers=2, preempt_ms=0.002) as runtime:
        model = runtime.load(chain)
        first = model.run(X)["y"]
        while not any(event["event"] == "replanned" for event in runtime.status()["events"]):
            low, high = model.submit(X, priority="low"), model.submit(X, priority="high")
            assert (low.result()["y"] == first).all()
            assert (high.result()["y"] == first).all()
        assert (model.run(X)["y"] == first).all()
        (event,) = [event for event in runtime.status()["events"] if event["event"] == "replanned"]
        assert event["longest_ms"] == 0.002
