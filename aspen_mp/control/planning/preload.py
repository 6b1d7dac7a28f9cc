"""What planning children need is imported by the planner process, once for all that are forked later: in pieces where nobody waits for
it, so that whatever happens meanwhile is seen to; else when the first model comes that is not in the plan cache. Where all are, never."""

from __future__ import annotations

import importlib
import mmap
from collections.abc import Callable, Sequence
from typing import Final

from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.event_loop import Loop
from aspen_mp.shm.scarcity import is_scarce
from aspen_mp.system import descriptors

PLANNER: Final = (
    *("numpy", "ml_dtypes", "google.protobuf.json_format", "onnx", "onnx.shape_inference", "aspen_mp.planner.frontends.onnx"),
    *("aspen_mp.planner.frontends.binding.bind", "aspen_mp.planner.lower", "aspen_mp.planner.stages", "aspen_mp.planner.build"),
    *("aspen_mp.planner.api", "aspen_mp.planner.plan.plan_file"),
)
IDLE_S: Final = 0.2
"""A first client that has loaded nothing for so long probably makes its model first: time to import the planner."""
AGAIN_S: Final = 1.0
"""How soon it is tried again where something was lacking."""
FDS: Final = 32
BYTES: Final = 256 << 20
"""Descriptors and address space that there are to be before anything is imported: a library of which a part has been loaded when they run
out may be of no use ever after."""


class Preload:
    """`on_scarce(error)` is told of what was lacking for a piece that nobody waits for; it is tried again."""

    def __init__(self, loop: Loop, on_scarce: Callable[[BaseException], object], modules: Sequence[str] = PLANNER) -> None:
        self._loop = loop
        self._on_scarce = on_scarce
        self._left = list(modules)
        self._wanted = False

    def while_idle(self, idle: Callable[[], bool]) -> None:
        """In pieces, from `IDLE_S` on, for as long as `idle()`."""
        self._loop.later(IDLE_S, lambda: self._next(idle))

    def ready(self) -> bool:
        """Whether everything is there; if not, it comes, in pieces."""
        if self._left and not self._wanted:
            self._wanted = True
            self._loop.later(0, lambda: self._next(lambda: True))
        return not self._left

    def now(self) -> None:
        """Everything at once. OSError, MemoryError or ImportError where there is too little for that."""
        while self._left:
            self._one()

    def _next(self, go_on: Callable[[], bool]) -> None:
        if not self._left or not go_on():
            return
        try:
            self._one()
        except (OSError, MemoryError, ImportError) as error:
            if not is_scarce(error):
                raise
            self._on_scarce(error)
            self._loop.later(AGAIN_S, lambda: self._next(go_on))
        else:
            self._loop.later(0, lambda: self._next(go_on))

    def _one(self) -> None:
        _have_room()
        importlib.import_module(self._left[0])
        del self._left[0]


def _have_room() -> None:
    fds: list[int] = []
    try:
        for _ in range(FDS):
            fds.append(descriptors.dup(0))  # noqa: PERF401
        descriptors.mmap(-1, BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    finally:
        protocol.close_all(fds)
