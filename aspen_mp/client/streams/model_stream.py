"""A stream of a model: requests that differ little from the one before, such as the frames of a video."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from aspen_mp.client.future import RequestFuture
from aspen_mp.client.requests.stage_tree import RequestStop, StageTree
from aspen_mp.client.streams.changed_inputs import COUNTS, Changed, ChangedInput, share, trust_word
from aspen_mp.client.streams.output_memory import OutputMemory
from aspen_mp.client.streams.tolerance import EXACT, InputNoise, Tolerance, distance
from aspen_mp.shm.errors import RequestError, RuntimeLost
from aspen_mp.shm.scarcity import submit
from aspen_mp.system import clock, processes, threads

if TYPE_CHECKING:
    from aspen_mp.client.requests.region import Region
    from aspen_mp.client.requests.stage import Stage
    from aspen_mp.planner.job.options import Keeping
    from aspen_mp.shm.bindings._channel import Urgency

Changes = Mapping[str, Changed]
Results = dict[str, npt.NDArray[Any]]
OnLate = Literal["drop", "run"]


class Streamed(Protocol):
    """A model as its streams see it: `client.model.Model`."""

    name: str

    def arguments(
        self, feeds: Mapping[str, Any] | npt.ArrayLike, outputs: Sequence[str] | None
    ) -> tuple[dict[str, Any], Sequence[str] | None]: ...
    def check_names(self, names: Iterable[str]) -> None: ...
    def terms(self, timeout: float | None, priority: str, deadline_ms: float | None, on_late: OnLate) -> tuple[Urgency, float | None]: ...
    def counted(self, answer: Callable[[float | None], Results], urgency: Urgency, timeout: float | None) -> Results: ...
    def begun(self, urgency: Urgency, timeout: float | None) -> RequestFuture: ...
    def stages(self, until: float | None = None) -> StageTree: ...
    def losses(self, losses: int, lost: RuntimeLost) -> int: ...


@dataclass(frozen=True, slots=True)
class FrameReport:
    """How much of a frame ran.

    Attributes:
        changed (float): The share of the inputs' elements in boxes that hold all that changed.
        tiles (float): The share of the plan's tiles that ran, whole or in part.
        work (float): The share of the plan's arithmetic that ran.
        error (float | None): The largest difference of an output from the same frame run whole, by the range of the output's values.
            The latest frame that ran both ways gave it (`refresh` of `Model.stream`). None before the first one.
    """

    changed: float
    tiles: float
    work: float
    error: float | None = None


FRAMES: Final = 1 << 31
"""Frames have as many numbers. Then they begin again."""
_WHOLE: Final[Changes] = {}
"""In the place of what is said of a frame's changes, and known by its identity: the frame runs whole."""
NOTHING: Final = FrameReport(0.0, 0.0, 0.0)
EVERYTHING: Final = FrameReport(1.0, 1.0, 1.0)


