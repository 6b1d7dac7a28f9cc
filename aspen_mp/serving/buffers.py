"""Arrays in the runtime's memory that requests are read into, so that inputs are not copied a second time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

import aspen_mp
from aspen_mp.client.requests.buffers import InputBuffers
from aspen_mp.serving.protocol.messages import Request
from aspen_mp.shm.errors import AspenError

LEAST_BYTES: Final = 64 << 10
"""Inputs that are smaller together are copied: it takes less time than to find a buffer."""
MOST_OUTPUT_BYTES: Final = 1 << 20
"""Larger outputs are lent by the runtime instead of copied, which it does not do for buffers."""
MOST_BYTES: Final = 32 << 20
MOST_BUFFERS: Final = 32
MOST_SHAPES: Final = 4
"""Most shapes of a model. Requests that find none are copied."""

Key = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of inputs."""


class Buffers:
    """The buffers of one model. Everything happens on the event loop, except that a thread makes them."""

    def __init__(self, model: aspen_mp.Model) -> None:
        self._model = model
        self._home = ""
        self._free: dict[Key, list[InputBuffers]] = {}
        self._made = 0
        self._nbytes = 0
        self._making = False
        self._closed = False

    def rooms(self) -> Rooms:
        """Rooms for the inputs of one request."""
        return Rooms(self)

    def take(self, key: Key) -> InputBuffers | None:
        """Buffers that nobody uses. None where there are none; then there may be more for later requests."""
        if self._model.home != self._home:  # it is the first request, or the runtime was lost with all buffers
            self._forget()
        free = self._free.get(key)
        if free:
            return free.pop()
        known = key in self._free or len(self._free) < MOST_SHAPES
        if known and self._made < MOST_BUFFERS and self._nbytes < MOST_BYTES and not (self._making or self._closed):
            self._making = True
            loop = asyncio.get_running_loop()
            loop.run_in_executor(None, self._make, loop, key, self._home)
        return None

    def _make(self, loop: asyncio.AbstractEventLoop, key: Key, home: str) -> None:
        """In a thread: memory may have to be asked for."""
        made = None
        with suppress(AspenError, ValueError):  # a request with such inputs says why
            made = self._model.input_buffers(dict(key))
        with suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(self._note, key, home, made)

    def _note(self, key: Key, home: str, made: InputBuffers | None) -> None:
        self._making = False
        if self._closed or home != self._home:
            return
        free = self._free.setdefault(key, [])
        if made is None or sum(output.nbytes for output in made.outputs.values()) > MOST_OUTPUT_BYTES:
            self._made = MOST_BUFFERS  # no more are tried
            return
        self._made += 1
        self._nbytes += made.nbytes
        free.append(made)

    def give(self, key: Key, buffers: InputBuffers, home: str) -> None:
        """The request has ended. Where workers may still read its inputs, their memory comes back by itself. `home`: that of the runtime
        when it began; buffers of one that was lost since are not counted any more."""
        if home != self._home:
            buffers.close()
        elif self._closed or self._model.home != home or buffers.in_flight:
            self._made -= 1
            self._nbytes -= buffers.nbytes
            buffers.close()
        else:
            self._free[key].append(buffers)

    @property
    def home(self) -> str:
        """The runtime that all buffers lie in."""
        return self._home

    def _forget(self) -> None:
        self._free.clear()
        self._made = self._nbytes = 0
        self._home = self._model.home

    def close(self) -> None:
        """Gives the memory back."""
        self._closed = True
        self._free.clear()


class Rooms:
    """Where the inputs of one request are read into, until the end of the ``with`` block."""

    def __init__(self, buffers: Buffers | None) -> None:
        self._buffers = buffers
        self._key: Key = ()
        self._home = ""
        self._taken: InputBuffers | None = None

    def open(self, request: Request) -> None:
        """Looks for buffers, where they are worth it."""
        if self._buffers is None or request.parameters.sequence_id:  # a stream has memory of its own
            return
        nbytes = 0
        for tensor in request.inputs:
            size = tensor.parameters.binary_data_size or tensor.parameters.shared_memory_byte_size
            if not size or tensor.datatype == "BYTES":
                return
            nbytes += size
        if nbytes >= LEAST_BYTES:
            self._key = tuple([(tensor.name, tuple(tensor.shape)) for tensor in request.inputs])
            self._taken = self._buffers.take(self._key)
            self._home = self._buffers.home

    def of(self, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
        """The array for an input; None where there is none."""
        array = None if self._taken is None else self._taken.get(name)
        return array if array is not None and array.dtype == dtype else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        taken, self._taken = self._taken, None
        if taken is not None and self._buffers is not None:
            self._buffers.give(self._key, taken, self._home)


NOWHERE: Final = Rooms(None)
"""All inputs get memory of their own."""
