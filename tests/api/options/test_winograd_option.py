"""`winograd=` of load() reaches the planner, and is part of a model's identity."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_models

import aspen_mp
from aspen_mp import config
from aspen_mp.bench.agreement import LIMIT, error_of, reference
from aspen_mp.planner.cost import algorithms
from aspen_mp.workers._isa import vectors


@pytest.fixture(scope="module")
def chain() -> onnx.ModelProto:
    return small_models.conv_chain(layers=4, channels=48, size=21)


def feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(0).standard_normal(shape, dtype=np.float32)}


@pytest.fixture(scope="module")
def wanted(chain: onnx.ModelProto) -> list[np.ndarray]:
    """onnxruntime's result; it keeps files open, so it begins before the tests that are audited."""
    return reference(chain.SerializeToString(), feeds(chain))


def test_on_and_off(chain: onnx.ModelProto, wanted: list[np.ndarray]) -> None:
    x = feeds(chain)
    with aspen_mp.Runtime(workers=2) as runtime:
        models = [runtime.load(chain), runtime.load(chain, winograd=False), runtime.load(chain, winograd=True)]
        fast, direct, again = [m.run(x)["y"] for m in models]
    assert error_of([fast], wanted) <= LIMIT
    assert error_of([direct], wanted) <= 4e-6
    assert fast.tobytes() == again.tobytes()
    assert fast.tobytes() != direct.tobytes(), "both ran the same algorithm"


def test_products_on_and_off() -> None:
    """Strassen's algorithm belongs to the option, and whole tokens that are not finite stay alone."""
    net = small_models.projection(rows=70, terms=768, columns=800)
    x = np.random.default_rng(0).standard_normal((70, 768), dtype=np.float32)
    x[33] = np.nan
    with aspen_mp.Runtime(workers=2) as runtime:
        fast, direct = (runtime.load(net, winograd=on).run({"x": x})["y"] for on in (True, False))
    kept = np.arange(70) != 33
    assert np.isnan(fast[33]).all()
    assert np.isfinite(fast[kept]).all()
    assert error_of([fast[kept]], [direct[kept]]) <= 4e-6
    assert fast[32].tobytes() == direct[32].tobytes()
    differs = fast[kept].tobytes() != direct[kept].tobytes()
    assert differs == (vectors() in algorithms.STRASSEN), "Strassen's algorithm belongs to vectors of 256 bits and more"


def test_profile_decides_where_load_does_not(chain: onnx.ModelProto) -> None:
    x = feeds(chain)
    with aspen_mp.Runtime(workers=1, profile=config.Profile(models=config.Models(winograd=False))) as runtime:
        default, direct, fast = (runtime.load(chain, **kw).run(x)["y"] for kw in ({}, {"winograd": False}, {"winograd": True}))
    assert default.tobytes() == direct.tobytes() != fast.tobytes()


def test_same_bits_for_any_workers(chain: onnx.ModelProto) -> None:
    x = feeds(chain)
    found = set()
    for workers in (1, 2, 3):
        with aspen_mp.Runtime(workers=workers) as runtime:
            found.add(runtime.load(chain).run(x)["y"].tobytes())
    assert len(found) == 1


def test_command_line(chain: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(chain, tmp_path / "chain.onnx")

    def kernels(*options: str) -> set[str]:
        command = [sys.executable, "-m", "aspen_mp.cli", "plan", str(tmp_path / "chain.onnx"), "--json", *options]
        out = subprocess.run(command, check=True, capture_output=True, text=True, cwd="/")
        return {row["kernel"] for row in json.loads(out.stdout)["layers"]}

    assert any(k.startswith("WINO") for k in kernels())
    assert not any(k.startswith("WINO") for k in kernels("--no-winograd"))
