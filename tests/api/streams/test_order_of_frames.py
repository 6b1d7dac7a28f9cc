"""Frames of a stream run in the order in which they are given, and `reset` counts for the next one that is given.

Random frames wait for their turn, are cancelled, late or looked at without a copy. A failing case names its seed.
"""

from __future__ import annotations

from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from streamed_nets import Array, Whole, bits, drawn, next_frame

import aspen_mp
from aspen_mp.errors import RequestCancelled, RequestError, RequestTimeout

GIVEN_UP = (CancelledError, RequestCancelled, RequestTimeout)
SEEDS = 12
STEPS = 25


def submitted(stream: aspen_mp.ModelStream, x: Array, changed: Any, rng: np.random.Generator) -> Any:
    """A frame that waits for its turn. Some are cancelled at once, others may be late."""
    future = stream.submit({"x": x}, changed, timeout=float(rng.choice([1e-5, 60])))
    if rng.random() < 0.4:
        future.cancel()
    return future


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_frame_has_the_bits_of_a_whole_run(shared_runtime: aspen_mp.Runtime, seed: int) -> None:
    rng = np.random.default_rng(seed)
    net = drawn(rng)
    model = shared_runtime.load(net.model())
    x, changed = rng.standard_normal(net.shape).astype(np.float32), None
    given: list[tuple[Array, Any]] = []
    looked: list[tuple[Array, dict[str, bytes]]] = []
    with model.stream() as stream:
        for _ in range(STEPS):
            at = rng.random()
            if at < 0.5:
                given.append((x, submitted(stream, x, changed, rng)))
            elif at < 0.8:
                looked.append((x, bits(stream.run({"x": x}, changed, copy=bool(rng.random() < 0.3)))))
            elif at < 0.9:  # what is said of the next frame is not looked at
                stream.reset()
                x, changed = rng.standard_normal(net.shape).astype(np.float32), []
                continue
            else:
                with pytest.raises(RequestError):
                    stream.run({"x": x}, {"no such input": []})
            x, changed = next_frame(rng, x)
        for frame, future in given:
            with suppress(*GIVEN_UP):
                looked.append((frame, bits(future.result())))
    whole = Whole(model)
    for k, (frame, got) in enumerate(looked):
        assert got == whole(frame), f"seed {seed}, result {k}"
    model.unload()
