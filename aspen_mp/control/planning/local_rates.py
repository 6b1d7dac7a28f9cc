"""The rates and instructions that plans are made with on this machine, and rates that predict (`aspen_mp/tools/calibrate.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aspen_mp.planner.job.request import Instructions
from aspen_mp.system import processes
from aspen_mp.workers import _isa

if TYPE_CHECKING:
    from aspen_mp.planner.cost.rates import Rates

LEAST_CACHED, MOST_CACHED = 4 << 20, 128 << 20
"""Smaller caches are not the last ones before memory, of larger ones others have a part."""
LEAST_OWN = 64 << 10
"""So much fits any core's own cache."""


def planning() -> tuple[Rates, str]:
    """Return the rates that plans are made with here, those built in for this kind of core, and their name."""
    import msgspec

    from aspen_mp.planner.cost import rates

    found, name = rates.built_in(_isa.vectors(), rates.vendor(), fast_bytes())
    return msgspec.structs.replace(found, cached=cached(), own=own()), name


def predicting(folder: str) -> Rates:
    """Return the rates that plans are predicted with here: measured ones kept in `folder`, else those that plans are made with."""
    import msgspec

    from aspen_mp import __version__
    from aspen_mp.planner.cost import rates

    found = rates.load(folder, __version__)
    return planning()[0] if found is None else msgspec.structs.replace(found, cached=cached(), own=own())


def instructions() -> Instructions:
    """Return what processors here multiply fast."""
    return Instructions(_isa.vectors(), _isa.sums_bytes(), fast_pairs(), _isa.sums_amx())


def fast_bytes() -> bool:
    """Whether products of bytes are as fast here, beside others, as built-in rates have them."""
    return _isa.vectors() == "" or _isa.sums_bytes()


def fast_pairs() -> bool:
    """Whether products of pairs of bf16 are faster here than those of f32. Intel's cores sum as many products of f32 at a time as of bf16:
    for bf16 they have AMX. There a network took twice its time in f32 (record `emerald-rapids-2`)."""
    from aspen_mp.planner.cost import rates

    return _isa.sums_pairs() and rates.vendor() != rates.INTEL


def cached() -> int:
    """Bytes of activations that the last-level cache of this process' first core holds beside the weights that pass through it: half of it,
    within reason."""
    from aspen_mp.planner.cost.rates import Rates
    from aspen_mp.workers import topology

    sizes = [size for size, _ in topology.cache_sizes(min(processes.sched_getaffinity(0))).values()]
    return min(max(max(sizes) // 2, LEAST_CACHED), MOST_CACHED) if sizes else Rates().cached


def own() -> int:
    """Bytes of rows of a stack that this process' first core has room for in its own second-level cache beside what passes through it: half
    of its share."""
    from aspen_mp.planner.cost.rates import Rates
    from aspen_mp.workers import topology

    found = topology.cache_sizes(min(processes.sched_getaffinity(0))).get("L2")
    if found is None:
        return Rates().own
    size, sharing = found
    return max(size // (2 * max(sharing, 1)), LEAST_OWN)
