"""Decoders of onnxruntime's own operators: a text, then one token after the other, with the cache that each step gives, and plans for a
range of its lengths."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kernel_runner import WeightStore
from published_decoders import HEADS, LAYERS, Decoder, Older, encoder, shapes
from test_buckets_agree import Runs, check

from aspen_mp.planner import api
from aspen_mp.shm.tables import KERNEL_BY_CODE

KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "packed": {"packed": True, "rotary_interleaved": 1},
    "mistral": {"local_window_size": 6},
    "gemma": {"softcap": 5.0},
    "smooth": {"smooth_softmax": 1},
    "half": {"dtype": np.float16},
}


class Both:
    """A model here, with a plan for each step, and in onnxruntime."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.model = api.load(proto.SerializeToString())
        self.store = WeightStore()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
        self.floats = self.model.signature.outputs[0].dtype

    def run(self, feeds: dict[str, Any], padded: bool = False) -> list[Any]:
        """onnxruntime's results, which ours are near to. `padded`: caches end in what means nothing."""
        bound = {name: api.Binding(x.dtype, x.shape, None) for name, x in feeds.items()}
        plan = api.plan_stage(self.model, [bound], workers=2).plan
        assert plan is not None
        want = self.session.run(None, feeds)
        got = Runs(plan, self.store).run(feeds, [x.shape for x in want], "random")
        for info, g, w in zip(plan.outputs, got, want, strict=True):
            half = g.dtype == np.float16
            if padded and g.ndim == 4:
                lengths = feeds["attention_mask"].sum(1)
                g, w = (np.concatenate([x[k, :, :n] for k, n in enumerate(lengths)], 1) for x in (g, w))  # noqa: PLW2901
            np.testing.assert_allclose(g, w, rtol=0.05 if half else 1e-3, atol=0.02 if half else 2e-4, err_msg=info.name)
        assert (got[0].argmax(-1) == want[0].argmax(-1)).all()
        return list(want)


def steps(both: Both, text: np.ndarray, count: int, room: int | None = None) -> None:
    """The text, then so many tokens, each the likeliest. `room`: of a cache that has its full length from the first step on."""
    batch, new = text.shape
    caches = {name: np.zeros(shape, both.floats) for name, shape in shapes(new, 0, batch, room).items() if name.startswith("past")}
    ids = text
    for total in range(new, new + count + 1):
        feeds = {"input_ids": ids, "attention_mask": np.ones((batch, total), np.int64), **caches}
        logits, *presents = both.run(feeds)
        caches = dict(zip(caches, presents, strict=True))
        ids = logits[:, -1:].argmax(-1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_and_what_follows(kind: str) -> None:
    steps(Both(Decoder(**KINDS[kind]).build()), np.array([[3, 14, 15, 9, 26]]), 6)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_cache_of_full_length(kind: str) -> None:
    steps(Both(Decoder(**KINDS[kind]).build()), np.array([[3, 14, 15, 9]]), 5, room=12)


def test_texts_of_unlike_lengths() -> None:
    """Padded on the right; each goes on behind its own last token."""
    both = Both(Decoder().build())
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int64)
    caches = {name: np.zeros(shape, np.float32) for name, shape in shapes(5, 0, 2).items() if name.startswith("past")}
    bound = {"input_ids": np.array([[3, 14, 15, 9, 26], [5, 3, 5, 0, 0]]), "attention_mask": mask, **caches}
    logits, *presents = both.session.run(None, bound)
    ids = np.stack([logits[0, 4], logits[1, 2]]).argmax(-1)[:, None]
    for _ in range(3):
        mask = np.concatenate([mask[:, :1], mask], 1)  # one more each
        logits, *presents = both.run({"input_ids": ids, "attention_mask": mask, **dict(zip(caches, presents, strict=True))}, padded=True)
        ids = logits[:, -1:].argmax(-1)


def test_several_texts_with_padding_in_front() -> None:
    """As older exports have it: places and masks are inputs."""
    both = Both(Older().build())
    mask = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]], np.int64)
    ids = np.array([[3, 14, 15, 9, 26], [0, 0, 5, 3, 5]])
    names = [name for name in shapes(1, 1) if name.startswith("past")]
    caches = {name: np.zeros(shapes(5, 0, 2, own=HEADS)[name], np.float32) for name in names}
    for _ in range(4):
        places = (mask.cumsum(1) - 1).clip(0)[:, -ids.shape[1] :]
        logits, *presents = both.run({"input_ids": ids, "attention_mask": mask, "position_ids": places, **caches})
        caches = dict(zip(names, presents, strict=True))
        ids, mask = logits[:, -1:].argmax(-1), np.concatenate([mask, np.ones((2, 1), np.int64)], 1)


def older(extent: int) -> dict[str, tuple[int, ...]]:
    return shapes(1, extent, own=HEADS) | {"position_ids": (1, 1)}


def test_a_step_is_few_kernels() -> None:
    """Angles are looked up once for all layers, keys and values are neither repeated nor masked, and weights are read as they are."""
    model = api.load(Decoder(packed=True).build())
    dtypes = {v.name: v.dtype for v in model.signature.inputs}
    plan = api.plan_stage(model, [{n: api.Binding(dtypes[n], s, None) for n, s in shapes(1, 30).items()}], workers=2).plan
    assert plan is not None
    counts = Counter(KERNEL_BY_CODE[int(code)].name for code in plan.ops["kernel"])
    assert counts["ATTENTION"] == LAYERS
    assert counts["GATHER"] == 4  # of a token and of its place, two each
    assert counts["TERNARY"] == 2 * LAYERS  # queries and keys are turned
    assert counts["BINARY"] <= 2 * LAYERS + 3
    assert "OPAQUE" not in counts
    assert "PAD" not in counts


@pytest.mark.parametrize(("kind", "least", "most"), [("llama", 16, 23), ("llama", 130, 500), ("packed", 16, 23), ("mistral", 16, 23)])
def test_steps_share_plans(kind: str, least: int, most: int) -> None:
    proto = Decoder(**KINDS[kind]).build()
    check(proto, lambda extent: shapes(1, extent), least, most, [least, most, (least + most) // 2])


def test_steps_with_masks_share_plans() -> None:
    check(Older().build(), older, 16, 23, [16, 23, 20])


def test_steps_of_several_texts_share_plans() -> None:
    check(Decoder().build(), lambda extent: shapes(1, extent, 2), 16, 23, [16, 23, 20])


def test_texts_share_plans() -> None:
    check(Decoder().build(), lambda extent: shapes(extent, 0), 24, 31, [24, 31, 27])


def texts(extent: int, batch: int = 1) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(("input_ids", "token_type_ids", "attention_mask"), (batch, extent))


def test_an_encoder() -> None:
    rng = np.random.default_rng(1)
    mask = np.array([[1] * 9, [1] * 6 + [0] * 3], np.int32)
    ids, kinds = rng.integers(0, 50, (2, 9)).astype(np.int32), rng.integers(0, 2, (2, 9)).astype(np.int32)
    Both(encoder()).run({"input_ids": ids, "token_type_ids": kinds, "attention_mask": mask})
    check(encoder(), texts, 24, 31, [24, 31, 27])
