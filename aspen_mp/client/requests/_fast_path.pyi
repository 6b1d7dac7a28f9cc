"""The short way of a request."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from aspen_mp.shm.values import Keys

@final
class Lane:
    """The way of a request through a stage whose values are all tensors and whose outputs are copied: after a network has run, nothing of
    a client is left in the caches of its core, so what counts is how little code and how few objects a request needs.

    `ids`: plan, generation and extent. `free`: the stage's list of regions that wait for a request. `inputs`: name, dtype, shape,
    whether only an array with memory of its own may be copied (others might be borrowed), and the numbers of strings where it takes
    strings as numbers, else None; `outputs`: name, and what is made of the array (`values.told`), or None. Both in the order of a region's
    arrays. `requests`: so many may go this way before it is `closed`, until it is opened again; -1: any number.

    What it does itself is what happens nearly always. `stage` and `session` see to the rest: `Session.unfinished`, `leave`,
    `slot_is_free`, `Stage.end`, `late`, `fail`.
    """

    @property
    def stage(self) -> Any:
        """None when it has gone: a lane does not hold it."""
    def __init__(
        self,
        stage: object,
        session: object,
        ids: tuple[int, int, int],
        free: list[Any],
        inputs: Sequence[tuple[str, np.dtype[Any], Sequence[int], bool, dict[str, int] | None]],
        outputs: Sequence[tuple[str, Keys | None]],
        requests: int = -1,
    ) -> None: ...
    @property
    def closed(self) -> bool:
        """Whether requests have to go the long way."""
    def open(self, requests: int) -> None:
        """For so many requests more."""
    def run(self, feeds: Mapping[str, Any], names: Sequence[str] | None, level: int, timeout: float | None) -> dict[str, Any] | None:
        """The outputs, all or those named. None where this is not the way: inputs of other names, types or shapes, in another memory order,
        or that may lie in shared memory; no region or no slot free; the runtime lost. Nothing has been done then. Raises what
        `Stage.run` raises."""
    def drain(self) -> int:
        """How many requests have gone this way since the last call."""
