"""Finds the cores that this process may use, how fast each is, what it shares with the others, and where workers go.

Everything is read from `/proc` and `/sys` (no dependency, no numpy), below a `root` that tests replace by a made-up tree. A file that is
missing or odd costs precision, never an error. The core then counts as an ordinary one that shares its caches with its package. One that
cannot be opened because there are no descriptors or memory is an OSError: it does not say that there is no limit.

The number of cores that may be used is the least of four. They are the CPUs of the affinity mask, those of the cpuset, the physical cores
among those, and the CPU quota. The quota is the lowest of the process's cgroup and of every one above it. The cores to use follow from core
class (performance before efficiency cores), caches and NUMA nodes. The engine works out from the same facts in which order a worker steals
from the others.

All of it may change while a runtime runs, and nothing tells. inotify reports a write to `cpu.max` or `cpuset.cpus` only to who watches that
very file through the same mount. It never reports that `cpuset.cpus.effective` follows a parent's file, or that an affinity mask was set
(tried on Linux 6.18). The kernel itself raises events for `cgroup.events`, `memory.events` and `cpuset.cpus.partition` alone. So
`LimitsReader` is made to be asked again and again: one system call and a few small files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from aspen_mp.shm.errors import ResourceLimitError
from aspen_mp.shm.scarcity import OPENING
from aspen_mp.shm.words import count
from aspen_mp.system import filesystem, processes

# A quota is spent by the workers together with whatever else runs in the cgroup. A fraction below this is not enough for one more worker.
# The kernel would stop *all* threads of the cgroup for the rest of every period, each in the middle of an awaited tile.
_QUOTA_SLACK = 0.1
# Cores belong to one class when each is nearly as fast as the next. Favoured cores of a uniform machine (Turbo Boost Max, preferred cores)
# differ by a few per cent. Performance and efficiency cores differ by a third or more.
_CLASS_GAP = 0.88
_CLASS_NAMES = ("performance", "efficiency", "low-power")

ROOT = "/"
"""Where `/proc` and `/sys` are, unless a caller says otherwise."""


@dataclass(frozen=True, slots=True)
class PhysicalCore:
    """One logical CPU. `package`, `node`, `l2` and `l3` are numbers that are equal for CPUs of one package, NUMA node or cache.

    `siblings` are the logical CPUs of the same physical core, this one included. `rank` is 0 for the fastest class of cores of the machine,
    1 for the next; `core_class` its name ("uniform" where all cores are alike). `speed` is relative to the fastest core, in (0, 1].
    """

    cpu: int
    package: int
    node: int
    siblings: tuple[int, ...]
    l2: int
    l3: int
    rank: int
    core_class: str
    speed: float


@dataclass(frozen=True, slots=True)
class Topology:
    """The usable part of a machine: `cores` by CPU number, `quota` in CPUs (None: no limit), `online` CPUs of the whole machine."""

    cores: tuple[PhysicalCore, ...]
    quota: float | None
    online: int

    @property
    def by_cpu(self) -> dict[int, PhysicalCore]:
        return {core.cpu: core for core in self.cores}

    @property
    def physical(self) -> int:
        """Physical cores with at least one usable CPU."""
        return len({core.siblings for core in self.cores})

    @property
    def paid(self) -> int | None:
        """Workers that the quota pays for, at least one; None without a quota."""
        return None if self.quota is None else max(1, int(self.quota + _QUOTA_SLACK))

    @property
    def default_workers(self) -> int:
        """One worker for each physical core, no more than the quota pays for, at least one."""
        return len(self.select())

    def limited(self, classes: Sequence[str] | None = None, smt: bool = False) -> Topology:
        """The same machine with cores of these classes only (None: all), and second threads of physical cores left out unless `smt`.

        Where that would leave nothing (a machine without such classes, or a mask that holds slow cores alone) the classes do not count.
        """
        chosen = [
            core for core in self.cores if classes is None or core.core_class in classes or core.core_class == "uniform"
        ] or self.cores
        first: dict[tuple[int, ...], int] = {}
        for core in chosen:
            first.setdefault(core.siblings, core.cpu)
        if not smt:
            chosen = [core for core in chosen if first[core.siblings] == core.cpu]
        return Topology(cores=tuple(chosen), quota=self.quota, online=self.online)

    def select(
        self,
        workers: int | None = None,
        cores: Sequence[int] | None = None,
        *,
        classes: Sequence[str] | None = None,
        smt: bool = False,
        taken: Iterable[int] = (),
    ) -> list[int]:
        """CPUs of a runtime's workers, one each: `cores` if given, else the best `workers`, else one for each core that the quota pays for.

        `classes` and `smt` (see `limited`) decide what "core" means where the caller does not name CPUs. `taken` names a CPU once for each
        worker that others have there. CPUs with the fewest workers come first, and taken ones do not count as cores where there are others.
        `ResourceLimitError` for no worker, for CPUs that cannot be used, and where `workers` and `cores` disagree.
        """
        if cores is not None:
            return self.choose(len(cores) if workers is None else workers, cores)
        if workers is not None and workers < 1:
            raise ResourceLimitError(f"{count(workers, 'worker')} asked for. A runtime needs at least one")
        there = self.limited(classes, smt)
        others = Counter(taken)
        if workers is None:
            limit = sum(core.cpu not in others for core in there.cores) or len(there.cores)
            workers = min(limit, self.paid or limit)
        # More workers than such cores: the rest of the machine helps out before CPUs are shared.
        first = there.placement()
        order = first + [cpu for cpu in self.placement() if cpu not in set(first)]
        return _least_used(order, workers, others)

    def speeds(self, cpus: Iterable[int], gives: Mapping[int, float] = MappingProxyType({})) -> list[float]:
        """Speeds of the cores of these CPUs, fastest first, relative to the fastest. They have two digits, because plans are made for them
        and kept. One that is not known counts as of speed 1. `gives`: what share of its speed a CPU gives, where it is not all."""
        known = self.by_cpu
        found = sorted(((known[cpu].speed if cpu in known else 1.0) * gives.get(cpu, 1.0) for cpu in cpus), reverse=True)
        return [max(round(speed / found[0], 2), 0.01) for speed in found]

    def placement(self) -> list[int]:
        """All usable CPUs, best first: fastest class, cores that share caches and memory side by side, second threads of a core last."""
        first: dict[tuple[int, ...], int] = {}
        for core in self.cores:
            first.setdefault(core.siblings, core.cpu)
        # The NUMA node with the most compute goes first, so that few workers share one memory.
        power: dict[int, float] = {}
        for core in self.cores:
            if first[core.siblings] == core.cpu:
                power[core.node] = power.get(core.node, 0.0) + core.speed

        def key(core: PhysicalCore) -> tuple[int, int, float, int, int, int]:
            thread = [s for s in core.siblings if s in usable].index(core.cpu)
            return thread, core.rank, -power.get(core.node, 0.0), core.node, core.l3, core.cpu

        usable = {core.cpu for core in self.cores}
        return [core.cpu for core in sorted(self.cores, key=key)]

    def choose(self, n: int, explicit: Sequence[int] | None = None, taken: Iterable[int] = ()) -> list[int]:
        """CPUs for `n` workers. With `explicit` exactly those, in that order; else those that are `taken` least
        often (each is named once for each worker there).

        More workers than CPUs is allowed (they then share CPUs evenly); a CPU that the process may not use is a `ResourceLimitError`.
        """
        if explicit is not None:
            allowed = self.by_cpu
            refused = sorted({cpu for cpu in explicit if cpu not in allowed})
            if refused:
                have = format_cpus(allowed)
                raise ResourceLimitError(
                    f"CPU {format_cpus(refused)} cannot be used. This process may run on CPUs {have} (affinity mask and cpuset)"
                )
            if len(explicit) != n:
                raise ResourceLimitError(
                    f"{count(n, 'worker')} asked for, but {count(len(explicit), 'core')} named. Name one core for each worker"
                )
            return list(explicit)
        return _least_used(self.placement(), n, Counter(taken))


def _least_used(order: Sequence[int], n: int, uses: Counter[int]) -> list[int]:
    """`n` of these CPUs, each the first in `order` of those used least by then."""
    uses, chosen = uses.copy(), []
    for _ in range(n):
        chosen.append(min(order, key=uses.__getitem__))
        uses[chosen[-1]] += 1
    return chosen


def parse_cpus(text: str) -> list[int]:
    """CPU numbers of a kernel list such as ``0-3,8,10-11``; empty for an empty list. ValueError if it is none."""
    cpus: set[int] = set()
    for part in filter(None, (p.strip() for p in text.strip().split(","))):
        first, dash, last = part.partition("-")
        low, high = int(first), int(last) if dash else int(first)
        if low < 0 or high < low or high > 1 << 16:
            raise ValueError(f"{text!r} is not a list of CPUs such as 0,2-3")
        cpus.update(range(low, high + 1))
    return sorted(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """The kernel's notation: ``0-3,8``."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


