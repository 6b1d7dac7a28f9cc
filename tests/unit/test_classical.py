"""`ai.onnx.ml`, and what its pipelines use of other domains, against onnxruntime: operators by themselves, and as models are planned."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from kernel_graphs import run_model

from aspen_mp.bench.drawn import DRAWS
from aspen_mp.planner import api
from aspen_mp.workers.operators import Evaluator

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
