"""Plans for later stages, whose shapes follow from data: one for a range of lengths gives the bits of a plan for each, tile by tile, in any
legal order. Whole models agree with onnxruntime, for any numbers of what is found, and have few plans."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from kernel_graphs import bind
from kernel_runner import WeightStore
from staged_models import ROWS, detector, drawn, request, unrolled
from test_buckets_agree import ORDERS, aligned_nan

import aspen_mp
from aspen_mp.control.planning import child_main, shape_buckets
from aspen_mp.control.planning.shape_buckets import Range, ServedBucket, WantedBucket
from aspen_mp.control.wire.protocol import Bind
from aspen_mp.planner import api
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.planner.plan.validate import validate
from aspen_mp.shm import values
from aspen_mp.workers._dse import PlanRunner
from aspen_mp.workers.fallback import opaque_tile

GRAPHS = 400 if os.environ.get("ASPEN_MP_TIER") == "long" else 40
NETWORKS = 60 if os.environ.get("ASPEN_MP_TIER") == "long" else 8
SIZES = (72, 88), (110, 101)
Known = dict[str, Any]


class Runs:
    """A plan with memory of its own, run by the workers' code. Opaque tiles run in this process."""

    def __init__(self, plan: Plan, store: WeightStore, word: int) -> None:
        store.place(plan)
        validate(plan.segment())
        self.plan, header = plan, plan.header()
        self.arena, self.request = (aligned_nan(int(header[name])) for name in ("arena_bytes", "request_bytes"))
        weights = []
        for segment in store.segments:
            weights.append(aligned_nan(len(segment)))
            weights[-1][:] = np.frombuffer(segment, np.uint8)
        self.cache = opaque_tile.OpaqueCache()
        self.runner = PlanRunner(bytes(plan.segment()), weights, self.arena, self.request, opaque=self._opaque, extent=word)

    def _opaque(self, blob: bytes, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        assert opaque_tile.run_tile(self.cache, bytes(blob), blob, "tile", outputs=outputs, inputs=inputs) == ("", 0)

    def run(self, known: Known, shapes: Sequence[tuple[int, ...]], order: str, word: int) -> Known:
        """`shapes`: of the outputs at these extents."""
        for memory in (self.arena, self.request):
            memory[: len(memory) // 4 * 4].view(np.float32)[...] = np.nan
        for info in self.plan.inputs:
            raw = np.frombuffer(known[info.name].tobytes(), np.uint8)
            self.request[info.offset : info.offset + len(raw)] = raw
        self.runner.move(word)
        assert self.runner.run(order, word) == 0
        found: Known = {}
        for info, shape in zip(self.plan.outputs, shapes, strict=True):
            dtype = np.dtype(np.uint8 if info.dtype == "object" else info.dtype)
            raw = self.request[info.offset : info.offset + int(np.prod(shape)) * dtype.itemsize]
            found[info.name] = values.decode(memoryview(raw.tobytes())) if info.dtype == "object" else raw.view(dtype).reshape(shape).copy()
        return found


class StagePlan:
    """The plan of a stage for a range of lengths, and plans within it. `stages`, `other`: of two requests."""

    def __init__(self, model: api.OnnxModel, stages: list[list[Bind]], other: list[list[Bind]], store: WeightStore) -> None:
        binds = shape_buckets.flat(stages)
        axes = shape_buckets.difference(shape_buckets.flat(other), binds, shape_buckets.MOST_BEHIND)
        assert axes is not None
        lengths = shape_buckets.lengths_of(binds, axes)
        self.model, self.store = model, store
        self.range = Range((2,) * len(lengths), (ROWS,) * len(lengths))
        self.wanted = WantedBucket(axes, lengths, (self.range,))
        self.bindings = [child_main._bindings(stage) for stage in stages]
        bucket, largest = child_main._largest(self.bindings, self.wanted, self.range)
        self.bucket, self.largest = bucket, largest
        self.result = api.plan_bucket(model, largest, bucket, workers=2)
        assert self.result.plan is not None
        self.served: ServedBucket = child_main._served(self.result, self.range)
        self.runs = Runs(self.result.plan, store, self.served.word(self.range.most))

    def run(self, stages: list[list[Bind]], known: Known, order: str) -> Known | None:
        """The results of a request, which are those of a plan within the bucket; None where it is outside."""
        extents = self.range.extents(shape_buckets.lengths_of(shape_buckets.flat(stages), self.wanted.axes))
        if extents is None:
            return None
        within = api.plan_within(self.model, self.largest, self.bucket, extents, workers=2).plan
        assert within is not None
        shapes = [info.shape for info in within.outputs]
        wanted = Runs(within, self.store, 0).run(known, shapes, "fifo", 0)
        found = self.runs.run(known, shapes, order, self.served.word(extents))
        assert wanted.keys() == found.keys()
        for name, value in wanted.items():
            assert np.array_equal(value, found[name]), f"{name} at {extents}"
        return found


def walk(model: api.OnnxModel, feeds: Known) -> list[tuple[list[list[Bind]], Known]]:
    """What is bound for each stage and known there, by plans for these shapes alone."""
    known, stages, found, store = dict(feeds), [_binds(feeds)], [], WeightStore()
    while True:
        found.append(([list(stage) for stage in stages], dict(known)))
        stage = api.plan_stage(model, [child_main._bindings(stage) for stage in stages], workers=2)
        assert stage.plan is not None
        results = Runs(stage.plan, store, 0).run(known, [info.shape for info in stage.plan.outputs], "fifo", 0)
        known |= results
        if not stage.more:
            return found
        stages.append(_binds({info.name: results[info.name] for info in stage.plan.outputs if info.dtype == "object"}))


def _binds(known: Known) -> list[Bind]:
    return [Bind(name, str(b.dtype), list(b.shape or ()), None) for name, b in bind(known).items()]


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_stages_of_drawn_networks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model, store = api.load(drawn(seed).SerializeToString()), WeightStore()
    other, middle, *requests = [walk(model, request(int(n), seed)) for n in rng.choice(np.arange(12, ROWS), 5, replace=False)]
    compared = 0
    for k in range(1, len(middle)):
        if shape_buckets.difference(*(shape_buckets.flat(one[k][0]) for one in (other, middle)), shape_buckets.MOST_BEHIND) is None:
            continue  # the same number by chance
        plan = StagePlan(model, middle[k][0], other[k][0], store)
        for j, one in enumerate([middle, *requests]):
            compared += plan.run(one[k][0], one[k][1], ORDERS[j % len(ORDERS)]) is not None
    assert compared


@pytest.fixture(scope="module")
def runtime() -> Iterator[aspen_mp.Runtime]:
    with aspen_mp.Runtime(workers=2) as own:
        yield own


def compare(model: aspen_mp.Model, reference: ort.InferenceSession, feeds: Known, what: str) -> None:
    names = [info.name for info in reference.get_outputs()]
    got = model.run(feeds)
    for name, want in zip(names, reference.run(names, feeds), strict=True):
        assert got[name].shape == want.shape, f"{name}, {what}"
        assert np.allclose(got[name], want, rtol=1e-3, atol=1e-4), f"{name}, {what}"


def plans_of(runtime: aspen_mp.Runtime, model: aspen_mp.Model) -> list[Any]:
    (about,) = [m for m in runtime.status()["models"] if m["id"] == model.number]
    return list(about["plans"])


def session(proto: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("seed", range(NETWORKS))
def test_any_numbers_are_found(runtime: aspen_mp.Runtime, seed: int) -> None:
    """Among them none and one, for which there are plans of their own."""
    proto = drawn(1000 + seed, of_none=True)
    reference, model = session(proto), runtime.load(proto)
    for n in np.random.default_rng(seed).permutation([0, 1, 0, 1, *range(2, ROWS + 1)]).tolist():
        compare(model, reference, request(n, seed), f"{n} found")
    model.unload()


def test_ever_new_numbers_have_few_plans(runtime: aspen_mp.Runtime) -> None:
    model = runtime.load(drawn(1))
    for n in range(2, ROWS + 1):
        model.run(request(n))
    assert len(plans_of(runtime, model)) <= 16
    model.unload()


def pictures(count: int, seed: int) -> Iterator[tuple[Known, str]]:
    """Pictures of ever new sizes, in which anything from nothing to much is found."""
    rng = np.random.default_rng(seed)
    for k, least in enumerate(np.linspace(0.5, 1.0, count)):
        height, width = (int(side) for side in rng.integers(48, 150, 2))
        x = rng.standard_normal((1, 3, height, width)).astype(np.float32)
        yield {"x": x, "least": np.array([least], np.float32)}, f"picture {k}, {height} x {width}"


def test_pictures_of_any_size_with_any_number_of_boxes(runtime: aspen_mp.Runtime) -> None:
    proto = detector()
    reference, model, found = session(proto), runtime.load(proto), []
    for feeds, what in pictures(40, 1):
        compare(model, reference, feeds, what)
        found.append(len(reference.run(["boxes"], feeds)[0]))
    assert len(set(found)) > 15
    assert 0 in found
    plans = plans_of(runtime, model)
    assert len(plans) <= 40
    assert max(len(plan["ranges"]) for plan in plans) >= 3
    assert sum(plan["served"] for plan in plans if plan["ranges"]) >= sum(plan["served"] for plan in plans) // 2
    model.unload()


def test_loops_of_any_length(runtime: aspen_mp.Runtime) -> None:
    proto = unrolled()
    reference, model = session(proto), runtime.load(proto)
    for steps in (5, 0, 7, 1, *range(2, 40), 0, 1, 100):
        x = np.random.default_rng(steps).standard_normal(16).astype(np.float32)
        compare(model, reference, {"steps": np.array(steps), "x": x}, f"{steps} rounds")
    assert len(plans_of(runtime, model)) <= 12
    model.unload()


def test_what_is_told_of_a_detector() -> None:
    """Its last stage depends on the number of sure boxes alone, the one before on the picture and on the boxes that are kept."""
    model = api.load(detector().SerializeToString())
    rng = np.random.default_rng(3)
    requests = [{"x": rng.standard_normal((1, 3, *size)).astype(np.float32), "least": np.array([0.6], np.float32)} for size in SIZES]
    one, two = (walk(model, feeds) for feeds in requests)
    assert len(one) == len(two) > 1
    lengths = []
    for k in range(1, len(one)):
        stages = two[k][0]
        axes = shape_buckets.difference(*map(shape_buckets.flat, (one[k][0], stages)), shape_buckets.MOST_BEHIND)
        assert axes is not None
        own = shape_buckets.lengths_of(shape_buckets.flat(stages), axes)
        wanted = WantedBucket(axes, own, (Range(tuple(n // 2 for n in own), tuple(2 * n for n in own)),))
        bindings = [child_main._bindings(stage) for stage in stages]
        bucket, largest = child_main._largest(bindings, wanted, wanted.widest)
        result = api.plan_bucket(model, largest, bucket, workers=2)
        assert {*result.lengths, *result.idle} == set(range(len(own)))
        for number, (least, most) in result.idle.items():
            assert least <= bucket.least[number] // 4
            assert most >= bucket.most[number] * 4
        lengths.append((len(result.lengths), len(own)))
    assert lengths == [(3, 3), (1, 4)]
