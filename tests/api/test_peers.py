"""The comparison with other runtimes: engines take turns in processes of their own, disturbed rounds do not count, failures are named."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, cast

import psutil
import pytest

from aspen_mp.bench.peers import __main__ as command
from aspen_mp.bench.peers import rounds
from aspen_mp.bench.peers.rounds import Case, Plan
from aspen_mp.bench.peers.seat import Seat, SeatError, Turn


class Stub:
    """A seat that answers from a list."""

    def __init__(self, engine: str, turns: list[Turn | SeatError]) -> None:
        self.engine = engine
        self.turns: Iterator[Turn | SeatError] = iter(turns)
        self.asked = 0

    def turn(self, seconds: float, runs: int) -> Turn:
        self.asked += 1
        answer = next(self.turns)
        if isinstance(answer, SeatError):
            raise answer
        return answer


def play(stubs: list[Stub], plan: Plan) -> tuple[list[dict[str, Turn]], int, int, dict[str, str]]:
    failed: dict[str, str] = {}
    seats = cast("list[Seat]", stubs)
    turns, rejected, disturbed = rounds.take_turns(Case("tcn"), seats, failed, plan, lambda _: None)
    return turns, rejected, disturbed, failed


def test_disturbed_rounds_do_not_count() -> None:
    a = Stub("a", [Turn([1.0], 0.0), Turn([9.0], 0.5), Turn([2.0], 0.0)])
    b = Stub("b", [Turn([1.0], 0.0), Turn([1.0], 0.0), Turn([2.0], 0.05)])
    turns, rejected, disturbed, failed = play([a, b], Plan(rounds=2, spare=4))
    assert [t["a"].seconds for t in turns] == [[1.0], [2.0]]
    assert (rejected, disturbed, failed) == (1, 0, {})


def test_the_quietest_rounds_of_a_busy_machine_are_used_and_counted() -> None:
    a = Stub("a", [Turn([1.0], 0.9), Turn([2.0], 0.3), Turn([3.0], 0.7)])
    turns, rejected, disturbed, _ = play([a], Plan(rounds=2, spare=3))
    assert [t["a"].seconds for t in turns] == [[2.0], [3.0]]
    assert (rejected, disturbed) == (1, 2)


def test_an_engine_that_fails_leaves_the_others() -> None:
    a = Stub("a", [Turn([1.0])] * 4)
    b = Stub("b", [Turn([1.0]), SeatError("b: broke")])
    turns, _, _, failed = play([a, b], Plan(rounds=2))
    assert [set(t) for t in turns] == [{"a"}, {"a"}]
    assert failed == {"b": "b: broke"}


def test_ratios_come_from_the_same_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(rounds, "difference", lambda a, b: 0.0)
    turns = [
        {"aspen-mp": Turn([1.0]), "x": Turn([2.0])},
        {"aspen-mp": Turn([3.0]), "x": Turn([6.0])},
        {"aspen-mp": Turn([8.0]), "x": Turn([8.0])},
    ]
    results = [rounds.EngineResult(e, "", "", 0, 0, 0, 1e3 * min(t[e].seconds[0] for t in turns), 3) for e in ("aspen-mp", "x")]
    rounds.compare(results, turns, tmp_path)
    assert results[1].ratio_median == 0.5
    assert results[1].ratio_min == 0.5


def test_real_process_and_its_end() -> None:
    core = min(os.sched_getaffinity(0))
    result = rounds.measure(Case("tcn", seq=64), ["onnxruntime"], [core], Plan(rounds=2, spare=1, seconds=0.01))
    (engine,) = result.engines
    assert result.failed == {}
    assert engine.runs >= 6
    assert 0 < engine.min <= engine.median
    assert not [p for p in psutil.Process().children(recursive=True) if "peers.seat" in " ".join(p.cmdline())]


def test_load_failure_is_named() -> None:
    core = min(os.sched_getaffinity(0))
    result = rounds.measure(
        Case("tcn", seq=64, options={"levels": 1}), ["onnxruntime", "nonsense"], [core], Plan(rounds=1, spare=1, seconds=0.01)
    )
    assert [e.engine for e in result.engines] == ["onnxruntime"]
    assert "nonsense" in result.failed["nonsense"]


def test_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    status = command.main(["tcn", "--engines", "onnxruntime", "--threads", "1", "--rounds", "1", "--seconds", "0.01", "--json", "-"])
    report = json.loads(capsys.readouterr().out)
    assert status == 0
    assert report["cases"][0]["engines"][0]["engine"] == "onnxruntime"


def test_wrong_use() -> None:
    for argv in (["resnet51"], ["tcn", "--engines", "tvm"], ["tcn", "--cores", "x"], ["tcn", "--threads", "4096"]):
        with pytest.raises(SystemExit) as end:
            command.main(argv)
        assert end.value.code == 2