@dataclass(frozen=True, slots=True)
class Limits:
    """The CPUs that this process may use at a moment: `cpus`, and a `quota` in CPUs (None: no limit). `online`: CPUs of the whole
    machine."""

    cpus: tuple[int, ...]
    quota: float | None
    online: tuple[int, ...]


class LimitsReader:
    """Reads `Limits` again and again, cheaply. `root`: as of `read`."""

    def __init__(self, root: str | Path | None = None) -> None:
        self._base = Path(root or ROOT)
        self._paths = ""
        self._cgroups: list[_Cgroup] = []

    def read(self, affinity: Iterable[int] | None = None) -> Limits:
        """The present limits. `affinity` replaces the process's own mask (tests)."""
        mask = set(processes.sched_getaffinity(0) if affinity is None else affinity)
        online = set(_cpus(self._base / "sys/devices/system/cpu/online")) or mask
        paths = _text(self._base / "proc/self/cgroup")
        if paths != self._paths or not self._cgroups:  # moved to another cgroup: where its folders are takes a look at all mounts
            self._paths, self._cgroups = paths, _cgroups(self._base)
        usable = mask
        for limit in (online, _cpuset(self._cgroups)):
            # An affinity mask that lies wholly outside is stale or faked by a sandbox: the kernel lets us run, so the mask is right.
            usable = usable & limit or usable if limit else usable
        return Limits(tuple(sorted(usable)), _quota(self._cgroups), tuple(sorted(online)))


