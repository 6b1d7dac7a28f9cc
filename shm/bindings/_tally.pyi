"""A client's counts of its own requests, in memory that the planner process reads.

The planner process makes the memory, 20 KiB a client, and reads it whenever it is asked for its status. The client alone writes it, so that
nothing is sent for a request. One writer: whoever changes a row holds the GIL. The reader may see a count before its duration, and must
take the numbers for what they are: a client's word.
"""

from typing import Final, final

from typing_extensions import Buffer

OUTCOMES: Final[tuple[str, ...]]
"""How requests end: "completed", "failed", "timed_out", "cancelled", "lost" (with the runtime), "refused" (too many waited),
"missed" (the deadline could not be met, or passed)."""
BYTES: Final[int]
BOUNDS_S: Final[tuple[float, ...]]
"""Upper bounds of the histograms' buckets, in seconds: 65.5 µs, doubled up to 68.7 s. One more bucket has what is above."""

def now() -> int:
    """CLOCK_MONOTONIC in nanoseconds."""

def read(data: bytes) -> list[tuple[int, int, list[int], int, list[int], list[int]]]:
    """The rows in use: number of the model, requests in flight, endings by outcome, sum of durations in nanoseconds, durations by bucket.

    The last item is about new shapes: how many a known plan served, waits for a plan, their nanoseconds. The first row is the queue's
    (model 0): how long requests waited for a worker to begin. Empty where data is too short.
    """

@final
class Tally:
    """The memory, as the client sees it; ProtocolError where it is too small. After `close` counting does nothing."""

    def __init__(self, buffer: Buffer) -> None: ...
    def row(self, model: int) -> Row:
        """The counts of a model, by its number in the runtime. The last of the rows is shared by all models that come late."""

    def close(self) -> None: ...

@final
class Row:
    """Where the requests of one model are counted for one runtime."""

    def __init__(self, tally: Tally, row: int) -> None: ...
    def derived(self) -> None:
        """Count shapes that were new to this process, and that a plan for a range serves which it knew already."""

    def waited(self, began_ns: int) -> None:
        """Count a request that has waited for a plan, since `began_ns` as `now` says it."""

@final
class Requests:
    """The requests of a model in this process. Each method is one step to other threads, which wait for the GIL."""

    begun: int
    """Requests that have not ended."""
    gone: bool
    """Whether the model has been unloaded."""

    def counted_in(self, row: Row) -> None:
        """From now on they are counted there, too; those that are under way are under way there."""

    def begins(self) -> int:
        """One begins: when, as `now` says it; 0, and nothing is counted, where the model has been unloaded."""

    def withdraws(self) -> bool:
        """One that was counted is not begun after all, and has no answer; the rest as of `ends`."""

    def answered(self, began_ns: int, outcome: int) -> None:
        """Count the answer to a request that began at `began_ns`; `outcome` is an index of `OUTCOMES`.

        Its caller may have the answer while workers are still in a tile of it: it is in flight until `ends`.
        """

    def ends(self) -> bool:
        """Count the end of a request. Return whether it was the last one of a model that has been unloaded."""

    def refused(self) -> None:
        """One was refused, because too many wait."""

    def leaves(self) -> bool:
        """The model is unloaded. Whether it was not before, and no request is under way."""
