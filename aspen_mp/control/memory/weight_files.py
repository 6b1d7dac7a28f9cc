"""Weight segments that are files of the plan cache, as workers map them (docs/protocol/borrow.md, "Weights in files").

Such a file is not the runtime's alone: whoever may write to the cache can cut it short while it is mapped. So its pages are borrowed. The
segment is a sealed one of our own. Its first page is a copy of the file's, and the file's other pages take the place of its own.
"""

from __future__ import annotations

import struct
from typing import Final

from aspen_mp.control.memory.segments import Borrowed, Held
from aspen_mp.shm.bindings import _control, _tables
from aspen_mp.shm.errors import PlanError
from aspen_mp.shm.segments import Segment
from aspen_mp.system import descriptors

DIGEST_AT: Final = 32
"""Where in the file its digest lies: behind the magic, where a segment in memory has words that workers write."""
DIGEST_END: Final = _control.DATA_FIRST
MARK: Final = struct.pack("<Q", _tables.LAYOUT_HASH)
"""The last bytes of the file: where they are not, what lies before them may not be there either."""
_TORN, _MARKED = struct.pack("<II", 0, 0), struct.pack("<II", 0, 1)


def whole(model: str, role: str, announced: int, fd: int) -> int:
    """The bytes that a descriptor has. PlanError if these are fewer than were announced: a file can be cut once it has been opened."""
    nbytes = descriptors.fstat(fd).st_size
    if nbytes < announced:
        raise PlanError(f"model {model!r}: a segment of {role} has {nbytes} bytes instead of {announced}: its file has been cut. Try again")
    return nbytes


def is_file(fd: int) -> bool:
    """Whether weights lie in a file of the plan cache, where others can get at it. Its name may be gone by now, so its digest tells.
    PlanError where the file has been cut before its digest."""
    return any(_read(fd, DIGEST_END - DIGEST_AT, DIGEST_AT))


def _read(fd: int, nbytes: int, offset: int) -> bytes:
    data = descriptors.pread(fd, nbytes, offset)
    if len(data) < nbytes:
        raise PlanError("a file of weights has been cut while it was read. Try again")
    return data


def borrowed(fd: int, nbytes: int) -> tuple[int, int, tuple[Borrowed, ...]]:
    """Size, descriptor and pieces of the segment for a file of `nbytes`, which is taken over, unless this raises: OSError,
    ResourceLimitError, PlanError. From now on workers notice where the file is cut."""
    page = _control.PAGE
    with Segment.create("weights", nbytes, memfd=True, holes=[(page, nbytes)] if nbytes > page else []) as segment:
        segment.buf[:page] = _read(fd, page, 0)
        segment.buf[DIGEST_AT:DIGEST_END] = (_MARKED if nbytes > page else _TORN).ljust(DIGEST_END - DIGEST_AT, b"\0")
        own = descriptors.dup(segment.fd)
    if nbytes > page:
        return nbytes, own, (Borrowed(page, page, nbytes - page, fd),)
    descriptors.close(fd)
    return nbytes, own, ()


def torn(held: Held) -> bool:
    """Whether a worker has found that the file of a weight segment is no longer what was mapped."""
    return held.role == "weights" and bool(held.borrowed) and _control.torn(descriptors.pread(held.fd, _control.DATA_FIRST, 0))
