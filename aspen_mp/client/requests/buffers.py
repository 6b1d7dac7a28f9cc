"""Input buffers: arrays in a client's own data segment, which a request reads where they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

if TYPE_CHECKING:
    from aspen_mp.client.requests.region import Region


class InputBuffers(Mapping[str, npt.NDArray[Any]]):
    """What `Model.input_buffers` returns: {input name: writable array}, to be filled and then given to `run`, `submit` or `map` as feeds.

    The request reads the arrays in place, whether they are given as this object or one by one. Until it has finished (`in_flight`),
    nobody may write to them. Afterwards they keep their contents and can be filled again. Arrays that are given to a second request while
    the first runs, or to another model, are copied like any other. An input that is given from elsewhere is copied into its buffer.

    Arrays that forked children fill are seen here: children inherit them. The memory goes back when `close`, or the end of a ``with``
    block, and the last of the arrays have let go of it. Buffers that a forked child has inherited are kept until the runtime's connection
    ends.
    """

    def __init__(self, region: Region, inputs: dict[str, npt.NDArray[Any]], outputs: dict[str, npt.NDArray[Any]]) -> None:
        self._region: Region | None = region
        self._inputs = inputs
        self._outputs = outputs

    @property
    def outputs(self) -> Mapping[str, npt.NDArray[Any]]:
        """{output name: array}: the outputs of the last request from these buffers, where workers have written them, valid until the next
        one.

        With ``run(buffers, outputs=[])`` nothing is copied at all.
        """
        return self._outputs

    @property
    def in_flight(self) -> bool:
        """Whether a request reads the arrays now."""
        return self._region is not None and self._region.busy

    @property
    def nbytes(self) -> int:
        """Size of all arrays together, in bytes."""
        return sum(array.nbytes for array in self._inputs.values())

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._inputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._inputs)

    def __len__(self) -> int:
        return len(self._inputs)

    def close(self) -> None:
        """Forget the arrays. Whoever still has one keeps the memory."""
        self._region = None
        self._inputs = {}
        self._outputs = {}

    def __enter__(self) -> InputBuffers:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("input buffers cannot be pickled. Fork the processes that fill them, or use multiprocessing.shared_memory")
