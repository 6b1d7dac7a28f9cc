"""The planner process from its configuration to its end."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress

import msgspec

from aspen_mp.control.pool.worker_spawner import WorkerSpawner
from aspen_mp.control.process.composition import PlannerProcess
from aspen_mp.control.process.config import Config
from aspen_mp.control.wire import protocol, run_directory
from aspen_mp.control.wire.spawn import SOCKET_FD
from aspen_mp.shm.errors import AspenError, ResourceLimitError
from aspen_mp.shm.scarcity import is_scarce, reason
from aspen_mp.system import processes, sockets
from aspen_mp.workers import process


def _started(config: Config, starter: sockets.socket, spawner: WorkerSpawner) -> PlannerProcess:
    """The planner process, or an error and no files of its name in the run directory."""
    claim = run_directory.Claim(config.name) if config.name else None
    try:
        return PlannerProcess(config, claim, starter, spawner)
    except BaseException:
        if claim is not None:
            claim.release()
        raise


def run(argv: list[str], spawner: WorkerSpawner) -> None:
    """``argv``: a `Config` as JSON. Descriptor 3 is the starter's socket. `spawner`: see `PlannerProcess`."""
    sock = sockets.socket(fileno=SOCKET_FD)
    sock.set_inheritable(False)
    process.set_name("aspen-planner")
    # One thread here, whatever numpy's BLAS would like: planning children are forked from this process.
    process.one_thread()
    with suppress(OSError, ValueError):  # each client takes several descriptors, each model too
        most = processes.getrlimit(resource.RLIMIT_NOFILE)[1]
        processes.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        planner = _started(msgspec.json.decode(argv[0], type=Config), sock, spawner)
    except (AspenError, OSError, MemoryError) as error:
        if not isinstance(error, AspenError) and not is_scarce(error):
            raise
        if not isinstance(error, AspenError):
            error = ResourceLimitError(f"the planner process lacks descriptors or memory to start: {reason(error)}")
        with suppress(OSError):
            sock.sendall(protocol.encode(protocol.Failed(0, type(error).__name__, str(error))))
        sys.exit(1)
    status = 1
    try:
        planner.run()
        status = 0
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        planner.close()
        process.flush_output()
        processes._exit(status)  # the interpreter's own end would only take time from whoever waits for ours
