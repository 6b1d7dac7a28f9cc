"""The comparison with other runtimes: engines take turns in processes of their own, disturbed rounds do not count, failures are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime
import pytest
from process_tools import descendants

from aspen_mp.bench import models
from aspen_mp.bench.peers import cases, engines, rounds
from aspen_mp.bench.peers.cases import Case
from aspen_mp.bench.peers.report import PeersResult
from aspen_mp.bench.peers.rounds import Schedule
from aspen_mp.bench.peers.seat import Seat, SeatError, Turn
from aspen_mp.bench.records import record
from aspen_mp.cli.app import app
from aspen_mp.control.planning import local_rates
from aspen_mp.tools import float64


def cli(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aspen_mp.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=120)


def alike(*engines: str) -> list[rounds.Contender]:
    """The engines in float32."""
    return rounds.alike(Case("tcn"), engines)


class Stub:
    """A seat that answers from a list."""

    def __init__(self, engine: str, turns: list[Turn | SeatError], cores: int = 1) -> None:
        self.engine = self.label = engine
        self.cores = list(range(cores))
        self.turns: Iterator[Turn | SeatError] = iter(turns)
        self.asked = 0

    def turn(self, seconds: float, runs: int, beside: Callable[[], float] = float) -> Turn:
        self.asked += 1
        answer = next(self.turns)
        if isinstance(answer, SeatError):
            raise answer
        return answer


def play(stubs: list[Stub], schedule: Schedule) -> tuple[list[dict[str, Turn]], int, int, dict[str, str]]:
    failed: dict[str, str] = {}
    seats = cast("list[Seat]", stubs)
    turns, rejected, disturbed = rounds.take_turns(Case("tcn"), seats, failed, schedule, lambda _: None)
    return turns, rejected, disturbed, failed


def test_disturbed_rounds_do_not_count() -> None:
    a = Stub("a", [Turn([1.0], 0.0), Turn([9.0], 0.5), Turn([2.0], 0.0)])
    b = Stub("b", [Turn([1.0], 0.0), Turn([1.0], 0.0), Turn([2.0], 0.05)])
    turns, rejected, disturbed, failed = play([a, b], Schedule(rounds=2, spare=4))
    assert [t["a"].seconds for t in turns] == [[1.0], [2.0]]
    assert (rejected, disturbed, failed) == (1, 0, {})


def test_many_cores_may_lose_a_share_of_them() -> None:
    a = Stub("a", [Turn([1.0], 0.3), Turn([2.0], 0.5), Turn([3.0], 0.0)], cores=16)
    turns, rejected, disturbed, _ = play([a], Schedule(rounds=2, spare=3))
    assert [t["a"].seconds for t in turns] == [[1.0], [3.0]]
    assert (rejected, disturbed) == (1, 0)


def test_the_quietest_rounds_of_a_busy_machine_are_used_and_counted() -> None:
    a = Stub("a", [Turn([1.0], 0.9), Turn([2.0], 0.3), Turn([3.0], 0.7)])
    turns, rejected, disturbed, _ = play([a], Schedule(rounds=2, spare=3))
    assert [t["a"].seconds for t in turns] == [[2.0], [3.0]]
    assert (rejected, disturbed) == (1, 2)


def test_an_engine_that_fails_leaves_the_others() -> None:
    a = Stub("a", [Turn([1.0])] * 4)
    b = Stub("b", [Turn([1.0]), SeatError("b: broke")])
    turns, _, _, failed = play([a, b], Schedule(rounds=2))
    assert [set(t) for t in turns] == [{"a"}, {"a"}]
    assert failed == {"b": "b: broke"}


def test_ratios_come_from_the_same_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(rounds, "difference", lambda a, b: 0.0)
    turns = [
        {"aspen-mp": Turn([1.0]), "x": Turn([2.0])},
        {"aspen-mp": Turn([3.0]), "x": Turn([6.0])},
        {"aspen-mp": Turn([8.0]), "x": Turn([8.0])},
    ]
    results = [rounds.EngineResult(e, "", "", 0, 0, 0, 1e3 * min(t[e].seconds[0] for t in turns), 3, [], []) for e in ("aspen-mp", "x")]
    rounds.compare(results, turns, tmp_path)
    assert results[1].ratio_median == 0.5
    assert results[1].ratio_min == 0.5


def test_real_process_and_its_end() -> None:
    core = min(os.sched_getaffinity(0))
    result = rounds.measure(Case("tcn", seq=64), alike("onnxruntime"), [core], Schedule(rounds=2, spare=1, seconds=0.01))
    (engine,) = result.engines
    assert result.failed == {}
    assert engine.runs >= 2
    assert 0 < engine.min <= engine.median
    assert not descendants(os.getpid(), lambda process: "peers.seat" in " ".join(process.cmdline()))


def test_load_failure_is_named() -> None:
    core = min(os.sched_getaffinity(0))
    result = rounds.measure(
        Case("tcn", seq=64, options={"levels": 1}), alike("onnxruntime", "nonsense"), [core], Schedule(rounds=1, spare=1, seconds=0.01)
    )
    assert [e.engine for e in result.engines] == ["onnxruntime"]
    assert "nonsense" in result.failed["nonsense"]


def test_command_prints_and_writes_json(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    arguments = ["tcn@seq=64", "--engines", "onnxruntime,aspen-mp", "--threads", "1", "--rounds", "1", "--seconds", "0.01"]
    done = cli("bench", "peers", *arguments, "--json", "-o", file, "--keep-disturbed")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads(file.read_text())
    (case,) = report["result"]["cases"]
    assert case["case"] == "tcn@seq=64"
    assert [e["engine"] for e in case["engines"]] == ["onnxruntime", "aspen-mp"]
    assert [len(e["rounds_ms"]) for e in case["engines"]] == [1, 1]
    assert case["engines"][0]["difference"] < 1e-4
    assert "one plan" in case["engines"][1]["settings"]
    counters = case["engines"][1]["counters"]
    assert counters["tiles"] >= 1
    assert 0 < counters["overhead"] < 1
    assert counters["kernels"] + counters["scheduling"] + counters["idle"] == pytest.approx(1)


def test_a_table_is_drawn() -> None:
    done = cli("bench", "peers", "tcn@seq=64", "--engines", "onnxruntime", "--rounds", "1", "--seconds", "0.01", "-t", "1")
    assert "tcn@seq=64" in done.stdout
    assert "all optimisations" in done.stdout


def test_an_absent_peer_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(engines.ENGINES, "tvm", engines.Engine("tvm", "no_such_module", "tvm", engines.load_onnxruntime))
    with pytest.raises(SystemExit) as end:
        app(["bench", "peers", "tcn@seq=64", "--engines", "tvm", "--rounds", "1", "--json"])
    assert end.value.code == 0
    report = json.loads(capsys.readouterr().out)["result"]
    assert report["absent"] == ["tvm"]
    assert report["cases"][0]["engines"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet51"], "no 'resnet51'"),
        (["resnet50@depth=3"], "'depth=3' is unknown. Give some of batch=…"),
        (["resnet50@batch=0"], "batch must be a number"),
        (["resnet50@precision=f8"], "precision must be one of f32, bf16"),
        (["tcn", "--engines", "tvm"], "no engine 'tvm'"),
        (["tcn", "--cores", "x"], "not a list of CPUs"),
        (["tcn", "--threads", "4096"], "so that each thread has a core"),
        (["tcn", "--threads", "two"], "not a list of numbers"),
    ],
)
def test_wrong_use(arguments: list[str], message: str) -> None:
    done = cli("bench", "peers", *arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())


def test_precision_is_that_of_all_who_have_one() -> None:
    core = min(os.sched_getaffinity(0))
    case = cases.parse("tcn@seq=64,precision=bf16")
    assert (case.label, case.precision) == ("tcn@seq=64,precision=bf16", "bf16")
    result = rounds.measure(case, rounds.alike(case, ["aspen-mp", "onnxruntime"]), [core], Schedule(rounds=1, spare=1, seconds=0.01))
    ours, theirs = result.engines
    assert "bf16" in ours.settings
    assert theirs.error is not None
    assert theirs.error < 1e-4
    assert ours.error is not None
    assert (ours.error > 1e-4) == local_rates.fast_pairs()


def test_engines_are_judged_by_the_network_in_floats(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    arguments = ["squeezenet1_1@image=64,dtype=int8", "tcn@seq=64", "--engines", "onnxruntime,aspen-mp,openvino", "-t", "1"]
    done = cli("bench", "peers", *arguments, "--rounds", "1", "--seconds", "0.01", "--inputs", "3", "-o", file, "--keep-disturbed")
    assert done.returncode == 0, done.stderr
    for word in ("float64", "top-1", "as ORT"):
        assert word in done.stdout
    quantised, floats = record.load(file, PeersResult).result.cases
    assert quantised.inputs == floats.inputs == 3
    by = {engine.engine: engine.accuracy for engine in quantised.engines}
    model = models.build("squeezenet1_1", image=64, dtype="int8")
    plain = models.build("squeezenet1_1", image=64)
    exact = float64.evaluator(plain, [output.name for output in plain.graph.output])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    worst, same = 0.0, []
    for seed in range(1000, 1003):
        feeds = models.inputs(plain, seed=seed)
        (got,), (want,) = session.run(None, feeds), exact(feeds)
        worst = max(worst, abs(got - want).max() / abs(want).max())
        same += list(got.argmax(1) == want.argmax(1))
    theirs, ours = by["onnxruntime"], by["aspen-mp"]
    assert theirs is not None
    assert ours is not None
    assert theirs.error == pytest.approx(worst, rel=0.3)  # one thread may round other sums
    assert theirs.top1 == pytest.approx(np.mean(same))
    assert theirs.same is None
    assert ours.same is not None
    assert ours.error == pytest.approx(theirs.error, rel=0.5)
    for engine in floats.engines:
        assert engine.accuracy is not None
        assert engine.accuracy.error is not None
        assert engine.accuracy.error < 1e-5


def test_features_of_texts_are_no_classes(tmp_path: Path) -> None:
    small = ",".join(f"{key}={value}" for key, value in models.miniature("bert_base").items())
    file = tmp_path / "report.json"
    arguments = [f"bert_base@seq=16,{small}", "--engines", "onnxruntime", "-t", "1", "--rounds", "1", "--seconds", "0.01"]
    done = cli("bench", "peers", *arguments, "--inputs", "1", "-o", file, "--keep-disturbed")
    assert done.returncode == 0, done.stderr
    (engine,) = record.load(file, PeersResult).result.cases[0].engines
    assert engine.accuracy is not None
    assert engine.accuracy.error is not None
    assert engine.accuracy.top1 is None


def test_engines_as_they_come(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    arguments = ["tcn@seq=64", "--engines", "onnxruntime,aspen-mp,openvino", "-t", "1", "--rounds", "1", "--seconds", "0.01"]
    done = cli("bench", "defaults", *arguments, "--inputs", "1", "-o", file, "--keep-disturbed")
    assert done.returncode == 0, done.stderr
    (case,) = record.load(file, PeersResult).result.cases
    assert case.failed == {}
    by = {engine.engine: engine for engine in case.engines}
    installed = ["openvino"] if find_spec("openvino") else []
    assert list(by) == ["onnxruntime", "aspen-mp", rounds.OURS_BF16, *installed]
    assert by["aspen-mp"].settings.endswith("defaults")
    assert "bf16" in by[rounds.OURS_BF16].settings
    assert by["onnxruntime"].settings == "defaults"
    assert all(by[label].settings.startswith("defaults, which give ") for label in installed)
    errors = {label: engine.accuracy.error for label, engine in by.items() if engine.accuracy and engine.accuracy.error is not None}
    assert errors["aspen-mp"] < 1e-5
    assert (errors[rounds.OURS_BF16] > 1e-4) == local_rates.fast_pairs()
    assert cli("bench", "defaults", "tcn@precision=bf16").returncode == 2


@pytest.mark.parametrize(
    ("text", "label", "batch", "options"),
    [
        ("resnet50", "resnet50", 1, {}),
        ("resnet50@batch=8,image=160x192", "resnet50@batch=8,image=160x192", 8, {"image": (160, 192)}),
        ("bert_base@norm=decomposed,pooler=false", "bert_base@seq=128,norm=decomposed,pooler=false", 1, {"pooler": False}),
    ],
)
def test_spelling_of_cases(text: str, label: str, batch: int, options: dict[str, Any]) -> None:
    case = cases.parse(text)
    assert (case.label, case.batch) == (label, batch)
    assert options.items() <= case.options.items()
    assert cases.parse(case.label) == case
    models.describe(case.network, batch=case.batch, seq=case.seq, **case.options)
