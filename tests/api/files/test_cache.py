"""The plan cache: what was loaded before starts from disk with the same bits; whatever is wrong with the files, models still load."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import small_models
from process_tools import kill_worker, wait_until

import aspen_mp
from aspen_mp.control.planning import plan_cache

WATCHDOG_S = 60.0
X = np.random.default_rng(3).standard_normal((4, 16)).astype(np.float32)


def wait_for(what: Callable[[], object]) -> None:
    end = time.monotonic() + WATCHDOG_S
    while not what():
        assert time.monotonic() < end, "the cache was not written"
        time.sleep(0.01)


def settle(path: Path) -> None:
    """Files that were written just now are not remembered: their time stamps could stay as they are through another change."""
    wait_for(lambda: time.time_ns() > path.stat().st_ctime_ns + 2 * plan_cache.SETTLED_NS)


def save(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    settle(path)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "cache"
    monkeypatch.setenv("ASPEN_MP_CACHE", str(path))
    yield path
    wait_for(lambda: not list(path.glob("*/*.tmp")))


def entries(folder: Path, kind: str) -> list[Path]:
    return sorted(p for p in (folder / kind).glob("*") if p.suffix != ".tmp")


def run(path: Path | bytes, workers: int = 1, x: npt.NDArray[np.float32] = X) -> tuple[npt.NDArray[np.float32], bool]:
    """The result of one request in a runtime of its own, and whether its plan came from the cache."""
    with aspen_mp.Runtime(workers=workers) as runtime:
        model = runtime.load(path)
        y = model.run({"x": x})["y"]
        (plan,) = runtime.status()["models"][0]["plans"]
        return y, plan["cached"]


def fill(path: Path, folder: Path, n: int = 1) -> npt.NDArray[np.float32]:
    y, cached = run(path)
    assert not cached
    wait_for(lambda: len(entries(folder, "plans")) == n and entries(folder, "models"))
    return y


def test_second_process_finds_the_plan_and_computes_the_same_bits(tmp_path: Path, folder: Path) -> None:
    path = save(small_models.mlp(), tmp_path / "m.onnx")
    first = fill(path, folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(path)
        assert [(v.name, v.shape, v.dtype) for v in model.inputs] == [("x", (4, 16), np.float32)]
        np.testing.assert_array_equal(model.run({"x": X})["y"], first)
        assert runtime.status()["models"][0]["plans"][0]["cached"]
        maps = Path(f"/proc/{runtime.pid}/maps").read_text()
        assert "onnx" not in maps
        assert "_multiarray_umath" not in maps
        model.unload()
        assert not {"weights", "plan", "arena"} & runtime.status()["memory"].keys()
        np.testing.assert_array_equal(runtime.load(path).run({"x": X})["y"], first)


def test_workers_have_plans_of_their_own(tmp_path: Path, folder: Path) -> None:
    path = save(small_models.conv_chain(), tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((1, 32, 32, 32)).astype(np.float32)
    one, _ = run(path, 1, x)
    wait_for(lambda: len(entries(folder, "plans")) == 1)
    two, cached = run(path, 2, x)
    assert not cached
    wait_for(lambda: len(entries(folder, "plans")) == 2)
    assert len(entries(folder, "weights")) == 1
    for workers in (1, 2):
        again, cached = run(path, workers, x)
        assert cached
        np.testing.assert_array_equal(one, again)
    np.testing.assert_array_equal(one, two)


def test_changed_model_is_read_again(tmp_path: Path, folder: Path) -> None:
    path = save(small_models.mlp(), tmp_path / "m.onnx")
    before = fill(path, folder)
    save(small_models.mlp(seed=1), path)
    after = fill(path, folder, 2)
    assert (before != after).any()
    save(small_models.mlp(), path)
    again, cached = run(path)
    assert not cached  # read and planned, because its time stamps are new
    np.testing.assert_array_equal(before, again)


def test_external_data_belong_to_the_model(tmp_path: Path, folder: Path) -> None:
    path, data = tmp_path / "m.onnx", tmp_path / "m.data"
    onnx.save(small_models.mlp(width=256), path, save_as_external_data=True, location="m.data", size_threshold=0)
    settle(data)
    before = fill(path, folder)
    assert run(path)[1]
    raw = np.fromfile(data, np.float32)
    (raw * 2).tofile(data)
    settle(data)
    after, cached = run(path)
    assert not cached
    assert (before != after).any()


def test_symbolic_models_share_one_weight_file(tmp_path: Path, folder: Path) -> None:
    path = save(small_models.mlp("n"), tmp_path / "m.onnx")
    results = []
    for attempt in range(2):
        with aspen_mp.Runtime(workers=1) as runtime:
            model = runtime.load(path)
            results.append([model.run({"x": X[:n]})["y"] for n in (1, 2, 4)])
            status = runtime.status()
            assert status["memory"]["weights"]["segments"] == 1
            assert [plan["cached"] for plan in status["models"][0]["plans"]] == [attempt > 0] * 2  # of 1, and of more
        wait_for(lambda: len(entries(folder, "plans")) == 2 and entries(folder, "models"))
    assert len(entries(folder, "weights")) == 1
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_some_shapes_from_the_cache_some_new(tmp_path: Path, folder: Path) -> None:
    path = save(small_models.mlp("n"), tmp_path / "m.onnx")
    with aspen_mp.Runtime(workers=1) as runtime:
        first = runtime.load(path).run({"x": X[:2]})["y"]
    wait_for(lambda: entries(folder, "models"))
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(path)
        model.run({"x": X[:3]})  # planned, with the weights that are on disk
        np.testing.assert_array_equal(model.run({"x": X[:2]})["y"], first)
        np.testing.assert_array_equal(model.run({"x": X})["y"][:2], first)
        status = runtime.status()
        assert status["memory"]["weights"]["segments"] == 1
        assert [plan["cached"] for plan in status["models"][0]["plans"]] == [False, True, False]
        wait_for(lambda: len(entries(folder, "plans")) == 3)


def test_models_given_as_bytes(folder: Path) -> None:
    data = small_models.mlp().SerializeToString()
    first, cached = run(data)
    assert not cached
    wait_for(lambda: entries(folder, "plans"))
    second, cached = run(data)
    assert cached
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("kind", ["models", "plans", "weights"])
def test_damaged_files_cost_time_only(kind: str, tmp_path: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = save(small_models.mlp(), tmp_path / "m.onnx")
    first = fill(path, folder)
    (file,) = entries(folder, kind)
    data = bytearray(file.read_bytes())
    data[-len(data) // 3] ^= 0x10
    file.write_bytes(data)
    second, cached = run(path)
    assert not cached
    np.testing.assert_array_equal(first, second)
    assert "is ignored and removed" in capfd.readouterr().err
    wait_for(lambda: run(path)[1])


def test_runtimes_that_start_together(tmp_path: Path, folder: Path) -> None:
    path = save(small_models.mlp(), tmp_path / "m.onnx")
    with ThreadPoolExecutor(3) as pool:
        results = [y for y, _ in pool.map(lambda _: run(path), range(3))]
    wait_for(lambda: entries(folder, "models"))
    again, cached = run(path)
    assert cached
    for y in (*results, again):
        np.testing.assert_array_equal(y, results[0])


def test_switched_off_or_unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    path = save(small_models.mlp(), tmp_path / "m.onnx")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ASPEN_MP_CACHE", "off")
    run(path)
    assert not (tmp_path / "home").exists()
    (tmp_path / "file").touch()
    monkeypatch.setenv("ASPEN_MP_CACHE", str(tmp_path / "file"))
    run(path)
    assert "it is not a folder" in capfd.readouterr().err
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("ASPEN_MP_CACHE", str(shared))
    run(path)
    assert "others can write" in capfd.readouterr().err
    assert not any(p.is_file() for p in shared.rglob("*"))


def test_nobody_reads_the_warnings(tmp_path: Path, folder: Path) -> None:
    """Whoever read standard error has gone: damaged files are ignored all the same, and models are read and planned by other processes."""
    path, other = save(small_models.mlp(), tmp_path / "m.onnx"), save(small_models.mlp("n", seed=1), tmp_path / "n.onnx")
    first = fill(path, folder)
    for kind in ("models", "plans"):
        for file in entries(folder, kind):
            file.write_bytes(b"junk")
    read, write = os.pipe()
    os.close(read)
    error = os.dup(2)
    os.dup2(write, 2)
    try:
        runtime = aspen_mp.Runtime(workers=1)
    finally:
        os.dup2(error, 2)
        os.close(write)
        os.close(error)
    with runtime:
        model = runtime.load(path)
        assert model.run({"x": X})["y"].tobytes() == first.tobytes()
        kill_worker(runtime)
        wait_until(lambda: runtime.status()["recovery"]["worker_deaths"] > 0, "the recovery, which is told there as well")
        assert model.run({"x": X})["y"].tobytes() == first.tobytes()
        assert runtime.load(other).run({"x": X})["y"].shape == (4, 8)
        assert not runtime.status()["models"][0]["plans"][0]["cached"]
