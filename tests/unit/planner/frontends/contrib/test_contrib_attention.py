"""Attention in onnxruntime's own operators, with masks, caches, windows, sinks and places, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contrib_tools import array, both
from kernel_graphs import run_model

from aspen_mp.planner import api
from aspen_mp.shm.errors import ModelInvalidError, UnsupportedModelError

HEADS, OWN, SIZE = 4, 2, 16
CACHED = ["y", "present_k", "present_v"]


def close(got: list[Any], want: list[Any], rows: Any = slice(None)) -> None:
    """`rows`: those of the first result that mean something."""
    assert len(got) == len(want)
    for k, (g, w) in enumerate(zip(got, want, strict=True)):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        where = rows if k == 0 else slice(None)
        np.testing.assert_allclose(g[where], w[where], rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------------ grouped

GROUPED = ["q", "k", "v", "past_k", "past_v", "lengths", "total", "cos", "sin", "places", "bias", "sink"]
ATTRS = {"num_heads": HEADS, "kv_num_heads": OWN}


def grouped(
    batch: int, new: int, old: int, room: int | None = None, *, rotary: int = 0, packed: bool = False, lengths: Any = None, **more: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(feeds, constants). `room`: of the cache, None: none is given. `rotary`: the columns of the angles' tables."""
    width = (HEADS + 2 * OWN if packed else HEADS) * SIZE
    feeds = {"q": array(batch, new, width)}
    if not packed:
        feeds |= {"k": array(batch, new, OWN * SIZE), "v": array(batch, new, OWN * SIZE)}
    if room is not None:
        feeds |= {"past_k": array(batch, OWN, room, SIZE), "past_v": array(batch, OWN, room, SIZE)}
    feeds["lengths"] = np.array([old + new - 1] * batch if lengths is None else lengths, np.int32)
    constants: dict[str, Any] = {"total": np.array(old + new, np.int32)}
    if rotary:
        constants |= {"cos": array(32, rotary), "sin": array(32, rotary)}
    return feeds | more, constants


def of(feeds: dict[str, Any], constants: dict[str, Any], **attrs: Any) -> tuple[list[Any], list[Any]]:
    return both("GroupQueryAttention", GROUPED, feeds, constants, CACHED, **ATTRS, **attrs)


@pytest.mark.parametrize("packed", [False, True], ids=["apart", "packed"])
@pytest.mark.parametrize(("rotary", "interleaved"), [(0, 0), (8, 0), (8, 1)])
@pytest.mark.parametrize(
    ("batch", "new", "old", "room"),
    [(1, 5, 0, None), (1, 5, 0, 0), (1, 1, 7, 7), (1, 3, 7, 7), (2, 5, 0, None), (1, 5, 0, 12), (1, 1, 7, 12), (1, 2, 7, 12), (1, 1, 0, 0)],
)
def test_texts_and_what_goes_on(batch: int, new: int, old: int, room: int | None, rotary: int, interleaved: int, packed: bool) -> None:
    case = grouped(batch, new, old, room, rotary=rotary, packed=packed)
    close(*of(*case, do_rotary=int(rotary > 0), rotary_interleaved=interleaved))


@pytest.mark.parametrize(("new", "old", "room"), [(9, 0, None), (1, 8, 8), (3, 6, 6), (2, 1, 1), (1, 2, 2), (3, 6, 20), (1, 9, 20)])
@pytest.mark.parametrize("window", [1, 4, 100])
def test_windows(new: int, old: int, room: int | None, window: int) -> None:
    close(*of(*grouped(1, new, old, room, rotary=8), do_rotary=1, local_window_size=window))


@pytest.mark.parametrize("room", [6, 11])
@pytest.mark.parametrize("window", [-1, 3])
def test_texts_of_unlike_lengths_go_on(room: int, window: int) -> None:
    """What a cache has behind a text's last token means nothing."""
    lengths = [6, 2, 4]
    got, want = of(*grouped(3, 1, 6, room, rotary=8, lengths=lengths), do_rotary=1, local_window_size=window)
    close(got[:1], want[:1])
    for g, w in zip(got[1:], want[1:], strict=True):
        assert g.shape == w.shape
        close([g[k, :, : n + 1] for k, n in enumerate(lengths)], [w[k, :, : n + 1] for k, n in enumerate(lengths)])


def test_texts_of_unlike_lengths_begin() -> None:
    got, want = of(*grouped(2, 5, 0, rotary=8, lengths=[4, 2]), do_rotary=1)
    close(got, want, (np.array([0] * 5 + [1] * 3), np.array([0, 1, 2, 3, 4, 0, 1, 2])))


