"""Calibration: this machine's rates, measured, kept and checked, for predictions alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from test_cache import entries, wait_for

import aspen_mp
from aspen_mp.bench import models
from aspen_mp.control.planning import local_rates
from aspen_mp.planner import api
from aspen_mp.planner.cost import op_cost, rates
from aspen_mp.planner.plan.plan import OpInfo
from aspen_mp.tools import calibrate, core_limits
from aspen_mp.tools.measure import OpTime
from aspen_mp.workers import _isa, topology

STRANGE = rates.Rates(matrix=3.0, cold=500.0, warm=0.7, tile_ns=90.0, factors={"POOL": 30.0, "NORM": 0.001})


def keep(folder: Path, chosen: rates.Rates) -> str:
    return rates.save(
        str(folder), rates.Calibration(rates.FORMAT, "p", "i", aspen_mp.__version__, {"peak": 1.0, "schedule_ns": 1.0}, chosen)
    )


def test_kept_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = aspen_mp.__version__
    assert rates.load("", version) is rates.load(str(tmp_path), version) is None
    assert local_rates.predicting(str(tmp_path)) == local_rates.planning()[0]
    keep(tmp_path, STRANGE)
    assert rates.load(str(tmp_path), version) == STRANGE
    assert local_rates.predicting(str(tmp_path)) == msgspec.structs.replace(STRANGE, cached=local_rates.cached(), own=local_rates.own())
    assert rates.load(str(tmp_path), "another") is None
    monkeypatch.setenv("ASPEN_MP_ISA", "portable")
    assert rates.load(str(tmp_path), version) is None


@pytest.mark.parametrize(
    "change",
    [{"matrix": 0.0}, {"cold": -1.0}, {"tile_ns": 1e300}, {"factors": {"POOL": 0.0}}, {"unknown": 1}, {"warm": "x"}, {"far": -0.1}],
)
def test_useless_files_are_as_if_not_there(change: dict[str, object], tmp_path: Path) -> None:
    path = Path(keep(tmp_path, STRANGE))
    document = json.loads(path.read_text())
    document["rates"].update(change)
    path.write_text(json.dumps(document))
    assert rates.load(str(tmp_path), aspen_mp.__version__) is None
    path.write_bytes(b"\xff")
    assert rates.load(str(tmp_path), aspen_mp.__version__) is None


def kernels_of(network: str) -> tuple[list[str], int]:
    model = models.build(network, **models.miniature(network), seq=16)
    bindings = {v.name: api.Binding(v.dtype, tuple(v.shape or ())) for v in api.inspect(model).inputs}  # type: ignore[arg-type]
    plan = api.plan_stage(model, [bindings], workers=2).plan
    assert plan is not None
    return [info.kernel for info in plan.info], plan.n_tiles


@pytest.mark.parametrize("network", ["resnet18", "vgg11", "bert_base", "mobilenet_v2"])
def test_rates_size_tiles_and_choose_no_kernel(network: str) -> None:
    kernels, tiles = kernels_of(network)
    try:
        op_cost.use(STRANGE)
        other, more = kernels_of(network)
    finally:
        op_cost.use(rates.BUILT_IN)
    assert other == kernels
    assert more != tiles
    assert kernels_of(network) == (kernels, tiles)


def test_plans_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime takes from its cache the plan that one without a calibration has made."""
    monkeypatch.setenv("ASPEN_MP_CACHE", str(tmp_path))
    model = models.build("bert_base", **models.miniature("bert_base"))
    feeds = models.inputs(model)
    results = []
    for calibrated in (False, True):
        if calibrated:
            keep(tmp_path, STRANGE)
        with aspen_mp.Runtime(workers=2) as runtime:
            loaded = runtime.load(model)
            results.append(loaded.run(feeds)["last_hidden_state"])
            assert runtime.status()["models"][0]["plans"][0]["cached"] == calibrated
        wait_for(lambda: entries(tmp_path, "plans"))
    np.testing.assert_array_equal(*results)


def timed(kernel: str, predicted_ns: float, taken_ns: float, nbytes: float = 0.0, *, opaque: bool = False) -> OpTime:
    info = OpInfo("n", "Op", kernel, 1, (1,), 1e6, nbytes, predicted_ns * 1e-6, opaque)
    return OpTime(info, taken_ns, taken_ns)


