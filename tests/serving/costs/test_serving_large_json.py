"""Large requests in JSON are read as small ones are, or as `json` reads them; and large answers are the same bytes as small ones."""

from __future__ import annotations

import asyncio
import json
import math
import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import serving_tools  # noqa: F401 (skips these without the extra)
from cost_tools import read
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aspen_mp.client.signature import ValueInfo
from aspen_mp.serving.limits import Limits
from aspen_mp.serving.protocol import inference, large_json, turns
from aspen_mp.serving.protocol.inference import Call
from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.shm.errors import RequestError

EXAMPLES = 20000 if os.environ.get("ASPEN_MP_TIER") == "long" else 200
DTYPES = {"FP32": np.float32, "FP64": np.float64, "INT64": np.int64, "UINT8": np.uint8, "BOOL": np.bool_, "BYTES": object}
SPACES = st.sampled_from(["", "", "", " ", "\n", "\t ", "\r\n    "])
JUNK = ["", "", "", '"data":[1,2],', '"x":"\\"data\\":[1,2,3,4]",', '"y":{"data":["a"]},', '"x\\"data":[1,2,3],']


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is large, and every piece of it small."""
    monkeypatch.setattr(large_json, "LARGE", 0)
    monkeypatch.setattr(large_json, "LONG", 4)
    monkeypatch.setattr(large_json, "_WINDOW", 300)
    monkeypatch.setattr(turns, "STEP", 16)
    monkeypatch.setattr(turns, "ITEMS", 5)
    monkeypatch.setattr(turns, "STRINGS", 3)


def spelled(draw: Any, datatype: str, shape: list[int], nested: bool) -> str:
    """A list of drawn elements, with drawn white space."""
    item = {
        "BOOL": st.sampled_from(["true", "false"]),
        "BYTES": st.text(max_size=4).map(json.dumps),
        "FP32": st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
        "FP64": st.floats(allow_nan=False, allow_infinity=False).map(repr),
        "INT64": st.integers(-(1 << 63), (1 << 63) - 1).map(str),
        "UINT8": st.integers(0, 255).map(str),
    }[datatype]
    items = draw(st.lists(item, min_size=math.prod(shape), max_size=math.prod(shape)))
    blanks = draw(st.lists(SPACES, min_size=8, max_size=8))
    parts = [blanks[k % 8] + each + blanks[(k + 3) % 8] for k, each in enumerate(items)]
    for extent in reversed(shape[1:] if nested else []):
        parts = [blanks[k % 8] + "[" + ",".join(parts[k : k + extent]) + "]" + blanks[(k + 5) % 8] for k in range(0, len(parts), extent)]
    return "[" + ",".join(parts) + "]"


@st.composite
def documents(draw: Any) -> tuple[str, str, list[int]]:
    """A request with one input, its datatype and its shape. Some are damaged in its list or close to it."""
    datatype = draw(st.sampled_from(sorted(DTYPES)))
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    data = spelled(draw, datatype, shape, draw(st.booleans()))
    before, after = draw(st.sampled_from(JUNK)), draw(st.sampled_from(JUNK))
    text = f'{{{before}"inputs":[{{"name":"x","shape":{shape},"datatype":"{datatype}","data":{data}}}],{after}"id":"i"}}'
    for _ in range(draw(st.integers(0, 2))):
        k = text.index("data", text.index("inputs")) + draw(st.integers(0, len(data)))
        text = text[:k] + draw(st.sampled_from(["", ",", "[", "]", "1", " ", "-", "e9", '"', "}", "null", "[]"])) + text[k + 1 :]
    return text, datatype, shape


def outcome(text: str, datatype: str, shape: list[int]) -> Any:
    """The array that was read; None where the request was refused."""
    try:
        feeds = read(text.encode(), None, [ValueInfo("x", None, np.dtype(DTYPES[datatype]))], Limits()).feeds
    except (RequestError, Refused):
        return None
    return feeds.get("x")


@given(documents())
@example(('{"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[[1,]2,[3,4]]}]}', "FP32", [2, 2]))
@example(('{"inputs":[{"name":"x","shape":[4],"datatype":"FP32","data":[1,2,3 4]}]}', "FP32", [4]))
@example(('{"inputs":[{"name":"x","shape":[3],"datatype":"FP32","data":[1,2,3],[4]}]}', "FP32", [3]))
@example(('{"inputs":[{"name":"x","shape":[4],"datatype":"FP32","data":[1,2,,3]}]}', "FP32", [4]))
@example(('{"inputs":[{"name":"x","shape":[2,1],"datatype":"FP32","data":[[1],2[]]}]}', "FP32", [2, 1]))
@settings(max_examples=EXAMPLES, deadline=None)
def test_large_requests_are_read_as_json_reads_them(drawn: tuple[str, str, list[int]]) -> None:
    text, datatype, shape = drawn
    found = outcome(text, datatype, shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_json, "LARGE", 1 << 30)
        wanted = outcome(text, datatype, shape)
    if found is not None:
        assert wanted is not None, text
        assert found.dtype == wanted.dtype
        assert found.tolist() == wanted.tolist()
        (tensor,) = json.loads(text)["inputs"]
        assert np.array(tensor["data"], found.dtype).ravel().tolist() == found.ravel().tolist()
    elif wanted is not None:  # lists of other forms are read where they are small
        (tensor,) = json.loads(text)["inputs"]
        assert np.shape(tensor["data"]) not in {(math.prod(shape),), tuple(shape)}, text


def test_what_is_drawn_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would compare nothing."""
    text = b'{"x":"\\"data\\":[1,2]","inputs":[{"data" : [[1, 2],[3,4]] , "name":"x"},{"data":[true,false],"b":"[1,2,3,4,5,6]"}]}'
    rest, runs = turns.at_once(large_json.split(memoryview(text), 1000))
    assert [bytes(run) for run in runs.values()] == [b"[[1, 2],[3,4]]", b"[true,false]"]
    for place, run in runs.items():
        rest = rest.replace(place, bytes(run))
    assert rest == text


