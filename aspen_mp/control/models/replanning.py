"""Chooses the plan that is made again in the background.

It is in use, but was made for other cores or without a search, or has long tiles beside requests of a higher class.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import msgspec

from aspen_mp.control.models.plans import Model, Plan
from aspen_mp.control.planning.planner_child import Limits
from aspen_mp.control.pool.core_speeds import alike
from aspen_mp.planner.job.options import LEAST_SEARCHED_NS
from aspen_mp.shm.bindings import _control
from aspen_mp.system import clock

SERVED_OFTEN: Final = 64
SERVED_NS: Final = 2e9
SERVED_LEAST: Final = 4
"""Requests after which a plan is searched that was not searched at first because somebody was waiting for it. If requests are long, fewer
suffice: as many as take `SERVED_NS`, but at least `SERVED_LEAST`. Shapes that come as often get a plan of their own beside a bucket's."""
REPLAN_S: Final = 20.0
"""Shortest pause before a plan is made again, in s: making it takes about a second of a core. The pause doubles with each failure."""
MOST_REPLAN_S: Final = 3600.0
"""Longest pause after failures, in s."""
REPLAN_NICE: Final = 10
"""Niceness of the processes that make plans again: requests come first."""
REPLAN_PATIENCE: Final = 10.0
"""How many times as long as other planning children they may say nothing, because they get the time that requests leave."""


def often(request_ns: float) -> int:
    """Return after how many requests of about this length a plan is worth more effort."""
    return int(min(max(SERVED_NS / request_ns, SERVED_LEAST), SERVED_OFTEN)) if request_ns > 0 else SERVED_OFTEN


def patient(limits: Limits) -> Limits:
    """Return the limits of a planning child that makes plans again, given those of others."""
    return replace(limits, patience_s=REPLAN_PATIENCE * limits.patience_s, nice=REPLAN_NICE)


def choose(models: Iterable[Model], table: _control.ControlTable, speeds: list[float], preempt_ms: float = 0.0) -> Plan | None:
    """Return the plan to make next, if there is one: the successor of a live plan, or a plan that waits for its turn.

    There is none while any plan is being made. A plan that has served nothing since the last call is left alone. `preempt_ms`: see
    `PlanningSetup`.
    """
    models = list(models)
    if any(model.begun for model in models):
        return None
    return _successor(models, table, speeds, preempt_ms) or _often_asked_for(models, speeds)


def _successor(models: list[Model], table: _control.ControlTable, speeds: list[float], preempt_ms: float) -> Plan | None:
    """Return a successor of the outdated plan that has served most of late. Plans that delay a higher class are replaced first."""
    now = clock.monotonic()
    outdated: list[tuple[bool, int, Plan]] = []
    for plan in (plan for model in models for plan in model.live.values()):
        if not plan.answer.plan or plan.answer.dynamic or plan.model.request.planning.tiles is not None:
            continue  # there are no tiles to choose
        replans = plan.replans
        there = table.plan(plan.answer.plan)
        served, long = there["served"], there["beside"] > 0 and _cuttable(plan, preempt_ms)
        pause = min(REPLAN_S * 2.0 ** min(replans.failed, 16), MOST_REPLAN_S)
        due = not alike(plan.job.speeds, speeds) or (in_haste(plan, speeds) and served >= plan.answer.often)
        waited = now - replans.last_at >= pause
        if served > replans.served and ((due and waited) or (long and (waited or not replans.failed))):
            outdated.append((long, served - replans.served, plan))
        replans.served = served
    if not outdated:
        return None
    long, _, plan = max(outdated, key=lambda item: item[:2])
    plan.replans.last_at = now
    limit = preempt_ms if long else plan.job.longest_ms
    # The plan cache has the plans that are best alone: other runtimes may have no such requests.
    job = msgspec.structs.replace(plan.job, speeds=speeds, search=True, recurs=True, keep=not limit, longest_ms=limit, spares=[])
    return Plan(plan.model, plan.live_key, job, background=True)


def in_haste(plan: Plan, speeds: list[float]) -> bool:
    """Whether a plan may be better made again: it has fewer instances than the model, or tiles that a search may improve."""
    return not plan.job.recurs or (not plan.job.search and searchable(plan.work_ns, speeds))


def searchable(work_ns: float, speeds: list[float]) -> bool:
    """Whether a search may find better tiles."""
    return len(speeds) > 1 and work_ns >= LEAST_SEARCHED_NS


def _cuttable(plan: Plan, preempt_ms: float) -> bool:
    """Whether a plan's tiles delay a higher class too long, and nobody has set or tried another length."""
    asked = plan.model.request.planning.longest_ms
    return bool(preempt_ms) and asked is None and not plan.job.longest_ms and plan.longest_ns > preempt_ms * 1e6


def _often_asked_for(models: list[Model], speeds: list[float]) -> Plan | None:
    """Return a plan for shapes that come often and waits for its turn: its tiles are searched and fit these shapes."""
    plan = next((plan for model in models for plan in model.making.values()), None)
    if plan is not None:
        plan.job.speeds = speeds
    return plan
