"""What one core of this machine reaches, as the cost model uses it: measured once by `aspen-mp doctor --calibrate`, or built in.

Rates size tiles, order them and predict times. They never choose an algorithm, because algorithms differ in their last bits and results
must not depend on who measured what: such choices use the built-in figures of `cost`.
"""

from __future__ import annotations

import glob
import hashlib
import os
from typing import Final

import msgspec

FORMAT: Final = 3


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Operations and bytes per nanosecond (10⁹ a second) on one core, and nanoseconds.

    `matrix`: GEMM, CONV, ATTENTION; `depthwise`: DWCONV, PWDW. `cold`: memory traffic that misses the caches: weights, and activations of
    large layers; `together`: the same of all cores together; `warm`: activations that another tile left in a shared cache. `tile_ns`: what
    a tile costs besides its arithmetic: scheduling, cold start of a kernel, uneven ends. `element_ns`: per element, by kernel, where it
    was measured.
    """

    matrix: float = 118.0
    depthwise: float = 90.0
    cold: float = 25.0
    warm: float = 60.0
    together: float = 33.0
    tile_ns: float = 2000.0
    element_ns: dict[str, float] = {}


BUILT_IN: Final = Rates()


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file: `rates`, and what they were made from, for people."""

    format: int
    processor: str
    isa: str
    version: str
    measured: dict[str, float]
    rates: Rates


NAMES: Final = ("model name", "vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU variant", "CPU part")
"""Lines of /proc/cpuinfo that say what a processor is. A name alone does not: virtual machines show the same one for unlike processors."""


def processor(file: str = "/proc/cpuinfo") -> str:
    """What the first processor is, by the kernel's list of them."""
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
    return (
        ", ".join(found[name] if name == "model name" else f"{name} {found[name]}" for name in NAMES if name in found) or os.uname().machine
    )


def path(folder: str, version: str) -> str:
    """The calibration file of this processor, instruction set (as far as ASPEN_MP_ISA forces one) and version of the package."""
    key = "\n".join((processor(), os.environ.get("ASPEN_MP_ISA", ""), version, str(FORMAT)))
    return os.path.join(folder, f"calibration-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json")


def load(folder: str, version: str) -> tuple[Rates, str]:
    """This machine's rates and the name that plans made with them carry. Built-in ones, named "", where it has not been calibrated or the
    file is of no use."""
    if not folder or not glob.glob(os.path.join(glob.escape(folder), "calibration-*.json")):
        return BUILT_IN, ""
    try:
        with open(path(folder, version), "rb") as file:
            data = file.read(1 << 20)
        found = msgspec.json.decode(data, type=Calibration)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return BUILT_IN, ""
    rates = found.rates
    plain = [rates.matrix, rates.depthwise, rates.cold, rates.warm, rates.together, rates.tile_ns, *rates.element_ns.values()]
    if found.format != FORMAT or not all(1e-6 < value < 1e9 for value in plain):
        return BUILT_IN, ""
    return rates, hashlib.sha256(data).hexdigest()[:16]


def save(folder: str, calibration: Calibration) -> str:
    """Writes the file of this machine; returns its path."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    name = path(folder, calibration.version)
    temporary = f"{name}.{os.urandom(6).hex()}.tmp"
    with open(temporary, "xb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(calibration)))
    os.replace(temporary, name)
    return name
