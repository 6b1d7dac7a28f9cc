"""Keeps the loaded models: who uses them, and when they go with all that they hold.

A model that several clients load with the same options from an unchanged file is one model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, assert_never

import msgspec

from aspen_mp.control.memory import weight_files
from aspen_mp.control.memory.resources import Resources
from aspen_mp.control.models import replanning
from aspen_mp.control.models.arena_pool import ArenaPool
from aspen_mp.control.models.plan_builder import PlanningSetup
from aspen_mp.control.models.plan_machine import CHECKED, Checks, EventQueue, Machine
from aspen_mp.control.models.plan_requests import PlanRequests
from aspen_mp.control.models.plan_states import (
    Asked,
    Collected,
    Drop,
    Failed,
    HandOver,
    Left,
    ModelEffect,
    ModelEvent,
    Read,
    Refuse,
    Twin,
    Wait,
    Welcome,
    WelcomeAll,
    model_transition,
)
from aspen_mp.control.models.plans import Asker, Model, ModelState, Plan, not_loaded, report
from aspen_mp.control.models.published_plans import Plans
from aspen_mp.control.models.publishing import Publisher
from aspen_mp.control.models.schedules import Live, live_plan
from aspen_mp.control.planning import child_main
from aspen_mp.control.planning.local_rates import instructions
from aspen_mp.control.planning.planner_child import Inspect as InspectJob
from aspen_mp.control.planning.planner_child import Inspected, Job, PlannerChild, StagePlanned
from aspen_mp.control.planning.shape_buckets import Range
from aspen_mp.control.wire import protocol
from aspen_mp.shm.bindings._control import MODEL_COUNTS
from aspen_mp.shm.errors import AspenError, PlanError, RequestError, RuntimeLost
from aspen_mp.shm.segments import Segment
from aspen_mp.system import descriptors


class ModelStore:
    def __init__(
        self,
        resources: Resources,
        setup: PlanningSetup,
        changed: Callable[[], None],
        added: Callable[[int, str], None],
        plans_bytes: int = 0,
        queue: EventQueue | None = None,
    ) -> None:
        """Make an empty store.

        `changed()` publishes, and collects what is no longer used. `added(plan, model)` comes before a plan is announced. `plans_bytes`:
        what plans may hold; 0: by what is free. `queue`: for the events of models and plans; None: a new one.
        """
        self._queue = queue = queue or EventQueue(Checks() if CHECKED else None)
        self._machine: Machine[Model, ModelEvent, ModelEffect] = Machine(queue, model_transition, self.carry_out, resources.event_log)
        self._event_log = resources.event_log
        self._loop, self._table, self._segments = resources.loop, resources.table, resources.segments
        self._setup = setup
        self._changed = changed
        self._models: dict[int, Model] = {}
        self._by_key: dict[tuple[Any, ...], Model] = {}
        self._next = 1
        self._leaving_weights: dict[int, list[int]] = {}
        self.plans = Plans(self._loop, self._segments, lambda plan: self._requests.send(plan, Collected()))
        publisher = Publisher(resources, self.plans, changed, added)
        self._requests = PlanRequests(resources, setup, publisher, self._models, plans_bytes, queue)

    def send(self, model: Model, event: ModelEvent) -> None:
        """Tell a model's machine what has happened."""
        self._machine.send(model, event)

    def carry_out(self, model: Model, effect: ModelEffect) -> None:
        match effect:
            case Wait():
                self.wait(model, effect.asker)
            case Welcome():
                self.welcome(model, effect.asker)
            case WelcomeAll():
                self.welcome_all(model, effect.result)
            case HandOver():
                self.hand_over(model, effect.other)
            case Refuse():
                self.refuse(model, effect.error)
            case Drop():
                self.drop(model)
            case _:
                assert_never(effect)

    # ---- loading

    def load(self, message: protocol.Load, fds: list[int], asker: Asker) -> None:
        """Answer with `Loaded`, at once if the same model is there already. This takes over `fds`."""
        try:
            source, key = _source(message, fds)
        except BaseException:
            protocol.close_all(fds)
            raise
        model = self._by_key.get(key) if key[0] == "path" else None
        if model is not None and not model.source.changed():
            self.send(model, Asked(asker))
            return
        model = self._new(message, source, key)
        self.send(model, Asked(asker))
        cache = self._setup.cache
        known = cache.model(source.path, source.touched) if cache is not None and source.path else None
        if known is not None:
            model.digest = known.digest
            self._inspected(model, Inspected(known.name, b"", known.inputs, known.outputs, known.files[1:]))
            return
        model.child.submit(
            Job(
                InspectJob(),
                lambda result, segments: self._inspected(model, result),
                lambda error: self.send(model, Failed(error)),
                lambda progress: report(model.waiting, progress),
            )
        )

    def _new(self, message: protocol.Load, source: child_main.ModelFile, key: tuple[Any, ...]) -> Model:
        number, self._next = self._next, self._next + 1
        name, setup = message.name or source.name, self._setup
        request = message.request.for_machine(instructions(), len(setup.speeds()))
        model = Model(number, key, source, request, ArenaPool(self._segments), name, message.share)
        serve = partial(child_main.serve, model, setup.cache, setup.rates)
        model.child = PlannerChild(self._loop, name, serve, source.keep, setup.prepare, setup.limits)
        model.background_child = PlannerChild(self._loop, name, serve, source.keep, setup.prepare, replanning.patient(setup.limits))
        self._models[number] = self._by_key[key] = model
        return model

    def _inspected(self, model: Model, result: Inspected | StagePlanned) -> None:
        assert isinstance(result, Inspected)
        model.source.external = result.external
        known = model
        if result.digest:
            known = self._by_key.setdefault(("digest", result.digest, *model.key[2:]), model)
            model.digest = result.digest
        if known is model:
            self.send(model, Read(result))
        else:
            self.send(model, Twin(known))

    def wait(self, model: Model, asker: Asker) -> None:
        model.waiting.append(asker)

    def welcome_all(self, model: Model, result: Inspected) -> None:
        model.loaded = protocol.Loaded(0, model.id, model.name or result.name, result.inputs, result.outputs, model.instances)
        self._by_key.pop(model.key, None)
        model.key = ("digest", result.digest, *model.key[2:]) if result.digest else model.key
        self._by_key[model.key] = model
        waiting, model.waiting = model.waiting, []
        for asker in waiting:
            self.welcome(model, asker)

    def welcome(self, model: Model, asker: Asker) -> None:
        assert model.loaded is not None
        model.users[asker.client] = model.users.get(asker.client, 0) + 1
        asker.send(msgspec.structs.replace(model.loaded, id=asker.request))

    def hand_over(self, model: Model, twin: Model) -> None:
        waiting, model.waiting = model.waiting, []
        for asker in waiting:
            self.send(twin, Asked(asker))

    def refuse(self, model: Model, error: AspenError) -> None:
        waiting, model.waiting = model.waiting, []
        for asker in waiting:
            asker.fail(model.about(error))

    def adopt(self, number: int, asker: Asker) -> None:
        """Answer with `Loaded` for a model that another client has loaded."""
        model = self._models.get(number)
        if model is None or model.state is not ModelState.LOADED:
            raise RequestError(
                f"model {number} is no longer loaded. Keep the model in the process that pickled it until the other process has used it"
            )
        self.send(model, Asked(asker))

    def check_loaded(self, numbers: Sequence[int], client: int) -> None:
        """Raise RequestError unless the client has these models loaded."""
        for number in numbers:
            if number not in self._models or client not in self._models[number].users:
                raise not_loaded(number)

    def live(self, number: int) -> list[Live]:
        """Return a model's plans that requests run on."""
        model = self._models.get(number)
        plans = [] if model is None else [plan for plan in model.live.values() if plan.segments]
        return [
            live_plan(plan.answer.plan, self._segments[plan.segments[0]].fd, self._table.plan(plan.answer.plan)["served"]) for plan in plans
        ]

    def lend(self, number: int, client: int) -> int:
        """Return a descriptor of the memfd that a model was loaded from, for reading. RequestError unless the memfd is sealed.

        Nobody can change a sealed one, so clients rely on it having the contents that they have loaded themselves.
        """
        model = self._models.get(number)
        if model is None or client not in model.users:
            raise not_loaded(number)
        if not model.source.sealed:
            raise RequestError(f"model {model.name!r} was not loaded from a sealed file in memory. Seal its memfd against writing first")
        return descriptors.open(f"/proc/self/fd/{model.source.fd}", os.O_RDONLY | os.O_CLOEXEC)

    # ---- plans

    def plan(self, message: protocol.MakePlan, asker: Asker) -> None:
        model = self._models.get(message.model)
        if model is None:
            raise not_loaded(message.model)
        self._look_at_weights(model)
        self._requests.ask(model, message, asker)

    def look_at_weights(self) -> None:
        """Look for weight files that were cut short, because something has happened to a request."""
        for model in list(self._models.values()):
            self._look_at_weights(model)

    def _look_at_weights(self, model: Model) -> None:
        """Stop using weights whose file was cut short. The model's plans go; clients ask for others, which get weights packed anew.

        The segments stay as long as the model does: they have no memory of their own.
        """
        lost = [
            number
            for number, segment in enumerate(model.weight_segments)
            if number not in model.lost and weight_files.torn(self._segments[segment])
        ]
        if not lost:
            return
        for number in lost:
            file = model.files.pop(number, None)
            model.lost[number] = "" if file is None or self._setup.cache is None else self._setup.cache.path_of(file)
            self._event_log.warning("weights-lost", model=model.name, file=model.lost[number], why="it was cut short while it was in use")
        model.weights = {key: place for key, place in model.weights.items() if place[0] not in model.lost}
        self._requests.retire_all(model)
        # The planning children know of the weights as they were.
        model.child.close(PlanError(f"model {model.name!r}: a file of its weights in the plan cache was cut short meanwhile; ask again"))
        self._requests.stop_background(model)
        model.background_child.close()

    def refresh(self) -> None:
        """Have a plan made again, if one should be."""
        self._requests.refresh()

    def spared(self, segments: set[int]) -> set[int]:
        """Return which of these unused segments are kept for other plans."""
        return {segment for model in self._models.values() for segment in model.spares.keep(segments)}

    def replace_arena(self, instance: int) -> None:
        """Replace an instance's arena by a new one, while all workers are stopped. ResourceLimitError where there is no memory."""
        old = self._table.instance(instance)["arena"]
        held = self._segments[old]
        with Segment.create("arena", held.nbytes) as arena:
            new = self._segments.add("arena", arena.nbytes, descriptors.dup(arena.fd), held.owner)
        self._table.replace_arena(instance, new)
        self._segments.forget(old)
        for model in self._models.values():
            model.spares.give_up(old)
            for plan in model.live.values():
                plan.segments = [new if segment == old else segment for segment in plan.segments]

    def relieve(self, then: Callable[[], None]) -> bool:
        """Have plans retired for memory: see `Eviction.relieve`."""
        return self._requests.eviction.relieve(then)

    # ---- unloading

    def unload(self, number: int, client: int) -> None:
        model = self._models.get(number)
        if model is None or client not in model.users:
            raise not_loaded(number)
        model.users[client] -= 1
        if not model.users[client]:
            self._forget_user(model, client)

    def client_gone(self, client: int) -> None:
        """Forget a client whose connection has ended, perhaps while it was being answered."""
        self._queue.later(partial(self._client_gone, client))

    def _client_gone(self, client: int) -> None:
        for model in list(self._models.values()):
            model.waiting = [asker for asker in model.waiting if asker.client != client]
            self._forget_user(model, client)

    def _forget_user(self, model: Model, client: int) -> None:
        model.users.pop(client, None)
        if not model.users and not model.waiting:
            self.send(model, Left())

    def drop(self, model: Model) -> None:
        """Give back all that a model holds: plans as soon as their last requests have ended, weights after them."""
        del self._models[model.id]
        if self._by_key.get(model.key) is model:
            del self._by_key[model.key]
        self._requests.give_up(model, AspenError("loading was cancelled"))
        model.background_child.retire()
        model.child.retire()
        model.spares.close()
        self.plans.unloaded(model)
        # Those of plans that have been replaced or dropped too: requests may still run on them.
        waits_for = self.plans.segments_of(model)
        self._weights_after(model.weight_segments, waits_for)
        self._requests.retire_all(model)
        model.source.close()
        self._changed()

    def _weights_after(self, weights: list[int], plans: set[int]) -> None:
        for segment in weights:
            if plans:
                self._leaving_weights[segment] = sorted(plans)
            else:
                self._segments.drop(segment)

    def collected(self, segments: set[int]) -> None:
        """Drop weights whose last plan is among these segments, which `collect` returned."""
        for weight, plans in list(self._leaving_weights.items()):
            plans[:] = [plan for plan in plans if plan not in segments]
            if not plans:
                del self._leaving_weights[weight]
                self._segments.drop(weight)
        self._requests.eviction.collected(segments)

    def close(self) -> None:
        """Give everything back at the end of the runtime. Clients that wait are told that the runtime is lost."""
        self._requests.close()
        self.plans.close()
        for model in list(self._models.values()):
            self._requests.stop_background(model)
            ended = RuntimeLost(f"the runtime ended while model {model.name!r} was being loaded or planned")
            model.background_child.close(ended)
            model.child.close(ended)
            model.source.close()
            model.spares.close()

    def names(self) -> dict[int, str]:
        """Return the names of models, by their numbers."""
        return {model.id: model.name for model in self._models.values()}

    def describe(self) -> list[dict[str, Any]]:
        """Return for `status` each model with its plans, their bytes, and what has become of its requests."""
        counts = self._table.model_counts()
        return [
            {
                "id": model.id,
                "name": model.name,
                "source": model.source.name,
                "state": model.state.value,
                "clients": len(model.users),
                "planning": len(model.begun),
                "doing": _doing(model),
                "share": model.share,
                "objective": model.request.objective,
                "precision": model.request.precision,
                "scheduled": counts.get(model.id) or dict.fromkeys(MODEL_COUNTS, 0),
                "weight_bytes": self._bytes(model.weight_segments),
                "made": asdict(model.made),
                "plans": [self._describe(plan) for plan in model.live.values() if plan.segments],
            }
            for model in self._models.values()
        ]

    def _describe(self, plan: Plan) -> dict[str, Any]:
        return {
            "plan": plan.answer.plan,
            "dynamic": plan.answer.dynamic,
            "cached": plan.cached,
            "searched": plan.job.search,
            "instances": len(plan.segments) - 1,
            "served": self._table.plan(plan.answer.plan)["served"],
            "inputs": {slot.name: list(slot.shape) for slot in plan.answer.inputs},
            "ranges": [] if plan.served_bucket is None else _ranges(plan.served_bucket.range),
            "bytes": self._bytes(plan.segments),
        }

    def _bytes(self, segments: list[int]) -> int:
        return sum(self._segments[segment].nbytes for segment in segments)


def _ranges(served: Range) -> list[tuple[int, int]]:
    """The smallest and the largest of each length that a plan serves."""
    return [(a * served.unit, b * served.unit) for a, b in zip(served.least, served.most, strict=True)]


def _doing(model: Model) -> dict[str, Any] | None:
    """Return how far a model's planning child is; None where it does nothing."""
    now = model.child.doing or model.background_child.doing
    return None if now is None else {"step": now.step, "done": now.done, "total": now.total}


def _source(message: protocol.Load, fds: list[int]) -> tuple[child_main.ModelFile, tuple[Any, ...]]:
    how = (message.request, message.share)
    if message.path:
        if fds or not os.path.isabs(message.path):
            raise RequestError("a model is an absolute path or one descriptor")
        source = child_main.ModelFile.from_path(message.path)
        return source, ("path", message.path, source.stamp, *how)
    if len(fds) != 1:
        raise RequestError("a model is an absolute path or one descriptor")
    source = child_main.ModelFile.from_fd(fds[0], message.name)
    return source, ("bytes", source.fd, *how)
