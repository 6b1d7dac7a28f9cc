"""Every network on real runtimes: onnxruntime's results, and the same bits for any number of workers, with and without stealing.

The usual tier runs small versions of all networks, those of some of each family on every instruction set, and some at full size.
`ASPEN_MP_TIER=long` (`make zoo`) runs all at full size, on every instruction set, and writes a report to bench/results/local/zoo.json, or
where ASPEN_MP_ZOO_REPORT says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from aspen_mp.bench import models
from aspen_mp.bench.agreement import (
    LIMIT,
    Case,
    Outcome,
    Runtimes,
    Setting,
    digest_of,
    disagreements,
    error_of,
    reference,
    run_case,
    settings,
)
from aspen_mp.workers import _kernels

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
ISAS = _kernels.isas()
ALL = settings(ISAS, [1, 2, 4])
MANY_CORES = [Setting(ISAS[0], 1), Setting(ISAS[0], 2), Setting(ISAS[0], 4, stealing=False)]
MANY_ISAS = [Setting(ISAS[0], 2), *(Setting(isa, workers) for isa in ISAS[1:] for workers in (1, 4))]
RELATIVES = {
    *("vgg11", "vgg13", "vgg13_bn", "vgg16_bn", "vgg19", "vgg19_bn"),
    *("resnet34", "resnet101", "resnet152", "densenet161", "densenet169", "densenet201"),
}
"""Networks of the layers that another of their family has, more or fewer of them."""
FEW = [Setting(ISAS[0], 2), Setting(ISAS[0], 4, stealing=False)]


def small(network: str, batch: int) -> Case:
    return Case(network, batch, 37, models.miniature(network))


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[list[Outcome]]:
    """Collects what all tests of this file found; the long tier writes it down."""
    found: list[Outcome] = []
    yield found
    if LONG:
        default = request.config.rootpath / "bench" / "results" / "local" / "zoo.json"
        path = Path(os.environ.get("ASPEN_MP_ZOO_REPORT", default))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([asdict(o) for o in found], indent=1) + "\n", "utf-8")


@pytest.fixture(scope="module")
def runtimes() -> Iterator[Runtimes]:
    before = set(psutil.Process().children(recursive=True))
    with Runtimes() as own:
        yield own
    left = [p for p in psutil.Process().children(recursive=True) if p not in before]
    assert not left, f"processes left behind: {left}"


def check(case: Case, wanted: list[Setting], runtimes: Runtimes, outcomes: list[Outcome]) -> None:
    found = run_case(case, wanted, runtimes)
    outcomes += found
    assert not disagreements(found)


@pytest.mark.parametrize("network", models.names(extra=True))
def test_small_batch_of_one(network: str, runtimes: Runtimes, outcomes: list[Outcome]) -> None:
    check(small(network, 1), ALL if LONG else MANY_CORES, runtimes, outcomes)


@pytest.mark.parametrize("network", [name for name in models.names(extra=True) if LONG or name not in RELATIVES])
def test_small_batch_of_three(network: str, runtimes: Runtimes, outcomes: list[Outcome]) -> None:
    check(small(network, 3), ALL if LONG else MANY_ISAS, runtimes, outcomes)


FULL = [(n, b) for n in models.names(extra=True) for b in (1, 3)] if LONG else [("squeezenet1_1", 3), ("resnet50", 1), ("bert_base", 1)]


@pytest.mark.parametrize(("network", "batch"), FULL)
def test_full_size(network: str, batch: int, runtimes: Runtimes, outcomes: list[Outcome]) -> None:
    check(Case(network, batch), ALL if LONG else FEW, runtimes, outcomes)


@pytest.mark.parametrize("network", ["resnet18", "bert_base", "gpt2"])
def test_one_model_with_open_dimensions(network: str, runtimes: Runtimes) -> None:
    """Several shapes of a model that is loaded once; a shape seen before gives its bits again."""
    proto = models.build(network, symbolic=True, **models.miniature(network))
    data = proto.SerializeToString()
    digests: dict[tuple[int, int], str] = {}
    model = runtimes.get(MANY_CORES[1]).load(data)
    try:
        for batch, seq in ((1, 5), (3, 37), (2, 16), (1, 5), (3, 37)):
            feeds = models.inputs(proto, batch=batch, seq=seq)
            outputs = list(model.run(feeds, timeout=300).values())
            assert error_of(outputs, reference(data, feeds)) <= LIMIT
            assert digests.setdefault((batch, seq), digest_of(outputs)) == digest_of(outputs)
    finally:
        model.unload()


def test_many_requests_at_once(runtimes: Runtimes) -> None:
    """More requests than instances, of two networks: each gets its own result."""
    runtime = runtimes.get(MANY_CORES[1])
    built = {name: models.build(name, **models.miniature(name)) for name in ("resnet18", "squeezenet1_1")}
    loaded = {name: runtime.load(proto) for name, proto in built.items()}
    try:
        feeds = {(name, seed): models.inputs(proto, seed=seed) for name, proto in built.items() for seed in range(8)}
        futures = {key: loaded[key[0]].submit(value) for key, value in feeds.items()}
        for (name, seed), future in futures.items():
            expected = reference(built[name].SerializeToString(), feeds[name, seed])
            assert error_of(list(future.result(timeout=300).values()), expected) <= LIMIT
    finally:
        for model in loaded.values():
            model.unload()
