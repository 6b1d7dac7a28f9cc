"""The seed that `set_seed` sets, for random operators of sessions that are made afterwards."""

from __future__ import annotations

import operator

_seed: int | None = None


def set_seed(seed: int) -> None:
    """Random operators without a seed of their own draw from `seed` in sessions made from now on. Unlike in onnxruntime, each run of a
    session draws the same numbers again."""
    global _seed  # noqa: PLW0603
    _seed = operator.index(seed)


def current() -> int | None:
    return _seed
