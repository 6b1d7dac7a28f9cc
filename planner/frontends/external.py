"""External data: tensors whose bytes lie in files beside the model.

A model names those files, so a model from elsewhere must not be able to name /etc/shadow, a device or a pipe. The target of a name is
looked up without opening it. It is opened if it is a regular file below the model's folder, or below the folder that the model file itself
really lies in. So links within a download cache work (`snapshots/…/model.onnx` → `blobs/…`). Whoever swaps links meanwhile gains nothing,
because the file that was looked up is the one that is opened.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import PurePosixPath

from aspen_mp.shm.errors import ExternalDataError


class Folder:
    """The folder of a model file; maps the data files in it, each once. `real`: the folder in which the file itself lies, where the model's
    path is a symbolic link."""

    def __init__(self, path: str | None, real: str | None = None) -> None:
        self.path = path
        self._roots = [] if path is None else list(dict.fromkeys([os.path.realpath(path), real or os.path.realpath(path)]))
        self._maps: dict[str, memoryview] = {}

    @property
    def files(self) -> list[str]:
        """Paths of the data files that have been opened."""
        return [os.path.join(self.path or ".", location) for location in self._maps]

    def release(self) -> None:
        """Lets go of the pages that have been read; they come back when they are read again."""
        for data in self._maps.values():
            release(data)

    def view(self, tensor: str, entries: dict[str, str]) -> memoryview:
        """The bytes of a tensor. `entries`: the tensor's external_data (location, offset, length)."""
        location = entries.get("location", "")
        data = self._maps.get(location)
        if data is None:
            data = self._maps[location] = self._open(tensor, location)
        offset = _number(tensor, entries, "offset", 0)
        length = _number(tensor, entries, "length", len(data) - offset)
        if offset > len(data) or offset + length > len(data):
            raise ExternalDataError(
                f"tensor {tensor!r}: bytes {offset}..{offset + length} are past the end of {location!r} ({len(data)} bytes). Copy it again"
            )
        return data[offset : offset + length]

    def _open(self, tensor: str, location: str) -> memoryview:
        where = f"tensor {tensor!r}: external data {location!r}"
        if self.path is None:
            raise ExternalDataError(f"{where}: the model was not loaded from a file, so its folder is unknown. Load it by its path")
        if not location or "\0" in location or "\\" in location or not _stays_inside(PurePosixPath(location)):
            raise ExternalDataError(f"{where}: it must be a relative path inside the model's folder")
        try:
            place = os.open(os.path.join(self.path or ".", location), os.O_PATH | os.O_CLOEXEC)  # looked up, not opened
            try:
                handle = self._admitted(place, where)
            finally:
                os.close(place)
        except OSError as error:
            raise ExternalDataError(f"{where}: {os.strerror(error.errno or 0)}") from None
        try:
            status = os.fstat(handle)
            if status.st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(handle, status.st_size, access=mmap.ACCESS_READ))
        finally:
            os.close(handle)

    def _admitted(self, place: int, where: str) -> int:
        """A descriptor that reads the file that `place` stands for, if the model may read it."""
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise ExternalDataError(f"{where}: it is not a regular file")
        target = real_path(place)
        if not any(target.startswith(root.rstrip("/") + "/") for root in self._roots):
            raise ExternalDataError(f"{where}: a symbolic link leads out of the model's folder. Copy the file there")
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def real_path(fd: int) -> str:
    """The path of an open file without any links in it."""
    return os.readlink(f"/proc/self/fd/{fd}")


def _stays_inside(location: PurePosixPath) -> bool:
    """Whether a relative path never goes above where it begins, by its words."""
    depth = 0
    for part in location.parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return depth > 0 and not location.is_absolute()


def release(data: memoryview) -> None:
    """Lets go of the pages of a mapped file; nothing for other memory."""
    if isinstance(data.obj, mmap.mmap):
        data.obj.madvise(mmap.MADV_DONTNEED)


def _number(tensor: str, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return max(default, 0)
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ExternalDataError(f"tensor {tensor!r}: {key} of its external data is {text!r}, not a non-negative number of bytes")
    return int(text)