def test_what_another_core_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    """By made-up time: what the first reading after a move takes longer than the next. Then the process may use all its CPUs again."""
    allowed, clock, moves = os.sched_getaffinity(0), [0], list[set[int]]()

    def read(data: np.ndarray, turns: int, isa: str) -> float:
        if turns == 1:  # what is passed
            clock[0] += 1000 if moves[-1] else 400
            moves.append(set())
        return 1.0

    monkeypatch.setattr(core_limits.os, "sched_setaffinity", lambda pid, cpus: moves.append(set(cpus)))
    monkeypatch.setattr(core_limits.time, "perf_counter_ns", lambda: clock[0])
    monkeypatch.setattr(core_limits._kernels, "read_rate", read)
    assert core_limits.far("avx2", [3, 5], 4) == pytest.approx(600 / core_limits.PASSED)
    assert [cpus for cpus in moves if cpus] == [{3}, {5}] * 4 + [allowed]


def test_what_is_measured_beside_a_cpu() -> None:
    """Threads of one core share its caches."""
    assert calibrate.neighbour(0, (0, 1), {0, 1, 2, 3}) == 2
    assert calibrate.neighbour(2, (2, 6), {6, 2, 9}) == 9
    assert calibrate.neighbour(0, (0, 1), {0, 1}) is None


def test_a_disturbed_look_is_forgotten() -> None:
    one, other = (
        core_limits.CoreLimits("portable", 60.0, {1: 100.0, 2: 20.0}),
        core_limits.CoreLimits("portable", 100.0, {1: 90.0, 2: 25.0}),
    )
    assert calibrate.better(one, other) == calibrate.better(other, one) == core_limits.CoreLimits("portable", 100.0, {1: 100.0, 2: 25.0})


def test_fit() -> None:
    """Factors are those of all ops of a kernel together; what waits for memory, or is too short, says nothing."""
    limits = core_limits.CoreLimits("portable", 50.0, dict(zip(core_limits.SIZES, (200.0, 100.0, 80.0, 70.0, 30.0), strict=True)))
    known = calibrate.without_kernels(limits, 100.0, 55.0, 0.02, 1.5)
    assert known.far == calibrate.FAR * 0.02
    assert known.matrix == calibrate.MATRIX * 50.0
    assert known.warm == calibrate.MIXED_WARM * 80.0
    assert (known.cold, known.together) == (calibrate.MIXED_COLD * 30.0, calibrate.MIXED_COLD * 55.0)
    assert known.tile_ns == calibrate.EDGE_NS + 100.0
    assert known.transforms == 1.5
    assert known.factors == {}
    times = [
        timed("CONV", 1e5, 1.2e5),
        timed("CONV", 3e5, 3e5),
        timed("GEMM", 1e5, 3e5, nbytes=known.cold * 1e5),
        timed("POOL", 1e5, 2e5, nbytes=known.cold * 1e5),
        timed("WINO 4x4", 1e5, 0.9e5),
        timed("WINO 6x6", 1e5, 1.1e5),
        timed("NORM", 1e5, 1e9),
        timed("CAST", 10.0, 1e4),
        timed("OPAQUE", 1e5, 1e7, opaque=True),
    ]
    found = calibrate.fit(times, known)
    assert found.factors == pytest.approx({"CONV": 1.05, "NORM": calibrate.FACTORS[1], "POOL": 2.0, "WINO 4x4": 0.9, "WINO 6x6": 1.1})
    assert found.matrix == known.matrix


def test_factors_scale_predictions() -> None:
    """By kernel, and by blocks of WINO; tiles add up to their op."""
    model = models.build("resnet18", **models.miniature("resnet18"))
    bindings = {v.name: api.Binding(v.dtype, tuple(v.shape or ())) for v in api.inspect(model).inputs}  # type: ignore[arg-type]

    def predicted() -> dict[str, float]:
        plan = api.plan_stage(model, [bindings], workers=1).plan
        assert plan is not None
        found: dict[str, float] = {}
        for info in plan.info:
            found[info.kernel] = found.get(info.kernel, 0.0) + info.predicted_ms
        return found

    def use(factors: dict[str, float]) -> dict[str, float]:
        op_cost.use(rates.Rates(matrix=1.0, cold=1e4, factors=factors))
        return predicted()

    try:
        plain = use({})
        winograd = next(kernel for kernel in plain if kernel.startswith("WINO"))
        chosen = {winograd: 2.0, "CONV": 3.0, "POOL": 5.0}
        scaled = use(chosen)
    finally:
        op_cost.use(rates.BUILT_IN)
    assert {kernel: scaled[kernel] / plain[kernel] for kernel in plain} == pytest.approx(
        {kernel: chosen.get(kernel, 1.0) for kernel in plain}, rel=0.02
    )


