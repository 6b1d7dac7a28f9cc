"""What is known of a loaded model, of the plans of its stages, and of who waits for them.

A model's weights lie in weight segments; a directory says where each packed weight is, so that plans for other shapes reuse them. A plan
has a segment of its own and one arena an instance.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from aspen_mp.control.models.arena_pool import ArenaPool
from aspen_mp.control.planning import child_main
from aspen_mp.control.planning.options import Options
from aspen_mp.control.planning.plan_cache import WeightFile
from aspen_mp.control.planning.planner_child import JobProgress, PlannerChild, PlanStage, WeightDirectory
from aspen_mp.control.planning.shape_buckets import Ranges, Stretched, extent_of
from aspen_mp.control.wire import protocol
from aspen_mp.shm.errors import AspenError, RequestError


@dataclass(slots=True)
class Asker:
    """Whom to answer: `client` is the control table's number; `send` and `fail` do nothing once it has gone. `asked`: for a plan."""

    client: int
    request: int
    send: Callable[[protocol.Message], None]
    fail: Callable[[BaseException], None]
    asked: protocol.Plan | None = None


@dataclass(slots=True)
class Stage:
    """A published plan, as told to clients (`answer.id` is replaced each time), and what it needs. `job`: what it was made by. `stretched`:
    of one for a range of a length, whose answer is that where it is longest; `rigid`: it was to be one, and there is none for any range of
    that length. `cached`: it came from the cache. `searched`: its tiles were. `behind`: its shapes follow from data; then `mark` is what it
    had served when others were dropped, requests that lie further back counted less.

    `speeds`: of the cores that it was made for. `tried_at`: when it was last made again for others, or that was tried; `failed`: how often
    in a row that has failed since, `why` the last time. `served`: requests, when it was last looked at.

    `asked_at`: when a client last asked for it; `seen`: requests that it had served when memory was last wanted (`pressure`)."""

    answer: protocol.Planned
    segments: list[int]
    job: PlanStage
    stretched: Stretched | None
    rigid: bool
    cached: bool
    searched: bool
    behind: bool
    speeds: list[float]
    tried_at: float = -math.inf
    failed: int = 0
    why: str = ""
    served: int = 0
    mark: float = 0.0
    asked_at: float = field(default_factory=time.monotonic)
    seen: int = 0

    def extent(self, asked: protocol.Plan) -> int:
        """Of a plan for a range: the extent that the shapes of a request have which it serves."""
        stretch = self.job.stretch
        assert stretch is not None
        return extent_of(asked.stages[0], stretch.axes)

    def serves(self, asked: protocol.Plan) -> bool:
        """Whether the shapes of one who waited for a plan of a range are among those that it is for now."""
        if self.stretched is None:
            return self.job.stages == asked.stages
        return self.stretched.least <= self.extent(asked) <= self.stretched.most

    def tell(self, asker: Asker) -> None:
        answer = msgspec.structs.replace(self.answer, id=asker.request)
        range_, stretch = self.stretched, self.job.stretch
        if range_ is not None:
            assert asker.asked is not None
            assert stretch is not None
            told = protocol.Range(range_.least, range_.most, stretch.mask, range_.inputs, range_.outputs)
            answer = msgspec.structs.replace(answer, extent=self.extent(asker.asked), range=told)
        asker.send(answer)


@dataclass(eq=False, slots=True)
class Model:
    """`child` plans what clients ask for, `behind` makes plans again, those for shapes that come `often`, and those for ranges
    beside others; `replanning`: which one it is at. `users`: how often each client has it loaded; without any it is dropped. `stages`: the
    one that was asked for longest ago first. `ranges`: plans that serve many shapes; `ahead`: how often one of them was planned for nobody
    yet. `spares`: arenas of plans that were dropped.
    `lost`: weight segments, by number in `weight_segments`, that are used no more because these files were cut short."""

    id: int
    key: tuple[Any, ...]
    source: child_main.Source
    instances: int
    options: Options
    spares: ArenaPool
    child: PlannerChild
    behind: PlannerChild
    name: str = ""
    loaded: protocol.Loaded | None = None
    waiting: list[Asker] = field(default_factory=list)
    users: dict[int, int] = field(default_factory=dict)
    weights: WeightDirectory = field(default_factory=dict)
    weight_segments: list[int] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    digest: bytes = b""
    files: dict[int, WeightFile] = field(default_factory=dict)
    stages: dict[bytes, Stage] = field(default_factory=dict)
    planning: dict[bytes, list[Asker]] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=Ranges)
    often: dict[bytes, protocol.Plan] = field(default_factory=dict)
    ahead: dict[bytes, int] = field(default_factory=dict)
    replanning: bytes | None = None

    def stop_replanning(self) -> None:
        """A client wants something of it: it does not wait for a plan that is being made again. That one is, later."""
        if self.replanning is not None:
            self.planning.pop(self.replanning, None)
            self.replanning = None
            self.behind.close()

    def about(self, error: AspenError) -> AspenError:
        """The error with the model's name, which its finder may not have known, and why the model had to be planned again, if it had."""
        name, text = f"model {self.name!r}", str(error)
        text = text if name in text else f"{name}: {text}"
        if self.lost:
            text += (
                f" (it was planned again because a file of its weights was cut short while it was in use: {list(self.lost.values())[-1]!r})"
            )
        return error if text == str(error) else type(error)(text)


def not_loaded(number: int) -> RequestError:
    """What a client is told that names a model which it has not loaded."""
    return RequestError(f"model {number} is not loaded")


def report(askers: Iterable[Asker], progress: JobProgress) -> None:
    for asker in askers:
        asker.send(protocol.Progress(asker.request, progress.step, progress.done, progress.total))
