"""Starting a planner process."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aspen_mp import config
from aspen_mp.client import arguments, openmp
from aspen_mp.control.pool import core_leases
from aspen_mp.control.wire.spawn import spawn
from aspen_mp.shm.errors import ResourceLimitError
from aspen_mp.shm.scarcity import is_scarce, reason
from aspen_mp.system import sockets

if TYPE_CHECKING:
    from aspen_mp.config import Profile


def configuration(
    workers: int | None = None,
    *,
    cores: Sequence[int] | None = None,
    max_workers: int | None = None,
    profile: Profile,
    name: str | None = None,
    log: str | None = None,
    cancel_grace_s: float | None = None,
    preempt_ms: float | None = None,
) -> dict[str, Any]:
    """What `start` takes, checked: arguments first, the profile where they are None."""
    own = profile.workers
    if name is not None and name != "":
        from aspen_mp.control.wire import run_directory

        run_directory.check_name(name)
    if workers is None and cores is None:
        workers = None if own.count == "auto" else own.count
        cores = None if own.cores == "auto" else own.cores
    if workers is not None:
        workers = arguments.whole("workers", workers, 1, arguments.MOST_WORKERS)
    if max_workers is None and own.max != "auto":
        max_workers = own.max
    if max_workers is not None:
        max_workers = arguments.whole("max_workers", max_workers, 1, arguments.MOST_WORKERS)
    if log not in (None, "info", "warning", "off"):
        raise ValueError(f"log must be 'info', 'warning' or 'off', not {log!r}")
    return {
        "name": name or "",
        "workers": workers,
        "cores": None if cores is None else arguments.cpus("cores", cores),
        "max_workers": max_workers,
        "classes": list(own.classes),
        "smt": own.smt,
        "spin_us": own.spin_us,
        "preempt_ms": own.preempt_ms if preempt_ms is None else arguments.milliseconds("preempt_ms", preempt_ms, arguments.MOST_PREEMPT_MS),
        "cache": config.cache_folder(profile),
        "cache_bytes": profile.cache.limit_mib << 20,
        "leases": core_leases.folder(),
        "patience_s": profile.models.patience_s,
        "planning_bytes": 0 if profile.models.memory_mib == "auto" else profile.models.memory_mib << 20,
        "plans_bytes": 0 if profile.models.plans_mib == "auto" else profile.models.plans_mib << 20,
        "replan": profile.models.replan,
        "cancel_grace_s": own.cancel_grace_s if cancel_grace_s is None else arguments.grace("cancel_grace_s", cancel_grace_s),
        "log": log or profile.log,
        **({"stealing": profile.stealing, "order": profile.order} if isinstance(profile, config.Experiment) else {}),
    }


def workers_asked(n: int | None, cores: Sequence[int] | None) -> tuple[int, list[int]]:
    """How many workers are to join or leave, and the CPUs that were named for it."""
    cpus = [] if cores is None else arguments.cpus("cores", cores)
    return (len(cpus) or 1) if n is None else arguments.whole("n", n, 0, arguments.MOST_WORKERS), cpus


def start(settings: Mapping[str, Any]) -> tuple[int, sockets.socket]:
    """Starts a planner process; returns its pid and the socket to it, on which a `Session` can be made. It ends when that socket closes.
    ResourceLimitError where there are too few descriptors, or there is too little memory, or no process may be started."""
    try:
        ours, theirs = sockets.socketpair()
        try:
            with openmp.unbound():
                pid = spawn("aspen_mp.control.boot", [json.dumps(dict(settings))], theirs, session=True)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
    except OSError as error:
        if not is_scarce(error):
            raise
        raise ResourceLimitError(f"this process cannot start a runtime: {reason(error)}{_advice(error)}") from error
    return pid, ours


def _advice(error: OSError) -> str:
    return " (limit of processes: ulimit -u, pids.max of the control group)" if error.errno == errno.EAGAIN else ""
