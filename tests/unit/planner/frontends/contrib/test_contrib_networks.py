"""Networks as onnxruntime's quantisation and optimizer leave them, against onnxruntime: what was quantised on the way stays products of
bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kernel_graphs import run_model
from onnxruntime.quantization import quantize_dynamic
from peer_tools import exact_sums

from aspen_mp.bench import models
from aspen_mp.planner import api


def optimized(model: onnx.ModelProto, folder: Path, quantised: bool) -> Path:
    plain, made, best = folder / "plain.onnx", folder / "made.onnx", folder / "best.onnx"
    onnx.save(model, plain)
    if quantised:
        quantize_dynamic(plain, made)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(best)
    onnxruntime.InferenceSession(made if quantised else plain, options)
    return best


@pytest.mark.parametrize("name", ["bert_base", "gpt2"])
@pytest.mark.parametrize("quantised", [False, True])
def test_optimized(tmp_path: Path, name: str, quantised: bool) -> None:
    path = optimized(models.build(name, symbolic=True, **models.miniature(name)), tmp_path, quantised)
    session = onnxruntime.InferenceSession(path, exact_sums())
    rng = np.random.default_rng(3)
    feeds: dict[str, Any] = {i.name: np.ones((2, 9), np.int64) for i in session.get_inputs()}
    feeds["input_ids"] = rng.integers(0, 50, (2, 9))
    if "attention_mask" in feeds:
        feeds["attention_mask"][1, 6:] = 0
    counts: dict[str, int] = {}
    got = run_model(api.load(path), feeds, counts=counts)
    for g, w in zip(got, session.run(None, feeds), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-4)
    assert "OPAQUE" not in counts
    assert bool(counts.get("QGEMM")) == quantised
    assert any(n.domain == "com.microsoft" for n in onnx.load(path).graph.node)
