"""Traces: every tile of every request once and in order, whatever workers come, go and die meanwhile; files that viewers can read."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_models

import aspen_mp
from aspen_mp.errors import RequestError, ResourceLimitError, RuntimeLost
from aspen_mp.tracing.recording import CAMES, Recording

WATCHDOG_S = 60.0
CHAIN = {"x": np.random.default_rng(0).standard_normal((1, 32, 48, 48)).astype(np.float32)}
MLP = {"x": np.ones((4, 16), np.float32)}


def check(recording: Recording, *, again: bool = False) -> Counter[str]:
    """Every complete request has each of its tiles once (`again`: or more often, after a recovery), no tile begins before its parents have
    ended, no worker does two things at a time. Returns how many complete requests of each model there are."""
    tiles, found = recording.tiles, Counter()
    assert not recording.lost
    assert (tiles["begin"] <= tiles["end"]).all()
    for k in range(len(recording.workers)):
        mine = tiles[tiles["worker"] == k]
        assert (mine["begin"][1:] >= mine["end"][:-1]).all(), recording.workers[k].label
        for gap in recording.idle[recording.idle["worker"] == k]:
            assert not ((mine["begin"] < gap["end"]) & (mine["end"] > gap["begin"]) & (mine["end"] > mine["begin"])).any()
    for number, request in enumerate(recording.requests):
        if request.started is None or request.ended is None:
            continue
        plan = recording.plans[request.plan]
        mine = tiles[(tiles["request"] == number) & ~tiles["cut"]]
        assert set(mine["plan"]) == {request.plan}
        count = np.bincount(mine["tile"], minlength=len(plan))
        assert count.min() == 1, request
        assert again or count.max() == 1, request
        assert mine["begin"].min() >= request.started >= request.submitted
        assert request.ended >= mine["end"].max() or again
        found[plan.model] += 1
        if count.max() > 1:
            continue  # what was executed again read what its parents had left the first time
        begin, end = np.zeros(len(plan), np.int64), np.zeros(len(plan), np.int64)
        begin[mine["tile"]], end[mine["tile"]] = mine["begin"], mine["end"]
        rows = plan.tiles
        for tile in range(len(plan)):
            children = plan.children[rows["children"][tile] : rows["children"][tile] + rows["n_children"][tile]]
            assert (begin[children] >= end[tile]).all(), (request, tile)
    return found


def chrome(path: Path) -> list[dict[str, Any]]:
    """The events of a trace file, each checked against the rules of the trace event format."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    stacks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    flows: dict[int, list[str]] = defaultdict(list)
    slices: dict[tuple[int, int], set[float]] = defaultdict(set)
    open_: Counter[tuple[Any, ...]] = Counter()
    for event in document["traceEvents"]:
        assert {"ph", "name", "pid", "tid", "ts"} <= set(event)
        assert event["ts"] >= 0
        match event["ph"]:
            case "X":
                assert event["dur"] >= 0
                stacks[event["pid"], event["tid"]].append(event)
                slices[event["pid"], event["tid"]].add(event["ts"])
            case "b" | "e":
                assert event["cat"] == "request"
                open_[event["id"], event["name"]] += 1 if event["ph"] == "b" else -1
            case "s" | "t" | "f":
                flows[event["id"]].append(event["ph"])
                assert event["ts"] in slices[event["pid"], event["tid"]]
            case "i":
                assert event["s"] in "tpg"
            case "M":
                assert event["name"] in ("process_name", "thread_name", "process_sort_index", "thread_sort_index")
            case other:
                pytest.fail(f"unknown phase {other}")
    assert not any(open_.values())
    for phases in flows.values():
        assert (phases[0], phases[-1]) == ("s", "f")
        assert set(phases[1:-1]) <= {"t"}
    for row in stacks.values():  # slices of a thread lie beside or inside each other
        ends: list[float] = []
        for event in sorted(row, key=lambda e: (e["ts"], -e["dur"])):
            while ends and ends[-1] <= event["ts"] + 0.0015:
                ends.pop()
            end = event["ts"] + event["dur"]
            assert not ends or end <= ends[-1] + 0.0015
            ends.append(end)
    return document["traceEvents"]


