"""The control segment as the planner process sees it."""

from collections.abc import Mapping, Sequence
from typing import Any, final

from typing_extensions import Buffer

CONTROL_BYTES: int
DOORBELL_BYTES: int
CLIENT_BYTES: int
CLIENT_PENDING: int
"""Offset in a client segment of a bit for each of its `SLOTS` slots: submitted and not started yet."""
SLOTS: int
MAX_PLANS: int
MAX_INSTANCES: int
DATA_FIRST: int
"""First free byte of a data, weight or arena segment (its magic lies before it)."""
PAGE: int
"""Pieces of clients' files that a data segment borrows begin and end at multiples of it."""
MAX_BORROWED: int
"""Such pieces that a runtime may have at a time."""
ERRORS: dict[str, int]
"""Names and numbers of why a request failed (`_channel.Result.error`)."""
ERROR_NAMES: dict[int, str]
ROLES: dict[str, int]
"""control, doorbell, client, data, plan, weights, arena, trace"""
TRACE_RINGS: int
"""Offset of a trace segment's ring headers."""
TRACE_RECORDS: int
"""Offset of a trace segment's records."""
MODEL_COUNTS: tuple[str, ...]
"""Counts of a model's requests. "requests": ended, one for each stage. "queue_s", "run_s": seconds in all, from submission to start and
from there to the end. "missed": ended after their deadline. "refused": the deadline could not be met. "expired": it passed while they
waited."""
PRIORITIES: dict[str, int]
"""high 0, normal 1, low 2"""

def write_magic(buf: Buffer, role: str) -> None:
    """Stamps a new segment: magic, layout hash, size, role."""

def check_magic(buf: Buffer, role: str) -> None:
    """Raises ProtocolError unless `buf` is a segment of this role, written by a build with the same layout, of the size it claims."""

def role_of(buf: Buffer) -> str:
    """The role of the segment that begins like this, one or more lines of it; "" where none does."""

def torn(buf: Buffer) -> bool:
    """Whether a worker has missed pages that this data segment borrows from a file, and has read zeros instead."""

def clock() -> tuple[int, int]:
    """Now: ticks, in which DSEs count time, and nanoseconds of CLOCK_MONOTONIC."""

def trace_bytes(rings: int, capacity: int) -> int:
    """Size of a trace segment with `rings` rings of `capacity` records each."""

def trace_format(buf: Buffer, rings: int, capacity: int) -> None:
    """Makes a new trace segment ready for DSEs. `capacity`: a power of two. ValueError for other numbers."""

