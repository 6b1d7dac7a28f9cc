"""Cuts along an axis: everything once, at multiples of granules, in parts of about the same size."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aspen_mp.planner.layout.grids import split


@given(st.integers(1, 500), st.integers(1, 30), st.integers(1, 64))
def test_everything_once(dim: int, parts: int, granule: int) -> None:
    cuts = split(dim, parts, granule)
    sizes = np.diff(cuts)
    assert (cuts[0], cuts[-1]) == (0, dim)
    assert len(sizes) == min(parts, -(-dim // granule))
    assert not (cuts[:-1] % granule).any()
    assert (sizes > 0).all()
    assert len(sizes) == 1 or np.ptp(sizes[:-1]) <= granule
