"""Plans with a few numbers changed: `validate` refuses them, or no tile leaves its memory when they are executed.

The bases are plans of onnx's backend tests, so that every kernel occurs, and of small networks that become stacks. What passes is executed
with guard pages around every segment; a fault is a finding, and so is a plan that a worker's own check refuses although `validate` did not.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from fuzz_models import bases, feeds_for
from fuzzing import Finding, numbers
from guard_pages import guarded

from aspen_mp.bench import models
from aspen_mp.planner import api
from aspen_mp.planner.frontends.binding.bind import Binding
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.planner.plan.validate import validate
from aspen_mp.shm.errors import AspenError, PlanError
from aspen_mp.shm.extents import word
from aspen_mp.shm.tables import KERNELS, LIMITS, NUMBER, NUMBER_TABLES, OP, OPERAND, PLAN_HEADER, SPACES, TILE, VALUE, VALUE_KINDS
from aspen_mp.workers._dse import PlanRunner

U32 = np.dtype("<u4")
MOST = 1 << 26
"""Bytes of a space beyond which a plan is checked, not executed."""


STACKS = ("pool_blocks", "depthwise_chain", "sppf", "inception_pools", "poolformer", "mobilenet_v2")
"""Networks of layers that run depth first."""
OFTEN = 12
"""As often as so many of the backend's each."""


@lru_cache
def stacks() -> list[tuple[str, bytes]]:
    """Serialised small networks."""
    return [(name, models.build(name, **models.miniature(name)).SerializeToString()) for name in STACKS]


@lru_cache(maxsize=64)
def base(k: int) -> Plan | None:
    """A plan of the k-th model; None where it has none of tiles alone. Behind those of the backend come networks with stacks."""
    name, data = bases()[k] if k < len(bases()) else stacks()[k % len(STACKS)]
    try:
        opened = api.load(data)
        feeds = feeds_for(opened.signature, np.random.default_rng(0))
        if feeds is None:
            return None
        stage = api.plan_stage(
            opened, [{n: Binding(x.dtype, x.shape, x if x.dtype.kind in "iu" else None) for n, x in feeds.items()}], workers=2
        )
    except AspenError:
        return None
    plan = stage.plan
    if plan is None or stage.kind != "static" or (plan.ops["kernel"] == KERNELS["OPAQUE"].code).any():
        return None
    plan.place_weights(plan.default_directory()[0])
    plan.name = name
    return plan


def stretched(plan: Plan, rng: np.random.Generator) -> Plan:
    """The same for ranges of two extents, at all of which it is what it was: nothing follows from its values until one is changed."""
    movable = np.flatnonzero((plan.operands["dtype"] != 0) & (plan.operands["space"] < SPACES["WEIGHTS"]))
    kinds = VALUE_KINDS
    values = [(kinds["FLOOR"], 0, 0, 0, 3, 1, 2), (kinds["PRODUCT"], 1, 2, 0, 0, 0, 1), (kinds["SUM"], 0, 3, 0, 2, 1, 1)]
    rows = []
    for at in rng.permutation(movable)[:8].tolist():
        for axis in range(int(plan.operands["rank"][at])):
            rows += [(NUMBER_TABLES["DIM"], int(rng.integers(5)), at * LIMITS["rank"] + axis, 0)]
            if plan.operands["strides"][at, axis] >= 0:
                rows += [(NUMBER_TABLES["STRIDE"], int(rng.integers(5)), at * LIMITS["rank"] + axis, 0)]
        rows += [(NUMBER_TABLES["OFFSET"], int(rng.integers(5)), at, 0)]
    rows += [(NUMBER_TABLES["PARAM"], int(rng.integers(5)), k, 0) for k in range(min(len(plan.params), 8))]
    return replace(plan, values=np.array(values, VALUE), numbers=np.array(rows, NUMBER), least=(2, 3), most=(7, 6))


def arrays(raw: bytearray) -> dict[str, Any]:
    header = np.frombuffer(raw, PLAN_HEADER, 1)
    h = header[0]
    n = int(h["n_tiles"])
    kinds = {
        "ops": (OP, h["n_ops"]),
        "operands": (OPERAND, h["n_operands"]),
        "params": (np.dtype("<i8"), h["n_params"]),
        "tiles": (TILE, n),
        "children": (U32, h["n_children"]),
        "parent_counts": (U32, n),
        "parent_begin": (U32, n + 1),
        "parents": (U32, h["n_children"]),
        "initial": (U32, h["n_initial"]),
        "values": (VALUE, h["n_values"]),
        "numbers": (NUMBER, h["n_numbers"]),
    }
    found = {name: np.frombuffer(raw, dtype, int(count), int(h[name])) for name, (dtype, count) in kinds.items()}
    return {"header": header, **{name: array for name, array in found.items() if len(array)}}


