"""Embeddings and normalisations of onnxruntime's own, and what it puts around them, against onnxruntime, or against their definition where
it has them for other devices alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contrib_tools import RNG, array, both, model, small
from kernel_graphs import run_model
from onnx import TensorProto

from aspen_mp.planner import api

WIDTH, WORDS = 8, 12
IDS, TEXTS = RNG.integers(0, WORDS, (2, 5)).astype(np.int32), RNG.integers(0, 2, (2, 5)).astype(np.int32)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32)
PLACES = np.array([[2, 3, 4, 5, 6], [0, 1, 2, 3, 4]], np.int32)
TABLES: dict[str, Any] = {"words": array(WORDS, WIDTH), "rows": array(9, WIDTH), "kinds": array(2, WIDTH)}
TABLES |= {"gain": array(WIDTH), "bias": array(WIDTH)}
NAMES = ["ids", "texts", "words", "rows", "kinds", "gain", "bias", "mask", "places"]


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("places", [None, PLACES, PLACES[:1]])
def test_embeddings(texts: bool, mask: bool, places: Any) -> None:
    feeds = {"ids": IDS} | ({"texts": TEXTS} if texts else {}) | ({"mask": MASK} if mask else {})
    constants = {name: x for name, x in TABLES.items() if texts or name != "kinds"}
    if places is not None:
        feeds["places"] = places
    proto = both("EmbedLayerNormalization", NAMES, feeds, constants, ["y", "counts", "sum"], epsilon=1e-5, alone=True)
    proto.graph.output[1].type.tensor_type.elem_type = TensorProto.INT32
    got, want = run_both(proto, feeds)
    for g, w in zip(got, want, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


def run_both(proto: Any, feeds: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    import onnxruntime

    return run_model(api.load(proto), feeds), onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)


def test_quantised_embeddings() -> None:
    constants: dict[str, Any] = {}
    for name, x in TABLES.items():
        constants[name] = small(np.uint8, *x.shape)
        constants[f"{name}.s"], constants[f"{name}.z"] = np.float32(0.02), np.uint8(120)
    parts = ["words", "rows", "kinds", "gain", "bias"]
    names = ["ids", "texts", *parts, "mask", *(f"{n}.s" for n in parts), *(f"{n}.z" for n in parts)]
    feeds = {"ids": IDS, "texts": TEXTS, "mask": MASK}
    proto = both("QEmbedLayerNormalization", names, feeds, constants, ["y", "counts"], epsilon=1e-5, alone=True)
    proto.graph.output[1].type.tensor_type.elem_type = TensorProto.INT32
    (got, counts), (want, others) = run_both(proto, feeds)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert (counts == others).all()
    assert counts.dtype == others.dtype


def alone(op: str, inputs: str, feeds: dict[str, Any], outputs: str = "y", **attrs: Any) -> list[Any]:
    proto = model(op, feeds, inputs.split(" "), {}, dict.fromkeys(outputs.split(" "), np.float32), **attrs)
    return run_model(api.load(proto), feeds)


def gelu(x: Any) -> Any:
    import math

    return np.vectorize(lambda v: v * 0.5 * (1 + math.erf(v / math.sqrt(2))))(x)


def test_sums_and_halves() -> None:
    feeds = {"x": array(2, 6, 8), "b": array(8), "s": array(2, 6, 8)}
    np.testing.assert_allclose(alone("BiasAdd", "x b s", feeds)[0], feeds["x"] + feeds["b"] + feeds["s"], rtol=1e-6)
    whole = feeds["x"] + feeds["b"]
    got = alone("BiasSplitGelu", "x b", {n: feeds[n] for n in "xb"})[0]
    np.testing.assert_allclose(got, whole[..., :4] * gelu(whole[..., 4:]), rtol=1e-4, atol=1e-5)


def by_groups(x: np.ndarray, gain: np.ndarray, bias: np.ndarray, groups: int, silu: int) -> np.ndarray:
    """Channels last."""
    parts = x.reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
    mean, spread = parts.mean((1, 3), keepdims=True), parts.var((1, 3), keepdims=True)
    y = ((parts - mean) / np.sqrt(spread + 1e-5)).reshape(x.shape) * gain + bias
    return y / (1 + np.exp(-y)) if silu else y


@pytest.mark.parametrize("silu", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("skip", [None, (2, 4, 6, 8), (2, 8), (2, 1, 1, 8)])
def test_groups_of_channels(silu: int, last: int, skip: Any) -> None:
    x, gain, bias, more = array(2, 4, 6, 8), array(8), array(8), array(8)
    turn = (lambda t: t) if last else (lambda t: np.ascontiguousarray(t.transpose(0, 3, 1, 2)) if t.ndim == 4 else t)
    attrs = {"groups": 2, "activation": silu, "channels_last": last, "epsilon": 1e-5}
    feeds = {"x": turn(x), "gain": gain, "bias": bias}
    if skip is None:
        got, whole = alone("GroupNorm", "x gain bias", feeds, **attrs), x
    else:
        added = array(*skip)
        whole = x + (added.reshape(2, 1, 1, 8) if len(skip) == 2 else added) + more
        feeds |= {"skip": turn(added), "more": more}
        got = alone("SkipGroupNorm", "x gain bias skip more", feeds, "y sum", **attrs)
        np.testing.assert_allclose(got[1], turn(whole), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[0], turn(by_groups(whole, gain, bias, 2, silu)), rtol=1e-4, atol=1e-4)
