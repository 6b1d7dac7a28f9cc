"""`precision=` of load() reaches the planner, is part of a model's identity, and changes no bit between numbers of workers."""

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
from aspen_mp.bench.agreement import error_of
from aspen_mp.control.planning.local_rates import fast_pairs

NEAR = 3e-2
"""Rounding of factors to 8 bits of mantissa, as a share of the largest output."""


@pytest.fixture(scope="module")
def chain() -> onnx.ModelProto:
    return small_models.conv_chain(layers=4, channels=48, size=7)


@pytest.fixture(scope="module")
def product() -> onnx.ModelProto:
    return small_models.projection(rows=70, terms=768, columns=800)


def feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(0).standard_normal(shape, dtype=np.float32)}


@pytest.mark.parametrize("net", ["chain", "product"])
def test_two_loads_of_one_model(net: str, request: pytest.FixtureRequest) -> None:
    """Each has weights of its own, packed for it."""
    model = request.getfixturevalue(net)
    x = feeds(model)
    with aspen_mp.Runtime(workers=2) as runtime:
        models = [runtime.load(model, precision=p) for p in ("f32", "bf16", "f32", "bf16", None)]  # type: ignore[arg-type]
        exact, rounded, exact_again, rounded_again, default = [m.run(x)["y"] for m in models]
    assert exact.tobytes() == exact_again.tobytes() == default.tobytes()
    assert rounded.tobytes() == rounded_again.tobytes()
    assert (rounded.tobytes() != exact.tobytes()) == fast_pairs(), "rounded where the processor has the instruction, and nowhere else"
    assert error_of([rounded], [exact]) <= NEAR


def test_same_bits_for_any_workers(chain: onnx.ModelProto, product: onnx.ModelProto) -> None:
    for model in (chain, product):
        found = set()
        for workers in (1, 2, 4):
            with aspen_mp.Runtime(workers=workers) as runtime:
                found.add(runtime.load(model, precision="bf16").run(feeds(model))["y"].tobytes())
        assert len(found) == 1


def test_profile_decides_where_load_does_not(product: onnx.ModelProto) -> None:
    x = feeds(product)
    with aspen_mp.Runtime(workers=1, profile=config.Profile(models=config.Models(precision="bf16"))) as runtime:
        kinds: list[dict[str, Any]] = [{}, {"precision": "bf16"}, {"precision": "f32"}]
        default, rounded, exact = (runtime.load(product, **kw).run(x)["y"] for kw in kinds)
    assert default.tobytes() == rounded.tobytes()
    assert (exact.tobytes() != rounded.tobytes()) == fast_pairs()


def test_plan_cache_knows_them_apart(product: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASPEN_MP_CACHE", str(tmp_path / "cache"))
    onnx.save(product, tmp_path / "product.onnx")
    x, found = feeds(product), []
    for precision in ("f32", "bf16", "f32", "bf16"):
        with aspen_mp.Runtime(workers=1) as runtime:
            found.append(runtime.load(tmp_path / "product.onnx", precision=precision).run(x)["y"].tobytes())  # type: ignore[arg-type]
    assert found[:2] == found[2:]
    assert (found[0] != found[1]) == fast_pairs()


def test_sessions_take_it(product: onnx.ModelProto) -> None:
    with aspen_mp.Runtime(workers=1) as runtime:
        direct = runtime.load(product, precision="bf16").run(feeds(product))["y"]
        with aspen_mp.InferenceSession(product, runtime=runtime, precision="bf16") as session:
            assert session.run(None, feeds(product))[0].tobytes() == direct.tobytes()


@pytest.mark.parametrize("wrong", ["f16", "BF16", "", 16])
def test_what_it_may_be(product: onnx.ModelProto, wrong: Any) -> None:
    with aspen_mp.Runtime(workers=1) as runtime, pytest.raises(ValueError, match="precision must be 'f32' or 'bf16', not"):
        runtime.load(product, precision=wrong)


def test_command_line(chain: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(chain, tmp_path / "chain.onnx")
    file = str(tmp_path / "chain.onnx")

    def said(*arguments: str, status: int = 0) -> str:
        command = [sys.executable, "-m", "aspen_mp.cli", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/")
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    def kernels(*options: str) -> set[str]:
        return {row["kernel"].split()[0] for row in json.loads(said("plan", file, "--json", *options))["layers"]}

    assert "BCONV" not in kernels()
    assert ("BCONV" in kernels("--precision", "bf16")) == fast_pairs()
    checked = json.loads(said("run", file, "--random", "--check", "--precision", "bf16", "--tolerance", str(NEAR), "--json"))
    assert (checked["check"][0]["error"] > 1e-5) == fast_pairs()
    assert "'f8' is not one of f32, bf16" in " ".join(said("run", file, "--precision", "f8", status=2).replace("│", " ").split())