def put(array: Any, at: tuple[int, ...], value: int) -> None:
    """Stores modulo the type's width."""
    bits = 8 * array.dtype.itemsize
    value %= 1 << bits
    if array.dtype.kind == "f":
        array[at] = value
    elif array.dtype.kind == "i" and value >= 1 << (bits - 1):
        array[at] = value - (1 << bits)
    else:
        array[at] = value


def change(rng: np.random.Generator, places: dict[str, Any]) -> str:
    """One number, near its old value, equal to a neighbour's, or extreme; what it was."""
    shares = {"operands": 6.0, "values": 8.0, "numbers": 12.0, "params": 3.0, "tiles": 3.0, "ops": 2.0}
    names = list(places)
    weights = np.array([shares.get(n, 1.0) for n in names])
    name = names[int(rng.choice(len(names), p=weights / weights.sum()))]
    array = places[name]
    k = int(rng.integers(len(array)))
    what = name
    if array.dtype.names:
        # Of an operand's or box's axes the first are in use.
        column = str(rng.choice([c for c in array.dtype.names if not c.startswith("reserved") or rng.random() < 0.05]))
        array, what = array[column], f"{name}.{column}"
    at: tuple[int, ...] = (k, *(int(n * rng.random() ** 2) for n in array.shape[1:]))
    old = int(array[at])
    kind = rng.random()
    if kind < 0.45:
        value = old + int(rng.choice([-64, -32, -8, -4, -2, -1, 1, 2, 4, 8, 32, 64]))
    elif kind < 0.6:
        value = int(array[(int(rng.integers(len(array))), *at[1:])])
    elif kind < 0.7:
        value = old * int(rng.choice([-1, 2, 3]))
    else:
        value = numbers(rng)
    put(array, at, value)
    return f"{what}[{', '.join(map(str, at))}]: {old} → {value}"


def run(raw: bytearray, plan: Plan) -> str:
    """Executes an accepted plan."""
    header = np.frombuffer(raw, PLAN_HEADER, 1)[0]
    sizes = [int(header[name]) for name in ("arena_bytes", "request_bytes")] + [
        int(n) for n in header["weights_bytes"][: header["n_weights"]]
    ]
    if max(sizes, default=0) > MOST or int(header["scratch_bytes"]) > MOST:
        return "large"
    if (np.frombuffer(raw, OP, int(header["n_ops"]), int(header["ops"]))["kernel"] == KERNELS["OPAQUE"].code).any():
        return "opaque"  # its sub-graph would be numpy's to read
    segment = guarded(len(raw))
    segment[: len(raw)] = np.frombuffer(raw, np.uint8)
    arena, request, *weights = (guarded(n) for n in sizes)
    for item in plan.weights:
        at = plan.default_directory()[0][item.key][1]
        if weights and at + item.nbytes <= len(weights[0]):
            item.write(memoryview(weights[0])[at : at + item.nbytes])
    request[:] = np.frombuffer(np.random.default_rng(1).integers(-2, 3, len(request) // 8 + 1).astype(np.int64).tobytes(), np.uint8)[
        : len(request)
    ]
    n = int(header["n_extents"])
    ends = list(zip(header["least"][:n].tolist(), header["most"][:n].tolist(), strict=True))
    middles = [{least, min(least + 1, most), (least + most) // 2, most} for least, most in ends]
    try:
        runner = PlanRunner(segment, weights, arena, request, extent=word([most for _, most in ends]))
        failed = False
        for extents in sorted(product(*middles)):
            runner.move(word(extents))
            failed |= runner.run("fifo") != 0
        return "failed" if failed else "executed"
    except PlanError as error:
        raise Finding(f"validate() accepts what a worker refuses: {error}") from error


def case(seed: int) -> str:
    rng = np.random.default_rng(seed)
    plan = None
    while plan is None:
        plan = base(int(rng.integers(len(bases()) + OFTEN * len(STACKS))))
    if rng.random() < 0.3:
        plan = stretched(plan, rng)
    raw = bytearray(plan.segment())
    places = arrays(raw)
    done = [change(rng, places) for _ in range(int(rng.choice([1, 1, 2, 3])))]
    what = f"{plan.name}: {'; '.join(done)}"
    try:
        validate(raw)
    except PlanError as error:
        if not str(error).startswith("plan "):
            raise Finding(f"{what}: {error}") from error
        return "refused"
    except Exception as error:
        error.add_note(what)
        raise
    try:
        return run(raw, plan)
    except Finding as error:
        raise Finding(f"{what}: {error}") from error
