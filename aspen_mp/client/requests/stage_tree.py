"""Running a model as its stages: the shapes of a request decide which plans it runs, and later stages are planned from earlier results.

Most models are one static stage: `StageTree.single` finds it by the shapes of the inputs, and `Stage.run` is the whole path of a request.
Otherwise the tree is walked: each level is keyed by the shapes of what became known, and by the values of the few tensors whose values
decide shapes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from aspen_mp.client.future import RequestFuture, too_late
from aspen_mp.client.requests.lengths import Key, KnownBucket
from aspen_mp.client.requests.region import Region
from aspen_mp.client.requests.stage import Lost, Short, Stage, Stale, Transfers
from aspen_mp.client.session import Session
from aspen_mp.control.planning.shape_buckets import structure
from aspen_mp.control.wire import protocol
from aspen_mp.planner.job.bucket_policy import POLICY
from aspen_mp.planner.job.options import Keeping
from aspen_mp.shm import values
from aspen_mp.shm.bindings import _tally
from aspen_mp.shm.bindings._channel import Urgency
from aspen_mp.shm.errors import ModelInvalidError, RequestCancelled, RequestError, RequestTimeout, ResourceLimitError, RuntimeLost
from aspen_mp.shm.scarcity import submit
from aspen_mp.shm.segments import memory_available
from aspen_mp.system import clock, threads

if TYPE_CHECKING:
    from aspen_mp.control.wire.client import ProgressCallback

MAX_DRIVERS: Final = 64
"""Threads that drive requests of several stages; more such requests wait for one of them."""
MAX_SHAPES: Final = 256
"""Shapes of inputs whose plans a client remembers."""
MAX_KEPT_BYTES: Final = 512 << 20
"""Bytes of regions that a model keeps for coming requests; beyond, those of the shapes that were met first are given back."""
KEPT_PART: Final = 8
"""Of the memory that is left when the model is loaded, they may be this part."""
MAX_BEHIND: Final = 64
"""Stages behind data, each for some number of detections, say, that a client remembers; beyond, those that were not met for longest go."""
MAX_VALUE_BYTES: Final = 64 << 10
"""Largest value that may decide shapes."""


def shape_key(arrays: Mapping[str, Any]) -> Key:
    """What of the values decides the plan: names and shapes, and for values that are no tensors the capacity of their buffers."""
    return tuple([(name, _shape(value)) for name, value in arrays.items()])


def _is_tensor(value: Any) -> bool:
    return isinstance(value, np.ndarray) and not value.dtype.hasobject


def _shape(value: Any) -> tuple[int, ...]:
    return value.shape if _is_tensor(value) else (_capacity(values.encoded_size(value)),)


def _capacity(nbytes: int) -> int:
    """Capacities come in steps, so that values of like size share a plan."""
    return 1 << max(8, (nbytes - 1).bit_length())


def _dtype(value: Any) -> str:
    return _dtype_name(value.dtype) if _is_tensor(value) else "object"


@cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    return str(dtype)


class RequestStop:
    """A link from a request's future to the driver thread that walks the request through its stages: cancels it, wherever it is."""

    def __init__(self, session: Session, future: RequestFuture) -> None:
        self._session = session
        self._future = future
        self._lock = threads.Lock()
        self._ticket = -1
        self._asked = False

    def planned(self) -> None:
        """The first stage has a plan."""
        self._future.planning = False

    def started(self, ticket: int) -> None:
        """The driver waits for this ticket now (-1: for none)."""
        with self._lock:
            self._ticket = ticket
            if ticket >= 0 and self._asked:
                self._cancel(ticket)

    def ask(self) -> None:
        with self._lock:
            self._asked = True
            if self._ticket >= 0:
                self._cancel(self._ticket)

    def _cancel(self, ticket: int) -> None:
        with suppress(RequestError):  # the driver has taken its result, and is about to say so
            self._session.channel.cancel(ticket)

    def check(self) -> None:
        if self._asked:
            raise RequestCancelled("the request was cancelled")