@pytest.fixture
def runtime():
    with aspen_mp.Runtime(workers=2) as runtime:
        yield runtime


def test_every_tile_of_every_request(runtime, tmp_path):
    """Two models, one after the other and at once; then the same events in the file."""
    big, small = runtime.load(small_models.conv_chain(6, 32, 48), name="big"), runtime.load(small_models.mlp(), name="small")
    big.run(CHAIN)
    with runtime.trace(tmp_path / "trace.json") as trace:
        for _ in range(3):
            big.run(CHAIN)
            small.run(MLP)
        futures = [model.submit(x) for _ in range(4) for model, x in ((big, CHAIN), (small, MLP))]
        for future in futures:
            future.result(WATCHDOG_S)
    recording = trace.recording
    assert check(recording) == {"big": 7, "small": 7}
    assert trace.lost == 0
    events = chrome(tmp_path / "trace.json")
    slices = [e for e in events if e["ph"] == "X" and e["cat"].startswith("tile")]
    assert len(slices) == len(recording.tiles)
    conv = next(e for e in slices if e["args"]["op"].startswith("Conv"))
    assert conv["args"]["model"] == "big"
    assert conv["args"]["tile"] < conv["args"]["tiles"]
    assert conv["args"]["box"].count(":") == 4
    assert {e["name"] for e in events if e["ph"] == "b"} >= {"big #0", "small #1"}
    assert {e["args"]["name"].split(":")[0] for e in events if e["name"] == "thread_name"} == {"worker 0", "worker 1"}
    summary = trace.summary()
    assert sum(row["tiles"] for row in summary["workers"]) == len(recording.tiles)
    for row in summary["workers"]:
        assert row["tiles"] == sum(row[how] for how in CAMES.values())
        assert sum(row[key] for key in ("busy", "scheduling", "idle", "stopped", "away")) == pytest.approx(1.0, abs=1e-6)
    assert summary["requests"]["complete"] == 14
    assert "Conv" in trace.text()


def test_counters_agree(runtime):
    """What a trace counts is what the workers count."""
    model = runtime.load(small_models.conv_chain(6, 32, 48))
    model.run(CHAIN)
    before = {w["id"]: w for w in runtime.workers}
    with runtime.trace() as trace:
        for _ in range(3):
            model.run(CHAIN)
    after = {w["id"]: w for w in runtime.workers}
    for row in trace.summary()["workers"]:
        passed = {key: after[row["worker"]][key] - before[row["worker"]][key] for key in ("tiles", "steals", "follows")}
        assert row["tiles"] == passed["tiles"]
        assert row["stolen"] == passed["steals"]


def test_a_plan_unloaded_meanwhile(runtime):
    """Names outlive their plans, also where another model's takes their place."""
    with runtime.trace() as trace:
        for name in ("first", "second", "third"):
            model = runtime.load(small_models.conv_chain(3, 32, 48), name=name)
            model.run(CHAIN)
            model.unload()
    assert check(trace.recording) == {"first": 1, "second": 1, "third": 1}
    assert {op["op"] for op in trace.summary()["ops"]} >= {"Conv"}


def test_stages_and_opaque_tiles(runtime, tmp_path):
    nonzero, strings = runtime.load(small_models.nonzero(), name="nonzero"), runtime.load(small_models.strings(), name="strings")
    with runtime.trace(tmp_path / "trace.json.gz") as trace:
        x = np.array([0, 1, 0, 2], np.float32)
        assert len(nonzero.run({"x": x})["y"]) == 2
        strings.run({"a": np.array(["a"], object), "b": np.array(["b"], object)})
    found = check(trace.recording)
    assert found["nonzero"] >= 2  # a request a stage
    assert found["strings"] >= 1
    events = chrome(tmp_path / "trace.json.gz")
    opaque = [e for e in events if e["ph"] == "X" and e.get("args", {}).get("kernel") == "OPAQUE"]
    assert opaque
    assert all(e["dur"] > 0 for e in opaque)


