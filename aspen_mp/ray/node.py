"""The runtime of the node on which this process runs: found by its name, or started by the first process that needs it."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import aspen_mp
from aspen_mp.errors import RuntimeLost, RuntimeNotFound
from aspen_mp.ray import keeper
from aspen_mp.ray.locks import Users

if TYPE_CHECKING:
    from aspen_mp import Runtime

OUTSIDE = "batch"
"""Name of the runtime that processes outside of a Ray cluster share."""


class NodeRuntime:
    """This process's use of the runtime `name`. The runtime ends once no process of the node uses it.

    `options`: of `aspen_mp.Runtime`. Those of the process that starts it count.
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self._options = options
        self._users: Users | None = None

    def attach(self) -> Runtime:
        """A new connection to the runtime. It is started where there is none; of any number of processes that want that, one does it."""
        self.close()
        users = Users(self.name)
        try:
            with users.starting():
                runtime = self._connect_or_start()
        except BaseException:
            users.give_up()
            raise
        self._users = users
        return runtime

    def _connect_or_start(self) -> Runtime:
        try:
            return self._connect()
        except (RuntimeNotFound, RuntimeLost):  # never there, or about to end
            keeper.start(self.name, self._options)
            return self._connect()

    def _connect(self) -> Runtime:
        return aspen_mp.connect(self.name, retry=False)

    def close(self) -> None:
        """Says that this process does not use the runtime any more."""
        if self._users is not None:
            self._users.close()
            self._users = None


class NamedRuntime:
    """A runtime that somebody else has started, and ends."""

    def __init__(self, name: str) -> None:
        self.name = name

    def attach(self) -> Runtime:
        """A new connection to the runtime. RuntimeNotFound where there is none."""
        return aspen_mp.connect(self.name)

    def close(self) -> None:
        """The runtime goes on."""


def of_this_node(runtime: str | None, workers: int | None, options: dict[str, Any]) -> NodeRuntime | NamedRuntime:
    """The runtime that a process of this node is to use. `runtime`: the name of one that is there; None: the node's own."""
    if runtime is not None:
        return NamedRuntime(runtime)
    node, cpus = _ray_node()
    given = {"log": "warning", **options}
    if workers is None and not given.keys() & {"workers", "cores", "profile"}:
        workers = _rest(cpus)
    if workers is not None:
        given["workers"] = workers
    return NodeRuntime(OUTSIDE if node is None else f"ray-{node}", given)


def _ray_node() -> tuple[str | None, float]:
    """Id of the Ray node, None outside of a cluster; and the CPUs that Ray gives to its own tasks there.

    A process of a cluster has imported Ray before it comes here.
    """
    import sys

    ray = sys.modules.get("ray")
    if ray is None or not getattr(ray, "is_initialized", bool)():
        return None, 0.0
    node = ray.get_runtime_context().get_node_id()
    found: dict[str, Any] = next((each for each in ray.nodes() if each["NodeID"] == node), {})
    return node, float(found.get("Resources", {}).get("CPU", 0.0))


def _rest(cpus: float) -> int | None:
    """As many workers as Ray has left cores; None, which is all of them, where it has left none or nothing is said."""
    left = len(os.sched_getaffinity(0)) - math.ceil(cpus)
    return left if cpus and left > 0 else None
