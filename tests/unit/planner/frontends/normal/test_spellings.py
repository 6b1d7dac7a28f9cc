"""Models in other spellings give what they gave before, bit for bit, and what onnxruntime or onnx's own tests say.

Which changes are made is drawn; a failure names them and the seed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from kernel_graphs import run_model
from onnx import ModelProto
from spellings import COMMON, RARE
from spelt_models import NETWORKS, Good, all_good, operators

from aspen_mp.planner import api
from aspen_mp.shm.errors import AspenError

SEED = 20
DRAWS = 9
OPERATORS = sorted(operators())
CHUNK = 12

onnxruntime.set_default_logger_severity(4)


def spell(good: Good, seed: int, *, rare: bool) -> tuple[ModelProto, list[str]]:
    """The model after some changes, and their names."""
    rng = np.random.default_rng(seed)
    model = ModelProto()
    model.CopyFrom(good.model)
    changes = {**COMMON, **RARE} if rare else COMMON
    wanted = {name for name in changes if rng.random() < 0.35}
    made = [name for name, change in changes.items() if name in wanted and change(rng, model)]
    return model, made


def reference(model: ModelProto, feeds: dict[str, Any]) -> list[Any] | None:
    """What onnxruntime makes of it; None where it does not know the operators."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return list(session.run(None, feeds))
    except Exception:  # onnxruntime's errors have no common class
        return None


def run(model: ModelProto, feeds: dict[str, Any]) -> list[Any]:
    return run_model(api.load(model.SerializeToString()), feeds)


def equal(got: Any, want: Any) -> bool:
    """To the bit; strings as text."""
    if isinstance(want, list):
        return isinstance(got, list) and len(got) == len(want) and all(map(equal, got, want))
    if got is None or want is None or isinstance(want, dict):
        return bool(got == want)
    a, b = np.asarray(got), np.asarray(want)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()


def close(got: Any, want: Any, rtol: float, atol: float) -> None:
    if isinstance(want, list):
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            close(a, b, rtol, atol)
    elif want is None or isinstance(want, dict) or np.asarray(want).dtype.kind in "OUS":
        assert np.array_equal(np.asarray(got, object), np.asarray(want, object))
    else:
        kind = np.float64 if np.asarray(want).dtype.kind not in "c" else np.complex128
        np.testing.assert_allclose(np.asarray(got).astype(kind), np.asarray(want).astype(kind), rtol=rtol, atol=atol)


def try_one(name: str, good: Good, seed: int, *, rare: bool) -> bool:
    """One spelling of a model; False where the draw changed nothing."""
    model, made = spell(good, seed, rare=rare)
    if not made:
        return False
    try:
        got, before = run(model, good.feeds), run(good.model, good.feeds)
        if "in_functions" in made:  # ONNX defines some operators by other functions in other opsets
            close(got, before, 1e-6, 1e-7)
        else:
            assert equal(got, before), "other bits than the model as it was"
        theirs = reference(good.model, good.feeds)
        want = good.want if good.want is not None else theirs
        assert want is not None, "there is no reference"
        close(got, want, good.rtol, good.atol)
        if theirs is not None and not rare:
            again = reference(model, good.feeds)
            assert again is not None, "onnxruntime does not read it: this change belongs to the rare ones"
            close(again, theirs, good.rtol, good.atol)
    except (AssertionError, AspenError, ValueError) as error:
        raise AssertionError(f"{name}, seed {seed}, after {', '.join(made)}: {type(error).__name__}: {error}") from error
    return True


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str) -> None:
    good = NETWORKS[name]()
    assert sum(try_one(name, good, SEED + k, rare=k % 3 == 2) for k in range(DRAWS)) > DRAWS // 2


@pytest.mark.parametrize("begin", range(0, len(OPERATORS), CHUNK))
def test_operators(begin: int) -> None:
    tried = 0
    for k, name in enumerate(OPERATORS[begin : begin + CHUNK], begin):
        tried += try_one(name, operators()[name](), SEED + k, rare=k % 3 == 2)
    assert tried


def test_there_are_many() -> None:
    """Every change is made to some model, and there are models enough."""
    made: dict[str, int] = {}
    cases = 0
    for k, (name, build) in enumerate(all_good()):
        good = build()
        names = [spell(good, SEED + k + n, rare=True)[1] for n in range(DRAWS if name in NETWORKS else 1)]
        cases += sum(map(bool, names))
        for one in (one for some in names for one in some):
            made[one] = made.get(one, 0) + 1
    assert cases > 250
    assert made.keys() == COMMON.keys() | RARE.keys(), made
