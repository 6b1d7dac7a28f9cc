"""Networks drawn as several quantisers write them: each element of each result is one that ONNX's definition allows. Where no rounding of
floats decides, that is one value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_graphs import bind, run_model
from kernel_runner import KernelRunner, WeightStore
from quantised_layers import IMAGES, ROWS
from quantised_nets import FEW, Network, Quantiser, Style
from quantised_operators import STATIC, between, dynamic

from aspen_mp.planner import api

U8, I8, U16, I16, F32 = np.uint8, np.int8, np.uint16, np.int16, np.float32
SEEDS = range(24)
PAIRS = {
    "onnxruntime-u8s8": Style(),
    "onnxruntime-s8s8": Style(kinds=(I8,), symmetric=True),
    "onnxruntime-u8u8": Style(stored=(U8,)),
    "mixed": Style(kinds=(U8, I8), stored=(U8, I8), offsets=True, absent=True),
    "pytorch": Style(kinds=(U8, I8), floats=True, integer_bias=False, columns=(True,)),
    "nncf": Style(narrow=True, floats=True, shared=True, integer_bias=False),
    "quark-16": Style(kinds=(U16, I16), powers=True, symmetric=True, opset=21),
    "quark-powers": Style(kinds=(I8,), powers=True, symmetric=True),
    "quark-mixed": Style(kinds=(U8, U16, I8), stored=(I8, I16), opset=21),
    "blocks": Style(kinds=(U8, I8), stored=tuple(FEW), block=8, opset=21),
    "halves": Style(kinds=(U8, I8), real=np.float16, integer_bias=False),
    "bf16": Style(kinds=(U8, I8), real=ml_dtypes.bfloat16, integer_bias=False),
    "four-bits": Style(kinds=tuple(FEW), stored=tuple(FEW), opset=21),
    "float8": Style(kinds=(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2), stored=(ml_dtypes.float8_e4m3fn,), integer_bias=False),
    "scales-of-halves": Style(kinds=(U8, I8), apart=np.float16, integer_bias=False, opset=23),
    "scales-of-bf16": Style(kinds=(U8,), powers=True, apart=ml_dtypes.bfloat16, integer_bias=False, opset=23),
}


def started(net: Network, style: Style) -> tuple[Quantiser, str, dict[str, Any]]:
    """A quantised input, and the layers that suit it."""
    rows = bool(style.block) or net.flip(0.3)
    shape: Sequence[int] = (int(net.rng.integers(1, 3)), int(net.rng.integers(2, 7)), 16 if style.block else int(net.rng.integers(3, 20)))
    if not rows:
        spatial = net.choice([(9,), (7, 6), (6, 7), (8, 8), (19, 22), (4, 3, 5)])
        shape = (int(net.rng.integers(1, 3)), int(net.rng.integers(1, 9)), *spatial)
    b = Quantiser(net, style)
    layers = ROWS if rows else IMAGES
    x = net.feed(net.normal(*shape).astype(style.real))
    if net.flip(0.15) and style.real == F32:
        return b, b.by_channels(x) if net.flip(0.7) or shape[-1] % 2 or net.opset < 21 else b.by_blocks(x), layers
    levels = b.fit(x)
    if net.flip(0.2):  # whoever asks gives levels
        return b, b.dq(net.feed(net.values[b.q(x, levels)].low.astype(levels.kind)), levels), layers
    return b, b.pair(x, levels), layers


def grown(seed: int, style: Style) -> tuple[Network, list[str]]:
    """A network of a few layers, and its outputs: some are levels, some floats."""
    net = Network(np.random.default_rng([seed, *repr(style).encode()]), style.opset or (19, 21, 23, 25)[seed % 4])
    b, x, layers = started(net, style)
    names, weights = list(layers), np.array([often for _, often in layers.values()], np.float64)
    there, outputs = [x], []
    for _ in range(int(net.rng.integers(2, 6 if style.real == F32 else 4))):
        x = net.choice(there[-2:])
        made = (
            layers[net.rng.choice(names, p=weights / weights.sum())][0](b, x, there)
            if len(net.shape(x)) > 2
            else layers["matmul"][0](b, x, there)
        )
        if net.values[made].low.size > 20000:
            continue
        if net.flip(0.1):  # nobody quantises it
            there.append(made)
            outputs.append(made)
            continue
        levels = b.levels_of[x] if x in b.levels_of and net.flip(0.25) else b.fit(made)
        q = b.q(made, levels)
        there.append(b.dq(q, levels))
        if net.flip(0.15):  # with other parameters on the way back
            there.append(b.dq(q, b.fit(made, kind=levels.kind)))
        if net.flip(0.15):
            outputs.append(q)
    return net, list(dict.fromkeys([*outputs, there[-1]]))


def checked(net: Network, outputs: list[str], tiles: bool, label: str) -> None:
    """Node by node, and by the tiles of plans for some numbers of workers, which give the same bits."""
    model = api.load(net.model(outputs).SerializeToString())
    within(net, outputs, run_model(model, net.feeds), label)
    if not tiles:
        return
    store, before = WeightStore(), None
    for workers in (1, 3):
        stage = api.plan_stage(model, [bind(net.feeds)], workers=workers)
        assert stage.plan is not None
        runner = KernelRunner(stage.plan, store)
        found = dict(zip((o.name for o in stage.plan.outputs), runner.run(net.feeds, "random", 1), strict=True))
        results = [found[name] for name in outputs]
        within(net, outputs, results, f"{label}, planned for {workers}")
        assert before is None or [x.tobytes() for x in before] == [x.tobytes() for x in results], label
        before = [x.copy() for x in results]


def within(net: Network, outputs: list[str], found: Sequence[Any], label: str) -> None:
    for name, got in zip(outputs, found, strict=True):
        wanted = net.values[name]
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), f"{label} {name}"
        wide = got.astype(np.float64)
        wrong = np.argwhere(~((wanted.low <= wide) & (wide <= wanted.high)))
        if wrong.size:
            at = tuple(wrong[0])
            raise AssertionError(
                f"{label}: {len(wrong)} of {wide.size} elements of {name} ({wanted.dtype}) are wrong: at {at} {wide[at]} is not from "
                f"{wanted.low[at]} to {wanted.high[at]}"
            )


@pytest.mark.parametrize("style", PAIRS)
@pytest.mark.parametrize("seed", SEEDS)
def test_pairs(style: str, seed: int) -> None:
    net, outputs = grown(seed, PAIRS[style])
    checked(net, outputs, seed % 4 == 0 and style not in {"float8", "four-bits"}, f"{style} {seed}")


@pytest.mark.parametrize("style", STATIC)
@pytest.mark.parametrize("seed", SEEDS)
def test_operators_between_quantisations(style: str, seed: int) -> None:
    net, outputs = between(seed, STATIC[style])
    checked(net, outputs, seed % 4 == 0, f"{style} {seed}")


@pytest.mark.parametrize("style", ["u8s8", "u8u8", "offsets"])
@pytest.mark.parametrize("seed", SEEDS)
def test_operators_that_quantise_while_they_run(style: str, seed: int) -> None:
    net, outputs = dynamic(seed, STATIC[style])
    checked(net, outputs, seed % 4 == 0, f"{style} {seed}")


@pytest.mark.parametrize("by", [1, -1])
def test_a_level_that_is_wrong_is_noticed(by: int) -> None:
    drawn = (grown(seed, PAIRS["mixed"]) for seed in SEEDS)
    net, outputs, known = next((n, o, k) for n, o in drawn for k, name in enumerate(o) if n.values[name].exact)
    found = run_model(api.load(net.model(outputs).SerializeToString()), net.feeds)
    within(net, outputs, found, "right")
    other = found[known].copy()
    place = int(np.argmax((other > 1) & (other < 100)))
    other.reshape(-1)[place] = int(other.reshape(-1)[place]) + by
    with pytest.raises(AssertionError, match="1 of"):
        within(net, outputs, [other if k == known else x for k, x in enumerate(found)], "wrong")
