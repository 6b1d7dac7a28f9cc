"""A client's submission channel."""

from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol, TypeVar, final

from typing_extensions import Buffer

from aspen_mp.shm.bindings._tally import Tally

class Offered(Protocol):
    """What `hand_over` publishes."""

    plan: int
    generation: int
    data: int
    offset: int
    extent: int
    urgency: Urgency
    ticket: int
    handed_over: bool

OfferedT = TypeVar("OfferedT", bound=Offered)

class Result(NamedTuple):
    """How a request ended. `error` is 0 or a number of `_control.ERRORS`; `op` is the plan's op that failed (-1: none). `needed` is the
    bytes of the OBJECT result that did not fit, or with TOO_LATE the nanoseconds that the request would have taken. Times are
    CLOCK_MONOTONIC nanoseconds (0 where it did not get that far)."""

    error: int
    op: int
    needed: int
    message: str
    submitted_ns: int
    started_ns: int
    finished_ns: int

FINE: Result
"""A request that ended well."""

@final
class Urgency:
    """When a request goes: its priority class, and its deadline if it has one. The same object serves a request in all of its stages and
    attempts, since the deadline counts from when the object was made.

    `level`: 0 high, 1 normal, 2 low. `span_ns`: nanoseconds that the request has in all, 0: any time. `due_ns`: when that is over, as
    CLOCK_MONOTONIC says it, 0: never. `runs_on`: the result is wanted, late or not."""

    level: int
    span_ns: int
    due_ns: int
    runs_on: bool

    def __init__(self, level: int, span_ns: int = 0, runs_on: bool = False) -> None:
        """RequestError: there is no such level."""
    @property
    def drops(self) -> bool:
        """Whether the request is dropped when it is late."""
    def left(self) -> float:
        """Seconds until the deadline; 0.0 when it has passed."""

class ClientChannel:
    """A client's side: publishes requests, sleeps on their completion. Where the last request took 10 µs at most, `wait` and `finish` watch
    for twice that time before they sleep. Any thread may call anything; waiting releases the GIL and Ctrl-C ends it.

    A ticket is an int that names one submission for good (slot and sequence)."""

    def __init__(self, client: Buffer, doorbell: Buffer, tally: Tally | None = None) -> None:
        """`tally`: is told how long each request waited for a worker."""

    @property
    def client(self) -> int:
        """The client's number in the control table."""
    @property
    def in_flight(self) -> int: ...
    @property
    def running(self) -> int:
        """Requests that workers have begun."""
    @property
    def capacity(self) -> int:
        """Most requests in flight: 256."""
    @property
    def closed(self) -> bool:
        """The planner process has dropped this client."""
    def submit(self, plan: int, generation: int, data: int, offset: int, urgency: Urgency | int = 1, extent: int = 0) -> int:
        """Publishes a request, wakes a worker if one sleeps; returns the ticket. `extent`: of the dimension that its plan leaves open.
        ResourceLimitError: `capacity` requests are in flight."""
    def offer(
        self,
        plan: int,
        generation: int,
        data: int,
        offset: int,
        urgency: Urgency | int = 1,
        taken: list[int] | None = None,
        extent: int = 0,
    ) -> int:
        """As `submit`, but -1 where `capacity` requests are in flight. `taken` gets the ticket, too, before Ctrl-C can come between the
        request and its ticket."""
    def hand_over(self, waiting: OfferedT, published: dict[int, OfferedT], queue: deque[OfferedT]) -> None:
        """Offers a request and puts it into `published` by its ticket; where all slots are taken, or others wait for one, appends it to
        `queue`. Ctrl-C comes before all of that or after `handed_over` says that it is done."""
    def state(self, ticket: int) -> str:
        """ "submitted", "running", "done"; RequestError for a ticket that was released."""
    def take(self, ticket: int) -> Result | None:
        """The result, and the slot is given back; None while it is not done. FINE, without times, for a request without an error."""
    def wait(self, ticket: int, timeout: float | None = None) -> Result | None:
        """Sleeps until the request is done; None after `timeout` seconds. The ticket stays valid until release(). RuntimeLost."""
    def finish(self, ticket: int, timeout: float | None = None) -> Result | None:
        """`wait` and `release` in one; the result of a request without an error is FINE, without times."""
    def completions(self) -> int:
        """Count of completions so far (wraps at 2**32): take it before looking at tickets, then attend(count)."""
    def faults(self) -> int:
        """Changes when a worker has died of a fault, which may have written anywhere."""
    def attend(self, seen: int) -> tuple[int, bool]:
        """For a resolver thread: sleeps until the count differs from `seen` and others than the event loop wait (`expect`). It sleeps a
        quarter of a second at most. Where the loop waits, it is told of each completion; the GIL is not taken for that. Returns the count,
        and whether the loop was told and has not looked for a twentieth of a second."""
    def expect(self, loop: bool | None = None, others: bool | None = None) -> None:
        """Says who waits for completions: an event loop that watches `event`, and others, for whom `attend` returns; None: as before. To be
        called before what they wait for is submitted. Ctrl-C comes before or after all of it."""
    def event(self) -> int:
        """The eventfd that tells an event loop of completions; it is the channel's. OSError where there are no more descriptors."""
    def close_event(self) -> None:
        """Closes the eventfd. No thread is in `attend` any more."""
    def heard(self) -> None:
        """The event loop takes note: a completion after this tells it again. To be called before it looks at tickets."""
    def lost(self) -> None:
        """The runtime is gone: every wait ends, now and from now on, with RuntimeLost (wait) or at once (attend)."""
    def wake(self) -> None:
        """Counts as a completion: whoever is in `attend` looks."""
    def cancel(self, ticket: int) -> None:
        """Asks for cancellation. The request still ends (CANCELLED, or as it would have): wait for it before reusing its memory."""
    def release(self, ticket: int) -> None:
        """Gives the slot of a finished request back."""
    def ring(self) -> None:
        """Rings the doorbell again for everything not yet claimed. Harmless; waits do it by themselves."""

@final
class GreenletChannel(ClientChannel):
    """A channel of a program whose threads are greenlets: `finish` and `attend` let the others run. `wait` does not.

    Each of them waits for a descriptor that a native thread writes to. That thread stays in C until the runtime is lost."""

    def __init__(
        self,
        client: Buffer,
        doorbell: Buffer,
        tally: Tally | None,
        start: Callable[[Callable[[], object], tuple[()]], int],
        readable: Callable[[Collection[int], float | None], set[int]],
    ) -> None:
        """`start`: starts a native thread. `readable`: sleeps until one of some descriptors is readable."""
    def toll(self) -> None:
        """Write to the descriptors of those whose wait is over, until the runtime is lost. For the native thread."""
