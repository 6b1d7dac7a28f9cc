"""`objective=` of load() reaches the planner, says how many requests run at a time, is part of a model's identity, and keeps the bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import small_models
from test_cache import entries, save, wait_for

import aspen_mp
from aspen_mp import config


@pytest.fixture(scope="module")
def chain() -> onnx.ModelProto:
    return small_models.conv_chain(layers=4, channels=48, size=21)


X = {"x": np.random.default_rng(0).standard_normal((1, 48, 21, 21), dtype=np.float32)}


def test_same_bits(chain: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("ASPEN_MP_CACHE", str(cache))
    path = save(chain, tmp_path / "chain.onnx")
    for cached in (False, True):
        with aspen_mp.Runtime(workers=2) as runtime:
            alone, many, few = (
                runtime.load(path, **how) for how in ({}, {"objective": "throughput"}, {"objective": "throughput", "instances": 3})
            )
            assert [model.instances for model in (alone, many, few)] == [2, 4, 3]
            assert len({model.run(X)["y"].tobytes() for model in (alone, many, few)}) == 1
            assert len({result["y"].tobytes() for result in many.map([X] * 9)}) == 1
            rows = runtime.status()["models"]
            assert [row["objective"] for row in rows] == ["latency", "throughput", "throughput"]
            assert [row["plans"][0]["instances"] for row in rows] == [2, 4, 3]
            assert [row["plans"][0]["cached"] for row in rows] == [cached] * 3
        wait_for(lambda: len(entries(cache, "plans")) == 3)
    assert len(entries(cache, "weights")) == 1, "weights do not depend on it"


def test_profile(chain: onnx.ModelProto) -> None:
    profile = config.Profile(models=config.Models(objective="throughput"))
    with aspen_mp.Runtime(workers=1, profile=profile) as runtime:
        assert [runtime.load(chain, **how).instances for how in ({}, {"objective": "latency"}, {"instances": 1})] == [3, 2, 1]


def test_one_model_for_equal_objectives(chain: onnx.ModelProto, tmp_path: Path) -> None:
    path = save(chain, tmp_path / "chain.onnx")
    with aspen_mp.Runtime(workers=1) as runtime:
        models = [runtime.load(path, objective=objective) for objective in ("throughput", "throughput", "latency")]
        assert len(runtime.status()["models"]) == 2
        assert len(models) == 3


def test_bad_values(chain: onnx.ModelProto) -> None:
    with aspen_mp.Runtime(workers=1) as runtime:
        with pytest.raises(ValueError, match="'latency' or 'throughput', not 'speed'"):
            runtime.load(chain, objective="speed")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="instances"):
            runtime.load(chain, objective="throughput", instances=0)
