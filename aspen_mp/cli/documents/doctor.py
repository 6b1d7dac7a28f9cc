"""Documents of `aspen-mp doctor`."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from aspen_mp.control.wire.status import Document


class Machine(Document):
    cpu: str
    architecture: str
    system: str
    online_cpus: int
    usable_cpus: str
    physical_cores: int
    packages: int
    numa_nodes: int
    cpu_quota: float | None


class Cache(Document):
    bytes: int
    shared_by: int


class Core(Document):
    """A core. `class`: performance, efficiency, low-power or uniform; `speed`: 1.0 is the fastest."""

    cpu: int
    core_class: str = msgspec.field(name="class")
    speed: float
    package: int
    node: int
    threads: list[int]
    l2: int
    l3: int
    caches: dict[str, Cache]


class Lease(Document):
    """What a runtime would use; `taken`: CPUs of other runtimes' workers."""

    workers: int
    cpus: list[int]
    taken: list[int]


class InstructionSets(Document):
    supported: list[str]
    selected: str
    forced: str
    sums_bytes: bool
    sums_pairs: bool
    sums_amx: bool
    error: str


class Memory(Document):
    total: int
    available: int
    cgroup_limit: int | None
    shm_total: int
    shm_free: int
    transparent_huge_pages: str
    segment_huge_pages: bool
    descriptors: int


class Kernel(Document):
    pidfd: bool
    memfd: bool
    posix_shm: bool
    futex: bool


class PlanCache(Document):
    folder: str
    plans: int
    bytes: int
    limit: int


class Runtimes(Document):
    """Named runtimes of this user. `directories`: all that are searched, the first one for new runtimes."""

    directories: list[str]
    running: list[str]


class Remains(Document):
    runtimes: list[str]
    segments: list[str]


class Finding(Document):
    level: str
    text: str
    remedy: str


class Doctor(Document):
    """`aspen-mp doctor`. `calibration`: the rates measured by --calibrate; `removed`: with --clean."""

    version: str
    machine: Machine
    cores: list[Core]
    lease: Lease
    isa: InstructionSets
    memory: Memory
    kernel: Kernel
    packages: dict[str, str | None]
    cache: PlanCache
    calibration: dict[str, Any] | None
    runtimes: Runtimes
    stale: Remains
    findings: list[Finding]
    removed: Remains | UnsetType = UNSET
