"""Columns of Arrow and pandas: values and shapes, which are read without a copy, and what is refused."""

from __future__ import annotations

import random
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


# ---- drawn columns: each spelling of the same values gives them, or says that there is a gap

INTEGERS = ("int8", "uint8", "int16", "int32", "int64", "uint64")
FLOATS = ("float32", "float64")
NULLABLE = {"int8": "Int8", "uint8": "UInt8", "int16": "Int16", "int32": "Int32", "int64": "Int64", "uint64": "UInt64"} | {
    "float32": "Float32",
    "float64": "Float64",
    "bool": "boolean",
    "str": "string",
}


def _values(draw: random.Random, kind: str, count: int) -> list[Any]:
    if kind == "bool":
        return [draw.random() < 0.5 for _ in range(count)]
    if kind == "str":
        return ["".join(draw.choices("ab模 ", k=draw.randrange(4))) for _ in range(count)]
    if kind in INTEGERS:
        return [draw.randrange(100) for _ in range(count)]
    return [draw.choice([draw.randrange(-8, 8) / 4, float("inf")]) for _ in range(count)]


def _arrow_kind(kind: str) -> Any:
    return {"bool": pa.bool_(), "str": pa.string()}.get(kind) or pa.from_numpy_dtype(np.dtype(kind))


def _cut(draw: random.Random, column: Any) -> Any:
    """The same Arrow values as a slice, as chunks, or as they are."""
    way = draw.choice(["whole", "slice", "chunks"])
    if way == "slice" and len(column):
        return pa.concat_arrays([column[:1], column, column[-1:]])[1:-1]
    if way == "chunks":
        at = draw.randrange(len(column) + 1)
        return pa.chunked_array([column[:at], column[at:]], column.type)
    return column


def _scalars(draw: random.Random, kind: str, values: list[Any]) -> tuple[str, Any]:
    """A column of these values, in a drawn spelling; None among them is a gap."""
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install pandas")
    ways = ["objects", "arrow", "dictionary", "nullable", "series of objects", "arrow-backed", "nullable in a dict", "categories"]
    if kind != "str":
        ways.append("masked")
    if None not in values:
        ways += ["numpy", "read-only", "strided", "series"]
    way = draw.choice(ways)
    filled = np.array([value if value is not None else values[-1] for value in values], object if kind == "str" else kind)
    made = {
        "objects": lambda: {"c": np.array([*values, None], object)[:-1]},
        "arrow": lambda: pa.table({"c": _cut(draw, pa.array(values, _arrow_kind(kind)))}),
        "dictionary": lambda: pa.table({"c": _cut(draw, pa.array(values, _arrow_kind(kind)).dictionary_encode())}),
        "nullable": lambda: pandas.DataFrame({"c": pandas.array(values, dtype=NULLABLE[kind])}),
        "nullable in a dict": lambda: {"c": pandas.Series(pandas.array(values, dtype=NULLABLE[kind]))},
        "series of objects": lambda: pandas.DataFrame({"c": pandas.Series(values, dtype=object)}),
        "arrow-backed": lambda: pandas.DataFrame({"c": pandas.array(values, dtype=pandas.ArrowDtype(_arrow_kind(kind)))}),
        "categories": lambda: pandas.DataFrame({"c": pandas.Categorical(values)}),
        "masked": lambda: {"c": np.ma.array(filled, mask=[value is None for value in values])},
        "numpy": lambda: {"c": filled},
        "read-only": lambda: {"c": np.frombuffer(filled.tobytes(), filled.dtype) if kind != "str" else filled},
        "strided": lambda: {"c": np.repeat(filled, 2)[::2]},
        "series": lambda: pandas.DataFrame({7: filled, "c": filled}, index=range(len(filled), 0, -1)),
    }
    return way, made[way]()


def _rows(draw: random.Random, kind: str, rows: list[Any]) -> tuple[str, Any]:
    """A column of these lists, in a drawn spelling; None as a list, or in one, is a gap."""
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install pandas")
    inner = _arrow_kind(kind)
    lists = {name: getattr(pa, name)(inner) for name in ("list_", "large_list", "list_view", "large_list_view") if hasattr(pa, name)}
    lists["fixed"] = pa.list_(inner, len(next(row for row in rows if row is not None)))
    way = draw.choice([*lists, "cells", "tuples", "arrow-backed"])
    if way in lists:
        return way, pa.table({"c": _cut(draw, pa.array(rows, lists[way]))})
    if way == "arrow-backed":
        return way, pandas.DataFrame({"c": pandas.array(rows, dtype=pandas.ArrowDtype(lists["list_"]))})
    cells = [row if row is None or way == "cells" else tuple(row) for row in rows]
    return way, pandas.DataFrame({"c": pandas.Series(cells, dtype=object)})


