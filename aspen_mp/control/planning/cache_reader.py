"""A stage from the plan cache: what a planning child would answer, without one. Light, so that a process that finds everything in the cache
needs neither numpy nor onnx in its planner process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aspen_mp.control.planning import plan_cache
from aspen_mp.control.planning.plan_cache import Cache, WeightFile
from aspen_mp.control.planning.planner_child import PlanStage, Received, StagePlanned
from aspen_mp.control.wire import protocol
from aspen_mp.shm.segments import Segment
from aspen_mp.system import descriptors


def find(plans: Cache, digest: bytes, options: Sequence[Any], job: PlanStage) -> plan_cache.Entry | None:
    """The plan of a stage, if it is in the cache."""
    entry = plans.plan(job.key(plans.build, digest, options))
    served_bucket = None if entry is None else entry.note.served_bucket
    if job.bucket is not None and served_bucket is not None and served_bucket.range.extents(job.bucket.lengths) is None:
        return None  # it is for another half of the bucket
    return entry


def stage(
    plans: Cache, entry: plan_cache.Entry, digest: bytes, files: Mapping[int, WeightFile], next_number: int, arenas: Sequence[Segment]
) -> tuple[StagePlanned, list[Received], Segment] | None:
    """The answer, the segments that are new (weights, from number `next_number` on, then copies of the arenas' descriptors) and the plan's
    own. `files`: the model's weight segments that workers have. None where weights are missing. ResourceLimitError where memory is."""
    note = entry.note
    known = {file.id: number for number, file in files.items()}
    new = [file for file in note.weights if file.id not in known]
    received: list[Received] = []
    try:
        for file in new:
            fd = plans.weights(file)
            if fd < 0:
                protocol.close_all([fd for _, _, fd in received])
                return None
            known[file.id] = next_number + len(received)
            received.append(("weights", file.nbytes, fd))
        for arena in arenas:
            received.append(("arena", arena.nbytes, descriptors.dup(arena.fd)))  # noqa: PERF401  # none is lost where the next one fails
        plan = Segment.create("plan", entry.segment.nbytes)
    except BaseException:
        protocol.close_all([fd for _, _, fd in received])
        raise
    plan.buf[: entry.segment.nbytes] = entry.segment
    answer = StagePlanned(
        note.region,
        note.inputs,
        note.outputs,
        [],
        note.last,
        note.dynamic,
        [known[file.id] for file in note.weights],
        [(key, known[file.id], offset) for file in new for key, offset in file.places],
        digest,
        [(known[file.id], file) for file in new],
        served_bucket=note.served_bucket,
        work_ns=note.work_ns,
    )
    return answer, received, plan
