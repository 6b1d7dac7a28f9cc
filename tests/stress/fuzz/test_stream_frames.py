"""Streams of random networks: frames after random changes have the bits of whole requests.

A failing case names its seed. `check(runtime, seed)` repeats it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from onnx import helper
from streamed_nets import F32, Array, drawn, model, next_frame

import aspen_mp
from aspen_mp.errors import ResourceLimitError

NETS = 3000 if os.environ.get("ASPEN_MP_TIER") == "long" else 40
FRAMES = 6
NO_DIFFERENCE = 1e-30
"""A share of an activation's range that is less than any difference."""
Results = dict[str, Array]


@pytest.fixture(scope="module")
def runtime() -> Iterator[aspen_mp.Runtime]:
    with aspen_mp.Runtime(workers=2) as own:
        yield own


def forgetful(
    loaded: aspen_mp.Model, most: int, rng: np.random.Generator, stack: ExitStack, *, same_bits: bool
) -> aspen_mp.ModelStream | None:
    """A stream that keeps a part of the activations; None where inputs and outputs alone need more than was drawn."""
    stream = stack.enter_context(loaded.stream(memory=int(most * rng.uniform(0.2, 1)), same_bits=same_bits))
    try:
        stream.run({one.name: np.zeros(one.shape, one.dtype) for one in loaded.inputs})
    except ResourceLimitError:
        return None
    stream.reset()
    return stream


def check(runtime: aspen_mp.Runtime, seed: int) -> None:
    rng = np.random.default_rng(seed)
    net = drawn(rng)
    loaded = runtime.load(net.model())
    with loaded.stream() as stream, loaded.stream() as whole, loaded.stream(same_bits=False) as close, ExitStack() as more:
        sharp = more.enter_context(loaded.stream(layer_tol=NO_DIFFERENCE))
        x, changed = rng.standard_normal(net.shape).astype(np.float32), None
        for frame in range(FRAMES):
            got, near, thresholds = (one.run({"x": x}, changed) for one in (stream, close, sharp))
            if not frame:
                small, vague = (forgetful(loaded, stream.nbytes, rng, more, same_bits=same) for same in (True, False))
            same = got if small is None else small.run({"x": x}, changed)
            like = near if vague is None else vague.run({"x": x}, changed)
            whole.reset()
            want = whole.run({"x": x})
            for name, value in want.items():
                assert got[name].tobytes() == value.tobytes(), f"seed {seed}, frame {frame}, {name}"
                assert same[name].tobytes() == value.tobytes(), f"seed {seed}, frame {frame}, {name}: forgetful"
                for found in (near, like, thresholds):
                    far = np.abs(found[name] - value).max()
                    assert far <= 1e-4 * np.ptp(value) + 1e-6, f"seed {seed}, frame {frame}, {name}: too far"
            x, changed = next_frame(rng, x)
    loaded.unload()


def taken_over(kept: Array, x: Array, changed: Any, tol: float) -> Array:
    """The input that a stream computes with: rows of 8 columns where an element is too far are new, or else the boxes that are named."""
    found = kept.copy()
    for low, high in changed or ():
        box = tuple(map(slice, low, high))
        found[box] = x[box]
    for k in range(0, x.shape[-1] if changed is None else 0, 8):
        old, new = found[..., k : k + 8], x[..., k : k + 8]
        far = ~(np.abs(new - old) <= np.float32(tol)).all(axis=-1)
        old[far] = new[far]
    return found


def worst(near: Results, whole: Results) -> float:
    """The largest difference of an output by its range."""
    shares = [0.0]
    for name, value in whole.items():
        by, span = np.abs(near[name].astype(np.float64) - value).max(), np.ptp(value.astype(np.float64))
        shares += [by / span if span else np.inf] if by else []
    return float(max(shares))


def check_tolerance(runtime: aspen_mp.Runtime, seed: int) -> None:
    """Results have the bits of whole runs of what the stream has kept; each `refresh`-th frame those of a whole run of the frame."""
    rng = np.random.default_rng(seed)
    net, tol, refresh = drawn(rng), float(rng.choice([0.01, 0.3, 1.5])), int(rng.choice([0, 0, 1, 2, 4]))
    loaded = runtime.load(net.model())
    with loaded.stream(tol, refresh=refresh, same_bits=True) as stream, loaded.stream() as whole:
        x, changed, since = rng.standard_normal(net.shape).astype(np.float32), None, 0
        kept, error = x, None
        for frame in range(FRAMES):
            got = stream.run({"x": x}, changed)
            kept = taken_over(kept, x, changed, tol)
            whole.reset()
            want = {name: value.copy() for name, value in whole.run({"x": kept}).items()}
            if frame and refresh and since + 1 >= refresh:
                whole.reset()
                kept, near, want, since = x, want, whole.run({"x": x}), -1
                error = worst(near, want)
            since += 1 if frame else 0
            assert stream.last is not None
            assert stream.last.error == (None if error is None else pytest.approx(error)), f"seed {seed}, frame {frame}"
            for name, value in want.items():
                assert got[name].tobytes() == value.tobytes(), f"seed {seed}, frame {frame}, {name}"
            x, changed = next_frame(rng, x)
            changed = None if isinstance(changed, np.ndarray) else changed
            if changed is None:
                x = x + (rng.choice([0.0, 0.1, 1.0]) * tol * rng.standard_normal(x.shape)).astype(np.float32)
    loaded.unload()


@pytest.mark.parametrize("part", range(4))
def test_tolerated_frames_have_the_bits_of_what_was_kept(runtime: aspen_mp.Runtime, part: int) -> None:
    for seed in range(part, NETS // 2, 4):
        check_tolerance(runtime, seed)


@pytest.mark.parametrize("part", range(4))
def test_frames_have_the_bits_of_whole_requests(runtime: aspen_mp.Runtime, part: int) -> None:
    for seed in range(part, NETS, 4):
        check(runtime, seed)


@pytest.mark.parametrize("what", ["nothing", "an empty input"])
def test_values_that_no_change_reaches(runtime: aspen_mp.Runtime, what: str) -> None:
    """The first frame, and one after `reset`, computes them too."""
    info = helper.make_tensor_value_info
    inputs, feeds = [info("x", F32, [4])], {"x": np.ones(4, np.float32)}
    if what == "nothing":
        nodes = [helper.make_node("RandomNormal", [], ["y"], shape=[4], seed=3.0)]
    else:
        nodes = [helper.make_node("ReduceSum", ["z"], ["s"], keepdims=0), helper.make_node("Cos", ["s"], ["y"])]
        inputs.append(info("z", F32, [0, 3]))
        feeds["z"] = np.zeros((0, 3), np.float32)
    nodes.append(helper.make_node("Add", ["x", "y"], ["o"]))
    loaded = runtime.load(model(nodes, inputs, [info("o", F32, [4]), info("y", F32, None)]))
    want = loaded.run(feeds)
    with loaded.stream() as stream:
        for _ in range(2):
            got = stream.run(feeds)
            assert all(got[name].tobytes() == value.tobytes() for name, value in want.items())
            stream.reset()
    loaded.unload()
