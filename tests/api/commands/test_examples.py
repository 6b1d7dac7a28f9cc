"""The programs of `bench/examples`, on small models; and `bench clients`, briefly."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_models
from onnx import helper, numpy_helper

from aspen_mp.bench import clients
from aspen_mp.bench.examples import pipeline
from aspen_mp.bench.peers import cases

WATCHDOG_S = 120.0


def image_model() -> onnx.ModelProto:
    """A 3×3 convolution of pictures, and the mean over the pixels: x is f32 [n, 3, 64, 64], y is f32 [n, 4, 1, 1]."""
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], "conv"), helper.make_node("GlobalAveragePool", ["c"], ["y"], "pool")]
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", c, h, h]) for name, c, h in (("x", 3, 64), ("y", 4, 1))]
    graph = helper.make_graph(nodes, "images", info[:1], info[1:], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def run(example: str, *arguments: str) -> dict:
    command = [sys.executable, "-m", f"aspen_mp.bench.examples.{example}", "--json", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WATCHDOG_S)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_pipeline(tmp_path: Path, shared_runtime):
    model = image_model()
    onnx.save(model, tmp_path / "images.onnx")
    report = run(
        *("pipeline", "--model", str(tmp_path / "images.onnx"), "--images", "256", "--batch", "32", "--size", "64", "--workers", "2")
    )
    dataset = pipeline.Dataset(256, 64)
    x = np.empty((256, 3, 64, 64), np.float32)
    for k in range(256):
        dataset.load(k, x[k])
    expected = float(np.sum(shared_runtime.load(model).run({"x": x})["y"], dtype=np.float64))
    assert report["images"] == 256
    assert report["sum"] == pytest.approx(expected, rel=1e-5)
    # The first batch's plan is made while it waits; it is read in place like all others.
    assert report["copied_bytes"] == 0
    assert report["in_place_bytes"] == x.nbytes


def test_shared(tmp_path: Path):
    onnx.save(small_models.mlp("n"), tmp_path / "mlp.onnx")
    report = run("shared", "--model", str(tmp_path / "mlp.onnx"), "--clients", "3", "--requests", "20", "--workers", "1")
    assert [client["requests"] for client in report["served"]] == [20, 20, 20]
    assert len(report["models"]) == 1


def test_clients_are_measured():
    said: list[str] = []
    result = clients.measure(cases.parse("squeezenet1_1"), [0], 2, 0.0, 1, False, said.append)
    one, two = result.found
    assert (one.setting, two.setting) == (clients.Setting("aspen-mp", 1, 2), clients.Setting("aspen-mp", 2, 1))
    assert all(min(found.per_s) > 0 and found.pss_bytes > 0 for found in result.found)
    assert two.processes == one.processes + 1
    assert 0.5 < result.weights_pss_bytes / result.weight_bytes < 1.5
    assert "of the throughput of one" in result.verdict
    assert said


def test_prefork(tmp_path: Path) -> None:
    model = image_model()
    onnx.save(model, tmp_path / "images.onnx")
    command = [sys.executable, "-m", "aspen_mp.bench.examples.prefork", "--model", str(tmp_path / "images.onnx"), "--workers", "1"]
    x = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float32)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            said = json.loads(server.stdout.readline())
            answers = []
            for body in [x.tobytes()] * 16:
                with urllib.request.urlopen(f"http://127.0.0.1:{said['port']}/", body, timeout=WATCHDOG_S) as answer:
                    answers.append(json.load(answer))
        finally:
            server.terminate()
        assert server.wait(WATCHDOG_S) == 0
    assert len(said["processes"]) == 4
    assert len({answer["class"] for answer in answers}) == 1
    assert {answer["process"] for answer in answers} <= set(said["processes"])
