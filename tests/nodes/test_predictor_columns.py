"""Columns of Arrow and pandas: values and shapes, which are read without a copy, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from small_models import mlp, mlp_reference

import aspen_mp
from aspen_mp.errors import RequestError
from aspen_mp.ray import Predictor, columns

pa = pytest.importorskip("pyarrow", reason="needs Arrow: pip install pyarrow")

RUNTIME = "columns"
VALUES = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.fixture(scope="module", autouse=True)
def runtime() -> Iterator[aspen_mp.Runtime]:
    with aspen_mp.Runtime(1, name=RUNTIME) as started:
        yield started


def _fixed(values: np.ndarray) -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _nested() -> Any:
    return pa.FixedSizeListArray.from_arrays(_fixed(VALUES.reshape(12, 2)), 3)


CASES = {
    "numbers": (lambda: pa.array(VALUES[:, 0].copy()), VALUES[:, 0]),
    "fixed lists": (lambda: _fixed(VALUES), VALUES),
    "a slice of fixed lists": (lambda: _fixed(VALUES)[1:3], VALUES[1:3]),
    "fixed lists of fixed lists": (_nested, VALUES.reshape(4, 3, 2)),
    "lists of one length": (lambda: pa.array(VALUES.tolist(), pa.list_(pa.float32())), VALUES),
    "a slice of lists": (lambda: pa.array(VALUES.tolist(), pa.list_(pa.float32()))[2:], VALUES[2:]),
    "large lists": (lambda: pa.array(VALUES.tolist(), pa.large_list(pa.float32())), VALUES),
    "tensors": (lambda: pa.FixedShapeTensorArray.from_numpy_ndarray(VALUES.reshape(4, 2, 3)), VALUES.reshape(4, 2, 3)),
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_memory(case: str) -> None:
    make, expected = CASES[case]
    column = make()
    array = columns.from_arrow(column)
    np.testing.assert_array_equal(array, expected)
    storage = column.storage if isinstance(column, pa.ExtensionArray) else column
    buffers = [buffer for buffer in storage.buffers() if buffer is not None]
    at = array.__array_interface__["data"][0]
    assert any(buffer.address <= at < buffer.address + buffer.size for buffer in buffers), "the values were copied"


def test_values_that_need_a_copy() -> None:
    assert columns.from_arrow(pa.array([True, False])).tolist() == [True, False]
    assert columns.from_arrow(pa.array(["a", "b"])).tolist() == ["a", "b"]
    assert columns.from_arrow(pa.array(["a", "b", "a"]).dictionary_encode()).tolist() == ["a", "b", "a"]
    assert columns.from_arrow(pa.array([], pa.list_(pa.float32()))).shape[0] == 0


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (lambda: pa.array([1.0, None]), "has 1 nulls. Fill or drop them"),
        (lambda: pa.array([[1.0, None]], pa.list_(pa.float32(), 2)), "has 1 nulls"),
        (lambda: pa.array([[1.0], [1.0, 2.0]]), r"has rows of different shapes \(\(1,\), \(2,\)\). Pad or resize"),
    ],
)
def test_what_is_no_array(column: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        columns.from_arrow(column())
    predictor = Predictor(mlp(), runtime=RUNTIME)
    with pytest.raises(RequestError, match=f"column 'x' for input 'x' {says}"):
        predictor(pa.table({"x": column()}))


@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 4), (0, 2), (0,), (3, 0)])
def test_results_come_back(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    column = columns.to_arrow(array)
    assert len(column) == shape[0]
    if array.size:
        np.testing.assert_array_equal(columns.from_arrow(column), array)


@pytest.mark.parametrize("chunks", [1, 2])
def test_tables(chunks: int) -> None:
    model = mlp()
    given = np.random.default_rng(1).standard_normal((6, 16)).astype(np.float32)
    parts = np.array_split(given, chunks)
    table = pa.table({"id": pa.array(range(6)), "x": pa.chunked_array([_fixed(part) for part in parts])})
    result = Predictor(model, runtime=RUNTIME, keep=["id"])(table)
    assert result.column_names == ["id", "y"]
    assert pa.types.is_fixed_size_list(result.schema.field("y").type)
    found = np.array(result["y"].to_pylist())
    np.testing.assert_allclose(found, mlp_reference(model, given), rtol=1e-4, atol=1e-4)
    (batch, *_) = table.to_batches()
    assert Predictor(model, runtime=RUNTIME, keep=True)(batch).column_names == ["id", "x", "y"]
    assert Predictor(model, {"x": "x"}, {"y": "x"}, runtime=RUNTIME, keep=True)(batch).column_names == ["id", "x"]


def test_frames() -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install pandas")
    model = mlp()
    given = np.random.default_rng(1).standard_normal((6, 16)).astype(np.float32)
    frame = pandas.DataFrame({"id": range(6), "x": list(given)}, index=range(10, 16))
    result = Predictor(model, runtime=RUNTIME, keep=["id"])(frame)
    assert list(result.columns) == ["id", "y"]
    assert list(frame.columns) == ["id", "x"]
    np.testing.assert_allclose(np.stack(result["y"].to_numpy()), mlp_reference(model, given), rtol=1e-4, atol=1e-4)
