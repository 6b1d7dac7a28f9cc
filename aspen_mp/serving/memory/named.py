"""Memory that clients share by its name in /dev/shm, as with Triton: off unless a prefix of names was allowed."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from aspen_mp.serving.memory.regions import Region, Regions
from aspen_mp.shm.errors import RequestError
from aspen_mp.system import descriptors

FOLDER: Final = "/dev/shm"
MOST_NAMED: Final = 256
_ADVICE: Final = "Register it first, with POST /v2/systemsharedmemory/region/NAME/register"
Bytes = Annotated[int, Meta(ge=0, lt=1 << 48)]


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """A region as a client registered it. `key`: the name in /dev/shm; `offset`, `byte_size`: the part of it that is the region."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    key: Annotated[str, Meta(min_length=1, max_length=200)]
    offset: Bytes = 0
    byte_size: Bytes


def opened(named: Named, prefix: str) -> Region:
    """The region. RequestError unless its key begins with `prefix` and names a file of /dev/shm that is large enough."""
    key = named.key.removeprefix("/")
    if not key.startswith(prefix) or "/" in key or "\0" in key:
        raise RequestError(f"region {named.name!r}: the key must begin with {prefix!r} and have no other slash, and is {named.key!r}")
    try:
        fd = descriptors.open(f"{FOLDER}/{key}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, UnicodeEncodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no file has such a name"
        raise RequestError(f"region {named.name!r}: {FOLDER}/{key} cannot be opened for reading and writing: {why}") from None
    found = descriptors.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or named.offset + named.byte_size > found.st_size:
        descriptors.close(fd)
        size = f"{found.st_size} bytes" if stat.S_ISREG(found.st_mode) else "no memory"
        raise RequestError(
            f"region {named.name!r}: {named.byte_size} bytes from byte {named.offset} on do not lie in {named.key!r}, which has {size}"
        )
    return Region(fd, named.offset, named.byte_size)


class NamedMemory:
    """The regions of a front end, which are the same in all of them.

    Attributes:
        prefix: What keys begin with, without a slash.
        regions: Those that are registered.
        all: What they were registered as.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.regions = Regions({}, _ADVICE)
        self.all: dict[str, Named] = {}

    def apply(self, wanted: Sequence[Named]) -> None:
        """Opens and closes regions until they are those of a catalogue. One that cannot be opened any more is left out, and said so."""
        known = {each.name: each for each in wanted}
        for name in [name for name, named in self.all.items() if known.get(name) != named]:
            self.regions.remove(name)
            del self.all[name]
        for name in known.keys() - self.all.keys():
            try:
                self.regions.add(name, opened(known[name], self.prefix))
            except RequestError as error:
                print(f"aspen-mp serve: {error}", file=sys.stderr, flush=True)
            else:
                self.all[name] = known[name]

    def check(self, named: Named) -> None:
        """RequestError unless the region can be registered."""
        opened(named, self.prefix).close()
