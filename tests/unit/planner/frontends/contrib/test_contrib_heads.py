"""Attention, MultiHeadAttention, QAttention and RotaryEmbedding of onnxruntime's own, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from contrib_tools import array, both, info, small
from kernel_graphs import run_model
from onnx import helper, numpy_helper

from aspen_mp.planner import api
from aspen_mp.shm.errors import UnsupportedModelError

HEADS, SIZE, BATCH, NEW, OLD = 2, 8, 2, 4, 3
WIDTH = HEADS * SIZE
Feeds = dict[str, Any]


def close(got: list[Any], want: list[Any]) -> None:
    for g, w in zip(got, want, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=2e-3 if g.ndim == 3 else 1e-5)


def mask_of(kind: str, tokens: int, keys: int) -> np.ndarray:
    """Of two texts: one in which something may not be seen."""
    shape = {"ends": (2,), "ends-and-starts": (4,), "keys": (2, keys), "pairs": (2, tokens, keys), "all-hidden": (2, keys)}[kind]
    if kind == "ends":
        return np.array([keys, keys - 2], np.int32)
    if kind == "ends-and-starts":
        return np.array([keys, keys - 1, 0, 1], np.int32)
    mask = np.ones(shape, np.int32)
    mask[1, ..., :2] = 0
    if kind == "all-hidden":
        mask[1] = 0
    return mask


# ----------------------------------------------------------------------------------------------------------- multi-head

NAMES = ["q", "k", "v", "bias", "mask", "added", "past_k", "past_v"]


def multi(feeds: Feeds, constants: Feeds | None = None, presents: bool = False, **attrs: Any) -> None:
    outputs = ["y", "present_k", "present_v"] if presents else ["y"]
    close(*both("MultiHeadAttention", NAMES, feeds, constants or {}, outputs, num_heads=HEADS, **attrs))


def apart(keys: int = NEW, width: int = WIDTH) -> Feeds:
    return {"q": array(BATCH, NEW, WIDTH), "k": array(BATCH, keys, WIDTH), "v": array(BATCH, keys, width)}


def past() -> Feeds:
    return {"past_k": array(BATCH, HEADS, OLD, SIZE), "past_v": array(BATCH, HEADS, OLD, SIZE)}


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_queries_keys_and_values(unidirectional: int, cached: bool, biased: bool) -> None:
    constants = {"bias": array(3 * WIDTH)} if biased else {}
    multi(apart() | (past() if cached else {}), constants, presents=True, unidirectional=unidirectional)


def test_other_texts_keys() -> None:
    multi(apart(6), {"bias": array(3 * WIDTH)}, scale=0.3)
    multi(apart(6, 3 * HEADS), {"bias": array(2 * WIDTH + 3 * HEADS)})
    feeds = {"q": array(BATCH, NEW, WIDTH), "k": array(BATCH, HEADS, 5, SIZE), "v": array(BATCH, HEADS, 5, SIZE)}
    multi(feeds)


@pytest.mark.parametrize("kind", ["keys", "pairs", "all-hidden"])
@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("cached", [False, True])
def test_masks(kind: str, unidirectional: int, cached: bool) -> None:
    mask = mask_of(kind, NEW, NEW + (OLD if cached else 0))
    multi(apart() | (past() if cached else {}) | {"mask": mask}, presents=True, unidirectional=unidirectional)


@pytest.mark.parametrize("shape", [(BATCH, HEADS), (1, HEADS), (1, 1), (BATCH, 1)])
def test_what_is_added_to_scores(shape: tuple[int, int]) -> None:
    multi(apart() | {"added": array(*shape, NEW, NEW)})
    mask = mask_of("keys", NEW, NEW + OLD)
    multi(apart() | past() | {"added": array(*shape, NEW, NEW + OLD), "mask": mask}, presents=True, mask_filter_value=-50.0)


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    e = np.exp(q @ k.swapaxes(2, 3) / np.float32(np.sqrt(SIZE)))
    y = (e / e.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3)
    return y.reshape(*y.shape[:2], -1)


@pytest.mark.parametrize("count", [3, 2])
def test_packed(count: int) -> None:
    """Which onnxruntime has on other devices alone."""
    q, packed = array(BATCH, NEW, WIDTH), array(BATCH, NEW, HEADS, count, SIZE)
    feeds = {"q": packed} if count == 3 else {"q": q, "k": packed}
    proto = both("MultiHeadAttention", NAMES, feeds, {}, ["y"], num_heads=HEADS, alone=True)
    queries = packed[..., 0, :] if count == 3 else q.reshape(BATCH, NEW, HEADS, SIZE)
    close(run_model(api.load(proto), feeds), [attended(queries, packed[..., -2, :], packed[..., -1, :])])


@pytest.mark.parametrize(
    ("feeds", "outputs", "message"),
    [
        ({"q": array(2, 3, 3 * WIDTH)}, ["y"], "side by side"),
        (apart() | {"mask": np.ones(8, np.int32)}, ["y"], "a mask of 8 numbers for 2 texts"),
        (apart() | {"mask": np.ones((2, 3), np.int32)}, ["y"], r"a mask of shape \[2, 3\] for 4 tokens and 4 keys"),
        (apart(), ["y", " ", "  ", "scores"], "gives 'scores'"),
    ],
)
def test_what_is_refused(feeds: Feeds, outputs: list[str], message: str) -> None:
    proto = both("MultiHeadAttention", NAMES, feeds, {}, outputs, num_heads=HEADS, alone=True)
    with pytest.raises(UnsupportedModelError, match=rf"node 'it' \(MultiHeadAttention\).*{message}"):
        run_model(api.load(proto), feeds)


# ----------------------------------------------------------------------------------------------- with their projections

OWN = ["x", "w", "b", "mask", "past", "added"]
PROJECTION = {"w": array(WIDTH, 3 * WIDTH), "b": array(3 * WIDTH)}


@pytest.mark.parametrize("kind", ["", "ends", "ends-and-starts", "keys", "pairs"])
@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("cached", [False, True])
def test_projected(kind: str, unidirectional: int, cached: bool) -> None:
    feeds = {"x": array(BATCH, NEW, WIDTH)}
    if cached:
        feeds["past"] = array(2, BATCH, HEADS, OLD, SIZE)
    if kind:
        feeds["mask"] = mask_of(kind, NEW, NEW + (OLD if cached else 0))
    close(*both("Attention", OWN, feeds, PROJECTION, ["y", "present"], num_heads=HEADS, unidirectional=unidirectional))


@pytest.mark.parametrize("shape", [(BATCH, HEADS), (1, HEADS), (1, 1)])
def test_projected_with_what_is_added_to_scores(shape: tuple[int, int]) -> None:
    feeds = {"x": array(BATCH, NEW, WIDTH), "added": array(*shape, NEW, NEW)}
    close(*both("Attention", OWN, feeds, PROJECTION, ["y"], num_heads=HEADS, scale=0.2))


QUANTISED = ["x", "w", "b", "x_scale", "w_scale", "mask", "x_zero", "w_zero", "past"]


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("kind", ["", "ends", "keys"])
@pytest.mark.parametrize("cached", [False, True])
def test_projected_from_bytes(columns: bool, kind: str, cached: bool) -> None:
    count = (3 * WIDTH,) if columns else ()
    constants = {"w": small(np.int8, WIDTH, 3 * WIDTH), "b": array(3 * WIDTH)}
    constants |= {"w_scale": np.abs(array(*count)) * 0.01 + 0.002, "w_zero": np.zeros(count, np.int8)}
    feeds = {"x": small(np.uint8, BATCH, NEW, WIDTH), "x_scale": np.float32(0.02), "x_zero": np.uint8(120)}
    constants["w_scale"] = np.asarray(constants["w_scale"], np.float32)
    if cached:
        feeds["past"] = array(2, BATCH, HEADS, OLD, SIZE)
    if kind:
        feeds["mask"] = mask_of(kind, NEW, NEW + (OLD if cached else 0))
    feeds = {name: np.asarray(x) for name, x in feeds.items()}
    close(*both("QAttention", QUANTISED, feeds, constants, ["y", "present"], num_heads=HEADS, unidirectional=1))


# ---------------------------------------------------------------------------------------------------------------- places


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    ("shape", "places", "width", "attrs"),
    [
        ((2, 3, 32), np.array([[0, 1, 2], [4, 5, 6]]), 8, {}),
        ((2, 3, 32), np.array([5]), 8, {}),
        ((2, 3, 32), np.array([5]), 4, {"num_heads": 2, "rotary_embedding_dim": 8}),
        ((2, 4, 3, 16), np.array([[0, 1, 2], [4, 5, 6]]), 8, {}),
        ((2, 4, 3, 16), np.array([2]), 8, {}),
        ((2, 4, 3, 16), np.array([[2, 1, 0], [4, 5, 6]]), 4, {"num_heads": 4, "rotary_embedding_dim": 8}),
        ((2, 3, 32), np.array([[0, 1, 2], [4, 5, 6]]), 8, {"scale": 2.0}),
    ],
)
def test_turned(shape: tuple[int, ...], places: np.ndarray, width: int, attrs: Feeds, interleaved: int) -> None:
    feeds, tables = {"x": array(*shape), "at": places}, {"cos": array(16, width), "sin": array(16, width)}
    close(*both("RotaryEmbedding", ["x", "at", "cos", "sin"], feeds, tables, ["y"], interleaved=interleaved, **attrs))


def test_angles_on_both_sides_of_what_depends_on_data() -> None:
    """What two nodes share is computed again where the second one has to wait for results."""
    nodes = [
        helper.make_node("RotaryEmbedding", ["x", "at", "cos", "sin"], ["y"], domain="com.microsoft"),
        helper.make_node("NonZero", ["y"], ["found"]),
        helper.make_node("Cast", ["found"], ["real"], to=1),
        helper.make_node("ReduceMax", ["real"], ["most"], keepdims=0),
        helper.make_node("Mul", ["x", "most"], ["z"]),
        helper.make_node("RotaryEmbedding", ["z", "at", "cos", "sin"], ["w"], domain="com.microsoft"),
    ]
    feeds = {"x": array(1, 3, 16), "at": np.array([[4, 5, 6]])}
    tables = [numpy_helper.from_array(array(8, 8), name) for name in ("cos", "sin")]
    outputs = [helper.make_tensor_value_info(name, 1, None) for name in "yw"]
    graph = helper.make_graph(nodes, "g", [info(n, x) for n, x in feeds.items()], outputs, tables)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    close(run_model(api.load(proto), feeds), onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds))
