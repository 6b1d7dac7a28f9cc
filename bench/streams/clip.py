"""A synthetic clip: a fixed textured background, one moving textured square, and noise of a camera where it is wanted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Frame = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Clip:
    """Frames [1, 3, height, width], float32 in [0, 1].

    `share`: of the frame's area that the object covers. `noise`: standard deviation of what a camera adds to each pixel. The object moves
    `step` pixels a frame along each axis, and comes back at the edges.
    """

    height: int
    width: int
    share: float = 0.02
    noise: float = 0.0
    step: int = 8
    seed: int = 0

    @property
    def side(self) -> int:
        """Pixels of a side of the object."""
        return side_of(self.share, self.height, self.width)

    def place(self, number: int) -> tuple[int, int]:
        """The upper left corner of the object in a frame."""
        return _bounced(self.step * number, self.height - self.side), _bounced(self.step * number, self.width - self.side)

    def frames(self, count: int) -> list[Frame]:
        """The first `count` frames."""
        rng = np.random.default_rng(self.seed)
        background = rng.random((1, 3, self.height, self.width), np.float32)
        thing = rng.random((1, 3, self.side, self.side), np.float32)
        made = []
        for number in range(count):
            frame = background.copy()
            y, x = self.place(number)
            frame[..., y : y + self.side, x : x + self.side] = thing
            if self.noise:
                frame += np.float32(self.noise) * rng.standard_normal(frame.shape, np.float32)
                np.clip(frame, 0, 1, out=frame)
            made.append(frame)
        return made


def side_of(share: float, height: int, width: int) -> int:
    """The side of a square that covers a share of a picture."""
    return min(round(math.sqrt(share * height * width)), height, width)


def _bounced(way: int, length: int) -> int:
    """Where something is that goes to and fro between 0 and `length`."""
    if length <= 0:
        return 0
    at = way % (2 * length)
    return at if at <= length else 2 * length - at
