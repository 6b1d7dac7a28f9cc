"""What a planning child does: read the model, check it, plan stages, pack weights straight into shared segments.

`ModelFile` says where the model's bytes are and notices when a file has changed since it was loaded: a later plan of the same model must
not mix two versions of its weights.
"""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from aspen_mp.control.memory.arenas_ahead import Ahead
from aspen_mp.control.planning import cache_writer, plan_cache, plan_checks, shape_buckets
from aspen_mp.control.planning.plan_cache import Cache, WeightFile
from aspen_mp.control.planning.planner_child import ChildSide, Inspect, Inspected, JobSegment, PlanStage, StagePlanned
from aspen_mp.control.planning.shape_buckets import Range, WantedBucket
from aspen_mp.control.wire import file_stamp, protocol
from aspen_mp.shm.bindings import _tables
from aspen_mp.shm.errors import AspenError, ModelParseError, PlanError, RequestError
from aspen_mp.shm.segments import Segment, spacious
from aspen_mp.system import descriptors, filesystem, processes, sockets

if TYPE_CHECKING:
    from aspen_mp.control.planning.planner_child import Received
    from aspen_mp.planner import api, stages
    from aspen_mp.planner.cost.machine import Machine
    from aspen_mp.planner.cost.rates import Rates
    from aspen_mp.planner.job.request import PlanRequest
    from aspen_mp.planner.plan.bucketed_graph import Axes
    from aspen_mp.planner.plan.plan import Plan, TensorInfo, WeightItem

SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
"""What a file in memory needs so that its contents stay."""
GARBAGE: Final = 200_000
"""So many objects more there are before unused ones are looked for: a plan makes thousands, hardly any of them in cycles."""
SHARED_BYTES: Final = 4 << 20
"""The bytes of weights from which on several threads pack them."""
MOST_THREADS: Final = 8
"""The most such threads: memory is not faster with more."""
_ALIGN: Final = 64
_ROOMY: Final = 4 << 20


@dataclass(slots=True)
class ModelFile:
    """A model's bytes: a file (`path`, with `stamp` of when it was loaded, and `touched`, which also changes when its name or mode does) or
    a descriptor that this object owns. `external`: the files of its external data, once it has been read."""

    name: str
    path: str = ""
    stamp: file_stamp.Stamp = ()
    touched: file_stamp.Stamp = ()
    fd: int = -1
    external: list[plan_cache.File] = field(default_factory=list)

    @classmethod
    def from_path(cls, path: str) -> ModelFile:
        """Raises ModelParseError where there is no such regular file."""
        try:
            info = filesystem.stat(path)
        except OSError as error:
            raise ModelParseError(f"cannot read model {path!r}: {error.strerror}") from None
        except ValueError:
            raise ModelParseError(f"cannot read model {path!r}: a path cannot contain NUL") from None
        if not stat.S_ISREG(info.st_mode):
            raise ModelParseError(f"cannot read model {path!r}: it is {_kind(info)}, not a file")
        return cls(os.path.splitext(os.path.basename(path))[0], path, file_stamp.of_contents(info), file_stamp.of_change(info))

    @classmethod
    def from_fd(cls, fd: int, name: str) -> ModelFile:
        """Takes over `fd`. Raises ModelParseError where it is no regular file (a memfd is one): nothing else can be mapped."""
        info = descriptors.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise ModelParseError(f"cannot read model {name!r}: its descriptor is {_kind(info)}, not a file")
        return cls(name or "model", fd=fd)

    @property
    def keep(self) -> tuple[int, ...]:
        return (self.fd,) if self.fd >= 0 else ()

    @property
    def sealed(self) -> bool:
        """Whether it is a file in memory that nobody can change."""
        try:
            return self.fd >= 0 and descriptors.fcntl(self.fd, fcntl.F_GET_SEALS) & SEALS == SEALS
        except OSError:  # a file of another kind has no seals
            return False

    def close(self) -> None:
        if self.fd >= 0:
            descriptors.close(self.fd)
            self.fd = -1

    def digest(self) -> bytes:
        """Of a descriptor's bytes; empty for a file, which is known by its stamp."""
        if self.path:
            return b""
        return cache_writer.file_digest(self.fd)

    def changed(self) -> str:
        """Which of the files that it was read from is no longer the same; empty if none."""
        files = [(self.path, self.stamp)] if self.path else []
        files += [(file.path, file_stamp.contents(file.stamp)) for file in self.external]
        for path, stamp in files:
            try:
                if file_stamp.of_contents(filesystem.stat(path)) == stamp:
                    continue
            except OSError:
                pass
            return path
        return ""

    def check(self) -> None:
        """PlanError if one is not: versions of a model's weights must not be mixed."""
        path = self.changed()
        if path:
            what = "model file" if path == self.path else "external data"
            raise PlanError(f"{what} {path!r} has changed since model {self.name!r} was loaded. Load it again")

    def read(self) -> api.OnnxModel:
        """The model, opened and checked. Raises the loader's typed errors, and PlanError if a file is no longer the same."""
        from aspen_mp.planner import api

        if self.path:
            self.check()
            model = api.load(self.path)
            self.external = self.external or [plan_cache.File(path, file_stamp.of_change(filesystem.stat(path))) for path in model.files]
            self.check()
            return model
        size = descriptors.fstat(self.fd).st_size
        try:
            return api.load(memoryview(descriptors.mmap(self.fd, size, prot=mmap.PROT_READ)) if size else b"")
        except OSError as error:
            raise ModelParseError(f"cannot read model {self.name!r}: {error.strerror}") from None


