"""Puts plans into the control table, tells the workers, and takes them out again."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from aspen_mp.control.memory import weight_files
from aspen_mp.control.memory.resources import Resources
from aspen_mp.control.memory.segments import Borrowed
from aspen_mp.control.models import tile_names
from aspen_mp.control.models.plan_states import BuiltPlan
from aspen_mp.control.models.plans import Model, Plan
from aspen_mp.control.models.published_plans import Plans
from aspen_mp.control.models.replanning import often
from aspen_mp.control.planning import child_main
from aspen_mp.control.wire import protocol
from aspen_mp.shm.errors import PlanError
from aspen_mp.shm.segments import Segment
from aspen_mp.system import descriptors


class Publisher:
    def __init__(self, resources: Resources, plans: Plans, changed: Callable[[], None], added: Callable[[int, str], None]) -> None:
        """`changed()` tells the workers, and collects what is no longer used. `added(plan, model)` comes before a plan is announced."""
        self._table = resources.table
        self._segments = resources.segments
        self._plans = plans
        self._changed = changed
        self._added = added

    def publish(self, plan: Plan, built: BuiltPlan) -> None:
        """Record the result in the plan and its model, and add the plan to the control table.

        This takes over the received descriptors and closes the plan's segment. A plan that needs the values of inputs first gets no number.
        PlanError where a segment, such as a file of weights that somebody has cut, is shorter than was announced.
        """
        model, result = plan.model, built.result
        _describe(plan, built)
        if result.needs_values:
            if built.checked is not None:
                built.checked.close()
            return
        plan_segment, left = built.plan, list(built.received)
        added: list[tuple[str, int]] = []
        try:
            if plan_segment is None:
                plan_segment = self._checked(model, built)
            plan.longest_ns = tile_names.longest_ns(plan_segment.fd)
            memory, cores = tile_names.memory(plan_segment.fd)
            if built.reused >= 0:
                child_main.clear_arena(built.reused, plan_segment)
            owner = f"model {model.id}"
            while left:
                role, announced, fd = left[-1]
                nbytes, pieces = weight_files.whole(model.name, role, announced, fd), tuple[Borrowed, ...]()
                if role == "weights" and weight_files.is_file(fd):
                    nbytes, fd, pieces = weight_files.borrowed(fd, nbytes)
                left.pop()
                if role == "plan":
                    descriptors.close(fd)
                else:
                    added.append((role, self._segments.add(role, nbytes, fd, owner, pieces)))
            added.append(("plan", self._segments.add("plan", plan_segment.nbytes, descriptors.dup(plan_segment.fd), owner)))
            arenas = [segment for role, segment in added if role == "arena"]
            weight_segments = model.weight_segments + [segment for role, segment in added if role == "weights"][::-1]
            weights = [weight_segments[i] for i in result.weights]
            number, generation = self._table.add_plan(
                added[-1][1], weights, arenas, model=model.id, share=model.share, work_ns=result.work_ns, memory=memory
            )
        except BaseException:
            protocol.close_all([fd for _, _, fd in left])
            for _, segment in added:
                self._segments.drop(segment)
            self._changed()
            raise
        finally:
            if plan_segment is not None:
                plan_segment.close()
        plan.answer = msgspec.structs.replace(plan.answer, plan=number, generation=generation)
        plan.segments = [added[-1][1], *arenas]
        if memory:
            self._table.set_tokens(cores)
        self._plans.add(plan)
        self._added(number, model.name)
        model.weight_segments = weight_segments
        model.weights.update({key: (segment, offset) for key, segment, offset in result.packed})
        model.digest = result.digest or model.digest
        model.files.update(result.files)
        self._changed()

    def _checked(self, model: Model, built: BuiltPlan) -> Segment:
        """Return the plan that a planning child has sent, in a segment that the child cannot reach. PlanError where its answer does not fit
        what came along."""
        sizes = [self._segments[segment].nbytes for segment in model.weight_segments]
        sizes += [descriptors.fstat(fd).st_size for role, _, fd in built.received if role == "weights"]
        arena_sizes = [descriptors.fstat(fd).st_size for role, _, fd in built.received if role == "arena"]
        sent = next((item for item in built.received if item[0] == "plan"), None)
        if sent is None or not all(0 <= i < len(sizes) for i in built.result.weights):
            raise PlanError(f"model {model.name!r}: the answer of its planning process does not fit the segments that it sent")
        return child_main.checked_plan(sent, built.result, [sizes[i] for i in built.result.weights], arena_sizes, built.checked)

    def withdraw(self, plan: Plan) -> None:
        """Take the plan out of the control table. Requests that run on it go on to their ends."""
        self._table.drop_plan(plan.answer.plan)
        self._changed()


def _describe(plan: Plan, built: BuiltPlan) -> None:
    """Record what is known of a plan before it has a number."""
    result = built.result
    plan.answer = protocol.Planned(
        id=0,
        plan=0,
        generation=0,
        region=result.region,
        inputs=result.inputs,
        outputs=result.outputs,
        needs_values=result.needs_values,
        last=result.last,
        dynamic=result.dynamic,
        instances=sum(role == "arena" for role, _, _ in built.received),
        often=often(result.work_ns / max(len(plan.job.speeds), 1)),
    )
    plan.work_ns = result.work_ns
    plan.served_bucket, plan.no_bucket, plan.why, plan.cached = result.served_bucket, result.no_bucket, result.why, built.plan is not None
