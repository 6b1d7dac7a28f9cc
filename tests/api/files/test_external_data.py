"""Models whose weights lie in files of their own: another version of those is another model."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_models

import aspen_mp
from aspen_mp.errors import PlanError

X = np.random.default_rng(5).standard_normal((4, 16)).astype(np.float32)


def save(folder: Path, batch: int | str = 4) -> str:
    path = folder / "m.onnx"
    onnx.save(small_models.mlp(batch), path, save_as_external_data=True, location="m.data", size_threshold=0)
    return str(path)


def double(folder: Path) -> None:
    """Every weight, in a file of the same size."""
    data = folder / "m.data"
    new = folder / "new.data"
    (np.fromfile(data, np.float32) * 2).tofile(new)
    os.replace(new, data)


@pytest.mark.parametrize("cache", [True, False])
def test_changed_weights_are_another_model(cache: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while somebody has the old ones loaded, who keeps them."""
    monkeypatch.setenv("ASPEN_MP_CACHE", str(tmp_path / "cache") if cache else "")
    path = save(tmp_path)
    with aspen_mp.Runtime(workers=1, name=f"external-{os.getpid()}") as runtime:
        old = runtime.load(path)
        before = old.run({"x": X})["y"]
        same = runtime.load(path)
        assert len(runtime.status()["models"]) == 1
        double(tmp_path)
        new = runtime.load(path)
        after = new.run({"x": X})["y"]
        assert np.abs(after).max() > 2 * np.abs(before).max()
        np.testing.assert_array_equal(old.run({"x": X})["y"], before)
        np.testing.assert_array_equal(same.run({"x": X})["y"], before)
        with aspen_mp.connect(runtime.name) as other:
            np.testing.assert_array_equal(other.load(path).run({"x": X})["y"], after)
        assert len(runtime.status()["models"]) == 2
        for model in (old, same):
            model.unload()
        np.testing.assert_array_equal(runtime.load(path).run({"x": X})["y"], after)
        assert len(runtime.status()["models"]) == 1


def test_versions_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has not been read by then is not read from the new files."""
    monkeypatch.setenv("ASPEN_MP_CACHE", "")
    path = save(tmp_path, "n")
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(path)
        double(tmp_path)
        with pytest.raises(PlanError, match=r"m\.data' has changed since model 'm' was loaded\. Load it again"):
            model.run({"x": X})
        assert runtime.load(path).run({"x": X})["y"].shape == (4, 8)


@pytest.mark.parametrize("cache", [True, False])
def test_links_into_a_folder_of_blobs(cache: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As download caches lay models out. Another blob behind the same name is another model."""
    monkeypatch.setenv("ASPEN_MP_CACHE", str(tmp_path / "cache") if cache else "")
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    save(blobs)
    for name, blob in (("m.onnx", "aaaa"), ("m.data", "bbbb")):
        (blobs / name).rename(blobs / blob)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    (np.fromfile(blobs / "bbbb", np.float32) * 2).tofile(blobs / "cccc")
    with aspen_mp.Runtime(workers=1) as runtime:
        before = runtime.load(str(snapshot / "m.onnx")).run({"x": X})["y"]
        (snapshot / "m.data").unlink()
        (snapshot / "m.data").symlink_to("../../blobs/cccc")
        after = runtime.load(str(snapshot / "m.onnx")).run({"x": X})["y"]
        assert np.abs(after).max() > 2 * np.abs(before).max()
