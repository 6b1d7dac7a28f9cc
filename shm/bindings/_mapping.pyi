"""Mapped shared memory."""

from collections.abc import Sequence
from typing import final

from typing_extensions import Buffer

def is_memory(fd: int) -> bool:
    """Whether a descriptor is of a file in memory (tmpfs, memfd): reading it never waits for a device or for another process."""

def free_huge(file: str = "/proc/buddyinfo") -> int:
    """Bytes of the machine's memory that are free in pieces of 2 MiB and more; 0 where that cannot be known."""

def reserve(fd: int, nbytes: int, holes: Sequence[tuple[int, int]] = ()) -> int:
    """Gives an empty file of shared memory its length and all of its space, zeroed.

    In pages of 2 MiB where the kernel has them to give (Linux 6.1, whatever its setting for shared memory). They cost less than reserving
    and touching 512 small pages each, in every process that maps them. They also cost fewer translations for who streams through them.
    Where memory would have to be moved for that, only as long as it is soon done. Returns how many bytes lie in such pages. `holes`:
    (begin, end), ascending, for which no space is wanted. Raises OSError, with ENOSPC or ENOMEM where there is not enough.
    """

@final
class Memfd:
    """A file in memory that can be sealed, closed at the latest when nobody refers to it any more.

    No interrupt comes between its creation and its owner.
    """

    fd: int

    def __init__(self, name: str) -> None: ...
    def close(self) -> None: ...

@final
class Mapping(Buffer):
    """Shared memory behind a descriptor, mapped. Supports the buffer protocol; views keep it alive.

    Python's own mmap keeps a duplicate of the descriptor for as long as it lives. This does not, so that a process may map thousands of
    segments. Raises OSError where the kernel refuses.
    """

    nbytes: int
    writable: bool

    def __init__(self, fd: int, nbytes: int, writable: bool) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None:
        """Unmaps. BufferError while views exist; without a reference of ours the last of them unmaps it."""
    def borrow(self, at: int, fd: int, offset: int, nbytes: int) -> None:
        """Maps `nbytes` of a file from `offset` on, read-only, over the bytes from `at` on of this mapping of a data segment. All are
        multiples of a page, and `at` is behind the first. Where the file turns out to be shorter, zeros are read and the segment is marked
        (`_control.torn`). ValueError, OSError."""
    def keep_from_children(self) -> None:
        """Forked children do not get this mapping."""
