"""The machine that a benchmark ran on, the versions that took part, and what else the machine did meanwhile."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from aspen_mp.planner.cost import rates
from aspen_mp.workers import _kernels, topology

OTHERS_LIMIT = 0.05
"""Share of the cores that other processes may use before a run without disturbing it."""
STOLEN_LIMIT = 0.02
"""Share of the cores' time that a hypervisor may take during a run without disturbing it."""
PACKAGES = ("numpy", "onnx", "onnxruntime", "openvino", "torch", "bentoml", "mlserver")
_LOOK_S = 0.5

_CORES = {
    ("GenuineIntel", 6, 85): "Skylake to Cascade Lake",
    ("GenuineIntel", 6, 106): "Ice Lake",
    ("GenuineIntel", 6, 143): "Sapphire Rapids",
    ("GenuineIntel", 6, 207): "Emerald Rapids",
    ("GenuineIntel", 6, 173): "Granite Rapids",
}
"""Names of server processors by vendor, family and model, as virtual machines hide the model's own."""
_AMD = {23: "Zen 2", 25: "Zen 3", 26: "Zen 5"}


class Machine(msgspec.Struct, kw_only=True):
    """`cores`: those that the run could use; `isa`: best instruction set of our kernels. `caches`: bytes and how many cores share each, by
    name, as far as the system says. `governor`: of the first core's clock, None where the system hides it. `virtual`: a hypervisor runs."""

    processor: str
    core: str
    cores: int
    isa: str
    caches: dict[str, tuple[int, int]]
    memory_gib: float
    governor: str | None
    virtual: bool
    system: str
    python: str

    @property
    def name(self) -> str:
        """How tables call it."""
        return f"{self.core}, {self.cores} cores"

    @property
    def slug(self) -> str:
        """Its folder's name."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.core} {self.cores}".lower()).strip("-")


class Load(msgspec.Struct, kw_only=True):
    """`others`: cores that other processes used before the run. `stolen`: share of the usable cores' time that a hypervisor took during it.
    `average`: the system's load average of a minute before it."""

    others: float
    stolen: float
    average: float


class Watch:
    """Looks at the machine when it is made, half a second long, and again by `load`."""

    def __init__(self) -> None:
        self._average = os.getloadavg()[0]
        self._cores = sorted(os.sched_getaffinity(0))
        own, begin, self._times = _own_seconds(), time.monotonic(), _times(self._cores)
        time.sleep(_LOOK_S)
        wall = time.monotonic() - begin
        busy = sum(after - before for before, after in zip(self._times[0], _times(self._cores)[0], strict=True))
        self._others = max(0.0, busy - (_own_seconds() - own)) / wall
        self._begin = begin

    def load(self) -> Load:
        """The load of the machine before the run and during it."""
        wall = time.monotonic() - self._begin
        stolen = sum(after - before for before, after in zip(self._times[1], _times(self._cores)[1], strict=True))
        return Load(others=self._others, stolen=stolen / (wall * len(self._times[1])), average=self._average)


def _times(cores: Sequence[int]) -> tuple[list[float], list[float]]:
    """Seconds that each core was busy, and that a hypervisor took from it."""
    every = psutil.cpu_times(percpu=True)
    times = [every[core] for core in cores]
    return [t.user + t.nice + t.system + t.irq + t.softirq for t in times], [t.steal for t in times]


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system


def machine() -> Machine:
    """This one."""
    there = topology.read()
    cpu = there.cores[0].cpu
    governor = Path(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor")
    return Machine(
        processor=_fact("model name") or platform.processor() or platform.machine(),
        core=_core(),
        cores=len(there.cores),
        isa=_kernels.selected(),
        caches=topology.cache_sizes(cpu),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        governor=governor.read_text().strip() if governor.exists() else None,
        virtual="hypervisor" in _fact("flags").split(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def _core() -> str:
    """The kind of core, such as `Zen 4`; else the processor's own name."""
    vendor, family, model = rates.vendor(), _number("cpu family"), _number("model")
    if vendor == "AuthenticAMD" and family in _AMD:
        if family == 23 and model < 0x30:
            return "Zen"
        zen4 = family == 25 and (model in range(0x10, 0x20) or model in range(0x60, 0xB0))
        return "Zen 4" if zen4 else _AMD[family]
    return _CORES.get((vendor, family, model)) or _fact("model name") or platform.machine()


def _number(name: str) -> int:
    text = _fact(name)
    return int(text) if text.isdigit() else -1


def _fact(name: str) -> str:
    """A line of the first processor in the kernel's list."""
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def version_of(package: str) -> str:
    """The version of a package. Our own is that of the code that runs: what pip has noted stays as it was when pip last installed it."""
    if package == "aspen-mp":
        import aspen_mp

        return aspen_mp.__version__
    return importlib.metadata.version(package)


def packages() -> dict[str, str]:
    """Versions of what benchmarks set beside each other, as far as installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version_of(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The source tree's commit, with a `+` where files differ from it; None outside a tree of ours."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    return head and head + "+" * bool(_git(root, "status", "--porcelain", "--untracked-files=no"))


def _git(root: Path, *arguments: str) -> str | None:
    """The output of git; None where it fails."""
    try:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
