"""The rates of one core of this machine for the cost model: built in, or measured by `aspen-mp doctor --calibrate`.

Plans are made with the built-in rates of a kind of core: they size tiles and order them. Measured rates predict the times of such plans. No
rates choose an algorithm, because algorithms differ in their last bits: such choices use the built-in figures of `cost`.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
from typing import Final

import msgspec

from aspen_mp.planner.cost import factors
from aspen_mp.planner.job.options import Vectors

FORMAT: Final = 7
FARTHEST: Final = 100.0
"""The largest value of `far`."""


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Operations and bytes per nanosecond (10⁹ a second) on one core, and nanoseconds.

    `matrix`: multiply-adds of matrix kernels, counted as two. `cold`: memory traffic that misses the caches: weights, and activations of
    large layers. `together`: the same of all cores together. `warm`: activations that another tile left in a cache. `tile_ns`: a tile's
    time besides its arithmetic: scheduling, cold start of a kernel, uneven ends. `factors`: by kernel (`op_cost.kernel`), the ratio of its
    tiles' times to its model's; 1 for other kernels. `cached`: bytes of an op's activations that stay in the last-level cache until they
    are read. `own`: bytes of rows of a stack that stay in a core's own one. `far`: extra nanoseconds for a byte that another core has
    written. It is fetched from the other's cache, and taken back when it is written again; nothing is hidden behind arithmetic.
    `transforms`: the time of transforming WINO's input, beside its model's. It is not a factor of a
    kernel: tiles of one node share the transform, so it decides which of them should.
    `contention`: the slowdown of a core that asks for a part of `together` while another core asks for a part. The parts are
        `contended_at`, those of the core by row. Where nothing has been measured, cores share the memory fairly.
    """

    matrix: float = 118.0
    cold: float = 25.0
    warm: float = 60.0
    together: float = 33.0
    tile_ns: float = 2000.0
    factors: dict[str, float] = {}
    cached: int = 16 << 20
    own: int = 1 << 20
    far: float = 0.0
    transforms: float = 1.0
    contended_at: list[float] = []
    contention: list[list[float]] = []


BUILT_IN: Final = Rates()
"""Rates of cores that take vectors of 512 bits in two halves (Zen 4, whose kernels the models were made of), and of unknown cores."""
SHORT_VECTORS: Final = Rates(
    matrix=98.0,
    cold=21.0,
    warm=33.0,
    together=31.5,
    tile_ns=1800.0,
    factors=dict(factors.SHORT_VECTORS),
    far=0.015,
    transforms=2.5,
)
"""Rates of cores with vectors of 256 bits (Zen 3, a server's): a lower clock, and half the rate between tiles."""
WHOLE_VECTORS: Final = Rates(
    matrix=226.0,
    cold=36.0,
    warm=60.0,
    together=48.0,
    tile_ns=1800.0,
    factors=dict(factors.WHOLE_VECTORS),
)
"""Rates of AMD's cores that take vectors of 512 bits whole (Zen 5)."""
INTEL: Final = "GenuineIntel"
WHOLE_VECTORS_INTEL: Final = Rates(
    matrix=165.0,
    cold=15.5,
    warm=32.0,
    together=28.0,
    tile_ns=1800.0,
    factors=dict(factors.WHOLE_VECTORS_INTEL),
    far=0.05,
)
"""Rates of Intel's such cores (a server's, Emerald Rapids): a lower clock, and less than half the rate of reading memory and the last-level
cache."""


SLOW_BYTES: Final = 3.0
"""How much longer products of bytes take where no instruction sums four of them."""


def built_in(vectors: Vectors, vendor: str = "", sums_bytes: bool = True) -> tuple[Rates, str]:
    """Rates and the name that plans made with them carry. `vendor`: see `vendor`. `sums_bytes`: whether the processor sums products of
    bytes in one instruction."""
    found, name = BUILT_IN, ""
    if vectors == "short":
        found, name = SHORT_VECTORS, "short vectors"
    elif vectors == "whole":
        found, name = (WHOLE_VECTORS_INTEL, "whole vectors, Intel") if vendor == INTEL else (WHOLE_VECTORS, "whole vectors")
    if sums_bytes:
        return found, name
    slow = {kernel: SLOW_BYTES * found.factors.get(kernel, 1.0) for kernel in factors.BYTES}
    return msgspec.structs.replace(found, factors=found.factors | slow), f"{name}, bytes in pairs".lstrip(", ")


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file: `rates`, and their origin, for people."""

    format: int
    processor: str
    isa: str
    version: str
    measured: dict[str, float]
    rates: Rates


NAMES: Final = ("model name", "vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU variant", "CPU part")
"""Lines of /proc/cpuinfo that identify a processor. A name alone does not: virtual machines show the same one for unlike processors."""


def processor(file: str = "/proc/cpuinfo") -> str:
    """The first processor, by the kernel's list of them."""
    found = _facts(file)
    return (
        ", ".join(found[name] if name == "model name" else f"{name} {found[name]}" for name in NAMES if name in found) or os.uname().machine
    )


def vendor(file: str = "/proc/cpuinfo") -> str:
    """The maker's name, as x86 processors say it themselves; "" where they do not."""
    return _facts(file).get("vendor_id", "")


def _facts(file: str) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        with open(file, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in NAMES:
                    found.setdefault(name.strip(), value.strip())
                elif not name.strip():
                    break
    except OSError:
        pass
    return found


def path(folder: str, version: str) -> str:
    """The calibration file of this processor, instruction set (as far as ASPEN_MP_ISA forces one) and version of the package."""
    key = "\n".join((processor(), os.environ.get("ASPEN_MP_ISA", ""), version, str(FORMAT)))
    return os.path.join(folder, f"calibration-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json")


def load(folder: str, version: str) -> Rates | None:
    """Return this machine's rates as they were measured; None where it has not been calibrated or the file is of no use."""
    if not folder or not glob.glob(os.path.join(glob.escape(folder), "calibration-*.json")):
        return None
    try:
        with open(path(folder, version), "rb") as file:
            found = msgspec.json.decode(file.read(1 << 20), type=Calibration)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    rates = found.rates
    plain = [
        rates.matrix,
        rates.cold,
        rates.warm,
        rates.together,
        rates.tile_ns,
        float(rates.cached),
        float(rates.own),
        rates.transforms,
        *rates.factors.values(),
    ]
    good = found.format == FORMAT and all(1e-6 < value < 1e9 for value in plain) and 0 <= rates.far < FARTHEST
    return rates if good and _is_table(rates) else None


def _is_table(rates: Rates) -> bool:
    """Whether `contention` has a row and a column for each of the ascending parts, each slowdown one of 1 or more, or is not there."""
    at, rows = rates.contended_at, rates.contention
    ascends = all(0 <= a < b <= 2 for a, b in itertools.pairwise([*at, 2.0]))
    return len(rows) == len(at) and ascends and all(len(row) == len(at) and all(1 <= x <= FARTHEST for x in row) for row in rows)


def save(folder: str, calibration: Calibration) -> str:
    """Writes the file of this machine; returns its path."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    name = path(folder, calibration.version)
    temporary = f"{name}.{os.urandom(6).hex()}.tmp"
    with open(temporary, "xb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(calibration)))
    os.replace(temporary, name)
    return name
