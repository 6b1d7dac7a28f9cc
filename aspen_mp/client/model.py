"""A loaded model, and running it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt

from aspen_mp.client import arguments, link
from aspen_mp.client.future import RequestFuture, expired
from aspen_mp.client.link import Link
from aspen_mp.client.loop_results import arrival
from aspen_mp.client.model_source import ModelSource
from aspen_mp.client.requests.buffers import InputBuffers
from aspen_mp.client.requests.stage import Transfers
from aspen_mp.client.requests.submission import Submission, outcome
from aspen_mp.client.signature import ValueInfo, fixed_shapes
from aspen_mp.client.streaming import WAITING, Progress, Results, Stream, Terms, stream_async
from aspen_mp.control.wire import protocol
from aspen_mp.shm.bindings import _control
from aspen_mp.shm.bindings._channel import Urgency
from aspen_mp.shm.errors import RequestError, RequestTimeout
from aspen_mp.system import clock

if TYPE_CHECKING:
    from aspen_mp.client.session import Session
    from aspen_mp.client.streams.arriving_request import ArrivingRequest
    from aspen_mp.client.streams.model_stream import ModelStream
    from aspen_mp.client.trials.choice import Choice

PRIORITIES: Final = _control.PRIORITIES
OnLate = Literal["drop", "run"]
_PLAIN: Final = {name: Urgency(level) for name, level in PRIORITIES.items()}
Started = TypeVar("Started")


class Model(Submission):
    """A loaded model, made by `Runtime.load`.

    Any thread may run requests. As many as the model has instances execute at the same time, and the rest wait.

    Attributes:
        name (str): What the runtime calls it.
        inputs (list[ValueInfo]): The inputs in the model's order, optional ones behind all others.
        outputs (list[ValueInfo]): The outputs in the model's order.
        precision_choice (Choice | None): With ``precision="auto"``: what was tried, and what was chosen. None in other processes.
    """

    precision_choice: Choice | None = None

    def __init__(
        self,
        way: Link,
        loaded: protocol.Loaded,
        name: str | None = None,
        *,
        source: ModelSource | None = None,
        place: Session | str,
        runtime: object | None = None,
    ) -> None:
        """`source`: to load it from again when the runtime was lost. `place`: as of `Residence`.
        `runtime`: which must not end because nobody but this model refers to it any more; it never refers to its models."""
        super().__init__(way, loaded, name, source, place)
        self._runtime = runtime
        self.inputs: list[ValueInfo] = self._signature.inputs
        self.outputs: list[ValueInfo] = self._signature.outputs
        way.holds(self)

    @property
    def number(self) -> int:
        """What the runtime calls the model: `id` in `Runtime.status`."""
        return self._residence.number

    @property
    def home(self) -> str:
        """The address of the runtime that calls it so."""
        return self._residence.address

    @property
    def in_flight(self) -> int:
        """How many requests of this process are in the runtime, with somebody waiting for their results."""
        with self._counting:
            return self._requests.begun - len(self._parked)

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_there()
        address, loaded, named, source = self._residence.travels()
        return _restore, (address, msgspec.msgpack.encode(loaded), self.name, named, source)

    def __repr__(self) -> str:
        return f"<aspen_mp.Model {self.name!r}: {self._signature.known_inputs()} -> {', '.join(self._signature.output_names)}>"

    def run(
        self,
        feeds: Mapping[str, Any] | npt.ArrayLike,
        outputs: Sequence[str] | None = None,
        *,
        timeout: float | None = None,
        priority: str = "normal",
        deadline_ms: float | None = None,
        on_late: OnLate = "drop",
    ) -> dict[str, npt.NDArray[Any]]:
        """Run the model once and return its outputs.

        A request with a shape that was not seen before is planned first. Ctrl-C cancels the request.

        Inputs are copied into shared memory, with two exceptions that workers read in place: arrays of `input_buffers`, and contiguous
        arrays of 1 MiB or more in shared memory of the caller's own (`multiprocessing.shared_memory`, memfd, a file in /dev/shm) that
        begin at a multiple of 4096 bytes. `transfers` counts both.

        Args:
            feeds: {input name: array}. Each array has the input's dtype and fits its shape; memory order is free. Where the model needs
                one input only, its array alone will do. Lists and numbers are converted to the input's dtype.
            outputs: Names of the outputs to return. None: all.
            timeout: Seconds. None: no limit.
            priority: "high", "normal" or "low". Requests of a lower class wait for those of a higher one.
            deadline_ms: When the result is needed, in milliseconds from now. Within a class the request with the earliest deadline goes
                first, and those with deadlines before those without. None: any time.
            on_late: What becomes of a request with a deadline that cannot be met. "drop": DeadlineMissed, at once where the time can be
                predicted, or when the deadline passes. "run": the result comes late, and requests whose deadlines can be met go first.

        Returns:
            {output name: array}. Arrays are fresh. Large ones lie in the runtime's shared memory until nobody refers to them any more.

        Raises:
            RequestError: A name, dtype or shape does not fit, or an operator failed; the message names model and tensor or node.
            RequestTimeout: The result was not there within `timeout`; the request has been cancelled.
            DeadlineMissed: The deadline cannot be met, or has passed.
            QueueFull: As many requests wait as `max_queued` allows.
            RuntimeLost: The runtime is gone.
            TypeError, ValueError: An argument has a type or a value that no model could take.
        """
        urgency = _urgency(priority) if deadline_ms is None else _urgency(priority, deadline_ms, on_late)
        if feeds.__class__ is not dict:
            feeds = self._signature.named(feeds)
        if outputs is not None:
            outputs = self._signature.wanted(outputs)
        if timeout is not None:
            timeout = arguments.seconds("timeout", timeout)
        if urgency.drops:
            timeout = _sooner(timeout, urgency)
        deadline = None if timeout is None else clock.monotonic() + timeout
        began = self._begins(deadline)
        try:
            results = self._answer(feeds, outputs, urgency, timeout, deadline)
        except RequestTimeout as late:
            error = expired(self.name, urgency) if urgency.drops and not urgency.left() else late
            self._ends(began, outcome(error))
            raise error from None
        except BaseException as error:
            self._ends(began, outcome(error))
            raise
        self._ends(began, 0)
        return results

    def check_names(self, names: Iterable[str]) -> None:
        """RequestError where one of these is no input; the message names the one that is most like it."""
        self._signature.check_names(names)

    def submit(
        self,
        feeds: Mapping[str, Any] | npt.ArrayLike,
        outputs: Sequence[str] | None = None,
        *,
        timeout: float | None = None,
        priority: str = "normal",
        deadline_ms: float | None = None,
        on_late: OnLate = "drop",
        copy: bool = True,
    ) -> RequestFuture:
        """Start a request and return its future at once.

        Any number of requests may wait, unless `max_queued` limits them.

        Args:
            feeds: As of `run`.
            outputs: As of `run`.
            timeout: Seconds from now. A request without a result by then is cancelled, and its future fails with RequestTimeout.
            priority: As of `run`.
            deadline_ms: As of `run`. A future whose deadline cannot be met fails with DeadlineMissed.
            on_late: As of `run`.
            copy: Whether inputs are copied before this returns, except for `input_buffers`. False: nobody changes them before the result
                is there, so that those in shared memory are read in place, as in `run`.

        Returns:
            A `concurrent.futures.Future` of what `run` would return.

        Raises:
            RequestError: A name, dtype or shape does not fit.
            QueueFull: As many requests wait as `max_queued` allows.
        """
        limit = None if timeout is None else arguments.seconds("timeout", timeout)
        urgency = _urgency(priority, deadline_ms, on_late)
        return self._start(self._check(self._signature.named(feeds)), self._signature.wanted(outputs), urgency, copy, limit)

    def submit_part(self, feeds: Mapping[str, Any], *, first: bool) -> RequestFuture:
        """Start a request that is a part of a call, for callers that cut calls into parts of equal shapes, such as `aspen_mp.torch`.

        All parts of a call count as one request where the runtime finds out which shapes come often and deserve a plan of their own.

        Args:
            feeds: As of `run`. Nobody changes the arrays before the result is there.
            first: Whether it is the part that counts.

        Returns:
            A future, as of `submit`.

        Raises:
            RequestError, QueueFull, RuntimeLost: As of `submit`.
        """
        return self._start(self._check(self._signature.named(feeds)), None, _PLAIN["normal"], copy=False, counts=first)

    async def run_async(
        self,
        feeds: Mapping[str, Any] | npt.ArrayLike,
        outputs: Sequence[str] | None = None,
        *,
        timeout: float | None = None,
        priority: str = "normal",
        deadline_ms: float | None = None,
        on_late: OnLate = "drop",
        copy: bool = True,
    ) -> dict[str, npt.NDArray[Any]]:
        """Run the model once, for asyncio. Cancelling the task cancels the request.

        The event loop goes on while shapes are planned and shared memory is made. It copies the inputs itself, which takes milliseconds
        for tens of MiB; `input_buffers` save that. It copies outputs as well, unless they have 4 MiB or more and are lent.

        Args:
            feeds: As of `run`.
            outputs: As of `run`.
            timeout: As of `submit`.
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

        named, names = self._signature.named(feeds), self._signature.wanted(outputs)
        limit = None if timeout is None else arguments.seconds("timeout", timeout)
        urgency = _urgency(priority, deadline_ms, on_late)
        loop = asyncio.get_running_loop()
        return await arrival(await self._start_soon(named, names, urgency, copy, limit, loop), loop)

    # ---- inputs without copies

    def input_buffers(self, shapes: Mapping[str, Sequence[int]] | None = None) -> InputBuffers:
        """Return arrays for all inputs in shared memory: the caller fills them, and a request reads them in place.

        Args:
            shapes: {input: shape}, where the model does not fix them. An optional input has a buffer only if it is named.

        Returns:
            {input name: writable array}, as `InputBuffers`.

        Raises:
            RequestError: An input is not a tensor of numbers, or the values of inputs decide shapes.
        """
        blanks = self._blanks(shapes, "it has no buffer")
        region, inputs, outputs = self._tree.hold(blanks)
        # Of what no worker reads (nothing is in it, or no node takes it) the region has no part.
        arrays = {name: inputs[name] if name in inputs else np.zeros(blank.shape, blank.dtype) for name, blank in blanks.items()}
        return InputBuffers(region, arrays, outputs)

    def _blanks(self, shapes: Mapping[str, Sequence[int]] | None, otherwise: str) -> dict[str, Any]:
        """Arrays without memory for all inputs that are not optional, and those in `shapes`. `otherwise`: what follows where an input
        is not a tensor of numbers."""
        given = {
            info.name: info.shape
            for info in self.inputs
            if not info.optional and info.shape is not None and all(isinstance(d, int) for d in info.shape)
        }
        if shapes is not None:
            given.update(arguments.shapes("shapes", shapes))
        for info in self.inputs:
            if (info.name in given or not info.optional) and (info.kind != "tensor" or info.dtype.hasobject):
                raise RequestError(
                    f"model {self.name!r}: input {info.name!r} is not a tensor of numbers, so {otherwise}. Pass it to run() itself"
                )
        return self._check(self._signature.blanks(given))  # type: ignore[arg-type]

    @property
    def transfers(self) -> Transfers:
        """What this process has done with the inputs of its requests so far.

        Its fields are `requests`, `copied_bytes` (copied into shared memory) and `in_place_bytes` (read by workers where the caller has
        them).
        """
        return self._tree.transfers

    # ---- frames that follow each other

    def stream(
        self,
        tol: float | Mapping[str, float] = 0.0,
        *,
        noise: float = 0.0,
        layer_tol: float = 0.0,
        refresh: int = 0,
        same_bits: bool | None = None,
        memory: int | None = None,
    ) -> ModelStream:
        """Return a stream: requests of which each runs only what differs from the one before, such as the frames of a video.

        A stream keeps all activations in shared memory (`ModelStream.nbytes`), until it is closed. Any number of streams share the model's
        weights and plans.

        Args:
            tol: The largest difference of an element that counts as none, in units of the input: for all inputs, or {input: difference}. A
                block of the input without a larger difference stays as it was. So differences do not add up from frame to frame. It
                applies to float32, float64 and integers of 8 and 16 bits; elements of other types always count when they differ.
            noise: The tolerance as a multiple of the standard deviation of the input's noise, which the stream estimates over the second to
                the ninth frame. A frame has millions of elements, so 8 is a good choice. The larger one of both tolerances counts.
            layer_tol: The same as `tol` for activations inside the network, as a share of the activation's range in the last frame that ran
                whole. A change that has become as small as that is not followed further. It applies to float32 activations of networks for
                pictures.
            refresh: Every `refresh`-th frame runs whole, after it has run as the others do. Both results are compared
                (`FrameReport.error`), and the whole one is returned. 0: no frame does.
            same_bits: True: results have the bits that a run of the whole frame has, whatever has changed before. False: results may differ
                from these by rounding errors, as those of two algorithms do. With Winograd's algorithm, which most convolutions use, the
                rounding errors of a block depend on the whole block. So less has to run then. None: True without a tolerance.
            memory: Bytes of shared memory that the stream may use. It keeps those activations that would take longest to compute anew, and
                computes the others where they are needed. None: it keeps all.

        Raises:
            RequestError: The model has been unloaded, or has no such input.
            TypeError, ValueError: An argument is none of these.
        """
        from aspen_mp.client.streams.model_stream import ModelStream
        from aspen_mp.client.streams.tolerance import checked

        self._check_there()
        tolerance = checked(tol, noise, layer_tol, refresh, same_bits)
        self.check_names(tolerance.names())
        same = tolerance.exact if same_bits is None else arguments.flag("same_bits", same_bits)
        most = 0 if memory is None else arguments.whole("memory", memory, 1)
        return ModelStream(self, same_bits=same, tolerance=tolerance, memory=most)

    def begin(
        self,
        shapes: Mapping[str, Sequence[int]] | None = None,
        outputs: Sequence[str] | None = None,
        *,
        timeout: float | None = None,
        priority: str = "normal",
        deadline_ms: float | None = None,
        on_late: OnLate = "drop",
    ) -> ArrivingRequest:
        """Begin a request whose inputs are written in pieces, such as rows of an image that a network or a decoder delivers.

        Parts of the model run as soon as the rows that they read are there. The result has the same bits whatever the pieces are. They may
        differ from those of `run` by rounding errors, because the plan is another one. A model of several stages, or with values that are
        not tensors, runs when all rows are there. A shape that was not seen before is planned first.

        Args:
            shapes: {input: shape}, where the model does not fix them. An optional input is written only if it is named.
            outputs: As of `run`.
            timeout: Seconds from now. Without a result by then the request is cancelled and fails with RequestTimeout, also where rows are
                missing.
            priority: As of `run`.
            deadline_ms: As of `run`. With "drop", the request is dropped when the deadline passes, and never before.
            on_late: As of `run`.

        Returns:
            A request to write to. Use it in a `with` block: leaving it before the end cancels the request.

        Raises:
            RequestError: An input is not a tensor of numbers, or has no shape.
            QueueFull: As many requests wait as `max_queued` allows.
            RuntimeLost: The runtime is gone.
            TypeError, ValueError: An argument is none of these.
        """
        from aspen_mp.client.streams.arriving_request import ArrivingRequest

        blanks = self._blanks(shapes, "it cannot be written in pieces")
        names = self._signature.wanted(outputs)
        terms = self.terms(timeout, priority, deadline_ms, on_late)
        return ArrivingRequest(self, blanks, names, terms, self._signature.output_names)

    def prepare_arriving(self, shapes: Mapping[str, Sequence[int]] | None = None) -> bool:
        """Plan for requests of `begin` with inputs of these shapes now, instead of at the first one.

        Args:
            shapes: As of `begin`.

        Returns:
            Whether parts of the model can run before all rows are there.

        Raises:
            RequestError: An input is not a tensor of numbers, or has no shape.
            ResourceLimitError: There is too little memory.
            RuntimeLost: The runtime is gone.
        """
        blanks = self._blanks(shapes, "it cannot be written in pieces")
        stage = self.stages().for_streams("rows").plan_first(blanks, None, ahead=True).stage
        if stage is None or not stage.plain:
            return False
        stage.end(stage.take_region())  # the first request finds its memory
        return True

    def arguments(
        self, feeds: Mapping[str, Any] | npt.ArrayLike, outputs: Sequence[str] | None
    ) -> tuple[dict[str, Any], Sequence[str] | None]:
        """Inputs and names of outputs as of `run`, checked."""
        return self._check(self._signature.named(feeds)), self._signature.wanted(outputs)

    @staticmethod
    def terms(timeout: float | None, priority: str, deadline_ms: float | None, on_late: OnLate) -> tuple[Urgency, float | None]:
        """The urgency of a request and its time limit in seconds, checked."""
        urgency = _urgency(priority, deadline_ms, on_late)
        limit = None if timeout is None else arguments.seconds("timeout", timeout)
        return urgency, _sooner(limit, urgency) if urgency.drops else limit

    # ---- streams of requests

    @overload
    def map(
        self,
        items: Iterable[Any],
        outputs: Sequence[str] | None = None,
        *,
        concurrency: int | None = None,
        ordered: Literal[True] = True,
        timeout: float | None = None,
        priority: str = "normal",
        deadline_ms: float | None = None,
        on_late: OnLate = "drop",
        copy: bool = True,
        return_exceptions: bool = False,
        progress: Progress = False,
        total: int | None = None,
        keys: Literal[False] = False,
    ) -> Stream[Results]: ...

    @overload
    def map(
        self,
        items: Iterable[Any],
        outputs: Sequence[str] | None = None,
        *,
        concurrency: int | None = None,
        ordered: bool = True,
        timeout: float | None = None,
        priority: str = "normal",
        deadline_ms: float | None = None,
        on_late: OnLate = "drop",
        copy: bool = True,
        return_exceptions: bool = False,
        progress: Progress = False,
        total: int | None = None,
        keys: bool = False,
    ) -> Stream[Any]: ...

    def map(
        self,
        items: Iterable[Any],
        outputs: Sequence[str] | None = None,
        *,
        concurrency: int | None = None,
        ordered: bool = True,
        timeout: float | None = None,
        priority: str = "normal",
        deadline_ms: float | None = None,
        on_late: OnLate = "drop",
        copy: bool = True,
        return_exceptions: bool = False,
        progress: Progress = False,
        total: int | None = None,
        keys: bool = False,
    ) -> Stream[Any]:
        """Run the model on each item of an iterable, which may be endless, and return an iterator of the results.

        The next item is taken by the thread that asks for a result, when there is a slot for it. Nothing is read ahead beyond that. An
        iterable that blocks holds its results up by one item; with `map_async` it does not.

        An item that fails raises its error when its turn comes, with a note that names the item. That is the end, and what is in flight
        is cancelled. Errors of the iterable itself come after the results of the items before. With `return_exceptions` neither ends
        anything.

        Args:
            items: Each item is what `run` takes, or the array alone where the model needs one input only.
            outputs: As of `run`.
            concurrency: How many requests are in flight or wait to be fetched. None: two for each instance of the model. While some of
                these wait for the plan of a new shape, others that have a plan run, up to eight times as many.
            ordered: True: results in the order of the items. False: each as soon as it is there, as ``(index of the item, result)``.
            timeout: Seconds for each item, from when it was taken.
            priority: As of `run`.
            deadline_ms: As of `run`, for each item, from when it was taken.
            on_late: As of `run`.
            copy: As of `submit`. An iterable that fills `concurrency` buffers in turn never meets one in use, as long as results come in
                order.
            return_exceptions: Whether an item's error takes the place of its result, and the rest goes on. The same holds for an error of
                the iterable, which is asked for its next item then. A generator has none after an error. RuntimeLost, and 1000 errors of
                the iterable in a row, end the iteration in any case.
            progress: True: a bar on standard error, or a line every 10 seconds if that is no terminal. A function: called as
                ``progress(done, total or None)``.
            total: How many items there are, for `progress`. None: what the iterable says, as lists do and generators do not.
            keys: Whether items are pairs ``(key, inputs)``. Then results are pairs ``(key, result)``, in any order too. The key of an
                error of the iterable is None.

        Returns:
            An iterator of {output name: array}. It has `close`, works as a context manager, and may be used from several threads. Closing
            or forgetting it cancels what is in flight.
        """
        submit = self._for_items(self._start_now, outputs, (priority, deadline_ms, on_late), copy)
        return Stream(submit, items, self._terms(concurrency, ordered, timeout, return_exceptions, progress, total, keys))

    def map_async(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        outputs: Sequence[str] | None = None,
        *,
        concurrency: int | None = None,
        ordered: bool = True,
        timeout: float | None = None,
        priority: str = "normal",
        deadline_ms: float | None = None,
        on_late: OnLate = "drop",
        copy: bool = True,
        return_exceptions: bool = False,
        progress: Progress = False,
        total: int | None = None,
        keys: bool = False,
    ) -> AsyncGenerator[Any, None]:
        """Run the model on each item of an iterable, for asyncio: ``async for y in model.map_async(items)``.

        Items are taken whenever there is a slot, so that a source that waits (a queue, a socket) holds up no result. ``aclose()``, or
        cancelling the task, cancels what is in flight.

        Args:
            items: As of `map`; it may be asynchronous, too.
            outputs: As of `run`.
            concurrency: As of `map`.
            ordered: As of `map`.
            timeout: As of `map`.
            priority: As of `run`.
            deadline_ms: As of `map`.
            on_late: As of `run`.
            copy: As of `submit`.
            return_exceptions: As of `map`.
            progress: As of `map`.
            total: As of `map`.
            keys: As of `map`.

        Returns:
            An asynchronous iterator of what `map` gives.
        """
        submit = self._for_items(self._start_soon, outputs, (priority, deadline_ms, on_late), copy)
        return stream_async(submit, items, self._terms(concurrency, ordered, timeout, return_exceptions, progress, total, keys))

    def _for_items(
        self,
        start: Callable[[Any, Sequence[str] | None, Urgency, bool], Started],
        outputs: Sequence[str] | None,
        urgency: tuple[str, float | None, OnLate],
        copy: bool,
    ) -> Callable[[Any], Started]:
        """The function that starts a request with an item, by `_start_now` or `_start_soon`. `urgency`: the arguments of `_urgency`."""
        names = self._signature.wanted(outputs)
        _urgency(*urgency)  # wrong ones are refused now
        return lambda item: start(self._signature.item(item), names, _urgency(*urgency), copy)

    def _terms(
        self,
        concurrency: int | None,
        ordered: bool,
        timeout: float | None,
        return_exceptions: bool,
        progress: Progress,
        total: int | None,
        keys: bool,
    ) -> Terms:
        """The arguments of `map` and `map_async`, checked."""
        flying, seconds = self._concurrency(concurrency), arguments.seconds("timeout", timeout)
        number = None if total is None else arguments.whole("total", total, 0)
        return Terms(self.name, flying, ordered, seconds, return_exceptions, progress, number, keys, ahead=concurrency is None)

    @property
    def instances(self) -> int:
        """How many requests of it can execute at the same time."""
        return self._residence.loaded.instances

    def _concurrency(self, wanted: int | None) -> int:
        return WAITING * self.instances if wanted is None else arguments.whole("concurrency", wanted, 1)

    def prepare(self, shapes: Mapping[str, Sequence[int]], progress: Callable[[str, int, int], None] | None = None) -> None:
        """Plan the model for inputs of these shapes now, instead of at the first request.

        The tiles of this plan are searched at once, also where there is a plan already. A plan that a load or a request waits for is made
        without a search. Once its shapes have come often it is made again with one, behind the requests.

        Args:
            shapes: {input: shape}, for every input that is not optional.
            progress: Called as ``progress(step, done, total)`` while it works.

        Raises:
            RequestError: A shape is missing or does not fit the model.
            ResourceLimitError: There is too little memory.
        """
        self._plan(shapes, progress, ahead=True)

    def _plan(
        self, shapes: Mapping[str, Sequence[int]], progress: Callable[[str, int, int], None] | None = None, *, ahead: bool = False
    ) -> None:
        blanks = self._signature.blanks(arguments.shapes("shapes", shapes))
        self._tree.plan_first(self._check(blanks), progress, ahead=ahead)

    def lend(self) -> int:
        """Return a descriptor, for reading, of the file in memory that the model was loaded from. The caller closes it.

        All processes that have loaded the same contents get the same file, so that they can read its weights without a copy of their own.

        Raises:
            RequestError: The model was loaded from a file with a name, or from one in memory that is not sealed against writing.
        """
        return self._tree.session.lend(self.number)

    def revive(self) -> None:
        """Load the model again now if the runtime was lost since, and plan its shapes where all are fixed.

        Without this call, both happen at the next use.

        Raises:
            RuntimeLost: There is no other runtime.
        """
        self._residence.tree()
        shapes = fixed_shapes(self.inputs)
        if shapes is not None:
            self._plan(shapes)

    def unload(self) -> None:
        """Give the model back. The runtime frees it when no client uses it any more and its last request has ended.

        A model that is forgotten without this call is given back at the next `Runtime.load` or `Runtime.status`.
        """
        if self._requests.leaves():
            self._give_back()


def _restore(address: str, loaded: bytes, name: str, named: tuple[str, float] | None = None, source: ModelSource | None = None) -> Model:
    """An unpickled handle."""
    way = link.to(address, named)
    return Model(way, msgspec.msgpack.decode(loaded, type=protocol.Loaded), name, source=source, place=address)


def _urgency(priority: str, deadline_ms: float | None = None, on_late: OnLate = "drop") -> Urgency:
    """What requests are told of when they go; a deadline counts from now."""
    try:
        plain = _PLAIN[priority]
    except (KeyError, TypeError):
        raise RequestError(f"priority {priority!r} is unknown. Give one of {', '.join(map(repr, PRIORITIES))}") from None
    runs_on = on_late != "drop" and arguments.one_of("on_late", on_late, ("drop", "run")) == "run"
    return plain if deadline_ms is None else Urgency(plain.level, arguments.deadline("deadline_ms", deadline_ms), runs_on)


def _sooner(timeout: float | None, urgency: Urgency) -> float:
    """Seconds until a time-out or a deadline, whichever comes first."""
    left = urgency.left()
    return left if timeout is None else min(timeout, left)
