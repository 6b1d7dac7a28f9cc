"""The planner process's first steps. It forks the zygote and has that fork workers before everything else that it needs is imported, so
that they boot beside it."""

from __future__ import annotations

import json
import sys
from contextlib import suppress

from aspen_mp.control.pool.core_leases import Leases
from aspen_mp.control.pool.worker_spawner import WorkerSpawner
from aspen_mp.control.wire.spawn import SCARCE
from aspen_mp.shm.errors import AspenError
from aspen_mp.shm.scarcity import is_scarce
from aspen_mp.workers import topology

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _workers(config: dict[str, Any]) -> int:
    """How many the runtime will start with. None where its configuration is wrong: whoever reads it next says so."""
    leases = Leases(config["leases"])
    try:
        taken = leases.others()
        cpus = topology.read().select(config["workers"], config["cores"], classes=config["classes"] or None, smt=config["smt"], taken=taken)
    except (AspenError, OSError):
        return 0
    finally:
        leases.close()
    if config["max_workers"] is not None and len(cpus) > config["max_workers"]:
        return 0
    return len(cpus)


def main(argv: list[str]) -> None:
    """``argv``: a `process.config.Config` as JSON. Descriptor 3 is the starter's socket."""
    spawner = WorkerSpawner()
    spawner.fork_zygote()
    with suppress(OSError):  # whoever needs what is lacking says so
        spawner.ask_early(_workers(json.loads(argv[0])))
    try:
        from aspen_mp.control.process.main import run
    except (OSError, MemoryError, ImportError) as error:
        if not is_scarce(error):
            raise
        sys.exit(SCARCE)
    run(argv, spawner)
