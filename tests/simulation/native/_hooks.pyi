"""The hooks of the C parts that are compiled with ASPEN_SIMULATION (`shm/protocol/system/simulation.h`).

There is one set of hooks for the process. A hook's function runs with the interpreter's lock. It may switch to other greenlets, unless
`install` says otherwise. An exception that leaves it ends the process with a traceback and status 70.
"""

from collections.abc import Callable

Place = tuple[int, int, int]
"""(device, inode, offset in bytes) of a word in a file. (0, 0, address): no file is mapped there."""

NAMES: tuple[str, ...]

def install(
    *,
    pause: Callable[[bool], object] | None = ...,
    spin: Callable[[bool], object] | None = ...,
    futex_wait: Callable[[Place, int | None, bool], int | None] | None = ...,
    futex_wake: Callable[[Place, int], int | None] | None = ...,
    event_make: Callable[[], int] | None = ...,
    event_tell: Callable[[int], object] | None = ...,
    event_drain: Callable[[int], object] | None = ...,
    event_close: Callable[[int], object] | None = ...,
    memory_make: Callable[[str, int], int] | None = ...,
    memory_close: Callable[[int], object] | None = ...,
    descriptor: Callable[[int], int] | None = ...,
    mapped: Callable[[int, int, int], object] | None = ...,
    unmapped: Callable[[int, int], object] | None = ...,
) -> None:
    """Install functions in place of those that are named. None: no function; then events, memory and descriptors are the real ones.

    pause(held): The budget is used up, before an atomic operation. `held`: the C code holds the interpreter's lock. In a real process no
        other thread of the same process could then run.
    spin(held): The C code waits for another process or for a time to come. It would wait forever if nobody else ran and no time passed.
    futex_wait(place, timeout_ns, held): A word has its expected value now: sleep. timeout_ns None: for ever. Returns 0 or None where it was
        woken, errno.ETIMEDOUT, or errno.EINTR. Without a function: EINTR. `held` is as for `pause`.
    futex_wake(place, n): Wake up to n sleepers. Returns how many.
    event_make(): A new event's descriptor, or -errno.
    event_tell(fd), event_drain(fd), event_close(fd): An event is set, reset, closed. Closing must not switch.
    memory_make(name, flags): A new memfd's descriptor, or -errno. `flags` are those of memfd_create.
    memory_close(fd): Must not switch.
    descriptor(fd): The real descriptor behind the number that a simulated process knows, where the two differ. Must not switch.
    mapped(address, nbytes, fd): A file was mapped. Must not switch.
    unmapped(address, nbytes): It is about to be unmapped, perhaps while an object is freed. Must not switch.

    Raises:
        TypeError: a name is not in NAMES.
    """

def budget(operations: int) -> None:
    """Let the running code pause before this many atomic operations have been done. 0: never.

    The budget is 0 while a hook's function runs. Afterwards it is what was left, unless this was called meanwhile. So whoever resumes a
    greenlet calls this just before."""

def left() -> int:
    """The operations up to the next pause."""

def set_now(ns: int) -> None:
    """Set what all clocks of C code say, in nanoseconds."""

def now() -> int:
    """The time last set."""

def place(address: int) -> Place:
    """Where an address lies in the file that is mapped there."""

def vacate(address: int, nbytes: int) -> None:
    """Give the memory of a mapping of a process that was killed back. Code of it that ran on would fault.

    The objects of a killed process still exist, because its greenlets are never resumed. So `mapped` has to tell what it has mapped.

    Raises:
        OSError: the kernel refuses.
    """

def word(address: int) -> int:
    """The 32-bit word at an address."""

def calls() -> dict[str, int]:
    """How often each hook was called, by name. Calls without a function count for `pause`, `spin` and the two of futexes only."""
