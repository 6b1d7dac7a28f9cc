"""Operators of ai.onnx.ml with kernels beside onnxruntime, with drawn attributes, types and rows: the same labels and scores, every one by
kernels, and the same bits for any tiling and instruction set of trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from forests import MODES, attributes, rows, sums
from kernel_runner import KernelRunner
from onnx import TensorProto, helper, numpy_helper
from test_plans_agree import ISAS, planned

from aspen_mp.shm.errors import ModelInvalidError

DOMAIN = "ai.onnx.ml"
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
Array = np.ndarray[Any, np.dtype[Any]]


def model(op: str, attrs: dict[str, Any], x: Array, outputs: int, version: int = 3) -> onnx.ModelProto:
    names = ["label", "score"][-outputs:]
    node = helper.make_node(op, ["x"], names, name=op.lower(), domain=DOMAIN, **attrs)
    own = helper.np_dtype_to_tensor_dtype(x.dtype)
    kinds = {"label": TensorProto.INT64, "score": own if op in ("TreeEnsemble", "Imputer", "Binarizer") else TensorProto.FLOAT}
    infos = [helper.make_tensor_value_info(n, kinds[n], None) for n in names]
    graph = helper.make_graph([node], "learned", [helper.make_tensor_value_info("x", own, x.shape)], infos)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def check(proto: onnx.ModelProto, x: Array, seed: int, rtol: float = 2e-5, atol: float = 2e-5, exact: bool = False) -> list[str]:
    """Both runtimes agree; returns the kernels. `exact`: bits are those of every instruction set."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = dict(zip([o.name for o in session.get_outputs()], session.run(None, {"x": x}), strict=True))
    bits: dict[str, bytes] = {}
    for workers, isa in ((1, ISAS[0]), (2, ISAS[0]), (2, ISAS[-1])):
        stage = planned(proto.SerializeToString(), {"x": x}, workers)
        assert not stage.opaque, f"seed {seed}: {stage.opaque}"
        runner = KernelRunner(stage.plan)
        found = dict(zip((info.name for info in runner.plan.outputs), runner.run({"x": x}, "random", seed, isa), strict=True))
        for name, value in wanted.items():
            assert found[name].dtype == value.dtype
            assert found[name].shape == value.shape
            if value.dtype.kind == "f":
                np.testing.assert_allclose(found[name], value, rtol=rtol, atol=atol, err_msg=f"seed {seed}")
            else:
                assert (found[name] == value).all(), f"seed {seed}: labels {found[name]} for {value}"
            digest = found[name].tobytes()
            assert bits.setdefault(name if exact else f"{name}{isa}", digest) == digest
    return [call[0] for call in runner.calls if call[0] not in ("JOIN", "END")]


def several(rng: np.random.Generator, dtype: Any) -> Array:
    return rows(rng, int(rng.choice([1, 3, 50])), 5, dtype)