def _kind(info: os.stat_result) -> str:
    kinds = (("a directory", stat.S_ISDIR), ("a pipe", stat.S_ISFIFO), ("a socket", stat.S_ISSOCK), ("a device", stat.S_ISCHR))
    return next((name for name, test in kinds if test(info.st_mode)), "something else")


class Subject(Protocol):
    """What a child is told of the model that it plans, as it stands when the child is forked."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> ModelFile: ...
    @property
    def request(self) -> PlanRequest: ...
    @property
    def instances(self) -> int: ...
    @property
    def weights(self) -> Mapping[str, tuple[int, int]]:
        """Where each packed weight is: number of the segment among the model's, and offset."""

    @property
    def weight_segments(self) -> Sequence[int]: ...
    @property
    def digest(self) -> bytes:
        """Of the model's contents; empty where it is not known yet."""

    @property
    def files(self) -> Mapping[int, WeightFile]:
        """What weight segments are called in the plan cache, by number."""


class Planner:
    """Lives in the child: keeps the parsed model between jobs, and knows which weights have been packed."""

    def __init__(self, model: Subject, plans: Cache | None) -> None:
        self.keeper = cache_writer.CacheWriter(plans, model.request, model.digest, model.files) if plans is not None else None
        self._source = model.source
        self._request = model.request
        self._instances = model.instances
        self._name = model.name
        self._directory = dict(model.weights)
        self._n_segments = len(model.weight_segments)
        self._opened: api.OnnxModel | None = None
        self._derived: stages.Derived | None = None
        self._ahead = Ahead()

    def do(self, message: Inspect | PlanStage, side: ChildSide) -> Inspected | StagePlanned:
        try:
            return self._do(message, side)
        finally:
            self._ahead.close()
            if self._opened is not None:
                self._opened.release()  # workers have the weights now; this process stays for a while

    def _do(self, message: Inspect | PlanStage, side: ChildSide) -> Inspected | StagePlanned:
        if self._opened is None:
            side.progress("reading", 0, 1)
            if self.keeper is not None:
                self.keeper.begin()
            self._opened = self._source.read()
            if self.keeper is not None and self._source.path:
                self.keeper.read([self._source.path, *self._opened.files])
        if isinstance(message, Inspect):
            found = _inspect(self._opened, self._source)
            if self.keeper is not None:
                self.keeper.inspected(found)
            return found
        known = self._n_segments, dict(self._directory)
        try:
            return self._plan(self._opened, message, side)
        except BaseException:  # the planner process gives up what it has got for this job: it is packed again
            self._n_segments, self._directory = known
            raise

    def _plan(self, model: api.OnnxModel, message: PlanStage, side: ChildSide) -> StagePlanned:
        from aspen_mp.planner import api, stages
        from aspen_mp.planner.cost import op_cost
        from aspen_mp.planner.cost.machine import Machine

        side.progress("planning", 0, 1)
        bindings = [_bindings(stage) for stage in message.stages]
        machine = Machine.of_speeds(message.speeds, op_cost.rates())
        self._derived = self._derived or stages.Derived()
        result, one, no_bucket, why = None, None, False, ""
        if message.bucket is not None:
            result, one, no_bucket, why = _of_bucket(model, bindings, message.bucket, **self._how(message, machine))
        if result is not None:
            # What the plan cache keeps is looked up by the bucket that it is for.
            message = msgspec.structs.replace(message, bucket=_made_bucket(one, message.bucket))
        else:
            message = msgspec.structs.replace(message, bucket=None, keep=message.keep and len(message.stages) == 1)
            how = self._how(message, machine)
            if message.within is not None:
                result = _within(model, bindings, message.within, **how)
            result = result or api.plan_stage(model, bindings, **how)
        plan = result.plan
        if plan is None:
            return StagePlanned(0, [], [], result.needs, False, False, [], [], no_bucket=no_bucket)
        used, packed = self._pack(plan, side)
        if packed:
            self._source.check()
        number = {segment: i for i, segment in enumerate(used)}
        plan.place_weights({item.key: (number[self._directory[item.key][0]], self._directory[item.key][1]) for item in plan.weights})
        spare = self._send(plan, message, side)
        answer = StagePlanned(
            plan.request_bytes,
            [_slot(info) for info in plan.inputs],
            [_slot(info) for info in plan.outputs],
            [],
            not result.more,
            result.kind == "dynamic",
            used,
            packed,
            spare=spare,
            served_bucket=None if one is None else _served(result, one),
            no_bucket=no_bucket,
            why=why,
            work_ns=float(plan.tile_costs().ns.sum()),
        )
        if self.keeper is None:
            return answer
        answer = self.keeper.planned(message, plan, answer)
        if message.keep:
            self.keeper.write()
        return answer

    def _how(self, message: PlanStage, machine: Machine) -> dict[str, Any]:
        """Arguments of the planner for this plan. Its arena is reserved ahead where nothing is searched."""
        from aspen_mp.planner.build import PlanOptions

        def sized(arena_bytes: int) -> None:
            if not message.search and (_stays(message) or _spare(arena_bytes, message.spares) < 0):
                self._ahead.begin(_roomy(arena_bytes))

        planning = self._request.planning
        if not message.search:
            planning = msgspec.structs.replace(planning, search="none")
        if not message.recurs:  # then there is one instance
            planning = msgspec.structs.replace(planning, in_flight=1)
        if message.stream == "rows":
            planning = msgspec.structs.replace(planning, by_rows=True)
        if planning.longest_ms is None:
            planning = msgspec.structs.replace(planning, longest_ms=message.longest_ms)
        return {
            "workers": len(machine),
            "machine": machine,
            "request": msgspec.structs.replace(self._request, planning=planning),
            "capacities": {capacity.name: capacity.nbytes for capacity in message.capacities},
            "build": PlanOptions(sized=sized, stream=message.stream, stream_bytes=message.stream_bytes),
            "derived": self._derived,
        }

    def _send(self, plan: Plan, message: PlanStage, side: ChildSide) -> int:
        """Sends the plan and its arenas. Returns which of the job's spare arenas it has instead; -1 for none."""
        with Segment.create("plan", plan.nbytes) as segment:
            plan.write(segment.buf)
            side.send(JobSegment("plan", plan.nbytes), (segment.fd,))
        stays, arena_bytes = _stays(message), plan.arena_layout()["arena_bytes"]
        spare = -1 if stays else _spare(arena_bytes, message.spares)
        for k in range(self._arenas(message) if spare < 0 else 0):
            if k and not spacious(arena_bytes):
                break  # requests that could have run side by side take turns
            made = self._ahead.take(arena_bytes)
            with made or Segment.create("arena", arena_bytes if stays else _roomy(arena_bytes)) as arena:
                side.send(JobSegment("arena", arena.nbytes), (arena.fd,))
        self._ahead.close()  # before the plan cache's writer is forked
        return spare

    def _arenas(self, message: PlanStage) -> int:
        """How many arenas a plan has. One has to do where somebody waits for it: the next request may well be for another plan. A plan for
        several lengths has large ones, which take long to make."""
        several = message.bucket is not None and len(message.bucket.lengths) > 1
        return self._instances if message.recurs or (_stays(message) and not several) else 1

    def _pack(self, plan: Plan, side: ChildSide) -> tuple[list[int], list[tuple[str, int, int]]]:
        """Packs what no earlier plan has packed into one new segment. Returns the model's segment numbers that the plan uses, in the order
        in which its operands know them, and the new directory entries."""
        used = sorted({self._directory[item.key][0] for item in plan.weights if item.key in self._directory})
        missing = [item for item in plan.weights if item.key not in self._directory]
        if missing and len(used) >= _tables.LIMITS["weights"]:
            used, missing = [], list(plan.weights)
        packed: list[tuple[str, int, int]] = []
        if missing:
            offset = _ALIGN
            for item in missing:
                packed.append((item.key, self._n_segments, offset))
                offset += -(-item.nbytes // _ALIGN) * _ALIGN
            offset += _ALIGN  # for the mark of a file in the plan cache
            fd, nbytes = -1, 0
            if self.keeper is not None:
                fd, nbytes = self.keeper.weights(self._n_segments, offset, [(key, start) for key, _, start in packed])
            if fd >= 0:
                side.send(JobSegment("weights", nbytes), (fd,))
                descriptors.close(fd)
            else:
                with Segment.create("weights", offset) as segment:
                    places = [segment.buf[start : start + item.nbytes] for item, (_, _, start) in zip(missing, packed, strict=True)]
                    _write_all(missing, places, lambda done: side.progress("packing weights", done, len(missing)))
                    side.send(JobSegment("weights", segment.nbytes), (segment.fd,))
                    if self.keeper is not None:
                        self.keeper.packed(self._n_segments, segment.fd)
            used.append(self._n_segments)
            self._n_segments += 1
            self._directory.update({key: (number, start) for key, number, start in packed})
        return used, packed


def _write_all(items: Sequence[WeightItem], places: list[memoryview], tell: Callable[[int], None]) -> None:
    """Write weights to their places, and release these. Threads share the work if it is much. Packing and the first writes to new memory
    take most of its time, and neither holds the interpreter's lock. `tell` is told how many are there, now and then."""
    from concurrent.futures import ThreadPoolExecutor

    most = min(len(processes.sched_getaffinity(0)), MOST_THREADS) if sum(map(len, places)) >= SHARED_BYTES else 1
    pool = ThreadPoolExecutor(most)
    try:
        written = pool.map(lambda item, place: item.write(place), items, places)
    except RuntimeError:  # no thread can be had, or not one for each
        pool.shutdown(cancel_futures=True)
        written = map(lambda item, place: item.write(place), items, places)
    try:
        for done, _ in enumerate(written):
            if done % 16 == 0:
                tell(done)
    finally:
        pool.shutdown(cancel_futures=True)
        for place in places:
            place.release()


def _of_bucket(
    model: api.OnnxModel,
    bindings: Sequence[Mapping[str, api.Binding]],
    bucket: WantedBucket,
    **how: Any,
) -> tuple[api.StageResult | None, Range | None, bool, str]:
    """A plan for the extents around that of the request whose shapes `bindings` are, and their range, if there is one. Else whether there
    is none anywhere, and why the last one that was tried is none. `how`: arguments of the planner."""
    from aspen_mp.planner import api

    several, hopeless, why = len(bucket.lengths) > 1, set(), ""
    for one in bucket.ranges if several else [*bucket.ranges[:-1], *_halves(bucket)]:
        if one.unit in hopeless:
            continue
        wanted, largest = _largest(bindings, bucket, one)
        try:
            return api.plan_bucket(model, largest, wanted, demand=one.demand, **how), one, False, ""
        except api.NoBucket as reason:
            why = str(reason)
            if reason.elsewhere or (one.demand == "busy" and not several):  # where a broad bucket has none, a narrow one may have one
                continue
            if not several:
                return None, None, True, why
            hopeless.add(one.unit)
        except AspenError as error:  # the model may not take the longest: positions that there are no embeddings for
            why = str(error)
            if several:
                hopeless.add(one.unit)
    return None, None, several and {one.unit for one in bucket.ranges} == hopeless, why


def _halves(bucket: WantedBucket) -> list[Range]:
    """The narrowest range of a bucket of one length, and ever smaller halves of it."""
    one = bucket.ranges[-1]
    ends = shape_buckets.halves(one.least[0], one.most[0], bucket.lengths[0])
    return [msgspec.structs.replace(one, least=(least,), most=(most,)) for least, most in ends]


def _within(
    model: api.OnnxModel,
    bindings: Sequence[Mapping[str, api.Binding]],
    bucket: WantedBucket,
    **how: Any,
) -> api.StageResult | None:
    """A plan for one extent of a bucket, that of `bindings`; None where there is none for the bucket, as this process sees it."""
    from aspen_mp.planner import api

    one = bucket.widest
    extents = one.extents(bucket.lengths)
    assert extents is not None
    wanted, largest = _largest(bindings, bucket, one)
    try:
        return api.plan_within(model, largest, wanted, extents, **how)
    except api.NoBucket:
        return None


def _largest(
    bindings: Sequence[Mapping[str, api.Binding]], bucket: WantedBucket, one: Range
) -> tuple[api.ShapeBucket, list[dict[str, api.Binding]]]:
    """A range of a bucket, and what is bound at its largest extents, given the bindings of the request that asks."""
    from aspen_mp.planner import api

    here = tuple(length // one.unit for length in bucket.lengths)
    steps = {number: tuple(one.unit * (k == number) for k in range(1, len(here) + 1)) for number in range(len(here) + 1)}
    names = [name for stage in bindings for name in stage]
    per = {name: tuple(steps[number] for number in row) for name, row in zip(names, bucket.axes, strict=True) if any(row)}
    wanted = api.ShapeBucket(one.least, one.most, per)
    return wanted, [
        {name: replace(bound, shape=wanted.shape(name, bound.shape or (), here, one.most)) for name, bound in stage.items()}
        for stage in bindings
    ]


def _made_bucket(made: Range | None, bucket: WantedBucket | None) -> WantedBucket | None:
    """The bucket that a plan was made for, which may be for a part of it."""
    if bucket is None or made is None:
        return None
    ends = (made.least, made.most, made.unit)
    return next(
        (choice for choice in bucket.choices if (choice.widest.least, choice.widest.most, choice.widest.unit) == ends), bucket.choices[-1]
    )


def _served(result: api.StageResult, one: Range) -> shape_buckets.ServedBucket:
    def rows(found: Sequence[Axes]) -> list[list[protocol.Follows]]:
        return [[protocol.Follows(axis, follows.value, follows.per) for axis, follows in axes] for axes in found]

    ends = [result.idle.get(k, pair) for k, pair in enumerate(zip(one.least, one.most, strict=True))]
    one, bucketed = Range(tuple(a for a, _ in ends), tuple(b for _, b in ends), one.unit), result.bucketed
    if bucketed is None:  # the same at all lengths
        return shape_buckets.ServedBucket(one, [], [[] for _ in result.inputs], [[] for _ in result.outputs], ())
    inputs, outputs = bucketed.shapes
    return shape_buckets.ServedBucket(one, list(bucketed.expressions.rows), rows(inputs), rows(outputs), result.lengths)


def _stays(message: PlanStage) -> bool:
    """Whether a plan is one that is used for long: its shapes recur, or it serves many lengths."""
    return message.recurs or message.bucket is not None


def _spare(needed: int, spares: Sequence[int]) -> int:
    """Which of arenas of these sizes is large enough and not much too large; -1 for none."""
    fit = [k for k, nbytes in enumerate(spares) if needed <= nbytes <= 2 * needed + _ROOMY]
    return min(fit, key=lambda k: spares[k], default=-1)


def _roomy(needed: int) -> int:
    """Bytes for an arena that others are to fit in, which need a little more."""
    step = 1 << max((needed // 8).bit_length(), 12)
    return -(-needed // step) * step


def serve(model: Subject, plans: Cache | None, rates: Rates, sock: sockets.socket) -> None:
    """The child's main function."""
    from aspen_mp.planner.cost import op_cost
    from aspen_mp.planner.job import progress

    gc.freeze()  # what is here stays shared with the planner process
    gc.set_threshold(GARBAGE)
    op_cost.use(rates)
    planner, side = Planner(model, plans), ChildSide(sock)
    progress.tell(side.further)
    side.run(planner.do)
    if planner.keeper is not None:
        planner.keeper.close()


def _inspect(model: api.OnnxModel, source: ModelFile) -> Inspected:
    found = model.signature
    inputs = [*map(_value, found.inputs), *(_value(v, optional=True) for v in found.overridable)]
    return Inspected(model.graph.name, source.digest(), inputs, [_value(v) for v in found.outputs], source.external)


def _value(info: api.ValueInfo, optional: bool = False) -> protocol.ValueInfo:
    shape = None if info.shape is None else list(info.shape)
    return protocol.ValueInfo(info.name, str(info.dtype), shape, info.kind, optional, info.type, list(info.keys))


def _slot(info: TensorInfo) -> protocol.Slot:
    return protocol.Slot(info.name, info.dtype, list(info.shape), info.offset, info.nbytes)


def _bindings(stage: Sequence[protocol.Bind]) -> dict[str, api.Binding]:
    bindings = {bind.name: _binding(bind) for bind in stage}
    if len(bindings) != len(stage):
        twice = next(bind.name for k, bind in enumerate(stage) if bind.name in {other.name for other in stage[:k]})
        raise RequestError(f"{twice!r} is bound twice")
    return bindings


def _binding(bind: protocol.Bind) -> api.Binding:
    import numpy as np

    from aspen_mp.planner import api
    from aspen_mp.shm import values

    if bind.dtype == "object":
        return api.Binding(np.dtype(object), tuple(bind.shape), None if bind.value is None else values.decode(bind.value))
    dtype = values.dtype_by_name(bind.dtype)
    if bind.value is None:
        return api.Binding(dtype, tuple(bind.shape), None)
    if len(bind.value) != prod(bind.shape) * dtype.itemsize:
        raise RequestError(f"the value of {bind.name!r} has {len(bind.value)} bytes, not those of shape {bind.shape} of {bind.dtype}")
    return api.Binding(dtype, tuple(bind.shape), np.frombuffer(bind.value, dtype).reshape(bind.shape))


def clear_arena(fd: int, plan: Segment) -> None:
    """Makes an arena that another plan has left as good as a new one for a plan that has been checked: its flags and counters are 0."""
    import numpy as np

    from aspen_mp.shm.tables import PLAN_HEADER

    header = np.frombuffer(plan.buf, PLAN_HEADER, 1)[0]
    begin, end = int(header["arena_counters"]), int(header["arena_data"])
    with descriptors.mmap(fd, end) as words:
        words[begin:end] = bytes(end - begin)


def checked_plan(
    received: Received, result: StagePlanned, weights: list[int], arenas: list[int], checked: Segment | None = None
) -> Segment:
    """A plan that a child made, checked and in a segment of our own; the child cannot reach that one. `checked`: that segment, where it has
    been checked already.

    `weights`, `arenas`: sizes in bytes of the segments that it is going to be used with.
    """
    segment = checked or plan_checks.copied(received[2], received[1])
    try:
        if checked is None:
            plan_checks.check(segment)
        _check_sizes(segment, result, weights, arenas)
    except BaseException:
        segment.close()
        raise
    return segment


def _check_sizes(plan: Segment, result: StagePlanned, weights: list[int], arenas: list[int]) -> None:
    import numpy as np

    from aspen_mp.shm.tables import PLAN_HEADER

    header = np.frombuffer(plan.buf, PLAN_HEADER, 1)[0].copy()
    if header["request_bytes"] != result.region:
        raise PlanError(f"request_bytes: {header['request_bytes']} in the plan, {result.region} announced")
    if header["n_weights"] != len(weights):
        raise PlanError(f"n_weights: {header['n_weights']} in the plan, {len(weights)} segments there")
    for i, (needed, there) in enumerate(zip(header["weights_bytes"], weights, strict=False)):
        if needed > there:
            raise PlanError(
                f"weights_bytes[{i}]: a segment of weights has {there} bytes instead of {needed}: its file has been cut. Try again"
            )
    if not arenas or header["arena_bytes"] > min(arenas):
        raise PlanError(f"arena_bytes: {header['arena_bytes']}, the arenas have {arenas}")
    for slot in (*result.inputs, *result.outputs):
        if slot.offset + slot.nbytes > result.region:
            raise PlanError(f"{slot.name!r} ends at byte {slot.offset + slot.nbytes} of a region of {result.region}")
