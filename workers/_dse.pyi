"""The distributed scheduling engine, and a runner of single tiles for tests."""

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

Array = npt.NDArray[np.generic]

@final
class Engine:
    """One worker's DSE. The worker's Python side calls run() in a loop and does what the returned reason asks for:

    - ("opaque", instance, tile): execute the tile on operands(instance, tile), then finish(instance, tile, …).
    - ("attach", seq, 0): read every message waiting on the worker's socket and map() its segments. Wait for more while missing(seq) is not
      empty (a worker that just joined). Then attached(seq).
    - ("drained", 0, 0): something dropped may have seen its last request: tell the planner process to collect().
    - ("leave", 0, 0): asked to leave: the row is closed, its tiles are anybody's; exit.
    - ("stop", 0, 0): the runtime ends; exit.

    `isa` is the name of an instruction set of `aspen_mp.workers._isa.names()`, None for the best.
    """

    def __init__(self, control: Buffer, doorbell: Buffer, row: int, isa: str | None = None, told: int = -1) -> None:
        """`told`: an eventfd that is written to when the DSE has parked for a recovery; -1: none."""

    @property
    def row(self) -> int: ...
    @property
    def isa(self) -> str: ...
    def map(self, segment: int, role: str, buf: Buffer) -> None:
        """Makes a mapped segment known. `buf` is an mmap: writable for arena, data and client segments, read-only for plans and weights.
        Raises ProtocolError when its magic, role or layout is not what it should be. The Engine keeps a reference until unmap()."""
    def unmap(self, segment: int) -> None:
        """Forgets a segment and releases the buffer. A segment that is not mapped is ignored."""
    def mapped(self) -> list[int]: ...
    def stale(self) -> list[int]:
        """Mapped segments that the control table has dropped: attached() unmaps them."""
    def missing(self, seq: int) -> list[int]:
        """Segments announced by publish() number `seq` or before that are not mapped yet: their descriptors are on the way."""
    def attached(self, seq: int) -> None:
        """Everything announced up to `seq` is mapped: forgets what was dropped (unmaps stale()), prepares new plans and instances.

        ProtocolError while missing(seq) is not empty. PlanError if a plan does not fit its segments.
        """
    def join(self) -> None:
        """The row opens (state "running"). Call after the first attached(); run() does it if it was not called."""
    def run(self) -> tuple[str, int, int]: ...
    def operands(self, instance: int, tile: int) -> tuple[int, bytes, list[Array | memoryview], list[Array | memoryview | None]]:
        """(op, blob, outputs, inputs) of an opaque tile. Arrays are views of shared memory in ONNX order with the operands' shapes and
        strides. OBJECT operands are memoryviews of their buffer; missing optional inputs are None. Inputs that lie in the request's region
        are private copies: its client may write there at any time."""
    def name(self, instance: int, tile: int) -> str:
        """ "node name (op type)" for messages."""
    def unwanted(self) -> bool:
        """Whether nobody wants the result of the request whose opaque tile run() returned any more."""
    def finish(self, instance: int, tile: int, error: int = 0, needed: int = 0, message: str = "") -> None:
        """The opaque tile is done: marks it executed, counts its children down. `error`: a number of `_control.ERRORS` (OPAQUE_FAILED,
        NEEDS_SPACE with `needed`, CANCELLED), 0 when it went well."""
    def close(self) -> None:
        """Releases every buffer."""

@final
class PlanRunner:
    """Executes single tiles of a plan on given buffers, without any worker: tests of tile graphs, explanations, calibration.

    plan: bytes of a plan segment (read-only). weights: one buffer for each weight segment. arena: at least `arena_bytes`, request:
    at least `request_bytes`; operands' offsets count from the first byte of each buffer. isa as in Engine.
    """

    def __init__(
        self,
        plan: Buffer,
        weights: Sequence[Buffer],
        arena: Buffer,
        request: Buffer,
        isa: str | None = None,
        opaque: Callable[..., Any] | None = None,
        extent: int = 0,
    ) -> None:
        """`opaque(blob: bytes, outputs: list[Array], inputs: list[Array | None]) -> None` executes OPAQUE tiles; without it they fail.
        `extent` as in `move`."""
    @property
    def n_tiles(self) -> int: ...
    def move(self, extent: int) -> None:
        """Later runs are requests of this extent. PlanError: it is none of the plan's; 0 is that of a plan for one shape."""
    def run_tile(self, tile: int, again: bool = False) -> int:
        """Executes one tile whatever the state of its parents; returns enum aspen_error (0: fine). JOIN and END do nothing. `again`: the
        last tile with a kernel was of the same op, and its inputs have not changed since, so its scratch memory is valid."""
    def run(self, order: str = "fifo", seed: int = 0) -> int:
        """Executes all tiles in a legal order: "fifo", "lifo" or "random". Returns the first error. PlanError: one never became ready."""
    def scratch_bytes(self, tile: int) -> int:
        """The scratch bytes that the kernel asks for, for this tile."""
    def name(self, tile: int) -> str:
        """ "node name (op type)" for messages."""
