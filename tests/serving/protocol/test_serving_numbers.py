"""Numbers in JSON: they are read as Python and numpy read them, or left to who reads them slowly."""

from __future__ import annotations

import json
import os
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
import serving_tools  # noqa: F401 (skips these without the extra)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aspen_mp.serving.protocol import inference
from aspen_mp.serving.protocol.messages import Input
from aspen_mp.shm.errors import RequestError

EXAMPLES = 20000 if os.environ.get("ASPEN_MP_TIER") == "long" else 400
DTYPES = {
    "FP32": np.float32,
    "FP64": np.float64,
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "INT64": np.int64,
    "INT8": np.int8,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
}
INTEGERS = st.one_of(st.integers(-130, 130), st.integers(-(1 << 64), 1 << 65))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SPELLINGS = st.one_of(
    FLOATS.map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    INTEGERS.map(str),
    st.tuples(st.integers(-(10**20), 10**20), st.integers(-345, 310)).map(lambda each: f"{each[0]}e{each[1]}"),
    st.tuples(st.integers(0, 999), st.text("0123456789", min_size=1, max_size=22), st.sampled_from(["", "e0", "E+2", "e-07"])).map(
        lambda each: f"{each[0]}.{each[1]}{each[2]}"
    ),
)


def tensor(datatype: str, shape: list[int], data: str) -> Input:
    return Input(name="x", shape=shape, datatype=datatype, data=msgspec.Raw(data.encode()))


def slowly(given: Input, dtype: np.dtype[Any]) -> Any:
    """What is read where nothing is plain: the array, or the error's text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "_plain", lambda *given: None)
        return outcome(given, dtype)


def outcome(given: Input, dtype: np.dtype[Any]) -> Any:
    try:
        return inference.from_json(given, dtype)
    except RequestError as error:
        return str(error)


def assert_same(given: Input, dtype: np.dtype[Any]) -> None:
    found, wanted = outcome(given, dtype), slowly(given, dtype)
    assert type(found) is type(wanted), (found, wanted)
    if isinstance(found, str):
        assert found == wanted
    else:
        assert (found.dtype, found.shape, found.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


@given(datatype=st.sampled_from(sorted(DTYPES)), texts=st.lists(SPELLINGS, min_size=1, max_size=6))
@example(datatype="FP32", texts=["-0", "1"])
@example(datatype="FP32", texts=["-0.0", "3.5e38"])
@example(datatype="INT8", texts=["-0", "128"])
@example(datatype="INT64", texts=["9223372036854775807", "-9223372036854775808"])
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_spelling_is_read_as_it_always_was(datatype: str, texts: list[str]) -> None:
    assert_same(tensor(datatype, [len(texts)], f"[{','.join(texts)}]"), np.dtype(DTYPES[datatype]))


NESTED = st.recursive(
    st.lists(st.sampled_from(["1", "-2.5", "3e0", "null", '"4"', "true"]), max_size=3).map(lambda each: f"[{', '.join(each)}]"),
    lambda inner: st.lists(inner, max_size=3).map(lambda each: f"[\n{' ,'.join(each)}]\t"),
    max_leaves=6,
)


@given(text=NESTED, n=st.integers(0, 8))
@settings(max_examples=EXAMPLES, deadline=None)
def test_nested_lists_are_read_or_refused_as_ever(text: str, n: int) -> None:
    assert_same(tensor("FP32", [n], text), np.dtype(np.float32))


@given(st.binary(max_size=12).map(lambda each: b"[1, 2" + each))
@example(b"[1, 2]x")
@example(b"[1, 2]]")
@example(b"[1, 02]")
@example(b"[1, 2.]")
@example(b"[1, +2]")
@example(b"[1, 2e]")
@example(b"[1, .5]")
@example(b"[1, 2,]")
@example(b"[1, NaN]")
@example(b"[1, Infinity]")
@example(b"[1, 1e999]")
@example(b"1, 2")
@settings(max_examples=EXAMPLES, deadline=None)
def test_what_is_no_json_is_never_read(text: bytes) -> None:
    for dtype in (np.float32, np.float64, np.int64):
        found = inference._plain(Input(name="x", shape=[2], datatype="FP32", data=msgspec.Raw(text)), np.dtype(dtype))
        if found is not None:
            assert found.tolist() == json.loads(text)


@pytest.mark.parametrize("text", ["[1e999, 1]", "[[-1e999], [1]]", "[1, 2e9999999999]"])
def test_numbers_beyond_all_floats_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="out of range"):
        inference.from_json(tensor("FP32", [2], text), np.dtype(np.float32))


def test_a_shape_that_lies_takes_no_memory() -> None:
    with pytest.raises(RequestError, match="has 281474976710655 elements, and data has 2"):
        inference.from_json(tensor("FP32", [(1 << 48) - 1], "[1, 2]"), np.dtype(np.float32))


@pytest.mark.parametrize("nested", [False, True])
def test_an_image_is_plain(nested: bool) -> None:
    image = np.random.default_rng(0).standard_normal((3, 32, 32)).astype(np.float32)
    given = tensor("FP32", [3, 32, 32], json.dumps((image if nested else image.ravel()).tolist()))
    found = inference._plain(given, np.dtype(np.float32))
    assert found is not None
    assert np.array_equal(found, image)


# ---- numbers that are answered


def written(values: np.ndarray) -> list[Any]:
    return json.loads(msgspec.json.encode(inference.listed_floats(values)))  # type: ignore[no-any-return]


@given(st.lists(st.floats(width=32), max_size=20))
@example([0.1, 1.0, -0.0, 3.4028234663852886e38, 1.401298464324817e-45, 1.1754943508222875e-38, 16777216.0, 9999999e3])
@settings(max_examples=EXAMPLES, deadline=None)
def test_floats_are_answered_so_that_the_same_are_read(values: list[float]) -> None:
    array = np.array(values, np.float32)
    found = written(array)
    finite = np.isfinite(array)
    assert [each is not None for each in found] == finite.tolist()
    read = np.array([0.0 if each is None else each for each in found], np.float64).astype(np.float32)
    assert read[finite].tobytes() == array[finite].tobytes()
    assert all(isinstance(each, float | None) for each in found)


def test_every_exponent_is_answered_so_that_it_is_read() -> None:
    """Both neighbours of each power of two, and drawn bits."""
    powers = np.ldexp(np.float32(1), np.arange(-149, 128)).astype(np.float32)
    drawn = np.random.default_rng(3).integers(0, 1 << 32, 20 * EXAMPLES, np.uint32).view(np.float32)
    for array in (powers, np.nextafter(powers, np.float32(0)), np.nextafter(powers, np.float32(np.inf)), drawn[np.isfinite(drawn)]):
        assert np.array(written(array), np.float64).astype(np.float32).tobytes() == array.tobytes()


def test_digits_are_few() -> None:
    assert written(np.array([0.1, 3.14159, -2.5], np.float32)) == [0.1, 3.14159, -2.5]


def test_a_list_of_nothing() -> None:
    assert written(np.empty(0, np.float32)) == []


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_small_floats_are_answered_as_what_they_are(dtype: Any) -> None:
    values = np.random.default_rng(1).standard_normal((5, 7)).astype(dtype)[:, ::2]
    text = msgspec.json.encode(inference._listed(values))
    assert np.array_equal(np.array(json.loads(text)).astype(dtype).reshape(values.shape), values)
