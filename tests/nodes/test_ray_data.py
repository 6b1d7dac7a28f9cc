"""Jobs of Ray Data on three nodes of this machine: results, one runtime for each node, a node that goes in the middle."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ray_cluster import RESOURCE, Held, Noting, cluster
from small_models import mlp

from aspen_mp.ray import Predictor

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'ray[data,serve]'")
data = pytest.importorskip("ray.data", reason="needs Ray: pip install 'ray[data,serve]'")

ROWS, BATCH = 96, 8
WATCHDOG_S = 120.0


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Any]]:
    with cluster(3) as made:
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("models") / "mlp.onnx"
    onnx.save(mlp(batch=4), file)
    return file


def _x(numbers: np.ndarray) -> np.ndarray:
    return np.sin(numbers[:, None] * np.arange(1.0, 17.0)).astype(np.float32)


def _dataset() -> Any:
    return ray.data.range(ROWS, override_num_blocks=ROWS // BATCH).map_batches(lambda batch: {"id": batch["id"], "x": _x(batch["id"])})


def _job(kind: type, arguments: dict[str, Any], actors: int, **options: Any) -> Any:
    given = {"fn_constructor_kwargs": arguments, "batch_size": BATCH, "compute": data.ActorPoolStrategy(size=actors), "num_cpus": 0}
    return _dataset().map_batches(kind, **given, resources={RESOURCE: 0.1}, scheduling_strategy="SPREAD", **options)


def _expected(model: Path) -> np.ndarray:
    predictor = Predictor(model, workers=1)
    result: np.ndarray = predictor({"x": _x(np.arange(ROWS))})["y"]
    predictor.close()
    return result


def _check(rows: list[dict[str, Any]], model: Path) -> None:
    """Every row once, with the bits that it has without a cluster."""
    rows.sort(key=lambda row: row["id"])
    assert [row["id"] for row in rows] == list(range(ROWS))
    np.testing.assert_array_equal(np.stack([row["y"] for row in rows]), _expected(model))


def test_actors_of_a_node_share_a_runtime(nodes: list[Any], model: Path) -> None:
    rows = _job(Noting, {"model": str(model), "keep": ["id"]}, 6).take_all()
    _check(rows, model)
    runtimes = {row["runtime"]: row["planner"] for row in rows}
    assert set(runtimes) <= {f"ray-{node['NodeID']}" for node in ray.nodes()}
    assert len({(row["runtime"], row["planner"]) for row in rows}) == len(runtimes)


def test_threads_of_an_actor(nodes: list[Any], model: Path) -> None:
    _check(_job(Predictor, {"model": str(model), "keep": ["id"]}, 1, max_concurrency=2).take_all(), model)


@pytest.mark.parametrize("batches", ["pyarrow", "pandas"])
def test_other_batches(nodes: list[Any], model: Path, batches: str) -> None:
    rows = _job(Predictor, {"model": str(model), "keep": ["id"]}, 1, batch_format=batches).take_all()
    _check(rows, model)


def test_errors_name_model_and_column(nodes: list[Any], model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ray.exceptions.RayTaskError, match=r"model 'mlp': the batch has no column 'X' for input 'x'"):
        _job(Predictor, {"model": str(model), "inputs": "X"}, 1).take_all()
    caplog.clear()  # records of the error hold its stack, and that the actors


def test_a_node_is_lost_and_another_comes(nodes: list[Any], model: Path, tmp_path: Path) -> None:
    made, lost, *_ = nodes
    waiting = tmp_path / "waiting"
    waiting.mkdir()
    arguments = {"folder": waiting, "model": str(model), "keep": ["id"]}
    with open(tmp_path / "lock", "w") as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = pool.submit(lambda: _job(Held, arguments, 3).take_all())
        deadline = time.monotonic() + WATCHDOG_S
        while len(list(waiting.iterdir())) < 3 and time.monotonic() < deadline and not rows.done():
            time.sleep(0.05)
        held = {file.name for file in waiting.iterdir()}
        made.remove_node(lost, allow_graceful=False)
        made.add_node(num_cpus=1, object_store_memory=80 << 20, resources={RESOURCE: 1.0})
        fcntl.flock(lock, fcntl.LOCK_UN)
        _check(rows.result(), model)
    assert f"ray-{lost.node_id}" in held, f"no batch was on the node that was lost; batches waited on {held}"
