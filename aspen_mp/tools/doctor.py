"""Facts for `aspen-mp doctor`: the machine, the cores that a runtime would lease, and the remains of dead runtimes.

`examine` only reads. `clean` removes only dead things. They are run-directory files whose lock nobody holds, and segments of this user that
have kept a name longer than a living process needs one.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aspen_mp.control.planning import plan_cache
from aspen_mp.control.pool.core_leases import Leases, folder
from aspen_mp.workers import topology

_SHM = Path("/dev/shm")
# Where /dev/shm has no files without names, a segment is unlinked right after it was made. One that is older than this belongs to a process
# that died in between.
_STALE_SEGMENT_S = 60.0
_SMALL_SHM = 1 << 30
_FEW_DESCRIPTORS = 1024


def examine(profile: str | Path | None = None) -> dict[str, Any]:
    """Everything `aspen-mp doctor --json` prints. `findings` lists what is worth knowing: level "problem" or "note", text, remedy."""
    from aspen_mp import __version__, config

    chosen = config.load(profile)
    there = topology.read()
    report: dict[str, Any] = {
        "version": __version__,
        "machine": _machine(there),
        "cores": [_core(core) for core in there.cores],
        "lease": _lease(there, chosen),
        "isa": _isa(),
        "memory": _memory(),
        "kernel": _kernel(),
        "packages": _packages(),
        "cache": _cache(chosen),
        "calibration": _calibration(chosen),
        "runtimes": _runtimes(),
        "stale": stale(),
    }
    report["findings"] = _findings(report)
    return report


def stale() -> dict[str, list[str]]:
    """Remains of dead runtimes: `runtimes` (names with files in the run directory) and `segments` (files in /dev/shm)."""
    from aspen_mp.control.wire import run_directory
    from aspen_mp.ray import locks

    return {
        "runtimes": sorted({*(name for name, alive in run_directory.names().items() if not alive), *locks.left()}),
        "segments": [p.name for p in _stale_segments()],
    }


def clean() -> dict[str, list[str]]:
    """Removes what `stale` finds; returns what is gone."""
    from aspen_mp.control.wire import run_directory
    from aspen_mp.ray import locks

    segments = []
    for path in _stale_segments():
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        segments.append(path.name)
    return {"runtimes": sorted({*run_directory.clean(), *locks.clean()}), "segments": segments}


def _stale_segments() -> list[Path]:
    uid, now = os.getuid(), time.time()
    found = []
    for path in sorted(_SHM.glob(f"aspen-{uid}-*")):
        try:
            info = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISREG(info.st_mode) and info.st_uid == uid and now - info.st_ctime > _STALE_SEGMENT_S:
            found.append(path)
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _machine(there: topology.Topology) -> dict[str, Any]:
    model = next(
        (line.partition(":")[2].strip() for line in _read("/proc/cpuinfo").splitlines() if line.startswith(("model name", "Model"))), ""
    )
    return {
        "cpu": model or platform.processor() or "unknown",
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "online_cpus": there.online,
        "usable_cpus": topology.format_cpus(core.cpu for core in there.cores),
        "physical_cores": there.physical,
        "packages": len({core.package for core in there.cores}),
        "numa_nodes": len({core.node for core in there.cores}),
        "cpu_quota": there.quota,
    }


def _core(core: topology.PhysicalCore) -> dict[str, Any]:
    return {
        "cpu": core.cpu,
        "class": core.core_class,
        "speed": round(core.speed, 3),
        "package": core.package,
        "node": core.node,
        "threads": list(core.siblings),
        "l2": core.l2,
        "l3": core.l3,
        "caches": {name: {"bytes": size, "shared_by": shared} for name, (size, shared) in topology.cache_sizes(core.cpu).items()},
    }


def _lease(there: topology.Topology, profile: Any) -> dict[str, Any]:
    workers = None if profile.workers.count == "auto" else profile.workers.count
    cores = None if profile.workers.cores == "auto" else profile.workers.cores
    known = Leases(folder())
    taken = known.others()
    known.close()
    cpus = there.select(workers, cores, classes=profile.workers.classes, smt=profile.workers.smt, taken=taken)
    return {"workers": len(cpus), "cpus": cpus, "taken": sorted(set(taken))}


def _isa() -> dict[str, Any]:
    from aspen_mp.workers import _isa, _kernels

    forced = os.environ.get("ASPEN_MP_ISA", "")
    try:
        selected = _kernels.select()
    except (ValueError, NotImplementedError) as error:
        neither = {"sums_bytes": False, "sums_pairs": False, "sums_amx": False}
        return {"supported": _kernels.isas(), "selected": "", "forced": forced, **neither, "error": str(error)}
    more = {"sums_bytes": _isa.sums_bytes(), "sums_pairs": _isa.sums_pairs(), "sums_amx": _isa.sums_amx()}
    return {"supported": _kernels.isas(), "selected": selected, "forced": forced, **more, "error": ""}


def _memory() -> dict[str, Any]:
    import psutil

    memory = psutil.virtual_memory()
    try:
        fs = os.statvfs(_SHM)
        shm_total, shm_free = fs.f_blocks * fs.f_frsize, fs.f_bavail * fs.f_frsize
    except OSError:
        shm_total = shm_free = 0
    return {
        "total": memory.total,
        "available": memory.available,
        "cgroup_limit": topology.memory_limit(),
        "shm_total": shm_total,
        "shm_free": shm_free,
        "transparent_huge_pages": _choice("/sys/kernel/mm/transparent_hugepage/enabled"),
        "segment_huge_pages": _segment_huge_pages(),
        "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }


def _choice(path: str) -> str:
    """The bracketed word of a file such as ``always [madvise] never``."""
    return _read(path).partition("[")[2].partition("]")[0] or "unavailable"


def _segment_huge_pages() -> bool:
    from aspen_mp.shm.bindings import _mapping

    try:
        fd = os.memfd_create("aspen-doctor")
    except OSError:
        return False
    try:
        return _mapping.reserve(fd, 2 << 20) > 0
    except OSError:
        return False
    finally:
        os.close(fd)


def _kernel() -> dict[str, Any]:
    def works(action: Any) -> bool:
        try:
            fd = action()
        except (OSError, AttributeError):
            return False
        os.close(fd)
        return True

    return {
        "pidfd": works(lambda: os.pidfd_open(os.getpid())),
        "memfd": works(lambda: os.memfd_create("aspen-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)),
        "posix_shm": os.access(_SHM, os.W_OK | os.X_OK),
        "futex": platform.system() == "Linux",
    }


def _packages() -> dict[str, str | None]:
    from importlib import metadata

    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("numpy", "onnx", "onnxruntime"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def calibrate(profile: str | Path | None = None, progress: Callable[[str, int, int], None] = lambda step, done, total: None) -> str:
    """Measures this machine for the planner's cost model; returns the file. ConfigError where there is no cache folder to keep it in."""
    from aspen_mp import config
    from aspen_mp.planner.cost import rates
    from aspen_mp.shm.errors import ConfigError
    from aspen_mp.tools import calibrate as measurement

    folder = config.cache_folder(config.load(profile))
    if not folder:
        raise ConfigError(
            "the plan cache is off, so there is no folder for the result of a calibration. Name one in ASPEN_MP_CACHE or in the profile"
        )
    return rates.save(folder, measurement.calibrate(progress=progress))


