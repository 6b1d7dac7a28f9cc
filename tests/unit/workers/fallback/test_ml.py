"""`ai.onnx.ml`, and what its pipelines use of other domains, against onnxruntime: operators by themselves, and as models are planned."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from kernel_graphs import run_model
from onnx import TensorProto, helper

from aspen_mp.bench.drawn import DRAWS
from aspen_mp.planner import api
from aspen_mp.workers.fallback.operators import Evaluator

SEEDS = 12
MANY = {"TreeEnsembleClassifier": 40, "TreeEnsembleRegressor": 24, "TreeEnsemble": 24, "SVMClassifier": 30, "LabelEncoder": 20}
onnxruntime.set_default_logger_severity(4)


def agrees(got: Any, want: Any, tolerance: float) -> None:
    if isinstance(want, list):
        assert [list(row) for row in got] == [list(row) for row in want]
        np.testing.assert_allclose([list(r.values()) for r in got], [list(r.values()) for r in want], rtol=tolerance)
        return
    assert got.shape == want.shape
    if want.dtype == object:
        assert got.dtype == object
        assert got.tolist() == want.tolist()
        return
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("family", "seed"), [(name, seed) for name in DRAWS for seed in range(MANY.get(name, SEEDS))])
def test_drawn_models_agree(family: str, seed: int) -> None:
    case = DRAWS[family](np.random.default_rng(seed))
    proto = case.model()
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString())
    except Exception as error:
        if "locale" in str(error):
            pytest.skip("onnxruntime finds no locale here")
        raise
    want = session.run(None, case.feeds)
    for results in (Evaluator(proto).run(None, case.feeds), run_model(api.load(proto), case.feeds)):
        for got, expected in zip(results, want, strict=True):
            agrees(got, expected, case.tolerance)


@pytest.mark.parametrize("transform", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_numbers_of_post_transforms_are_the_standards(seed: int, transform: int) -> None:
    """SOFTMAX is 1 and LOGISTIC 2 in TreeEnsemble of version 5; onnxruntime takes them the other way round."""
    case = DRAWS["TreeEnsemble"](np.random.default_rng(seed))
    case.attributes |= {"post_transform": 0, "n_targets": 3, "aggregate_function": 1}
    sums = onnxruntime.InferenceSession(case.model().SerializeToString()).run(None, case.feeds)[0].astype(np.float64)
    case.attributes["post_transform"] = transform
    powers = np.exp(sums if transform == 1 else -sums)
    want = powers / powers.sum(-1, keepdims=True) if transform == 1 else 1 / (1 + powers)
    (got,) = run_model(api.load(case.model()), case.feeds)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_one_ensemble_of_floats_and_doubles() -> None:
    """A threshold of one tenth as float lies above that as double: rows are compared in their own type, whichever came first."""
    case = DRAWS["TreeEnsembleRegressor"](np.random.default_rng(0))
    lists = {"nodes_modes": ["BRANCH_LT", "LEAF", "LEAF"], "nodes_values": [0.1, 0.0, 0.0], "nodes_featureids": [0, 0, 0]}
    lists |= {"nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0]}
    lists |= {"target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0], "n_targets": 1}
    case.attributes = lists
    evaluator = Evaluator(case.model())
    for _ in range(2):
        for dtype, want in ((np.float32, 2.0), (np.float64, 1.0)):
            assert evaluator.run(None, {"x": np.array([[0.1]], dtype)})[0].tolist() == [[want]]


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 3), (40, 9, 17)])
def test_distances_of_rows(shape: tuple[int, int, int], metric: str) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((n, shape[2])).astype(np.float32) for n in shape[:2])
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, shape[2]]) for name in ("a", "b")]
    node = helper.make_node("CDist", ["a", "b"], ["y"], domain="com.microsoft", metric=metric)
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=8)
    (got,) = run_model(api.load(proto), {"a": a, "b": b})
    apart = ((a.astype(np.float64)[:, None] - b) ** 2).sum(-1)
    np.testing.assert_allclose(got, apart if metric == "sqeuclidean" else np.sqrt(apart), rtol=1e-3, atol=1e-3)