@dataclass(slots=True)
class _Node:
    """What the shapes so far lead to: the values that have to be known too (`wanted`, then `by_value`), or a stage and what follows it."""

    binds: list[list[protocol.Bind]]
    wanted: tuple[str, ...] = ()
    by_value: dict[tuple[bytes, ...], _Node] = field(default_factory=dict)
    stage: Stage | None = None
    next: dict[Key, _Node] = field(default_factory=dict)
    planning: threads.Lock = field(default_factory=lambda: threads.Lock())
    capacities: dict[str, int] = field(default_factory=dict)
    asked: bool = False
    """Whether requests that come here have to wait for a plan, or had to."""
    place: tuple[dict[Any, _Node], Any] | None = None
    """Where it hangs; None for those that the shapes of the inputs lead to."""

    def stages(self) -> list[Stage]:
        found = [] if self.stage is None else [self.stage]
        for child in (*self.by_value.values(), *self.next.values()):
            found += child.stages()
        return found


class StageTree:
    """The plans of a model that this client has met."""

    def __init__(
        self,
        session: Session,
        model_id: int,
        model: str,
        outputs: Sequence[str],
        keys: Mapping[str, values.Keys] | None = None,
        codes: Mapping[str, dict[str, int]] | None = None,
        *,
        fixed: bool,
        stream: tuple[Keeping, int] = ("", 0),
    ) -> None:
        """`stream`: what first stages keep activations for, and in how many bytes (`client.streams`). `keys`: of outputs of which plans may
        give numbers (`planner/frontends/classical/maps.py`, `words.py`). `codes`: of inputs of strings, of which they take numbers.
        `fixed`: whether the model declares all extents of its inputs."""
        self.session = self._session = session
        self._model_id = model_id
        self._model = model
        self._outputs = list(outputs)
        self._keys = dict(keys or {})
        self._codes = dict(codes or {})
        self._fixed = fixed
        self._stream = stream
        self._for_streams: dict[tuple[Keeping, int], StageTree] = {}
        self._transfers = Transfers()
        self._counts = session.tally.row(model_id)
        self._roots: dict[Key, _Node] = {}  # this and the following may change while another thread looks at all: it looks at a copy
        self._single: dict[Key, Stage] = {}
        self._behind: OrderedDict[int, _Node] = OrderedDict()
        self._buckets: dict[tuple[int, int], KnownBucket] = {}
        self._met = 0
        self._capacities: dict[str, int] = {}
        self._lock = threads.Lock()
        self._drivers: ThreadPoolExecutor | None = None
        self._closed = False
        self._most_kept = min(MAX_KEPT_BYTES, memory_available() // KEPT_PART)

    def for_streams(self, kind: Keeping, memory: int = 0) -> StageTree:
        """The plans of the same model for streams. `memory`: bytes of each that they may use, 0 for any number."""
        with self._lock:
            self._check()
            way = kind, memory
            if way not in self._for_streams:
                told = self._session, self._model_id, self._model, self._outputs, self._keys, self._codes
                self._for_streams[way] = StageTree(*told, fixed=self._fixed, stream=way)
            return self._for_streams[way]

    @property
    def transfers(self) -> Transfers:
        """What has been done with the inputs of all requests so far."""
        with self._lock:
            nodes = list(self._roots.values())
        for node in nodes:
            for stage in node.stages():
                stage.count_transfers()
        return replace(self._transfers)

    def _check(self) -> None:
        if self._closed:
            raise RequestError(f"model {self._model!r} has been unloaded. Load it again")

    def single(self, arrays: Mapping[str, Any], counts: bool = True) -> Stage | None:
        """The stage that is all of the model for these inputs, if that is known already. `counts`: whether this is one of the requests by
        which shapes come often."""
        if not self._single:
            return None
        key = shape_key(arrays)
        stage = self._single.get(key)
        if stage is not None and counts and stage.due():
            self._improve(self._roots.get(key))
            stage = self._single.get(key)
        return stage

    def derived(self, arrays: Mapping[str, Any]) -> Stage | None:
        """`single` for shapes that are new, where a plan for a range serves them: nobody has to be asked. None otherwise."""
        key = shape_key(arrays)
        if not self._buckets or (self._met + 1) % POLICY.told_every == 0 or key in self._roots:
            return None
        known = self._known([_binds(arrays)], self._capacities)
        if known is None:
            return None
        node = self._root(key, arrays)
        if not node.planning.acquire(blocking=False):
            return None
        try:
            if node.stage is None and not self._derive(node, *known):
                return None
        finally:
            node.planning.release()
        self._note_single(key, node)
        return self._single.get(key)

    def _has_plan(self, arrays: Mapping[str, Any]) -> bool:
        """Whether requests of these shapes begin without a wait for a plan."""
        node = self._roots.get(shape_key(arrays))
        if node is not None and (node.stage is not None or node.wanted):
            return True
        return self._known([_binds(arrays)], self._capacities) is not None

    def _improve(self, node: _Node | None) -> None:
        """These shapes have come often, on a plan that serves others too: asks whether there is one of their own by now, or has it made."""
        if node is None or not node.planning.acquire(blocking=False):
            return
        try:
            if node.stage is not None:
                self._renew(node, node.stage, self._ask(node, None, often=True))
        finally:
            node.planning.release()

    def _renew(self, node: _Node, stage: Stage, planned: protocol.Planned) -> None:
        """There may be another plan for a stage now."""
        if (planned.plan, planned.generation) != (stage.planned.plan, stage.planned.generation) and not planned.needs_values:
            self._forget(node, stage)
            node.stage = self._stage(node, planned)

    def plan_first(self, arrays: Mapping[str, Any], progress: ProgressCallback | None, *, ahead: bool) -> _Node:
        """Plans the first stage for inputs of these shapes, as far as shapes alone allow. `ahead`: of requests, so it may take longer."""
        key = shape_key(arrays)
        node = self._roots.get(key) or self._root(key, arrays)
        with node.planning:
            if node.stage is not None and ahead and node.stage.planned.bucket is None:  # results of a bucket's plan keep their bits
                self._renew(node, node.stage, self._ask(node, progress, ahead=True))
            elif node.stage is None and not node.wanted:
                self._plan(node, progress, ahead)
        self._note_single(key, node)
        return node

    def hold(self, arrays: Mapping[str, Any]) -> tuple[Region, dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]:
        """`Stage.hold` of the first stage for inputs of these shapes."""
        stage = self.plan_first(arrays, None, ahead=False).stage
        self._check()  # another thread may have closed all stages meanwhile
        if stage is None:
            raise RequestError(
                f"model {self._model!r} has no input buffers, because values of its inputs decide shapes. Pass arrays to run() instead"
            )
        return stage.hold()

    # ---- walking

    def run(
        self,
        arrays: Mapping[str, Any],
        timeout: float | None,
        urgency: Urgency,
        stop: RequestStop | None,
        *,
        borrow: bool = True,
        first: Callable[[Stage, float | None], dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Walks the stages; every output of the model. `borrow`: as of `Stage.run`. `first(stage, timeout)`: runs the first stage."""
        self._check()
        deadline = None if timeout is None else clock.monotonic() + timeout
        known = dict(arrays)
        key = shape_key(known)
        node = self._find(self._roots.get(key) or self._root(key, known), known)
        self._note_single(key, self._roots.get(key))
        if stop is not None:
            stop.planned()
        while True:
            stage = node.stage
            assert stage is not None
            if stop is not None:
                stop.check()
            left = None if deadline is None else max(0.0, deadline - clock.monotonic())
            try:
                if first is not None and len(node.binds) == 1:
                    results = first(stage, left)
                else:
                    results = stage.run(known, urgency, left, None, stop, borrow=borrow)
            except RequestTimeout:
                raise too_late(self._model, timeout) from None
            except (Stale, Short) as again:
                if isinstance(again, Short):
                    needed = {name: _capacity(nbytes) for name, nbytes in again.capacities.items()}
                    node.capacities.update(needed)
                    with self._lock:  # for other shapes, too: each would have to learn it by running twice
                        self._capacities.update({name: max(n, self._capacities.get(name, 0)) for name, n in needed.items()})
                else:
                    self._drop_bucket(stage)
                self._forget(node, stage)
                self._await_plan(node)
                continue
            known.update(results)
            if stage.planned.last:
                return {name: self._told(name, known[name]) for name in self._outputs}
            # Other shapes follow from those that are bound, for the planner as well.
            told = {slot.name: results[slot.name] for slot in stage.planned.outputs if slot.dtype == "object"}
            key = shape_key(told)
            child = node.next.get(key)
            if child is None:
                child = node.next.setdefault(key, self._new([*node.binds, _binds(told)], (node.next, key)))
            node = self._find(child, known)
            self._note_behind(node)

    def _told(self, name: str, value: Any) -> Any:
        """An output as the caller gets it: a stage that is not the last leaves numbers as they are."""
        return values.told(self._keys[name], value) if name in self._keys and _is_tensor(value) else value

    def submit(
        self,
        arrays: dict[str, Any],
        urgency: Urgency,
        names: Sequence[str] | None,
        future: RequestFuture,
        lost: Lost,
        *,
        borrow: bool = False,
    ) -> None:
        """`run` on a driver thread, with the result in `future`. `lost`: as of `Stage.submit`."""
        stop = RequestStop(self._session, future)
        future.stop, future.planning = stop.ask, not self._has_plan(arrays)

        def drive() -> None:
            try:
                if not future.done():
                    results = self.run(arrays, None, urgency, stop, borrow=borrow)
                    future.finish(results if names is None else {name: results[name] for name in names})
            except BaseException as error:
                if isinstance(error, RuntimeLost) and lost(error, arrays):
                    return
                future.fail(error)
            future.settle()

        with self._lock:
            self._check()
            if self._drivers is None:
                self._drivers = ThreadPoolExecutor(MAX_DRIVERS, thread_name_prefix="aspen-mp stages")
            submit(self._drivers, drive)

    # ---- the tree

    def _root(self, key: Key, arrays: Mapping[str, Any]) -> _Node:
        with self._lock:
            node = self._roots.setdefault(key, _Node([_binds(arrays)]))
            while len(self._roots) > 1 and (len(self._roots) > MAX_SHAPES or self._keeps_too_much()):
                oldest = next(iter(self._roots))
                self._single.pop(oldest, None)
                for stage in self._roots.pop(oldest).stages():
                    stage.close()
        return node

    def _new(self, binds: list[list[protocol.Bind]], place: tuple[dict[Any, _Node], Any] | None) -> _Node:
        with self._lock:
            return _Node(binds, capacities=dict(self._capacities), place=place)

    def _note_behind(self, node: _Node) -> None:
        """A stage behind data is met; of too many others the first are forgotten. Requests may still run on them."""
        if node.place is None:
            return
        leaving = []
        with self._lock:
            new = id(node) not in self._behind
            self._behind[id(node)] = node
            self._behind.move_to_end(id(node))
            while new and len(self._behind) > 1 and (len(self._behind) > MAX_BEHIND or self._behind_bytes() > self._most_kept):
                leaving.append(self._behind.popitem(last=False)[1])
        for old in leaving:
            if old.place is not None:
                container, key = old.place
                container.pop(key, None)
            if old.stage is not None:
                old.stage.close()

    def _behind_bytes(self) -> int:
        return sum(node.stage.kept_bytes for node in list(self._behind.values()) if node.stage is not None)

    def _keeps_too_much(self) -> bool:
        if self._session.memory.nbytes <= self._most_kept:
            return False
        return sum(stage.kept_bytes for node in list(self._roots.values()) for stage in node.stages()) > self._most_kept

    def _find(self, node: _Node, known: Mapping[str, Any]) -> _Node:
        """The node with the stage to run, planned if it is new."""
        while node.stage is None:
            if not node.wanted:
                self._await_plan(node)
            if node.wanted:
                node = self._with_values(node, known)
        return node

    def _await_plan(self, node: _Node) -> None:
        """Has a request wait until the node is planned. One of several that need it asks."""
        began = _tally.now()
        try:
            with node.planning:
                if not node.wanted and node.stage is None:
                    self._plan(node, None)
        finally:
            if node.asked:
                self._counts.waited(began)

    def _with_values(self, node: _Node, known: Mapping[str, Any]) -> _Node:
        bound = []
        for name in node.wanted:
            if name not in known:
                raise RequestError(f"model {self._model!r}: the value of {name!r} decides shapes, but is not known when it is needed")
            bound.append(known[name])
        value = tuple(values.encode(v) if not _is_tensor(v) else v.tobytes() for v in bound)
        for name, data in zip(node.wanted, value, strict=True):
            if len(data) > MAX_VALUE_BYTES:
                raise RequestError(
                    f"model {self._model!r}: the value of {name!r} decides shapes. It has {len(data)} bytes, limit {MAX_VALUE_BYTES}"
                )
        child = node.by_value.get(value)
        if child is None:
            last = {bind.name: bind for bind in node.binds[-1]}
            for name, data, v in zip(node.wanted, value, bound, strict=True):
                last[name] = protocol.Bind(name, _dtype(v), list(_shape(v)), data)
            place = None if len(node.binds) == 1 else (node.by_value, value)
            child = node.by_value.setdefault(value, self._new([*node.binds[:-1], list(last.values())], place))
        return child

    def _ask(
        self, node: _Node, progress: ProgressCallback | None, *, ahead: bool = False, often: bool = False, beside: bool = False
    ) -> protocol.Planned:
        capacities, stream = _listed(node.capacities), self._stream if len(node.binds) == 1 else ("", 0)

        def call() -> protocol.Planned:
            try:
                return self._session.control.call(
                    lambda number: protocol.MakePlan(number, self._model_id, node.binds, capacities, ahead, often, beside, *stream),
                    protocol.Planned,
                    progress=progress,
                )[0]
            except ModelInvalidError as error:
                if self._is_given_by_model(node):
                    raise
                raise RequestError(*error.args) from None

        try:
            return call()
        except ResourceLimitError:
            if not self._shed():
                raise
        return call()

    def _is_given_by_model(self, node: _Node) -> bool:
        """Whether all requests come to this node, so that what is wrong there is the model's fault."""
        return self._fixed and len(node.binds) == 1 and all(bind.value is None for bind in node.binds[0])

    def _shed(self) -> bool:
        """Gives all memory back that waits for requests, because memory is wanted. Whether there was any."""
        with self._lock:
            stages = [stage for node in list(self._roots.values()) for stage in node.stages()]
            stages += [node.stage for node in list(self._behind.values()) if node.stage is not None]
        for stage in stages:
            stage.shed()
        before = self._session.memory.nbytes
        self._session.memory.trim()
        return self._session.memory.nbytes < before

    def _plan(self, node: _Node, progress: ProgressCallback | None, ahead: bool = False) -> None:
        known = None if ahead else self._known(node.binds, node.capacities)
        if known is not None and self._derive(node, *known):
            return
        node.asked = known is None
        planned = self._ask(node, progress, ahead=ahead, beside=known is not None)
        if planned.needs_values:
            node.wanted = tuple(planned.needs_values)
        else:
            node.stage = self._stage(node, planned)

    def _derive(self, node: _Node, planned: protocol.Planned, bucket: KnownBucket) -> bool:
        """Gives a node the stage that `_known` has found. False where it is time to tell the planner process of such shapes instead."""
        self._counts.derived()
        self._met += 1
        if self._met % POLICY.told_every == 0:
            return False
        node.stage = Stage(self._session, self._model, planned, self._transfers, bucket, self._keys, self._codes)
        return True

    def _known(self, stages: list[list[protocol.Bind]], capacities: Mapping[str, int]) -> tuple[protocol.Planned, KnownBucket] | None:
        """What a plan for a shape bucket is at the length of these shapes, if there is one that serves them."""
        with self._lock:
            buckets = list(self._buckets.values())
        if not buckets:
            return None
        key, made_of = _key_of(stages), structure(stages, _listed(capacities))
        for bucket in reversed([one for one in buckets if one.structure == made_of]):
            planned = bucket.at(key)
            if planned is not None:
                return planned, bucket
        return None

    def _stage(self, node: _Node, planned: protocol.Planned) -> Stage:
        """What an answer describes."""
        if planned.bucket is None:
            return Stage(self._session, self._model, planned, self._transfers, keys=self._keys, codes=self._codes)
        key, made_of = _key_of(node.binds), structure(node.binds, _listed(node.capacities))
        with self._lock:
            bucket = self._buckets.setdefault((planned.plan, planned.generation), KnownBucket(planned, key, made_of))
        found = bucket.at(key)
        assert found is not None
        return Stage(self._session, self._model, found, self._transfers, bucket, self._keys, self._codes)

    def _drop_bucket(self, stage: Stage) -> None:
        """The plan of a stage has gone."""
        with self._lock:
            self._buckets.pop((stage.planned.plan, stage.planned.generation), None)

    def _note_single(self, key: Key, node: _Node | None) -> None:
        """From the second request on, the shapes of the inputs are all that is asked of a model of one static stage."""
        stage = None if node is None else node.stage
        if stage is not None and stage.planned.last and not stage.objects and stage.output_names == self._outputs:
            self._single[key] = stage

    def _forget(self, node: _Node, stage: Stage) -> None:
        node.stage = None
        for key in [key for key, known in list(self._single.items()) if known is stage]:
            del self._single[key]
        stage.close()

    def stale(self, stage: Stage) -> None:
        """The plan of a `single` stage has gone."""
        self._drop_bucket(stage)
        for node in list(self._roots.values()):
            if node.stage is stage:
                self._forget(node, stage)

    def retire(self) -> None:
        """The session is lost. Who waits for a driver still gets one, and learns of it."""
        for tree in list(self._for_streams.values()):
            tree.retire()
        if self._drivers is not None:
            self._drivers.shutdown(wait=False)

    def close(self) -> None:
        """Gives every region back. Requests that wait for a driver fail."""
        self._closed = True
        for tree in list(self._for_streams.values()):
            tree.close()
        for node in list(self._roots.values()):
            for stage in node.stages():
                stage.close()
        self._roots.clear()
        self._single.clear()
        self._buckets.clear()
        for node in list(self._behind.values()):  # also those that nothing leads to any more
            if node.stage is not None:
                node.stage.close()
        self._behind.clear()
        if self._drivers is not None:
            self._drivers.shutdown(wait=False)


def _binds(arrays: Mapping[str, Any]) -> list[protocol.Bind]:
    return [protocol.Bind(name, _dtype(value), list(_shape(value)), None) for name, value in arrays.items()]


def _listed(capacities: Mapping[str, int]) -> list[protocol.Capacity]:
    return [protocol.Capacity(name, nbytes) for name, nbytes in sorted(capacities.items())]


def _key_of(stages: list[list[protocol.Bind]]) -> Key:
    """Names and shapes of all that is bound for a stage."""
    return tuple([(bind.name, tuple(bind.shape)) for binds in stages for bind in binds])
