"""The rates that plans are made with on this machine: measured ones (`aspen_mp/tools/calibrate.py`), or built-in ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aspen_mp.planner.cost.rates import Rates

LEAST_CACHED, MOST_CACHED = 4 << 20, 128 << 20
"""Smaller caches are not the last ones before memory, of larger ones others have a part."""


def known(folder: str) -> tuple[Rates, str]:
    """The rates that plans are made with here, measured ones kept in `folder` or built-in ones, and the name that such plans carry."""
    import msgspec

    from aspen_mp import __version__
    from aspen_mp.planner.cost import rates
    from aspen_mp.workers import _isa

    found, name = rates.load(folder, __version__, rates.built_in(_isa.vectors(), rates.vendor(), fast_bytes()))
    return msgspec.structs.replace(found, cached=cached()), name


def fast_bytes() -> bool:
    """Whether products of bytes are as fast here, beside others, as built-in rates have them."""
    from aspen_mp.workers import _isa

    return _isa.vectors() == "" or _isa.sums_bytes()


def cached() -> int:
    """Bytes of activations that the last-level cache of this process' first core holds beside the weights that pass through it: half of it,
    within reason."""
    from aspen_mp.planner.cost.rates import Rates
    from aspen_mp.workers import topology

    sizes = [size for size, _ in topology.cache_sizes(min(os.sched_getaffinity(0))).values()]
    return min(max(max(sizes) // 2, LEAST_CACHED), MOST_CACHED) if sizes else Rates().cached
