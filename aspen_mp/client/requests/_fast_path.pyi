"""The fast path of a request, and the watch over tensors that a model was made of."""

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, NoReturn, Protocol, final, type_check_only

import numpy as np
import numpy.typing as npt

from aspen_mp.client.requests.region import Region
from aspen_mp.shm.bindings._channel import ClientChannel, Result, Urgency
from aspen_mp.shm.values import Keys

@type_check_only
class OfSession(Protocol):
    """All that it uses of a session (`aspen_mp.client.session.Session`)."""

    @property
    def error(self) -> BaseException | None: ...
    @property
    def held(self) -> Sized: ...
    @property
    def channel(self) -> ClientChannel: ...
    @property
    def wanting(self) -> int: ...
    @property
    def queue(self) -> Sized: ...
    def slot_is_free(self) -> None: ...
    def leave(self, ticket: int, on_left: Callable[[], None]) -> None: ...
    def unfinished(self, ticket: int, error: BaseException, on_left: Callable[[], None]) -> BaseException: ...

@type_check_only
class OfStage(Protocol):
    """All that it uses of a stage (`aspen_mp.client.requests.stage.Stage`)."""

    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def end(self, region: Region) -> None: ...
    def late(self, timeout: float | None) -> BaseException: ...
    def fail(self, result: Result, region: Region, urgency: Urgency) -> NoReturn: ...

def address(array: npt.NDArray[Any]) -> int:
    """Of its first byte."""

@final
class FastPath:
    """The path of a request through a stage whose values are all tensors and whose outputs are copied: after a network has run, nothing of
    a client is left in the caches of its core, so what counts is how little code and how few objects a request needs.

    `ids`: plan, generation and extent. `free`: the stage's list of regions that wait for a request. `inputs`: name, dtype, shape,
    whether only an array with memory of its own may be copied (others might be borrowed), and the numbers of strings where it takes
    strings as numbers, else None; `outputs`: name, and what is made of the array (`values.told`), or None. Both in the order of a region's
    arrays. `requests`: so many may take this path before it is `closed`, until it is opened again; -1: any number.

    What it does itself is what happens nearly always. `stage` and `session` see to the rest. It does not keep the stage alive.
    """

    @property
    def stage(self) -> Any:
        """None when it has gone."""
    def __init__(
        self,
        stage: OfStage,
        session: OfSession,
        ids: tuple[int, int, int],
        free: list[Region],
        inputs: Sequence[tuple[str, np.dtype[Any], Sequence[int], bool, dict[str, int] | None]],
        outputs: Sequence[tuple[str, Keys | None]],
        requests: int = -1,
    ) -> None: ...
    @property
    def closed(self) -> bool:
        """Whether requests have to take the slow path."""
    def open(self, requests: int) -> None:
        """For so many requests more."""
    def run(self, feeds: Mapping[str, Any], names: Sequence[str] | None, urgency: Urgency, timeout: float | None) -> dict[str, Any] | None:
        """The outputs, all or those named. None where a request has to take the slow path: inputs of other names, types or shapes, in
        another memory order, or that may lie in shared memory; no region or no slot free; the runtime lost. Nothing has been done then.
        Raises what `Stage.run` raises."""
    def drain(self) -> int:
        """How many requests have taken this path since the last call."""

@final
class Watched:
    """Tensors of another library whose contents are part of a loaded model, as they were when this was made.

    Each request asks whether they are still so. Most changes show in an identity, an address or a version. Those that the library does not
    count show in a few elements of each tensor, which are compared with what they were.

    Args:
        args: The arguments of the call that loaded the model. Watched ones have `data_ptr()` and `_version`, as those of PyTorch do. No
            reference to them is kept.
        places: For each watched argument its place among `args`, the bytes of an element (1, 2, 4 or 8), and how many bytes behind
            `data_ptr()` the elements lie that are compared.
    """

    def __init__(self, args: tuple[Any, ...], places: Sequence[tuple[int, int, Sequence[int]]]) -> None: ...
    def holds(self, args: tuple[Any, ...]) -> bool:
        """Whether all are the same tensors, with the addresses, versions and elements that they had."""
    def changed(self, args: tuple[Any, ...]) -> list[int]:
        """The places of those that are the same tensor with another address, version or elements."""
