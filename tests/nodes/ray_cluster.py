"""A Ray cluster whose nodes are processes of this machine, and classes for its jobs."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aspen_mp.ray import Predictor

STORE_BYTES = 80 << 20
RESOURCE = "aspen_mp"


@contextmanager
def cluster(nodes: int, resource: float = 1.0) -> Iterator[list[Any]]:
    """Nodes of one CPU each; the first is the head, on which nothing but this program's tasks may run for more than one node."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        patch.setenv("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        given: dict[str, Any] = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "resources": {RESOURCE: resource}}
        made = Cluster(initialize_head=True, head_node_args={**given, "include_dashboard": False})
        try:
            others = [made.add_node(**given) for _ in range(nodes - 1)]
            ray.init(address=made.address, log_to_driver=False, logging_level="error")
            made.wait_for_nodes()
            yield [made, *others]
        finally:
            ray.shutdown()
            made.shutdown()


class Noting(Predictor):
    """Its results have the names of runtime and planner process, too."""

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        result: dict[str, np.ndarray] = super().__call__(batch)
        count = len(result["id"])
        workers = len(self._runtime.workers)
        who = {"runtime": self._node.name, "planner": self._runtime.pid, "workers": workers, "actor": os.getpid()}
        return result | {name: np.full(count, value) for name, value in who.items()}


class Held(Noting):
    """Batches wait until a file is no longer locked, once they have said on which node they wait."""

    def __init__(self, folder: Path, *arguments: Any, **options: Any) -> None:
        self._folder = folder
        super().__init__(*arguments, **options)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        (self._folder / self._node.name).touch()
        with open(self._folder.parent / "lock") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
        return super().__call__(batch)
