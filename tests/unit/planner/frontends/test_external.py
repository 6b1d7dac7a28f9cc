"""Where data of a model may lie: below its folder or below that of the file which its path leads to, whatever links are on the way."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bad_models import external

from aspen_mp.planner import api
from aspen_mp.planner.frontends.external import Folder
from aspen_mp.shm.errors import ExternalDataError

INSIDE = np.full((8, 8), 7, np.float32)
OUTSIDE = np.full((8, 8), 66, np.float32)


def weights(path: Path) -> np.ndarray:
    """What a model file's w holds."""
    opened = api.load(path)
    return opened.constant(opened.initializers["w"])


def hub(root: Path) -> Path:
    """As download caches lay models out: all files are links into a folder of blobs, which are named by their digests."""
    blobs, snapshot = root / "blobs", root / "snapshots" / "0123"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    external(blobs, location="model.onnx_data").rename(blobs / "aaaa")
    INSIDE.tofile(blobs / "bbbb")
    (snapshot / "model.onnx").symlink_to("../../blobs/aaaa")
    (snapshot / "model.onnx_data").symlink_to("../../blobs/bbbb")
    return snapshot / "model.onnx"


def hub_with_folders(root: Path) -> Path:
    """The same with the model in a folder of its own within the snapshot, and the whole cache behind a link."""
    hub(root / "disk")
    inner = root / "disk" / "snapshots" / "0123" / "onnx"
    inner.mkdir()
    for name, blob in (("model.onnx", "aaaa"), ("model.onnx_data", "bbbb")):
        (inner / name).symlink_to(f"../../../blobs/{blob}")
    (root / "cache").symlink_to("disk")
    return root / "cache" / "snapshots" / "0123" / "onnx" / "model.onnx"


def plain(location: str) -> Callable[[Path], Path]:
    def build(root: Path) -> Path:
        (root / "sub" / "deep").mkdir(parents=True)
        for path in (root / "w.bin", root / "sub" / "v.bin"):
            INSIDE.tofile(path)
        (root / "link").symlink_to("sub/v.bin")
        (root / "absolute").symlink_to(root / "w.bin")
        (root / "chain").symlink_to("link")
        (root / "folder").symlink_to("sub")
        return external(root, location=location)

    return build


LAYOUTS = {
    "hub": hub,
    "hub with folders": hub_with_folders,
    **{
        location: plain(location)
        for location in (
            "w.bin",
            "./w.bin",
            "sub/v.bin",
            "sub/../w.bin",
            "sub/deep/../../w.bin",
            "sub//./v.bin",
            "link",
            "absolute",
            "chain",
            "folder/v.bin",
            "folder/../w.bin",
        )
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = LAYOUTS[layout](tmp_path)
    np.testing.assert_array_equal(weights(path), INSIDE)
    monkeypatch.chdir(path.parent)
    np.testing.assert_array_equal(weights(Path(path.name)), INSIDE)


def test_a_blob_of_another_model_is_out_of_reach(tmp_path: Path) -> None:
    """The folder of the real file is one more place to look in, not the way up to it."""
    path = hub(tmp_path / "cache")
    OUTSIDE.tofile(tmp_path / "cache" / "secret")
    (path.parent / "model.onnx_data").unlink()
    (path.parent / "model.onnx_data").symlink_to("../../secret")
    with pytest.raises(ExternalDataError, match="out of the model's folder"):
        api.load(path)


def test_names_that_look_alike(tmp_path: Path) -> None:
    """A folder whose name begins like the model's is another one."""
    home, other = tmp_path / "home", tmp_path / "home2"
    home.mkdir()
    other.mkdir()
    OUTSIDE.tofile(other / "w.bin")
    (home / "w.bin").symlink_to(other / "w.bin")
    with pytest.raises(ExternalDataError, match="out of the model's folder"):
        api.load(external(home, location="w.bin"))


def test_links_that_change_meanwhile(tmp_path: Path) -> None:
    """Whoever swaps a link between a good and a bad target has the good one read, or a refusal."""
    home = tmp_path / "home"
    home.mkdir()
    INSIDE.tofile(home / "good")
    OUTSIDE.tofile(tmp_path / "bad")
    done = threading.Event()

    def swap() -> None:
        for n in range(1 << 30):
            if done.is_set():
                return
            (home / "next").symlink_to("good" if n % 2 else "../bad")
            os.replace(home / "next", home / "data")

    (home / "data").symlink_to("good")
    swapping = threading.Thread(target=swap)
    swapping.start()
    seen = {"read": 0, "refused": 0}
    try:
        for _ in range(2000):
            try:
                data = Folder(str(home)).view("w", {"location": "data"})
            except ExternalDataError:
                seen["refused"] += 1
            else:
                np.testing.assert_array_equal(np.frombuffer(data, np.float32), INSIDE.reshape(-1))
                seen["read"] += 1
            if min(seen.values()) > 20:
                break
    finally:
        done.set()
        swapping.join()
    assert min(seen.values()) > 0, seen
