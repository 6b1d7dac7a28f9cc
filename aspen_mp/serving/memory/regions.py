"""Regions of memory that clients own. The server reads and writes them through descriptors, and never maps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from aspen_mp.shm.errors import RequestError
from aspen_mp.system import descriptors


class Place(NamedTuple):
    """Where a tensor lies: a region's name, and bytes from its beginning."""

    region: str
    offset: int
    size: int


class Region:
    """A file in memory, or a part of it. It owns the descriptor `fd`.

    Attributes:
        size: Bytes.
    """

    def __init__(self, fd: int, begin: int, size: int) -> None:
        self._fd = fd
        self._begin = begin
        self.size = size

    def read(self, offset: int, target: memoryview) -> int:
        """Fills `target`, bytes, up to the end of the region. Returns how many bytes there were. OSError."""
        at = 0
        while at < len(target):
            n = descriptors.preadv(self._fd, [target[at:]], self._begin + offset + at)
            if n == 0:
                break
            at += n
        return at

    def write(self, offset: int, data: memoryview) -> None:
        """Puts bytes there. OSError; EOFError where the file has become shorter: it is never made longer."""
        begin = self._begin + offset
        if descriptors.fstat(self._fd).st_size < begin + len(data):
            raise EOFError
        at = 0
        while at < len(data):
            at += descriptors.pwrite(self._fd, data[at:], begin + at)

    def close(self) -> None:
        if self._fd >= 0:
            descriptors.close(self._fd)
            self._fd = -1


class Regions:
    """Regions by name, as requests name them.

    Each read and write happens on the event loop, all at once. A region is therefore not in use when it is closed."""

    def __init__(self, regions: Mapping[str, Region], advice: str) -> None:
        """`advice`: the message for a client that names a missing region."""
        self._regions = dict(regions)
        self._advice = advice

    def __getitem__(self, place: Place) -> Region:
        """The region of a place, if the place lies in it. RequestError otherwise."""
        region = self._regions.get(place.region)
        if region is None:
            raise RequestError(f"there is no region {place.region[:200]!r} of shared memory. {self._advice}")
        if place.offset + place.size > region.size:
            raise RequestError(
                f"{place.size} bytes from byte {place.offset} on do not lie in region {place.region[:200]!r}, which has {region.size} bytes"
            )
        return region

    def read(self, place: Place, target: memoryview, where: str) -> None:
        """Copies a place into `target`, which is as large. Later writes of the client change nothing. RequestError."""
        try:
            n = self[place].read(place.offset, target)
        except OSError as error:
            raise RequestError(f"{where}: region {place.region[:200]!r} cannot be read: {error.strerror}") from None
        if n < len(target):
            raise RequestError(f"{where}: the file of region {place.region[:200]!r} has become shorter. Register it anew")

    def write(self, place: Place, data: memoryview | bytes, where: str) -> None:
        """Puts an output there. RequestError where there is no room for it."""
        if len(data) > place.size:
            raise RequestError(f"{where} has {len(data)} bytes, and shared_memory_byte_size is {place.size}. Give it more room")
        try:
            self[place].write(place.offset, memoryview(data))
        except EOFError:
            raise RequestError(f"{where}: the file of region {place.region[:200]!r} has become shorter. Register it anew") from None
        except OSError as error:
            raise RequestError(f"{where}: region {place.region[:200]!r} cannot be written: {error.strerror}") from None

    def add(self, name: str, region: Region) -> None:
        """Adds a region, in place of the one of this name."""
        self.remove(name)
        self._regions[name] = region

    def remove(self, name: str) -> None:
        """Closes a region, if there is one of this name."""
        region = self._regions.pop(name, None)
        if region is not None:
            region.close()

    def close(self) -> None:
        """Closes all regions."""
        for name in list(self._regions):
            self.remove(name)


NONE: Final = Regions({}, "Send the tensor in the body, or start aspen-mp serve with --allow-named-shm")
"""The regions of a server without shared memory."""


def place_of(region: Any, offset: int, size: int | None, where: str) -> Place | None:
    """The place that parameters of a tensor name; None if they name no region. RequestError where its size is missing."""
    if region is None:
        return None
    if size is None:
        raise RequestError(f"{where} names a region of shared memory without shared_memory_byte_size")
    return Place(region, offset, size)