@pytest.mark.parametrize("kind", [*INTEGERS, *FLOATS, "bool", "str"])
@pytest.mark.parametrize("gap", [False, True], ids=["whole", "with a gap"])
def test_drawn_columns(kind: str, gap: bool) -> None:
    for seed in range(60):
        draw = random.Random(f"{kind} {gap} {seed}")
        count, width = draw.randrange(2, 7), draw.randrange(1, 4)
        nested = draw.random() < 0.5
        values: list[Any] = _values(draw, kind, count * width if nested else count)
        if nested:
            values = [values[k * width : (k + 1) * width] for k in range(count)]
        expected = np.array(values, object if kind == "str" else kind)
        at = draw.randrange(count - 1)
        if gap and nested and draw.random() < 0.5:
            values[at] = [*values[at][:-1], None]
        elif gap:
            values[at] = None
        way, batch = (_rows if nested else _scalars)(draw, kind, values)
        said = f"seed {seed}: {way} of {values}"
        column = columns.batch_of(batch)
        if gap:
            with pytest.raises(ValueError, match="nulls"):
                pytest.fail(f"{said}: {column.column('c')}")
            continue
        found = column.column("c")
        assert found.shape == expected.shape, said
        assert found.tolist() == expected.tolist(), said
        assert kind == "str" or found.dtype != object, said


def test_not_a_number_is_a_value_among_floats() -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install pandas")
    given = np.array([1, np.nan, 2], np.float32)
    batches = [{"c": given}, {"c": given.astype(object)}, pandas.DataFrame({"c": given}), pa.table({"c": pa.array(given)})]
    for batch in batches:
        np.testing.assert_array_equal(columns.batch_of(batch).column("c").astype(np.float32), given)
    for strings in (["a", float("nan")], ["a", None], [pandas.NA, "a"]):
        with pytest.raises(ValueError, match="has 1 nulls"):
            columns.batch_of(pandas.DataFrame({"c": pandas.Series(strings, dtype=object)})).column("c")


def test_columns_named_by_numbers() -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install pandas")
    model = mlp()
    given = np.random.default_rng(1).standard_normal((6, 16)).astype(np.float32)
    wants = mlp_reference(model, given)
    predictor = Predictor(model, {"x": "1"}, runtime=RUNTIME, keep=["0"])
    result = predictor(pandas.DataFrame({0: range(6), 1: list(given)}))
    assert list(result.columns) == [0, "y"]
    np.testing.assert_allclose(np.stack(result["y"].to_numpy()), wants, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(predictor({0: np.arange(6), 1: given})["y"], wants, rtol=1e-4, atol=1e-4)
    result = predictor(pandas.DataFrame({0: range(6), 1: range(6), "1": list(given)}))
    np.testing.assert_allclose(np.stack(result["y"].to_numpy()), wants, rtol=1e-4, atol=1e-4)
    with pytest.raises(RequestError, match="column '1' for input 'x' is there 2 times"):
        predictor(pandas.DataFrame([[0, 1.0, 2.0]], columns=[0, 1, 1]))
    with pytest.raises(RequestError, match="column '1' for input 'x' is there 2 times"):
        predictor(pa.Table.from_arrays([pa.array([0])] * 3, ["0", "1", "1"]))


def test_batches_without_rows() -> None:
    """Their columns may have any dtype: engines know none."""
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install pandas")
    predictor = Predictor(mlp("n"), runtime=RUNTIME, keep=True)
    empty = [{"x": np.zeros((0, 16), np.float32)}, {"x": np.array([], object)}, {"x": np.array([])}]
    empty += [pandas.DataFrame({"x": pandas.Series([], dtype=dtype)}) for dtype in (object, "float64", "Int64", "string")]
    empty += [pa.table({"x": pa.array([], kind)}) for kind in (pa.null(), pa.list_(pa.float32()), pa.list_(pa.float32(), 16), pa.string())]
    for batch in empty:
        result = predictor(batch)
        names = getattr(result, "column_names", None) or list(result)
        assert list(names) == ["x", "y"]
        assert (result.num_rows if isinstance(result, pa.Table) else len(result["y"])) == 0
        assert type(result) is (type(batch))
    assert predictor.predict(np.array([], object)).shape == (0, 8)
    with pytest.raises(RequestError, match="no column 'x'"):
        predictor({"z": np.array([])})