def test_a_failed_request(runtime):
    model = runtime.load(small_models.gather())
    with runtime.trace() as trace, pytest.raises(RequestError):
        model.run({"i": np.array([0, 1, 9])})
    (request,) = trace.recording.requests
    assert request.error
    assert trace.recording.tiles["skipped"].any()
    assert trace.summary()["requests"]["failed"] == 1


def test_a_full_ring_overwrites_the_oldest(runtime, tmp_path):
    model = runtime.load(small_models.conv_chain(12, 32, 48))
    model.run(CHAIN)
    per_request = sum(w["tiles"] for w in runtime.workers)
    runs = 4 + 2 * 2 * 1024 // per_request
    with runtime.trace(tmp_path / "trace.json", records=1024) as trace:
        for _ in range(runs):
            model.run(CHAIN)
    recording = trace.recording
    assert trace.lost > 0
    for row in range(2):  # the workers of both rows are still the first ones
        kept = (recording.tiles, recording.idle[~recording.idle["open"]], recording.parked, recording.stopped, recording.away)
        records = sum(int((rows["worker"] == row).sum()) for rows in kept)
        records += sum((r.starter == row) + (r.ender == row) for r in recording.requests)
        if row in recording.lost:
            assert 1000 <= records <= 1023  # and what was recorded after the end
    # The newest request is whole.
    last = max(range(len(recording.requests)), key=lambda k: recording.requests[k].ended or 0)
    plan = recording.plans[recording.requests[last].plan]
    assert sorted(recording.tiles["tile"][recording.tiles["request"] == last]) == list(range(len(plan)))
    chrome(tmp_path / "trace.json")
    assert "records lost" in trace.text()


def test_one_trace_at_a_time(runtime):
    with runtime.trace() as trace:
        with pytest.raises(RequestError, match="being traced already"), runtime.trace():
            pass
        with pytest.raises(RequestError, match="started already"):
            trace.start()
        assert runtime.status()["scheduler"]["trace"]
    with runtime.trace() as another:
        pass
    assert not runtime.status()["scheduler"]["trace"]
    assert len(another.recording.tiles) == 0
    assert "trace" not in runtime.status()["memory"]
    with pytest.raises(ResourceLimitError):
        runtime.trace(records=1 << 30).start()
    with pytest.raises(FileNotFoundError):
        runtime.trace("/no/such/folder/trace.json").start()


def test_a_tracer_that_goes_away_leaves_nothing(runtime):
    """Its trace ends with it, and the next client can have one."""
    code = """
import os, pickle, sys, aspen_mp
runtime = pickle.load(sys.stdin.buffer)
runtime.trace().start()
os._exit(0)
"""
    import pickle
    import subprocess

    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(runtime), check=True, timeout=WATCHDOG_S)
    deadline = time.monotonic() + WATCHDOG_S
    while runtime.status()["scheduler"]["trace"]:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    with runtime.trace():
        pass


def test_workers_that_join_and_leave(tmp_path):
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(small_models.conv_chain(24, 32, 48))
        model.run(CHAIN)
        with runtime.trace(tmp_path / "trace.json") as trace:
            futures = [model.submit(CHAIN) for _ in range(4)]
            runtime.add_workers(1)
            futures += [model.submit(CHAIN) for _ in range(4)]
            wait_for_workers(runtime, 2)
            for future in futures:
                future.result(WATCHDOG_S)
            runtime.remove_workers(1)
            model.run(CHAIN)
            wait_for_workers(runtime, 1)
        recording = trace.recording
    assert check(recording)["chain"] == 9
    first, second = recording.workers
    assert (first.joined, first.left) == (None, None)
    assert second.joined is not None
    assert second.left is not None
    assert second.end == "left"
    assert second.joined < second.left
    events = chrome(tmp_path / "trace.json")
    instants = Counter(e["name"] for e in events if e["ph"] == "i" and e["tid"] == 2)
    assert instants == {"joined": 1, "left": 1}


