"""Cached weight files that are cut short while workers have them mapped: no worker dies, no wrong number comes out, other models notice
nothing."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import small_models
from process_tools import WATCHDOG_S, wait_until

import aspen_mp
from aspen_mp.control.planning import plan_cache
from aspen_mp.errors import PlanError

PAGE = os.sysconf("SC_PAGESIZE")
X = np.random.default_rng(3).standard_normal((1, 32, 24, 24), np.float32)
OTHER = {"x": np.random.default_rng(4).standard_normal((4, 16), np.float32)}
Answer = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A model, another one, and a cache that has the first."""
    folder = tmp_path_factory.mktemp("filled")
    model, other, kept = folder / "m.onnx", folder / "other.onnx", folder / "cache"
    onnx.save(small_models.conv_chain(4, 32, 24), model)
    onnx.save(small_models.mlp(), other)
    wait_until(lambda: time.time_ns() > model.stat().st_ctime_ns + 2 * plan_cache.SETTLED_NS, "the file to settle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASPEN_MP_CACHE", str(kept))
        with aspen_mp.Runtime(workers=2) as runtime:
            loaded = runtime.load(model)
            loaded.run({"x": X})
    # The process that writes outlives the runtime.
    wait_until(lambda: len(list(kept.glob("*/*"))) == 3 and not list(kept.glob("*/*.tmp")), "the cache to be written")
    return model, other, kept


@pytest.fixture
def files(filled: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Path]:
    """The models, and the first one's weight file in a cache of this test's own."""
    model, other, kept = filled
    shutil.copytree(kept, tmp_path / "cache")
    monkeypatch.setenv("ASPEN_MP_CACHE", str(tmp_path / "cache"))
    (file,) = (tmp_path / "cache" / "weights").iterdir()
    return model, other, file


def cached(runtime: aspen_mp.Runtime, name: str) -> bool:
    (model,) = [model for model in runtime.status()["models"] if model["name"] == name]
    return model["plans"][-1]["cached"]


def check(runtime: aspen_mp.Runtime, file: Path) -> None:
    status = runtime.status()
    assert status["recovery"]["worker_deaths"] == 0
    (lost,) = [event for event in status["events"] if event["event"] == "weights-lost"]
    assert lost["file"] == str(file)


CUTS: dict[str, Callable[[int], int]] = {
    "all": lambda nbytes: 0,
    "half": lambda nbytes: nbytes // 2 + 5,
    "some bytes": lambda nbytes: nbytes - 9,
}
if os.environ.get("ASPEN_MP_TIER") == "long":
    CUTS |= {"but a page": lambda nbytes: PAGE, "a page": lambda nbytes: nbytes - PAGE}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_cut_short(cut: Callable[[int], int], files: tuple[Path, Path, Path]) -> None:
    """Requests behind it get the right answer, with weights that were packed anew, and so does who joins meanwhile."""
    path, other, file = files
    with aspen_mp.Runtime(workers=2) as runtime:
        model, beside = runtime.load(path), runtime.load(other)
        expected, its = model.run({"x": X})["y"], beside.run(OTHER)["y"]
        assert cached(runtime, "m")
        os.truncate(file, cut(file.stat().st_size))
        runtime.add_workers(1)
        assert model.run({"x": X})["y"].tobytes() == expected.tobytes()
        assert beside.run(OTHER)["y"].tobytes() == its.tobytes()
        assert not cached(runtime, "m")
        check(runtime, file)


def test_cut_short_under_load(files: tuple[Path, Path, Path]) -> None:
    path, other, file = files
    with aspen_mp.Runtime(workers=2) as runtime:
        model, beside = runtime.load(path), runtime.load(other)
        expected, its = model.run({"x": X})["y"], beside.run(OTHER)["y"]
        futures = [one.submit(given) for _ in range(20) for one, given in ((model, {"x": X}), (beside, OTHER))]
        os.truncate(file, file.stat().st_size // 3)
        futures += [model.submit({"x": X}) for _ in range(20)] + [beside.submit(OTHER) for _ in range(20)]
        for future in futures:
            assert future.result(WATCHDOG_S)["y"].tobytes() in {expected.tobytes(), its.tobytes()}
        check(runtime, file)


def test_model_that_has_gone_too(files: tuple[Path, Path, Path]) -> None:
    """Nothing is left to pack the weights from: that is the model's error alone."""
    path, other, file = files
    path = Path(shutil.copy(path, file.parent.parent / "m.onnx"))
    with aspen_mp.Runtime(workers=2) as runtime:
        model, beside = runtime.load(path), runtime.load(other)
        model.run({"x": X})
        its = beside.run(OTHER)["y"]
        os.truncate(file, 0)
        path.write_bytes(b"")
        for _ in range(2):
            with pytest.raises(PlanError, match=f"{path}.* has changed .*{file}"):
                model.run({"x": X})
        assert beside.run(OTHER)["y"].tobytes() == its.tobytes()
        check(runtime, file)


def test_damaged_since_the_last_boot(files: tuple[Path, Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    """A bit that a disk has lost, whose file's times say nothing: the weights are packed anew. A whole file is read, and used."""
    path, _, file = files
    os.utime(file, ns=(0, 0))  # as another boot finds it
    with aspen_mp.Runtime(workers=2) as runtime:
        model = runtime.load(path)
        expected = model.run({"x": X})["y"]
        assert cached(runtime, "m")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 64
    file.write_bytes(data)
    os.utime(file, ns=(0, 0))
    with aspen_mp.Runtime(workers=2) as runtime:
        model = runtime.load(path)
        assert model.run({"x": X})["y"].tobytes() == expected.tobytes()
        assert not cached(runtime, "m")
    assert "checksum" in capfd.readouterr().err
