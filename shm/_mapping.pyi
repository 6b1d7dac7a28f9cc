"""Mapped shared memory."""

from typing import final

from typing_extensions import Buffer

@final
class Mapping(Buffer):
    """Shared memory behind a descriptor, mapped. Supports the buffer protocol; views keep it alive.

    Python's own mmap keeps a duplicate of the descriptor for as long as it lives; this does not, so that a process may map thousands of
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
    def collapse(self) -> int:
        """Moves the memory into huge pages, for everybody who maps it: fewer translations for those who stream through it.

        Returns how many bytes now lie in such pages: 0 where the kernel does not know how. Takes about a millisecond a megabyte.
        """
    def keep_from_children(self) -> None:
        """Forked children do not get this mapping."""