@pytest.mark.parametrize(
    ("sizes", "cached"),
    [
        ({"L1d": 48 << 10, "L2": 1 << 20, "L3": 32 << 20}, 16 << 20),
        ({"L1d": 32 << 10, "L2": 512 << 10}, local_rates.LEAST_CACHED),
        ({"L3": 1 << 30}, local_rates.MOST_CACHED),
        ({}, rates.BUILT_IN.cached),
    ],
)
def test_what_stays_in_the_last_level_cache(sizes: dict[str, int], cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "cache_sizes", lambda cpu: {name: (size, 2) for name, size in sizes.items()})
    assert local_rates.planning()[0].cached == local_rates.cached() == cached


@pytest.mark.parametrize(("caches", "own"), [({"L2": (2 << 20, 1)}, 1 << 20), ({"L2": (4 << 20, 4)}, 512 << 10), ({}, rates.BUILT_IN.own)])
def test_what_stays_in_a_core_s_own_cache(caches: dict[str, tuple[int, int]], own: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a core's share: threads of one core, and small cores, have a second-level cache together."""
    monkeypatch.setattr(topology, "cache_sizes", lambda cpu: caches)
    assert local_rates.planning()[0].own == local_rates.own() == own


def test_built_in_rates_are_those_of_the_kind_of_core() -> None:
    assert rates.built_in("halved") == rates.built_in("") == (rates.BUILT_IN, "")
    whole, name = rates.built_in("whole")
    assert name
    assert whole.matrix > rates.BUILT_IN.matrix
    assert rates.built_in("whole", "AuthenticAMD") == (whole, name)
    intel, other = rates.built_in("whole", rates.INTEL)
    assert other not in ("", name)
    assert rates.BUILT_IN.matrix < intel.matrix < whole.matrix
    short, third = rates.built_in("short")
    assert short.matrix < rates.BUILT_IN.matrix
    assert rates.built_in("short", rates.INTEL) == (short, third)
    slow, named = rates.built_in("whole", sums_bytes=False)
    assert slow.factors["QGEMM"] > 2 * whole.factors["QGEMM"]
    assert len({name, other, third, named, rates.built_in("", sums_bytes=False)[1], ""}) == 6
    assert msgspec.structs.replace(slow, factors=whole.factors) == whole


def test_rates_are_those_of_this_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for vendor in (rates.INTEL, "AuthenticAMD", ""):
        monkeypatch.setattr(rates, "vendor", lambda vendor=vendor: vendor)
        monkeypatch.setattr(_isa, "vectors", lambda: "whole")
        found, name = local_rates.planning()
        wanted, named = rates.built_in("whole", vendor, local_rates.fast_bytes())
        assert (msgspec.structs.replace(found, cached=wanted.cached, own=wanted.own), name) == (wanted, named)


def test_doctor_measures_and_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASPEN_MP_CACHE", str(tmp_path))
    command = [sys.executable, "-m", "aspen_mp.cli", "doctor", "--json"]
    before = json.loads(subprocess.run(command, capture_output=True, check=True, cwd="/").stdout)
    assert before["calibration"] is None
    after = json.loads(subprocess.run([*command, "--calibrate"], capture_output=True, check=True, cwd="/", timeout=120).stdout)
    found = msgspec.convert({k: v for k, v in after["calibration"].items() if k != "file"}, rates.Calibration)
    assert found.rates == rates.load(str(tmp_path), aspen_mp.__version__)
    assert found.rates.matrix > 0
    assert found.rates.transforms == rates.built_in(_isa.vectors(), rates.vendor())[0].transforms
    assert found.measured["schedule_ns"] > 0
    monkeypatch.setenv("ASPEN_MP_CACHE", "off")
    done = subprocess.run([*command, "--calibrate"], capture_output=True, check=False, cwd="/")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["type"] == "ConfigError"
