"""`accuracy=` of load() reaches the planner, is part of a model's identity, and holds what it promises of small networks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import small_models

import aspen_mp
from aspen_mp import config
from aspen_mp.bench import errors
from aspen_mp.planner.job.options import ACCURACIES
from aspen_mp.tools import float64

FACTORS = {"strict": 1.5, "default": 4.0}


@pytest.fixture(scope="module")
def chain() -> onnx.ModelProto:
    """Few channels and many pixels: the largest blocks are fastest, and their error the largest."""
    return small_models.conv_chain(layers=4, channels=64, size=72)


def feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(0).standard_normal(shape, dtype=np.float32)}


def command(*args: Any) -> str:
    run = subprocess.run([sys.executable, "-m", "aspen_mp.cli", *map(str, args)], check=True, capture_output=True, text=True, cwd="/")
    return run.stdout


def test_levels_hold_what_they_promise(chain: onnx.ModelProto) -> None:
    x = feeds(chain)
    (exact,) = float64.evaluate(chain, x, ["y"])
    with aspen_mp.Runtime(workers=2) as runtime:
        direct = runtime.load(chain, winograd=False).run(x)["y"]
        ours = {level: runtime.load(chain, accuracy=level).run(x)["y"] for level in ACCURACIES}
        unsaid = runtime.load(chain).run(x)["y"]
    assert unsaid.tobytes() == ours["default"].tobytes()
    assert len({y.tobytes() for y in ours.values()}) == 3, "levels are one model"
    limit = errors.error_from([direct], [exact])
    for level, factor in FACTORS.items():
        assert errors.error_from([ours[level]], [exact]) <= factor * limit
    assert errors.error_from([ours["fast"]], [exact]) > errors.error_from([ours["strict"]], [exact])


def test_profile_decides_where_load_does_not(chain: onnx.ModelProto) -> None:
    x = feeds(chain)
    with aspen_mp.Runtime(workers=1, profile=config.Profile(models=config.Models(accuracy="strict"))) as runtime:
        unsaid, strict, fast = (runtime.load(chain, **how).run(x)["y"] for how in ({}, {"accuracy": "strict"}, {"accuracy": "fast"}))
        with pytest.raises(ValueError, match="accuracy"):
            runtime.load(chain, accuracy="exact")  # type: ignore[arg-type]
    assert unsaid.tobytes() == strict.tobytes() != fast.tobytes()


def test_command_line(chain: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "chain.onnx"
    onnx.save(chain, path)

    def kernels(level: str) -> set[str]:
        return {row["kernel"] for row in json.loads(command("plan", path, "--json", "--accuracy", level))["layers"]}

    assert "WINO 6x6" in kernels("fast")
    assert "WINO 6x6" not in kernels("default")
    for order in ([path, "--check", "float64"], ["--check", "float64", path]):
        (row,) = json.loads(command("run", *order, "--random", "--workers", 1, "--json"))["check"]
        assert row["ok"]
        assert 0 < row["error"] <= 4 * row["direct"]
        assert 0 < row["onnxruntime"] < 1e-5
    assert "float64" in command("run", path, "--random", "--workers", 1, "--check", "float64")
    wrong = subprocess.run(
        [sys.executable, "-m", "aspen_mp.cli", "run", str(path), "float32", "--check", "--random"],
        check=False,
        capture_output=True,
        cwd="/",
    )
    assert wrong.returncode == 2


def test_table_of_the_zoo(tmp_path: Path) -> None:
    file = tmp_path / "errors.json"
    text = command("bench", "agreement", "squeezenet1_1", "--weights", "pytorch", "-o", file)
    assert "squeezenet1_1" in text
    found = json.loads(file.read_text())
    (row,) = found["result"]
    assert set(row["levels"]) == set(ACCURACIES)
    assert row["levels"]["default"] <= 4 * row["direct"] < 1e-5


def test_weights_of_new_pytorch_layers() -> None:
    model = errors.pytorch_default(small_models.conv_chain(layers=2, channels=16, size=8))
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    weights = [stored[n.input[1]] for n in model.graph.node if n.op_type == "Conv"]
    for w in weights:
        limit = w[0].size ** -0.5
        assert 0.9 * limit < np.abs(w).max() <= limit
        assert w.std() == pytest.approx(limit / 3**0.5, rel=0.1)
