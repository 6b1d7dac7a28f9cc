"""How plans get into the control table and to the workers, and out of it again."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from aspen_mp.control.memory import weight_files
from aspen_mp.control.memory.segments import Borrowed, SegmentStore
from aspen_mp.control.models.model_state import Model, Stage
from aspen_mp.control.models.published_plans import Plans
from aspen_mp.control.models.replanning import often
from aspen_mp.control.planning import child_main
from aspen_mp.control.planning.planner_child import PlanStage, Received, StagePlanned
from aspen_mp.control.wire import protocol
from aspen_mp.shm.bindings import _control
from aspen_mp.shm.segments import Segment


@dataclass(frozen=True, slots=True)
class Made:
    """What there is to publish. `plan`: one that needs no check any more; None: it is among the segments that a planning child has sent.
    `checked`: that one in a segment of our own, where it has been checked. `reused`: which descriptor of an arena another plan has had."""

    result: StagePlanned
    received: list[Received]
    plan: Segment | None = None
    checked: Segment | None = None
    reused: int = -1


class Publisher:
    def __init__(
        self,
        table: _control.ControlTable,
        segments: SegmentStore,
        plans: Plans,
        changed: Callable[[], None],
        added: Callable[[int, str], None],
    ) -> None:
        """`changed()` tells the workers, and collects what is no longer used. `added(plan, model)` comes before a plan is announced."""
        self._table = table
        self._segments = segments
        self._plans = plans
        self._changed = changed
        self._added = added

    def publish(self, model: Model, job: PlanStage, made: Made) -> Stage:
        """Takes over the descriptors that were received, and closes the plan's segment. What belongs to the model is put down there, but
        for the stage itself."""
        result, plan_segment = made.result, made.plan
        stage = _unpublished(job, made)
        if result.needs_values:
            if made.checked is not None:
                made.checked.close()
            return stage
        left = list(made.received)
        added: list[int] = []
        try:
            if plan_segment is None:
                plan_segment = self._checked(model, made)
            if made.reused >= 0:
                child_main.clear_arena(made.reused, plan_segment)
            owner = f"model {model.id}"
            new_weights: list[int] = []
            arenas: list[int] = []
            pieces: tuple[Borrowed, ...]
            while left:
                role, _, fd = left.pop()
                if role == "plan":
                    os.close(fd)
                    continue
                nbytes, pieces = os.fstat(fd).st_size, ()
                if role == "weights" and weight_files.is_file(fd):
                    left.append((role, nbytes, fd))  # to be closed as long as it is not taken over
                    nbytes, fd, pieces = weight_files.borrowed(fd)
                    left.pop()
                segment = self._segments.add(role, nbytes, fd, owner, pieces)
                added.append(segment)
                (new_weights if role == "weights" else arenas).append(segment)
            plan = self._segments.add("plan", plan_segment.nbytes, os.dup(plan_segment.fd), owner)
            added.append(plan)
            weight_segments = model.weight_segments + new_weights[::-1]
            number, generation = self._table.add_plan(plan, [weight_segments[i] for i in result.weights], arenas)
        except BaseException:
            protocol.close_all([fd for _, _, fd in left])
            for segment in added:
                self._segments.drop(segment)
            self._changed()
            raise
        finally:
            if plan_segment is not None:
                plan_segment.close()
        self._plans.add(number, generation, model, plan)
        self._added(number, model.name)
        model.weight_segments = weight_segments
        model.weights.update({key: (segment, offset) for key, segment, offset in result.packed})
        model.digest = result.digest or model.digest
        model.files.update(result.files)
        self._changed()
        stage.answer = msgspec.structs.replace(stage.answer, plan=number, generation=generation)
        stage.segments = [plan, *arenas]
        return stage

    def _checked(self, model: Model, made: Made) -> Segment:
        """The plan that a planning child has sent, in a segment that the child cannot reach."""
        sizes = [self._segments[segment].nbytes for segment in model.weight_segments]
        sizes += [os.fstat(fd).st_size for role, _, fd in made.received if role == "weights"]
        arena_sizes = [os.fstat(fd).st_size for role, _, fd in made.received if role == "arena"]
        sent = next(item for item in made.received if item[0] == "plan")
        return child_main.checked_plan(sent, made.result, [sizes[i] for i in made.result.weights], arena_sizes, made.checked)

    def drop(self, model: Model, key: bytes) -> None:
        """Requests that run on the plan go on to their ends."""
        stage = model.stages.pop(key)
        model.ranges.drop(key)
        if stage.answer.plan:
            self._table.drop_plan(stage.answer.plan)
            self._changed()


def _unpublished(job: PlanStage, made: Made) -> Stage:
    """The stage before its plan has a number: as it stays where values must be known before there can be one."""
    result = made.result
    answer = protocol.Planned(
        id=0,
        plan=0,
        generation=0,
        region=result.region,
        inputs=result.inputs,
        outputs=result.outputs,
        needs_values=result.needs_values,
        last=result.last,
        dynamic=result.dynamic,
        instances=sum(role == "arena" for role, _, _ in made.received),
        often=often(result.work_ns / max(len(job.speeds), 1)),
    )
    return Stage(
        answer,
        segments=[],
        job=job,
        stretched=result.stretched,
        rigid=result.rigid,
        cached=made.plan is not None,
        searched=job.search,
        behind=len(job.stages) > 1,
        speeds=job.speeds,
    )