def read(root: str | Path | None = None, affinity: Iterable[int] | None = None) -> Topology:
    """The topology as the process sees it now. `affinity` replaces the process's own mask (tests)."""
    base = Path(root or ROOT)
    limits = LimitsReader(base).read(affinity)
    cores = _cores(base, limits.cpus, sorted({*limits.online, *limits.cpus}))
    return Topology(cores=cores, quota=limits.quota, online=len(limits.online))


def default_workers() -> int:
    """How many workers a runtime starts when the user does not say: one for each physical core that affinity, cpuset and quota allow."""
    return read().default_workers


# ------------------------------------------------------------------------------------------------ files


def _text(path: Path) -> str:
    try:
        with filesystem.open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError as error:
        if error.errno in OPENING:
            raise
        return ""


def _int(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None


def _cpus(path: Path) -> list[int]:
    try:
        return parse_cpus(_text(path))
    except ValueError:
        return []


# ------------------------------------------------------------------------------------------------ cores


def _cores(base: Path, cpus: Sequence[int], everywhere: Sequence[int]) -> tuple[PhysicalCore, ...]:
    """Describes `cpus`; classes are judged over all CPUs of the machine, so that a mask does not turn E-cores into the fastest class."""
    system = base / "sys/devices/system"
    node_of = {cpu: _number(entry.name, "node") for entry in _entries(system / "node", "node") for cpu in _cpus(entry / "cpulist")}
    classes = _classes(base, everywhere)
    # Cores of a package without an L3 (ARM machines, low-power cores, hypervisors that hide it) count as one group.
    without_l3: dict[int, int] = {}
    found = []
    for cpu in cpus:
        folder = system / "cpu" / f"cpu{cpu}"
        package = _int(folder / "topology/physical_package_id")
        package = package if package is not None and package >= 0 else 0
        siblings = _cpus(folder / "topology/core_cpus_list") or _cpus(folder / "topology/thread_siblings_list")
        l2, l3 = _caches(folder)
        rank, name, speed = classes[cpu]
        found.append(
            PhysicalCore(
                cpu=cpu,
                package=package,
                node=node_of.get(cpu, 0),
                siblings=tuple(siblings) if cpu in siblings else (cpu,),
                l2=l2 if l2 is not None else cpu,
                l3=l3 if l3 is not None else without_l3.setdefault(package, cpu),
                rank=rank,
                core_class=name,
                speed=speed,
            )
        )
    return tuple(found)


def _entries(folder: Path, prefix: str) -> list[Path]:
    try:
        return sorted(folder / name for name in filesystem.listdir(folder) if name.startswith(prefix) and name[len(prefix) :].isdigit())
    except OSError as error:
        if error.errno in OPENING:
            raise
        return []


def _number(name: str, prefix: str) -> int:
    return int(name[len(prefix) :])


def _caches(folder: Path) -> tuple[int | None, int | None]:
    """Lowest CPU number that shares the L2 and the L3 of this CPU: the same number means the same cache."""
    shared: dict[int, int] = {}
    for index in _entries(folder / "cache", "index"):
        level = _int(index / "level")
        cpus = _cpus(index / "shared_cpu_list")
        if level in (2, 3) and cpus and _text(index / "type") != "Instruction":
            shared[level] = cpus[0]
    return shared.get(2), shared.get(3)


def _classes(base: Path, cpus: Sequence[int]) -> dict[int, tuple[int, str, float]]:
    """(rank, name, relative speed) of every CPU.

    The kernel's own verdict comes first (`cpu_core`, `cpu_atom`, `cpu_lowpower` on Intel hybrids). Then come measures of speed:
    `cpu_capacity` (ARM, and x86 with asymmetric scheduling), CPPC `highest_perf`, the highest frequency. Without any, all cores are alike.
    """
    devices = base / "sys/devices"
    speed = _speeds(devices / "system/cpu", cpus)
    groups: list[set[int]] = []
    pmus = [set(_cpus(devices / name / "cpus")) & set(cpus) for name in ("cpu_core", "cpu_atom", "cpu_lowpower")]
    pmus = [group for group in pmus if group]
    if len(pmus) > 1 and set().union(*pmus) == set(cpus):
        groups = pmus
    elif speed:
        order = sorted(cpus, key=lambda cpu: -speed[cpu])
        groups = [{order[0]}]
        for before, cpu in pairwise(order):
            if speed[cpu] < _CLASS_GAP * speed[before]:
                groups.append(set())
            groups[-1].add(cpu)
    else:
        groups = [set(cpus)]
    table: dict[int, tuple[int, str, float]] = {}
    top = max(speed.values(), default=1.0)
    for rank, group in enumerate(groups):
        name = "uniform" if len(groups) == 1 else _CLASS_NAMES[min(rank, len(_CLASS_NAMES) - 1)]
        mean = sum(speed[cpu] for cpu in group) / len(group) / top if speed and len(groups) > 1 else 1.0
        for cpu in group:
            table[cpu] = (rank, name, mean)
    return table


def _speeds(folder: Path, cpus: Sequence[int]) -> dict[int, float]:
    """The first measure of speed that every CPU has and that is not the same for all; empty if there is none."""
    for name in ("cpu_capacity", "acpi_cppc/highest_perf", "cpufreq/cpuinfo_max_freq"):
        values = {cpu: _int(folder / f"cpu{cpu}" / name) for cpu in cpus}
        speed = {cpu: float(value) for cpu, value in values.items() if value is not None and value > 0}
        if len(speed) == len(cpus) and len(set(speed.values())) > 1:
            return speed
    return {}


# ------------------------------------------------------------------------------------------------ cgroups


@dataclass(frozen=True, slots=True)
class _Cgroup:
    """A cgroup folder of this process, from its own up to the root that it can see; `version` 1 or 2."""

    version: int
    controllers: frozenset[str]
    folders: tuple[Path, ...]


def _cgroups(base: Path) -> list[_Cgroup]:
    paths: list[tuple[frozenset[str], str]] = []
    for line in _text(base / "proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            paths.append((frozenset(filter(None, parts[1].split(","))), parts[2]))
    found = []
    for version, options, inside, mount in _cgroup_mounts(base):
        for controllers, path in paths:
            if version == 2 and not controllers:
                found.append(_Cgroup(2, frozenset({"cpu", "cpuset", "memory"}), _ancestry(base, mount, inside, path)))
            elif version == 1 and controllers & options:
                found.append(_Cgroup(1, controllers, _ancestry(base, mount, inside, path)))
    return found


def _cgroup_mounts(base: Path) -> list[tuple[int, frozenset[str], str, str]]:
    """(version, super-block options, root inside the hierarchy, mount point) of every cgroup mount."""
    mounts = []
    for line in _text(base / "proc/self/mountinfo").splitlines():
        left, dash, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if not dash or len(fields) < 5 or not tail or tail[0] not in ("cgroup", "cgroup2"):
            continue
        inside, mount = (f.replace("\\040", " ") for f in fields[3:5])
        mounts.append((2 if tail[0] == "cgroup2" else 1, frozenset(tail[-1].split(",")), inside, mount))
    return mounts


def _ancestry(base: Path, mount: str, inside: str, path: str) -> tuple[Path, ...]:
    """Folders from the process's cgroup up to the mount point.

    In a container without its own cgroup namespace `path` names the cgroup as the host sees it. The mount shows a part of the hierarchy
    that begins at `inside`. Folders above the mount cannot be seen (nor can their limits).
    """
    top = base / mount.lstrip("/")
    try:
        relative = PurePosixPath(path).relative_to(inside)
    except ValueError:
        relative = PurePosixPath()
    if ".." in relative.parts:  # moved out of the namespace's root: only the mount point is known to be ours
        relative = PurePosixPath()
    folder = top / relative
    folders = [folder]
    while folder != top:
        folder = folder.parent
        folders.append(folder)
    return tuple(folders)


def _quota(cgroups: Sequence[_Cgroup]) -> float | None:
    """CPUs per wall-clock time that the strictest cgroup grants, None without a limit."""
    limits: list[float] = []
    for group in cgroups:
        if "cpu" not in group.controllers:
            continue
        for folder in group.folders:
            if group.version == 2:
                quota, _, period = _text(folder / "cpu.max").partition(" ")
            else:
                quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
            if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
                limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_limit(root: str | Path = "/") -> int | None:
    """Bytes of memory that the strictest cgroup of this process grants, None without a limit."""
    limits = []
    for group in _cgroups(Path(root)):
        if "memory" in group.controllers:
            name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
            limits += [limit for folder in group.folders if (limit := _int(folder / name)) is not None and 0 < limit < 1 << 60]
    return min(limits, default=None)


def cache_sizes(cpu: int, root: str | Path = "/") -> dict[str, tuple[int, int]]:
    """The caches of a CPU: name ("L1d", "L1i", "L2", "L3") → (bytes, number of CPUs that share it)."""
    found = {}
    for index in _entries(Path(root) / f"sys/devices/system/cpu/cpu{cpu}/cache", "index"):
        kind = {"Data": "d", "Instruction": "i"}.get(_text(index / "type"), "")
        size = _text(index / "size")
        factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1:], 0)
        if factor and size[:-1].isdigit():
            shared = len(_cpus(index / "shared_cpu_list")) or 1
            found[f"L{_text(index / 'level')}{kind}"] = (int(size[:-1]) * factor, shared)
    return dict(sorted(found.items()))


def _cpuset(cgroups: Sequence[_Cgroup]) -> set[int]:
    """CPUs of the process's cpuset, empty if it has none."""
    for group in cgroups:
        if "cpuset" not in group.controllers:
            continue
        names = ("cpuset.cpus.effective",) if group.version == 2 else ("cpuset.effective_cpus", "cpuset.cpus")
        for folder in group.folders:
            for name in names:
                cpus = _cpus(folder / name)
                if cpus:
                    return set(cpus)
    return set()
