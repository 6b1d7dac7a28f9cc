"""The planner process's first steps: workers start before everything else that it needs is imported, and boot beside it."""

from __future__ import annotations

import json

from aspen_mp.control.leases import Leases
from aspen_mp.control.spawn import start_worker
from aspen_mp.shm.errors import AspenError
from aspen_mp.workers import topology

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aspen_mp.control.spawn import Early


def _workers(config: dict[str, Any]) -> list[Early]:
    """As many as the runtime will start with. None where its configuration is wrong: whoever reads it next says so."""
    leases = Leases(config["leases"])
    try:
        taken = leases.others()
        cpus = topology.read().select(config["workers"], config["cores"], classes=config["classes"] or None, smt=config["smt"], taken=taken)
    except AspenError:
        return []
    finally:
        leases.close()
    if config["max_workers"] is not None and len(cpus) > config["max_workers"]:
        return []
    return [start_worker() for _ in cpus]


def main(argv: list[str]) -> None:
    """``argv``: a `server.Config` as JSON. Descriptor 3 is the starter's socket."""
    early = _workers(json.loads(argv[0]))
    from aspen_mp.control import server

    server.main(argv, early)
