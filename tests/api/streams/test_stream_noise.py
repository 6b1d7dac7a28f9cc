"""What a stream has learned of the noise of its input: it outlives a plan, and belongs to one shape."""

from __future__ import annotations

import frame_models
import numpy as np

import aspen_mp
from aspen_mp.client.streams.tolerance import PAIRS

NOISE = 0.01


def noisy(rng: np.random.Generator, picture: np.ndarray) -> np.ndarray:
    return (picture + NOISE * rng.standard_normal(picture.shape)).astype(np.float32)


def test_noise_outlives_the_plan(shared_runtime: aspen_mp.Runtime) -> None:
    """Another plan may take the place of the first one while a stream learns."""
    model = shared_runtime.load(frame_models.pictures())
    rng = np.random.default_rng(0)
    picture = rng.random((1, 3, frame_models.SIDE, frame_models.SIDE))
    with model.stream(noise=8.0) as stream:
        for k in range(PAIRS + 2):  # the first frame, and the first one after the change, have none before them
            if k == PAIRS // 2:
                stream._let_go()  # as where the plan is another one
            stream.run({"x": noisy(rng, picture)})
            assert stream.last is not None
            assert stream.last.work > 0.9
        stream.run({"x": noisy(rng, picture)})
        assert stream.last.work == 0
    model.unload()


def test_noise_of_another_shape_is_learned_anew(shared_runtime: aspen_mp.Runtime) -> None:
    model = shared_runtime.load(frame_models.pictures("h", "w"))
    rng = np.random.default_rng(0)
    with model.stream(noise=8.0) as stream:
        for side in (frame_models.SIDE, frame_models.SIDE // 2):
            picture = rng.random((1, 3, side, side))
            for k in range(PAIRS + 2):
                stream.run({"x": noisy(rng, picture)})
                assert stream.last is not None
                assert (stream.last.work > 0.9) == (k <= PAIRS), (side, k)
    model.unload()
