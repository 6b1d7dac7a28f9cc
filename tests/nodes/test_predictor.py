"""`Predictor` on batches of numpy: every row gets what the model gives for it alone, and errors say which column and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from small_models import mlp, mlp_reference, two_inputs

import aspen_mp
from aspen_mp.errors import RequestError, RuntimeNotFound
from aspen_mp.ray import Predictor
from aspen_mp.ray.rows import Requests

RUNTIME = "predictors"


@pytest.fixture(scope="module", autouse=True)
def runtime() -> Iterator[aspen_mp.Runtime]:
    with aspen_mp.Runtime(1, name=RUNTIME) as started:
        yield started


@pytest.fixture
def two(tmp_path: Path) -> Path:
    onnx.save(two_inputs(), tmp_path / "two.onnx")
    return tmp_path / "two.onnx"


def _rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, 16)).astype(np.float32)


def _predictor(model: Any, *given: Any, **options: Any) -> Predictor:
    return Predictor(model, *given, runtime=RUNTIME, **options)


@pytest.mark.parametrize("batch", [1, 4, "batch"])
@pytest.mark.parametrize("most", [None, 4])
@pytest.mark.parametrize("count", [0, 1, 4, 7])
def test_each_row_gets_its_result(batch: int | str, most: int | None, count: int) -> None:
    model = mlp(batch)
    predictor = _predictor(model, rows_per_request=None if batch == 1 else most)
    for n in (8, count):  # the second has rows left over
        result = predictor({"x": _rows(n)})
        assert list(result) == ["y"]
        assert result["y"].shape == (n, 8)
        np.testing.assert_allclose(result["y"], mlp_reference(model, _rows(n)), rtol=1e-4, atol=1e-4)
    predictor.close()


@pytest.mark.parametrize(
    ("fixed", "most", "rows", "largest", "expected"),
    [
        (1, None, 3, 1, [(1, 1), (1, 1), (1, 1)]),
        (4, None, 6, 4, [(4, 4), (2, 4)]),
        (None, None, 100, 0, [(100, 100)]),
        (None, None, 70, 100, [(70, 100)]),
        (None, None, 5, 100, [(5, 8)]),
        (None, 32, 70, 32, [(32, 32), (32, 32), (6, 8)]),
        (None, 24, 20, 0, [(20, 24)]),
        (None, 24, 0, 0, []),
    ],
)
def test_sizes_of_requests(fixed: int | None, most: int | None, rows: int, largest: int, expected: list[tuple[int, int]]) -> None:
    assert Requests(fixed, most).sizes(rows, largest) == expected


def test_names_of_columns(two: Path) -> None:
    predictor = _predictor(two, {"a": "left"}, {"sum": "total"}, keep=["id"], constants={"b": np.ones(3, np.float32)})
    result = predictor({"id": np.arange(2), "left": np.zeros((2, 3), np.float32), "more": np.arange(2)})
    assert list(result) == ["id", "total"]
    assert (result["total"] == 1).all()
    every = _predictor(two, {"a": "left"}, {"scaled": "left"}, keep=True, constants={"b": np.ones(3, np.float32)})
    result = every({"id": np.arange(2), "left": np.ones((2, 3), np.float32)})
    assert list(result) == ["id", "left"]
    assert (result["left"] == 2).all()


def test_arrays_in_the_order_of_inputs() -> None:
    model = mlp()
    predictor = _predictor(model, "column", keep=["other"])
    np.testing.assert_allclose(predictor.predict(_rows(5)), mlp_reference(model, _rows(5)), rtol=1e-4, atol=1e-4)
    with pytest.raises(RequestError, match=r"takes 1 arrays \(x\), not 2"):
        predictor.predict(_rows(5), _rows(5))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.uint8])
def test_values_are_converted(dtype: type) -> None:
    model = mlp()
    given = np.arange(32).reshape(2, 16).astype(dtype)
    np.testing.assert_allclose(_predictor(model)({"x": given})["y"], mlp_reference(model, given), rtol=1e-4, atol=1e-3)


def test_rows_of_objects_and_of_other_shapes() -> None:
    model = mlp()
    given = np.empty(3, object)
    given[:] = list(_rows(3))
    np.testing.assert_allclose(_predictor(model)({"x": given})["y"], mlp_reference(model, _rows(3)), rtol=1e-4, atol=1e-4)
    folded = _rows(3).reshape(3, 2, 8)
    with pytest.raises(RequestError, match=r"column 'x' for input 'x' must|rows of shape"):
        _predictor(model)({"x": folded[:, :, :7]})
    np.testing.assert_allclose(_predictor(model)({"x": folded})["y"], mlp_reference(model, _rows(3)), rtol=1e-4, atol=1e-4)


def test_threads_share_a_predictor() -> None:
    model = mlp()
    predictor = _predictor(model)
    with ThreadPoolExecutor(4) as pool:
        for n, result in zip(range(1, 20), pool.map(lambda n: predictor({"x": _rows(n)}), range(1, 20)), strict=True):
            np.testing.assert_allclose(result["y"], mlp_reference(model, _rows(n)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"inputs": {"X": "x"}}, r"has no input 'X' \(is 'x' meant\?\)"),
        ({"outputs": ["z"]}, "has no output 'z'.* It has y"),
        ({"constants": {"x": 1}, "inputs": {"x": "x"}}, "input 'x' is both a column and a constant"),
        ({"rows_per_request": 3}, "takes 4 rows in each request, not rows_per_request=3. Leave it out"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        _predictor(mlp(), **arguments)


def test_more_wrong_arguments(two: Path) -> None:
    with pytest.raises(RequestError, match="needs 2 columns: give inputs="):
        _predictor(two, "column")
    with pytest.raises(RequestError, match="two outputs go to one column"):
        _predictor(two, outputs={"sum": "s", "scaled": "s"})
    with pytest.raises(ValueError, match="rows_per_request must be 1 or more, not 0"):
        _predictor(mlp(), rows_per_request=0)
    with pytest.raises(RuntimeNotFound, match="no runtime named 'nobody' is running"):
        Predictor(mlp(), runtime="nobody")


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ({"X": _rows(2)}, r"the batch has no column 'x' for input 'x'; name one in inputs \(is 'X' meant\?\). It has X"),
        ({"x": np.array(["a", "b"])}, "column 'x' for input 'x' is <U1, the input is float32. Convert it"),
        ({"x": np.zeros((2, 16), complex)}, "is complex128, which float32 cannot hold"),
        ({"x": np.zeros((2, 15), np.float32)}, r"input 'x' must have shape \[4, 16\]"),
        ({"x": np.array([np.zeros(3), np.zeros(4)], object)}, r"has rows of different shapes \(\(3,\), \(4,\)\). Pad or resize"),
    ],
)
def test_wrong_batches(batch: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        _predictor(mlp())(batch)


def test_other_wrong_batches() -> None:
    predictor = _predictor(mlp(), keep=["id"])
    with pytest.raises(RequestError, match="no column 'id' to keep"):
        predictor({"x": _rows(2)})
    with pytest.raises(TypeError, match="a batch must be a dict of arrays, an Arrow table or a DataFrame, not list"):
        predictor([1, 2])