class ModelStream:
    """Requests of a model, one after the other, of which each runs only what its changed inputs reach. Made by `Model.stream`.

    The stream keeps all activations of the last frame in shared memory of its own. Frames run in the order in which they
    are given; any thread may give them.
    """

    def __init__(self, model: Streamed, *, same_bits: bool, tolerance: Tolerance = EXACT, memory: int = 0) -> None:
        self._model = model
        self._kind: Keeping = "bits" if same_bits else "near" if tolerance.layer_tol else "values"
        self._memory = memory  # bytes, 0 for any number
        self._tolerance = tolerance
        self._since = 0  # frames since the last one that ran whole
        self._error: float | None = None
        self._turn = threads.RLock()  # one frame at a time
        self._queueing = threads.Lock()  # guards `_queue`, `_queued`
        self._owner = processes.getpid()
        self._stage: Stage | None = None
        self._region: Region | None = None
        self._number = 0  # of the frame
        self._told = np.zeros(2, np.int32)  # in the region: the frame's number, and the tolerance of layers (f32)
        self._trust = np.zeros(1, np.uint32)  # in the region: not 0 where its activations can be trusted (`plan_header.request_kept`)
        self._inputs: list[ChangedInput] = []
        self._noises: dict[tuple[str, tuple[int, ...]], InputNoise] = {}  # by input and shape, whatever the plan
        self._sizes: dict[str, int] = {}
        self._valid = False  # the region holds all that the last frame computed
        self._faults = 0  # of workers, as the last frame found them
        self._missed = False  # the frame before the next one was refused, so what is said of the next one's changes is not all
        self._forgotten = False  # `reset` was called since the last frame was given
        self._closed = False
        self._memory_of_results = OutputMemory()
        self._queue: ThreadPoolExecutor | None = None
        self._queued = 0
        self._last: FrameReport | None = None

    def __enter__(self) -> ModelStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<aspen_mp.ModelStream of {self._model.name!r}: {self.nbytes} bytes>"

    @property
    def last(self) -> FrameReport | None:
        """How much of the last frame ran. None before the first."""
        return self._last

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory that the stream holds; 0 before the first frame."""
        stage = self._stage
        return 0 if stage is None or self._region is None else stage.planned.region

    # ---- frames

    def run(
        self,
        feeds: Mapping[str, Any] | npt.ArrayLike,
        changed: Changes | Changed | None = None,
        outputs: Sequence[str] | None = None,
        *,
        timeout: float | None = None,
        priority: str = "normal",
        deadline_ms: float | None = None,
        on_late: OnLate = "drop",
        copy: bool = True,
    ) -> Results:
        """Run the next frame and return its outputs.

        The first frame runs whole, and so does one with other shapes, or one after a frame that failed.

        Args:
            feeds: As of `Model.run`: all inputs, whole.
            changed: What may differ from the frame before. {input: boxes or mask}; inputs that are not in it are the same as before. Boxes
                are pairs (lower bounds, upper bounds), along all axes of the input. A mask is an array of booleans, of the input's shape
                or of its two longest axes behind the first. Where the model has one input, its boxes or mask alone will do. None: the
                frame is compared with the one before.
            outputs: As of `Model.run`.
            timeout: As of `Model.run`.
            priority: As of `Model.run`.
            deadline_ms: As of `Model.run`.
            on_late: As of `Model.run`.
            copy: Whether outputs are arrays of the caller's own. False: they are read-only views of the stream's memory, which the next
                frame overwrites.

        Returns:
            {output name: array}.

        Raises:
            RequestError, RequestTimeout, DeadlineMissed, QueueFull, RuntimeLost: As of `Model.run`.
        """
        terms = timeout, priority, deadline_ms, on_late
        if self._queued:  # frames that were given before
            return self._queue_up((feeds, changed, outputs), terms, views=not copy).result()
        model = self._model
        told: Changes | None = None
        try:
            arrays, told, names = self._checked(feeds, changed, outputs)
            urgency, limit = model.terms(*terms)
            return model.counted(lambda deadline: self._answer(arrays, told, names, urgency, deadline, None, copy=copy), urgency, limit)
        except BaseException:
            self._miss(told)
            raise

    def submit(
        self,
        feeds: Mapping[str, Any] | npt.ArrayLike,
        changed: Changes | Changed | None = None,
        outputs: Sequence[str] | None = None,
        *,
        timeout: float | None = None,
        priority: str = "normal",
        deadline_ms: float | None = None,
        on_late: OnLate = "drop",
        copy: bool = True,
    ) -> RequestFuture:
        """Start the next frame and return its future at once.

        Args:
            feeds: As of `run`.
            changed: As of `run`.
            outputs: As of `run`.
            timeout: As of `Model.submit`.
            priority: As of `Model.run`.
            deadline_ms: As of `Model.submit`.
            on_late: As of `Model.run`.
            copy: Whether inputs are copied before this returns. False: nobody changes them before the result is there.

        Returns:
            A `concurrent.futures.Future` of what `run` would return.

        Raises:
            RequestError, QueueFull: As of `Model.submit`.
        """
        return self._queue_up((feeds, changed, outputs), (timeout, priority, deadline_ms, on_late), copy=copy)

    async def run_async(
        self,
        feeds: Mapping[str, Any] | npt.ArrayLike,
        changed: Changes | Changed | None = None,
        outputs: Sequence[str] | None = None,
        *,
        timeout: float | None = None,
        priority: str = "normal",
        deadline_ms: float | None = None,
        on_late: OnLate = "drop",
        copy: bool = True,
    ) -> Results:
        """Run the next frame, for asyncio. Cancelling the task cancels the frame.

        Args:
            feeds: As of `run`.
            changed: As of `run`.
            outputs: As of `run`.
            timeout: As of `run`.
            priority: As of `run`.
            deadline_ms: As of `run`.
            on_late: As of `run`.
            copy: As of `submit`.

        Returns:
            {output name: array}, as of `run`.

        Raises:
            RequestError, RequestTimeout, DeadlineMissed, QueueFull, RuntimeLost: As of `run`.
        """
        import asyncio

        future = self.submit(
            feeds, changed, outputs, timeout=timeout, priority=priority, deadline_ms=deadline_ms, on_late=on_late, copy=copy
        )
        return await asyncio.wrap_future(future)

    def reset(self) -> None:
        """Forget the last frame that was given: the next one runs whole."""
        self._forgotten = True

    def close(self) -> None:
        """Give the stream's memory back. Frames that wait for their turn fail; one that runs ends first."""
        self._closed = True
        with self._queueing:
            queue, self._queue = self._queue, None
        with self._turn:
            self._let_go()
        if queue is not None:
            queue.shutdown(wait=False)

    # ---- one frame

    def _checked(
        self, feeds: Mapping[str, Any] | npt.ArrayLike, changed: Changes | Changed | None, outputs: Sequence[str] | None
    ) -> tuple[dict[str, Any], Changes | None, Sequence[str] | None]:
        self._check_open()
        arrays, names = self._model.arguments(feeds, outputs)
        if changed is None or isinstance(changed, Mapping):
            told = changed
        elif len(arrays) == 1:
            told = dict.fromkeys(arrays, changed)
        else:
            raise RequestError(f"model {self._model.name!r} has {len(arrays)} inputs: pass changed={{input: boxes or mask}}")
        if told is not None:
            self._model.check_names(told)
        missed, self._missed = self._missed, False
        forgotten, self._forgotten = self._forgotten, False
        return arrays, _WHOLE if forgotten else None if missed else told, names

    def _miss(self, told: Changes | None) -> None:
        """A frame was refused, or has failed. `told`: as `_checked` returned it."""
        self._missed = True
        self._forgotten |= told is _WHOLE

    def _queue_up(
        self,
        frame: tuple[Mapping[str, Any] | npt.ArrayLike, Changes | Changed | None, Sequence[str] | None],
        terms: tuple[float | None, str, float | None, OnLate],
        *,
        copy: bool = True,
        views: bool = False,
    ) -> RequestFuture:
        """A frame behind those that wait for their turn. `frame`, `terms`: arguments of `submit`. `copy`: whether its inputs are copied.
        `views`: whether its outputs are views of the stream's memory."""
        model = self._model
        told: Changes | None = None
        try:
            arrays, told, names = self._checked(*frame)
            if copy:
                arrays = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in arrays.items()}
            urgency, limit = model.terms(*terms)
            future = model.begun(urgency, limit)
        except BaseException:
            self._miss(told)
            raise

        def drive() -> None:
            try:
                stop = RequestStop(model.stages().session, future)
                future.stop = stop.ask
                if future.done():  # cancelled: the region has nothing of it
                    self._invalidate()
                else:
                    future.finish(self._answer(arrays, told, names, urgency, None, stop, copy=not views))
            except BaseException as error:
                self._invalidate()
                future.fail(error)
            future.settle()
            with self._queueing:
                self._queued -= 1

        try:
            with self._queueing:
                if self._queue is None:
                    self._queue = ThreadPoolExecutor(1, thread_name_prefix="aspen-mp stream")
                self._queued += 1
                submit(self._queue, drive)
        except BaseException:
            self._miss(told)
            with self._queueing:
                self._queued -= 1
            future.settle()
            raise
        return future

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError(f"this stream of model {self._model.name!r} is closed. Make another one with model.stream()")

    def _answer(
        self,
        arrays: dict[str, Any],
        changed: Changes | None,
        names: Sequence[str] | None,
        urgency: Urgency,
        deadline: float | None,
        stop: RequestStop | None,
        *,
        copy: bool = True,
    ) -> Results:
        """Run a frame. The next one runs whole if this one fails."""
        with self._turn:
            if changed is _WHOLE:
                self._valid, changed = False, None
            try:
                results = self._retried(arrays, changed, urgency, deadline, stop, copy=copy)
                return results if names is None else {name: results[name] for name in names}
            except BaseException:
                self._valid = False  # it may have failed before the region had anything of it
                raise

    def _invalidate(self) -> None:
        """The region has nothing of the last frame."""
        with self._turn:
            self._valid = False

    def _retried(
        self,
        arrays: dict[str, Any],
        changed: Changes | None,
        urgency: Urgency,
        deadline: float | None,
        stop: RequestStop | None,
        *,
        copy: bool,
    ) -> Results:
        """Run a frame, as often as the runtime is lost. The frame runs whole after a loss."""
        losses = 0
        while True:
            self._check_open()
            tree = self._model.stages(deadline).for_streams(self._kind, self._memory)
            timeout = None if deadline is None else max(0.0, deadline - clock.monotonic())

            def first(stage: Stage, left: float | None) -> Results:
                return self._frame(stage, arrays, changed, (urgency, left, stop), copy)

            try:
                return tree.run(arrays, timeout, urgency, stop, first=first)
            except RuntimeLost as lost:
                losses = self._model.losses(losses, lost)

    def _frame(
        self,
        stage: Stage,
        arrays: Mapping[str, Any],
        changed: Changes | None,
        terms: tuple[Urgency, float | None, RequestStop | None],
        copy: bool,
    ) -> Results:
        """Run a frame on a stage, which may be another one than the last frame's. `terms`: urgency, seconds, and what cancels it."""
        if stage is not self._stage or processes.getpid() != self._owner:
            self._take_up(stage)
        refresh = self._tolerance.refresh
        if not refresh or not self._valid or self._since + 1 < refresh:
            return self._pass(stage, arrays, changed, terms, copy)
        began, (urgency, timeout, stop) = clock.monotonic(), terms
        near = self._pass(stage, arrays, changed, terms, copy=True)
        self._valid = False
        left = None if timeout is None else max(0.0, timeout - (clock.monotonic() - began))
        whole = self._pass(stage, arrays, None, (urgency, left, stop), copy)
        self._error = distance(near, whole)
        self._last = replace(EVERYTHING, error=self._error)
        return whole

    def _pass(
        self,
        stage: Stage,
        arrays: Mapping[str, Any],
        changed: Changes | None,
        terms: tuple[Urgency, float | None, RequestStop | None],
        copy: bool,
    ) -> Results:
        """Run a frame once, whole if the region does not hold the one before."""
        urgency, timeout, stop = terms
        region = self._region
        assert region is not None
        faults = stage.faults()  # after one, neither inputs nor outputs in the region are what was put there
        was_valid, self._valid = self._valid and faults == self._faults, False
        self._faults = faults
        if not was_valid:
            self._trust[...] = 0  # all tiles run, also those that no input reaches
            parts = {one.name: one.start(arrays[one.name]) for one in self._inputs}
        elif changed is None:
            parts = {one.name: one.compare(arrays[one.name]) for one in self._inputs}
        else:
            parts = {one.name: one.take(arrays[one.name], changed.get(one.name)) for one in self._inputs}
        self._number = (self._number + 1) % FRAMES
        self._told[...] = self._number, np.float32(self._tolerance.layer_tol).view(np.int32)
        part = share(self._inputs, parts, self._sizes)
        self._since = self._since + 1 if was_valid else 0
        if was_valid and not any(parts.values()):
            self._last, self._valid = replace(NOTHING, error=self._error), True
            return self._given(stage, stage.kept_results(region), copy=copy)
        done = False
        try:
            results = stage.run_in(region, urgency, timeout, stop)
            done = results is not None
        finally:
            if not done:  # it may still be written to, and then comes back by itself
                self._stage = self._region = None
        if results is None:
            raise stage.late(timeout)
        tiles, all_tiles, work, all_work = region.outputs[-1][:, :COUNTS].sum(axis=0).tolist()
        reached = FrameReport(part, tiles / max(all_tiles, 1.0), work / all_work if all_work else 0.0)
        self._last = replace(reached if was_valid else EVERYTHING, error=self._error)
        self._valid = True
        return self._given(stage, results, copy=copy)

    def _given(self, stage: Stage, results: Results, *, copy: bool) -> Results:
        """Results as the caller gets them."""
        return {name: self._memory_of_results.copy(view) for name, view in results.items()} if copy and stage.plain else results

    def _take_up(self, stage: Stage) -> None:
        """Begin with a stage: the frame runs whole."""
        self._let_go()
        self._owner = processes.getpid()
        region = stage.take_region()
        self._stage, self._region = stage, region
        bounds = region.inputs[-1]
        *slots, changes = stage.planned.inputs
        self._trust = trust_word(region.span.buffer, region.span.offset, changes)
        self._told = bounds[-1, :2]
        self._inputs = []
        for slot, view, boxes in zip(slots, region.inputs, bounds, strict=False):
            noise = self._noises.setdefault((slot.name, tuple(slot.shape)), InputNoise())
            self._inputs.append(ChangedInput(slot, view, boxes, self._tolerance, noise))
        self._sizes = {slot.name: int(view.size) for slot, view in zip(slots, region.inputs, strict=False)}

    def _let_go(self) -> None:
        stage, region = self._stage, self._region
        self._stage = self._region = None
        self._inputs, self._valid = [], False
        self._memory_of_results = OutputMemory()  # results of another plan have other sizes
        if stage is not None and region is not None and processes.getpid() == self._owner:
            stage.end(region)

    def __del__(self) -> None:
        if getattr(self, "_region", None) is not None:
            self._let_go()
