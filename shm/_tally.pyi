"""A client's counts of its own requests, in memory that the planner process reads.

The planner process makes the memory, 16 KiB a client, and reads it whenever it is asked for its status; the client alone writes it, so that
nothing is sent for a request. One writer: whoever changes a row holds the lock of its model, the queue's row the GIL. The reader may see a
count before its duration, and must take the numbers for what they are: a client's word.
"""

from typing import Final, final

from typing_extensions import Buffer

OUTCOMES: Final[tuple[str, ...]]
"""How requests end: "completed", "failed", "timed_out", "cancelled", "lost" (with the runtime), "refused" (too many waited)."""
BYTES: Final[int]
BOUNDS_S: Final[tuple[float, ...]]
"""Upper bounds of the histograms' buckets, in seconds: 65.5 µs, doubled up to 68.7 s. One more bucket has what is above."""

def now() -> int:
    """CLOCK_MONOTONIC in nanoseconds."""

def read(data: bytes) -> list[tuple[int, int, list[int], int, list[int]]]:
    """The rows in use: number of the model, requests in flight, endings by outcome, sum of durations in nanoseconds, durations by bucket.
    The first row is the queue's (model 0): how long requests waited for a worker to begin. Empty where data is too short."""

@final
class Tally:
    """The memory, as the client sees it; ProtocolError where it is too small. After `close` counting does nothing."""

    def __init__(self, buffer: Buffer) -> None: ...
    def row(self, model: int) -> Row:
        """The counts of a model, by its number in the runtime. The last of the rows is shared by all models that come late."""

    def close(self) -> None: ...

@final
class Row:
    """Counts of one model. Whoever calls holds the model's lock."""

    def __init__(self, tally: Tally, row: int) -> None: ...
    def flight(self, change: int) -> None:
        """So many requests more are in flight, or less."""

    def ends(self, began_ns: int, outcome: int) -> None:
        """A request has ended, so one less is in flight, that began at `began_ns` (`now`); `outcome` is an index of `OUTCOMES`."""

    def refused(self) -> None:
        """A request was refused, because too many wait."""