@pytest.mark.parametrize("junk", ["[[],[],[],[]]", '{"a":1,"b":2}', '["","","",""]', '"[[[[,,,,"'])
def test_what_is_no_number_has_a_limit(junk: str) -> None:
    text = f'{{"inputs":[],"junk":{junk}}}'.encode()
    marks = sum(text.count(mark) for mark in (b",", b":", b'"', b"[", b"]", b"{", b"}"))
    turns.at_once(large_json.split(memoryview(text), marks))
    with pytest.raises(Refused, match="commas, colons") as refused:
        turns.at_once(large_json.split(memoryview(text), marks - 1))
    assert refused.value.status == 413


# ---- answers


@given(
    st.lists(st.tuples(st.sampled_from(["f4", "f8", "f2", "i8", "u1", "?", "O", "bf16"]), st.integers(0, 30), st.booleans()), max_size=4),
    st.booleans(),
)
@settings(max_examples=EXAMPLES // 4, deadline=None)
def test_large_answers_have_the_same_bytes(outputs: list[tuple[str, int, bool]], identified: bool) -> None:
    rng = np.random.default_rng(len(outputs))
    results = {}
    for k, (kind, n, _) in enumerate(outputs):
        numbers = rng.standard_normal(n) * 10.0 ** rng.integers(-20, 20, n)
        if kind == "O":
            results[f"o{k}"] = np.array([f'é"\\{each:.3g}' for each in numbers], object)
        elif kind == "bf16":
            results[f"o{k}"] = numbers.astype(ml_dtypes.bfloat16)
        else:
            with np.errstate(all="ignore"):
                results[f"o{k}"] = numbers.astype(kind)
    binary = {f"o{k}": in_bytes for k, (_, _, in_bytes) in enumerate(outputs)}
    call = Call("i" if identified else "", {}, None, binary, False, None, None)
    made = asyncio.run(inference.spelled(call, results))
    assert set(made) == {f"o{k}" for k, (kind, n, in_bytes) in enumerate(outputs) if n > turns.ITEMS and (not in_bytes or kind == "O")}
    headers, pieces = inference.answer(call, "m", "1", results, made)
    wanted_headers, wanted = inference.answer(call, "m", "1", results)
    assert headers == wanted_headers
    assert b"".join(pieces) == b"".join(wanted)