def _cache(profile: Any) -> dict[str, Any]:
    from aspen_mp import config

    folder = config.cache_folder(profile)
    files = [p for kind in ("models", "plans", "weights") for p in Path(folder, kind).glob("*")] if folder else []
    return {
        "folder": folder,
        "plans": sum(p.suffix == ".aspen" for p in files),
        "bytes": sum(p.lstat().st_size for p in files),
        "limit": profile.cache.limit_mib << 20,
    }


def _calibration(profile: Any) -> dict[str, Any] | None:
    from aspen_mp import __version__, config
    from aspen_mp.planner.cost import rates

    folder = config.cache_folder(profile)
    if rates.load(folder, __version__) is None:
        return None
    path = rates.path(folder, __version__)
    found: dict[str, Any] = json.loads(Path(path).read_text("utf-8"))
    return {**found, "file": path}


def _runtimes() -> dict[str, Any]:
    from aspen_mp.control.wire import run_directory

    return {"directories": run_directory.paths(), "running": [name for name, alive in run_directory.names().items() if alive]}


def _findings(report: dict[str, Any]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []

    def add(level: str, text: str, remedy: str = "") -> None:
        found.append({"level": level, "text": text, "remedy": remedy})

    machine, memory, kernel = report["machine"], report["memory"], report["kernel"]
    if report["isa"]["error"]:
        add(
            "problem",
            f"kernels cannot be selected: {report['isa']['error']}",
            "unset ASPEN_MP_ISA, or set it to one of the supported names",
        )
    if not kernel["pidfd"]:
        add(
            "problem",
            "pidfd_open does not work: deaths of workers could not be noticed",
            "Linux 5.3 or newer; allow the call in the sandbox's seccomp profile",
        )
    if not kernel["posix_shm"] and not kernel["memfd"]:
        add("problem", "neither /dev/shm nor memfd_create can be used: processes cannot share memory", "mount a tmpfs on /dev/shm")
    elif memory["shm_total"] < _SMALL_SHM:
        add(
            "note",
            f"/dev/shm has {memory['shm_total'] >> 20} MiB; what does not fit goes to memfds",
            "docker run --shm-size=2g, or an emptyDir of medium Memory",
        )
    quota = machine["cpu_quota"]
    if quota is not None and quota < machine["physical_cores"]:
        add(
            "note",
            f"the cgroup's CPU quota of {quota:g} CPUs is below the {machine['physical_cores']} usable cores: it limits the workers",
            "raise cpu.max (cgroup v1: cpu.cfs_quota_us)",
        )
    if len(report["cores"]) < machine["online_cpus"]:
        add("note", f"this process may use {len(report['cores'])} of {machine['online_cpus']} CPUs (affinity mask or cpuset)")
    if memory["descriptors"] < _FEW_DESCRIPTORS:
        add(
            "note",
            f"only {memory['descriptors']} open files are allowed; each plan instance, weight set and client needs some",
            "ulimit -n 4096",
        )
    if not memory["segment_huge_pages"]:
        add("note", "the kernel gives shared memory no huge pages (Linux 6.1 can): large weights cost more address translation")
    folder = report["cache"]["folder"]
    if folder and (why := plan_cache.trouble(folder)):
        add("note", f"the plan cache {folder} cannot be used: {why}", "set ASPEN_MP_CACHE to another folder, or to off")
    if report["stale"]["runtimes"] or report["stale"]["segments"]:
        add("note", "dead runtimes have left files behind", "aspen-mp doctor --clean")
    return found
