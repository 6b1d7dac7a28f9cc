"""`planning=` of load() reaches the planner, is part of a model's identity and of the keys of the plan cache, and keeps the bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import small_models
from test_cache import entries, save, wait_for

import aspen_mp
from aspen_mp.planner.job.options import Experiment

CHOICES = [None, aspen_mp.Planning(search="none"), Experiment(tiles=3), Experiment(barriers=True), Experiment(tiles=9, barriers=True)]


@pytest.fixture(scope="module")
def chain() -> onnx.ModelProto:
    return small_models.conv_chain(layers=4, channels=48, size=21)


def test_same_bits(chain: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("ASPEN_MP_CACHE", str(cache))
    path = save(chain, tmp_path / "chain.onnx")
    x = {"x": np.random.default_rng(0).standard_normal((1, 48, 21, 21), dtype=np.float32)}
    for cached in (False, True):
        found = set()
        with aspen_mp.Runtime(workers=2) as runtime:
            for choice in CHOICES:
                model = runtime.load(path, planning=choice)
                found.add(model.run(x)["y"].tobytes())
            for status in runtime.status()["models"]:
                (plan,) = status["plans"]
                assert plan["cached"] is cached
        assert len(found) == 1
        wait_for(lambda: len(entries(cache, "plans")) == len(CHOICES))
    assert len({file.read_bytes() for file in entries(cache, "plans")}) == len(CHOICES)
    assert len(entries(cache, "weights")) == 1, "weights do not depend on it"


def test_a_load_waits_for_no_search(chain: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASPEN_MP_CACHE", str(tmp_path / "cache"))
    path = save(chain, tmp_path / "chain.onnx")
    x = {"x": np.random.default_rng(0).standard_normal((1, 48, 21, 21), dtype=np.float32)}

    def searched(runtime: aspen_mp.Runtime) -> list[bool]:
        return [plan["searched"] for plan in runtime.status()["models"][0]["plans"]]

    with aspen_mp.Runtime(workers=2) as runtime:
        model = runtime.load(path)
        assert searched(runtime) == [False]
        want = model.run(x)["y"].tobytes()
        model.prepare({"x": (1, 48, 21, 21)})
        assert searched(runtime) == [True]
        assert model.run(x)["y"].tobytes() == want
        model.prepare({"x": (1, 48, 21, 21)})
    with aspen_mp.Runtime(workers=2) as runtime:
        model = runtime.load(path)
        assert searched(runtime) == [True], "the plan cache has the searched plan"


def test_shapes_that_are_given_ahead_are_searched_at_once(chain: onnx.ModelProto) -> None:
    with aspen_mp.Runtime(workers=2) as runtime:
        model = runtime.load(chain, input_shapes={"x": (1, 48, 21, 21)})
        assert model.instances
        assert [plan["searched"] for plan in runtime.status()["models"][0]["plans"]] == [True]


def test_bad_values(chain: onnx.ModelProto) -> None:
    with aspen_mp.Runtime(workers=1) as runtime, pytest.raises(ValueError, match="search"):
        runtime.load(chain, planning=aspen_mp.Planning(search="all"))  # type: ignore[arg-type]