@final
class ControlTable:
    """The planner process's hand on the control segment and the doorbell page. One thread. Nothing here blocks.

    Order of things when something new appears: create segments and send their descriptors to every worker, add_segment for each,
    add_plan/add_client/add_data, then publish(), then tell clients. When something ends: drop_plan/drop_client/drop_data; collect()
    returns the segments that became unused, already marked as dropped: close them and publish(), which makes the workers unmap them.
    """

    def __init__(
        self,
        control: Buffer,
        doorbell: Buffer,
        *,
        create: bool = False,
        max_workers: int = 256,
        spin_us: int = 100,
        preempt_us: int = 1000,
    ) -> None: ...

    # segments, plans, clients
    def add_segment(self, role: str, nbytes: int) -> int:
        """A new id for a segment that workers map. ResourceLimitError when the table is full."""
    def drop_segment(self, segment: int) -> None:
        """Marks a segment that nothing uses any more; the next publish() tells workers to unmap it, its id is reused after all have."""
    def segments(self) -> list[tuple[int, str, int]]:
        """(id, role, bytes) of the live segments: what a joining worker has to be sent."""
    def add_client(self, segment: int, buf: Buffer) -> int:
        """Registers a client segment (writes the client's number into `buf`, the mapped segment)."""
    def drop_client(self, client: int) -> None:
        """Cancels its requests; its segments come back from collect() when none of them runs any more."""
    def add_data(self, client: int, segment: int) -> int:
        """The index that the client's submissions use for this data segment."""
    def drop_data(self, client: int, index: int) -> None:
        """Takes the index away; the segment comes back from collect() when no running request uses it."""
    def add_plan(
        self,
        segment: int,
        weights: list[int],
        arenas: list[int],
        *,
        model: int = 0,
        share: float = 1.0,
        work_ns: float = 0.0,
        memory: int = 0,
    ) -> tuple[int, int]:
        """Makes a plan known: (plan, generation), with one instance for each arena segment. `model`: whose it is, for turns and counts.
        `share`: its weight beside other models. `work_ns`: what it expects of all its tiles on one core, 0: unknown. `memory`: depths
        whose tiles wait for memory, a bit each."""
    def set_tokens(self, tokens: int) -> None:
        """This many workers of each memory may execute tiles that wait for it while there is something else to do; 0: all."""
    def set_hints(self, plans: Mapping[int, Sequence[tuple[int, int, bool]]], domains: Sequence[int] = ()) -> int:
        """Puts a new version of the hints in force and returns its number. `plans`: by plan and depth. An entry has three parts. The first
        is a bit for each domain whose workers may take the tiles, 0: all. The second is the most workers of a request at a time, 0: any
        number. The third says whether tiles of other requests go first. Plans that are missing get no hint but that of their memory.
        `domains`: of each row, the domain of its worker, -1: none.
        ValueError: a number is out of range."""
    def hints(self) -> dict[str, Any]:
        """version, tokens, holders [memories], at_work (over all requests), and by plan the words of the table in force."""
    def model_counts(self) -> dict[int, dict[str, float]]:
        """By model, of its plans so far: the numbers `MODEL_COUNTS`."""
    def plans(self) -> list[int]:
        """The existing plans, also those that have been dropped and still run requests."""
    def plan(self, plan: int) -> dict[str, Any]:
        """generation, segment, draining (it has been dropped), instances, and how many requests they have served."""
    def drop_plan(self, plan: int) -> None:
        """Refuses new submissions (PLAN_GONE), lets running ones finish; collect() then returns its plan and arena segments, not
        its weights."""
    def collect(self) -> list[int]:
        """Segments whose plan, client or data index was dropped and whose last request has ended; they are marked as by drop_segment.
        Call it after a drop_… and when a worker reports "drained"; publish() if the list is not empty."""
    def publish(self) -> int:
        """Bumps attach_seq and wakes every worker: they drain their sockets, map and unmap. Returns the new attach_seq."""

    # workers
    def worker_reset(
        self, row: int, *, pid: int = 0, start_time: int = 0, cpu: int | None = None, core_class: int = 0, cache: int = 0, node: int = 0
    ) -> None:
        """Prepares a row for a new process: "joining", statistics 0. Call before it starts; worker_started adds pid and start time."""
    def worker_started(self, row: int, pid: int, start_time: int) -> None: ...
    def worker_gone(self, row: int, *, died: bool = False) -> None:
        """The process of this row has been reaped: the row is free again (or marked dead)."""
    def worker_command(self, row: int, command: str) -> None:
        """ "leave" (finish the tile in hand, hand the rest over, exit), "stop" (exit at once) or "none"; wakes the worker."""
    def stop(self) -> None:
        """Every worker leaves its loop."""
    def workers(self) -> list[dict[str, Any]]:
        """For each used row: `row`, `pid`, `start_time`, `cpu`, `core_class`, `state`, `command`, `attached`, `heartbeat`, `idle` ("busy",
        "looking", "parked"). `current`: (instance, tile) or None. Counts are `tiles`, `steals`, `pushes`, `follows`, `parks`, `opaque`,
        `claims`, `ends`, `wakes`, `faults`, `failed` and `cancelled`. `queued`: ready tiles in its row now. `kernel_ns`, `schedule_ns`,
        `search_ns`, `sleep_ns`: how long it was in kernels, scheduling, searching and sleeping. `held_ns` of these are for the sake of a
        higher class, `lent_ns` went to lower ones."""
    def paces(self) -> list[tuple[int, int, int | None, int, int]]:
        """For each worker that runs: row, pid, CPU (None: not pinned), and nanoseconds in kernels, and those that plans expect of them, so
        far."""
    def status(self) -> dict[str, Any]:
        """epoch, attach_seq, max_workers, workers, sleepers, spinners, queued (ready tiles), trace (whether somebody traces), ready_rows,
        plans, draining, instances (by state), served, clients, segments (bytes by role)."""
    def set_trace(self, segment: int) -> None:
        """The trace segment that DSEs record into from the next publish() on; 0: none."""
    def set_policy(self, policy: str, seed: int = 0) -> None:
        """Order of the ready queues: "fifo" (default), "lifo" or "random" (tests)."""
    def set_stealing(self, on: bool) -> None: ...

    # recovery's stop of the world
    def epoch_begin(self) -> int:
        """Makes the epoch odd: every DSE parks at its next look. Returns the epoch."""
    def epoch_stopped(self) -> list[int]:
        """Rows whose worker runs and has not parked at this epoch yet: recovery waits for them, or ends and reaps them."""
    def recovery_segments(self, *, restart: bool = False) -> list[int]:
        """Segments that recover() has to be given: plans and arenas of running requests (`restart`: of all instances), clients."""
    def recover(self, buffers: Mapping[int, Buffer], *, restart: bool = False) -> dict[str, int]:
        """Makes queues and counters anew from the executed flags, once epoch_stopped() has been empty. `buffers`: mapped segments by id,
        writable but for plans. `restart`: the flags are not trusted either, running requests begin anew. Returns how many
        requests were continued,
        restarted, completed and resubmitted."""
    def current(self, row: int) -> tuple[int, int, int] | None:
        """(instance, tile, generation) that the row's worker is or was executing, None if none that still runs."""
    def unwanted(self, instance: int, generation: int, client: Buffer | None) -> bool:
        """Whether nobody wants the result of the request that runs in an instance in this generation any more.

        It has failed, its client has cancelled it (whether or not a worker has looked), or its client is gone. `client`: that client's
        segment, mapped."""
    def pulse(self, row: int) -> tuple[int, int, int, bool]:
        """Heartbeat, current item (0: none), idleness (0 busy, 1 looking for work, 2 parked) of the row's worker. The last says whether it
        has mapped what the last publish() announced."""
    def instance(self, number: int) -> dict[str, Any]:
        """state, generation, plan, client, arena (segment), client_segment of an instance."""
    def replace_arena(self, instance: int, segment: int) -> int:
        """While the world stands still: the instance goes on in another arena segment, of zeros, so its request begins anew. Returns
        the old one's number, which is given up; publish() must come before epoch_end()."""
    def due(self, row: int) -> bool:
        """Is there anything that this row's worker would see if it looked: a tile, a request, a command, an announcement?"""
    def wake_all(self) -> None:
        """Every worker that sleeps looks once more."""
    def fail(self, instance: int, generation: int, error: int, op: int) -> None:
        """Marks a running request as failed, unless it is already or another runs there now; its remaining tiles become no-ops."""
    def epoch_end(self) -> None:
        """Makes the epoch even and lets the DSEs go on."""
