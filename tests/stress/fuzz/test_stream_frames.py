"""Streams of random networks: frames after random changes have the bits of whole requests.

A failing case names its seed. `check(runtime, seed)` repeats it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from onnx import helper
from streamed_nets import F32, drawn, model, next_frame

import aspen_mp

NETS = 3000 if os.environ.get("ASPEN_MP_TIER") == "long" else 40
FRAMES = 6


@pytest.fixture(scope="module")
def runtime() -> Iterator[aspen_mp.Runtime]:
    with aspen_mp.Runtime(workers=2) as own:
        yield own


def check(runtime: aspen_mp.Runtime, seed: int) -> None:
    rng = np.random.default_rng(seed)
    net = drawn(rng)
    loaded = runtime.load(net.model())
    with loaded.stream() as stream, loaded.stream() as whole, loaded.stream(same_bits=False) as close:
        x, changed = rng.standard_normal(net.shape).astype(np.float32), None
        for frame in range(FRAMES):
            got, near = stream.run({"x": x}, changed), close.run({"x": x}, changed)
            whole.reset()
            want = whole.run({"x": x})
            for name, value in want.items():
                assert got[name].tobytes() == value.tobytes(), f"seed {seed}, frame {frame}, {name}"
                assert np.abs(near[name] - value).max() <= 1e-4 * np.ptp(value) + 1e-6, f"seed {seed}, frame {frame}, {name}: too far"
            x, changed = next_frame(rng, x)
    loaded.unload()


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