def wait_for_workers(runtime: aspen_mp.Runtime, n: int, without: int = 0) -> None:
    """Until `n` workers run, none of them the process `without`."""
    deadline = time.monotonic() + WATCHDOG_S
    while True:
        workers = runtime.workers
        if [w["state"] for w in workers] == ["running"] * n and without not in {w["pid"] for w in workers}:
            return
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_workers_that_are_killed(tmp_path):
    """A worker dies, again and again: what it recorded is there, and its heir has a row of its own."""
    with aspen_mp.Runtime(workers=2) as runtime:
        model = runtime.load(small_models.conv_chain(24, 32, 48))
        expected = model.run(CHAIN)["y"].tobytes()
        killed = []
        with runtime.trace(tmp_path / "trace.json") as trace:
            for _ in range(5):
                futures = [model.submit(CHAIN) for _ in range(4)]
                futures[0].result(WATCHDOG_S)
                killed.append(runtime.workers[0]["pid"])
                os.kill(killed[-1], signal.SIGKILL)
                assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 4
                wait_for_workers(runtime, 2, without=killed[-1])
        recording = trace.recording
    assert check(recording, again=True)["chain"] == 20
    assert {w.pid for w in recording.workers if w.end == "died"} == set(killed)
    assert sum(w.end == "" for w in recording.workers) == 2
    assert {what for _, _, what, _ in recording.instants} >= {"died", "joined", "recovered"}
    assert len(recording.stopped) > 0
    events = chrome(tmp_path / "trace.json")
    assert sum(e["ph"] == "i" and e["name"] == "died" for e in events) == 5


def test_a_tile_in_which_its_worker_dies(runtime):
    """It is there, cut at the moment of the death; and executed again by another worker."""
    model = runtime.load(small_models.loop())
    with runtime.trace() as trace:
        future = model.submit({"n": np.array(20_000), "limit": np.array(1e9, np.float32)})
        deadline = time.monotonic() + WATCHDOG_S
        while not (busy := [w for w in runtime.workers if w["current"]]):
            assert time.monotonic() < deadline
        os.kill(busy[0]["pid"], signal.SIGKILL)
        assert future.result(WATCHDOG_S)["y"] == 20_000
    recording = trace.recording
    cut = recording.tiles[recording.tiles["cut"]]
    assert len(cut) == 1
    dead = recording.workers[int(cut["worker"][0])]
    assert dead.pid == busy[0]["pid"]
    assert cut["end"][0] == dead.left
    whole = recording.tiles[(recording.tiles["tile"] == cut["tile"][0]) & ~recording.tiles["cut"]]
    assert len(whole) == 1
    assert recording.workers[int(whole["worker"][0])].pid != dead.pid


def test_a_runtime_traced_all_its_life(tmp_path):
    with aspen_mp.Runtime(workers=1, trace=tmp_path / "life.json.gz") as runtime:
        runtime.load(small_models.mlp()).run(MLP)
    events = chrome(tmp_path / "life.json.gz")
    assert any(e["ph"] == "b" for e in events)
    with pytest.raises(FileNotFoundError):
        aspen_mp.Runtime(workers=1, trace="/no/such/folder/trace.json")


def test_the_runtime_goes_away():
    runtime = aspen_mp.Runtime(workers=1)
    trace = runtime.trace()
    trace.start()
    os.kill(runtime.pid, signal.SIGKILL)
    with pytest.raises(RuntimeLost):
        trace.stop()
    with pytest.raises(RequestError, match="not ended"):
        _ = trace.recording
    runtime.close()