@pytest.mark.parametrize(("batch", "new", "old", "room"), [(1, 5, 0, None), (1, 1, 7, 7), (1, 3, 7, 12), (2, 1, 4, 4), (2, 5, 0, None)])
@pytest.mark.parametrize("kind", ["smooth", "sink", "cap", "bias", "bias-of-all", "scale", "sink-and-bias"])
def test_scores(batch: int, new: int, old: int, room: int | None, kind: str) -> None:
    more: dict[str, Any] = {}
    if "sink" in kind:
        more["sink"] = array(HEADS)
    if "bias" in kind:
        more["bias"] = array(*((1, 1) if "all" in kind else (batch, HEADS)), new, old + new)
    attrs = {"smooth": {"smooth_softmax": 1}, "cap": {"softcap": 2.0}, "scale": {"scale": 0.4}}.get(kind, {})
    close(*of(*grouped(batch, new, old, room, **more), **attrs))


@pytest.mark.parametrize(("batch", "new", "old", "room"), [(1, 5, 0, None), (1, 1, 7, 7), (2, 1, 7, 7)])
def test_sinks_with_windows_and_caps(batch: int, new: int, old: int, room: int | None) -> None:
    window = 3 if batch == new == 1 else 20
    close(*of(*grouped(batch, new, old, room, sink=array(HEADS)), local_window_size=window, softcap=3.0))


@pytest.mark.parametrize(("batch", "new", "old", "room"), [(1, 5, 0, None), (1, 1, 7, 7), (1, 3, 7, 7), (2, 1, 7, 7), (2, 4, 0, None)])
def test_places_that_are_given(batch: int, new: int, old: int, room: int | None) -> None:
    places = np.arange(new)[None] + np.array([[3], [5]])[:batch] + old
    close(*of(*grouped(batch, new, old, room, rotary=8, places=places), do_rotary=1))


def test_the_length_may_be_computed() -> None:
    """As an input, or by the network: it is asked for before the rest is planned."""
    feeds, constants = grouped(1, 2, 5, 5, rotary=8)
    feeds["total"] = constants.pop("total").reshape(1)
    close(*of(feeds, constants, do_rotary=1))


def test_heads_are_normalised() -> None:
    """Which onnxruntime does on other devices alone: against the same with normalised queries and keys."""
    feeds, constants = grouped(1, 3, 4, 4, rotary=8)
    constants |= {"gain_q": array(SIZE), "gain_k": array(SIZE)}
    normed = dict(feeds)
    for name in "qk":
        x = feeds[name].reshape(1, 3, -1, SIZE)
        normed[name] = (x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * constants[f"gain_{name}"]).reshape(feeds[name].shape)
    names = [*GROUPED, "", "", "gain_q", "gain_k"]
    proto = both("GroupQueryAttention", names, feeds, constants, CACHED, **ATTRS, do_rotary=1, alone=True)
    close(run_model(api.load(proto), feeds), of(normed, constants, do_rotary=1)[1])


@pytest.mark.parametrize(
    ("case", "attrs", "message"),
    [
        (grouped(1, 2, 3, 3), {"qk_output": 1}, "attribute qk_output"),
        (grouped(1, 2, 3, 3), {"sliding_window_cache": 1, "local_window_size": 2}, "attribute sliding_window_cache"),
        (grouped(1, 2, 3, 3), {"k_quant_type": "PER_TENSOR"}, "quantised cache"),
        (grouped(1, 6, 3, 3, sink=array(HEADS)), {"local_window_size": 4}, "sinks and a window"),
    ],
)
def test_what_is_refused(case: tuple[dict[str, Any], dict[str, Any]], attrs: dict[str, Any], message: str) -> None:
    proto = both("GroupQueryAttention", GROUPED, *case, CACHED, **ATTRS, **attrs, alone=True)
    with pytest.raises(UnsupportedModelError, match=rf"node 'it' \(GroupQueryAttention\).*{message}"):
        run_model(api.load(proto), case[0])


def test_lengths_that_do_not_fit() -> None:
    feeds, constants = grouped(1, 2, 9, 3)
    proto = both("GroupQueryAttention", GROUPED, feeds, constants, CACHED, **ATTRS, alone=True)
    with pytest.raises(ModelInvalidError, match=r"2 new tokens and 3 in its cache, but a total_sequence_length of \[11\]"):
        run_model(api.load(proto), feeds)
