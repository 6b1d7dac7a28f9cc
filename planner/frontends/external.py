"""External data: tensors whose bytes lie in files beside the model.

A model names those files, so a model from elsewhere must not be able to name /etc/shadow, a device or a pipe: only regular files inside the
model's own folder are opened, component by component and never through a symbolic link.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import PurePosixPath

from aspen_mp.shm.errors import ExternalDataError


class Folder:
    """The folder of a model file; maps the data files in it, each once."""

    def __init__(self, path: str | None) -> None:
        self.path = path
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
                f"tensor {tensor!r}: bytes {offset}..{offset + length} are past the end of {location!r} ({len(data)} bytes)"
            )
        return data[offset : offset + length]

    def _open(self, tensor: str, location: str) -> memoryview:
        where = f"tensor {tensor!r}: external data {location!r}"
        if self.path is None:
            raise ExternalDataError(f"{where}: the model was not loaded from a file, so there is no folder to look in")
        parts = PurePosixPath(location).parts
        if not location or "\0" in location or "\\" in location or PurePosixPath(location).is_absolute() or ".." in parts or not parts:
            raise ExternalDataError(f"{where}: must be a relative path inside the model's folder")
        try:
            handle = os.open(self.path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for n, part in enumerate(parts):
                last = n == len(parts) - 1
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_NONBLOCK if last else os.O_DIRECTORY)
                try:
                    inner = os.open(part, flags, dir_fd=handle)
                finally:
                    os.close(handle)
                handle = inner
        except OSError as error:
            raise ExternalDataError(f"{where}: {os.strerror(error.errno or 0)}") from None
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise ExternalDataError(f"{where}: not a regular file")
            if status.st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(handle, status.st_size, access=mmap.ACCESS_READ))
        finally:
            os.close(handle)


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