@pytest.mark.parametrize("seed", range(60))
def test_regressors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    targets = int(rng.choice([1, 1, 3]))
    modes = [("BRANCH_LEQ",), ("BRANCH_LT", "BRANCH_GTE"), MODES][seed % 3]
    options = {"modes": modes, "missing": seed % 2 == 0, "targets": range(targets), "trees": int(rng.integers(1, 12))}
    attrs = attributes(rng, **options, depth=int(rng.integers(1, 7)))
    attrs |= {"n_targets": targets, "aggregate_function": str(rng.choice(["SUM", "AVERAGE", "MIN", "MAX"]))}
    if rng.random() < 0.5:
        attrs["base_values"] = rng.standard_normal(targets).astype(np.float32).tolist()
    if targets > 1:
        attrs["post_transform"] = str(rng.choice(TRANSFORMS[:4]))
    x = several(rng, [np.float32, np.float64][seed % 2])
    kernels = check(model("TreeEnsembleRegressor", attrs, x, 1), x, seed, exact=attrs.get("post_transform", "NONE") == "NONE")
    assert "TREES" in kernels
    if attrs.get("post_transform", "NONE") == "NONE":
        stage = KernelRunner(planned(model("TreeEnsembleRegressor", attrs, x, 1).SerializeToString(), {"x": x}, 1).plan)
        slow = sums(attrs, x, targets, attrs["aggregate_function"]) + np.array(attrs.get("base_values", 0.0))
        np.testing.assert_allclose(stage.run({"x": x})[0], slow, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_regressors_of_whole_numbers(kind: Any) -> None:
    rng = np.random.default_rng(5)
    attrs = attributes(rng, modes=MODES) | {"n_targets": 1}
    x = rows(rng, 20, 5, kind)
    runner = KernelRunner(planned(model("TreeEnsembleRegressor", attrs, x, 1).SerializeToString(), {"x": x}, 2).plan)
    np.testing.assert_allclose(runner.run({"x": x})[0], sums(attrs, x.astype(np.float32), 1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(60))
def test_classifiers(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    classes = int(rng.choice([2, 2, 3, 7]))
    used = range(classes) if classes > 2 else [(0,), (1,), (0, 1)][seed % 3]
    attrs = attributes(rng, weights="class", targets=used, positive=seed % 2 == 0, missing=seed % 4 == 0, trees=int(rng.integers(1, 9)))
    attrs["classlabels_int64s"] = rng.permutation(classes * 3)[:classes].tolist()
    transform = TRANSFORMS[int(rng.integers(4))]
    attrs["post_transform"] = transform
    if rng.random() < 0.3 and used != (0, 1):
        attrs["base_values"] = rng.standard_normal(classes if classes > 2 else 1).astype(np.float32).tolist()
    x = several(rng, [np.float32, np.float64][seed // 3 % 2])
    kernels = check(model("TreeEnsembleClassifier", attrs, x, 2), x, seed)
    assert kernels.count("TREES") == 1
    assert "LABELS" in kernels


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_classifiers_of_whole_numbers(kind: Any) -> None:
    rng = np.random.default_rng(9)
    attrs = attributes(rng, weights="class", targets=range(3)) | {"classlabels_int64s": [3, 1, 2]}
    x = rows(rng, 30, 5, kind)
    check(model("TreeEnsembleClassifier", attrs, x, 2), x, 0)


@pytest.mark.parametrize("seed", range(20))
def test_ensembles_with_sets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = np.float32 if seed % 2 else np.float64
    n, targets = int(rng.integers(3, 9)), int(rng.choice([1, 2]))
    members = [rng.choice(8, int(rng.integers(1, 4)), replace=False) for _ in range(n)]
    modes = rng.integers(0, 7, n)
    own = [np.r_[m, np.nan] for m, mode in zip(members, modes, strict=True) if mode == 6]
    attrs = {
        "nodes_splits": numpy_helper.from_array(rng.integers(0, 8, n).astype(kind)),
        "nodes_modes": numpy_helper.from_array(modes.astype(np.uint8)),
        "nodes_featureids": rng.integers(0, 5, n).tolist(),
        "nodes_truenodeids": list(range(n)),
        "nodes_trueleafs": [1] * n,
        "nodes_falsenodeids": [*range(1, n), n],
        "nodes_falseleafs": [0] * (n - 1) + [1],
        "tree_roots": [0],
        "leaf_targetids": rng.integers(0, targets, n + 1).tolist(),
        "leaf_weights": numpy_helper.from_array(rng.standard_normal(n + 1).astype(kind)),
        "n_targets": targets,
        "aggregate_function": 1,
    }
    if own:
        attrs["membership_values"] = numpy_helper.from_array(np.concatenate(own).astype(kind))
    x = rng.integers(0, 9, (40, 5)).astype(kind)
    assert check(model("TreeEnsemble", attrs, x, 1, 5), x, seed) == ["TREES"]


@pytest.mark.parametrize("seed", range(24))
def test_linear_models(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = [np.float32, np.float64, np.int64, np.int32][seed % 4]
    x, count = rows(rng, int(rng.choice([1, 40])), 5, kind, special=False), int(rng.choice([1, 1, 3]))
    attrs: dict[str, Any] = {"coefficients": rng.standard_normal(5 * count).tolist(), "intercepts": rng.standard_normal(count).tolist()}
    if kind == np.float32:
        assert "GEMM" in check(model("LinearRegressor", attrs | {"targets": count}, x, 1, 1), x, seed)
    labels = rng.permutation(9)[: max(count, 2)].tolist()
    attrs |= {"classlabels_ints": labels, "post_transform": TRANSFORMS[int(rng.integers(4))], "multi_class": int(count > 1)}
    assert "GEMM" in check(model("LinearClassifier", attrs, x, 2, 1), x, seed)


@pytest.mark.parametrize("seed", range(32))
def test_support_vector_machines(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = ["LINEAR", "POLY", "RBF", "SIGMOID"][seed % 4]
    x, classes = rng.standard_normal((int(rng.choice([1, 30])), 5)).astype(np.float32), int(rng.choice([2, 3, 5]))
    per_class = rng.integers(1, 9, classes)
    count, pairs = int(per_class.sum()), classes * (classes - 1) // 2
    attrs: dict[str, Any] = {"kernel_type": kind, "kernel_params": [0.4, 0.2, float(rng.choice([2, 3]))]}
    attrs |= {"support_vectors": rng.standard_normal(count * 5).tolist()}
    regressor = attrs | {"coefficients": rng.standard_normal(count).tolist(), "rho": [0.3], "n_supports": count, "one_class": seed // 4 % 2}
    check(model("SVMRegressor", regressor, x, 1, 1), x, seed, 1e-4, 1e-4)
    attrs |= {"coefficients": rng.standard_normal(count * (classes - 1)).tolist(), "rho": rng.standard_normal(pairs).tolist()}
    attrs |= {"vectors_per_class": per_class.tolist(), "classlabels_ints": rng.permutation(20)[:classes].tolist()}
    if rng.random() < 0.5:
        attrs |= {"prob_a": (-rng.random(pairs) - 0.5).tolist(), "prob_b": rng.standard_normal(pairs).tolist()}
    assert "DUELS" in check(model("SVMClassifier", attrs, x, 2, 1), x, seed, 1e-3, 1e-3)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("one", [False, True])
def test_features(kind: Any, one: bool) -> None:
    rng = np.random.default_rng(int(one))
    n = 1 if one else 5
    x = rows(rng, 7, 5, kind, special=False)
    attrs = {"offset": rng.standard_normal(n).tolist(), "scale": rng.standard_normal(n).tolist()}
    check(model("Scaler", attrs, x, 1, 1), x, 0)
    for norm in ("MAX", "L1", "L2"):
        x[0] = 0
        check(model("Normalizer", {"norm": norm}, x if norm != "MAX" else np.abs(x), 1, 1), x if norm != "MAX" else np.abs(x), 0)
    if np.dtype(kind).kind == "f":
        x[1, 2] = np.nan
        imputed = {"imputed_value_floats": rng.standard_normal(n).tolist(), "replaced_value_float": [float("nan"), 1.5][n == 1]}
    else:
        imputed = {"imputed_value_int64s": rng.integers(0, 9, n).tolist(), "replaced_value_int64": 2}
    if kind in (np.float32, np.int64):
        check(model("Imputer", imputed, x, 1, 1), x, 0)
    if kind is np.float32:
        x = np.nan_to_num(x)  # onnxruntime refuses what is no number
        check(model("Binarizer", {"threshold": 0.5}, x, 1, 1), x, 0)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_extracted_features(kind: Any) -> None:
    x, places = rows(np.random.default_rng(4), 6, 5, kind, special=False), np.array([[3, 0, 3]])
    proto = model("ArrayFeatureExtractor", {}, x, 1, 1)
    proto.graph.node[0].input.append("places")
    proto.graph.initializer.append(numpy_helper.from_array(places, "places"))
    proto.graph.output[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(x.dtype)
    assert check(proto, x, 4) == ["GATHER"]


def test_a_vector_is_one_row() -> None:
    rng = np.random.default_rng(2)
    attrs = attributes(rng) | {"n_targets": 1}
    x = rows(rng, 1, 5)[0]
    runner = KernelRunner(planned(model("TreeEnsembleRegressor", attrs, x, 1, 1).SerializeToString(), {"x": x}, 1).plan)
    np.testing.assert_allclose(runner.run({"x": x})[0], sums(attrs, x[None], 1), rtol=1e-6)


def test_trees_that_are_none_are_refused_by_name() -> None:
    rng = np.random.default_rng(2)
    attrs = attributes(rng, features=9) | {"n_targets": 1}
    x = np.zeros((3, 2), np.float32)
    with pytest.raises(ModelInvalidError, match=r"treeensembleregressor.*looks at feature"):
        planned(model("TreeEnsembleRegressor", attrs, x, 1).SerializeToString(), {"x": x}, 1)
    attrs["nodes_truenodeids"][0] = 10_000
    with pytest.raises(ModelInvalidError, match=r"treeensembleregressor.*names node 10000"):
        planned(model("TreeEnsembleRegressor", attrs, x, 1).SerializeToString(), {"x": x}, 1)
