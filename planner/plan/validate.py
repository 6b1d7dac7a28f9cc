"""Is a plan segment fit to be executed? Everything a worker would dereference, and the invariants that recovery relies on.

Checked in this order, each step trusting only what the ones before have shown: header and arrays; operands (within their space) and ops
(operands fit the kernel); tiles (a grid over each output); edges (parents the inverse of children, acyclic, END after everything); memory
(no op overwrites what it reads, recycled bytes have their anti-dependencies). In the plan of a shape bucket all of that but the edges
holds at its smallest extents and at some between as well. `PlanError` names field, value and bound.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.layout.strides import Run, dense, overlap, same
from aspen_mp.planner.ops.call import Arg, Call, Misfit
from aspen_mp.planner.ops.spec import OPAQUE, SILENT
from aspen_mp.planner.ops.streams.reach import LINE
from aspen_mp.planner.ops.streams.reach import NAME as REACH
from aspen_mp.planner.ops.streams.thresholds import MOVED, REFRESH
from aspen_mp.planner.ops.table import check_call
from aspen_mp.planner.plan import extents
from aspen_mp.planner.plan.memory import EXACT_TILES
from aspen_mp.planner.plan.plan import MAGIC, SEGMENT_FIRST, VERSION
from aspen_mp.planner.plan.plan_head import refuse
from aspen_mp.planner.plan.shape_bucket import Extents
from aspen_mp.shm.errors import PlanError
from aspen_mp.shm.extents import FLOOR, MOST_EXTENTS, PRODUCT, SUM, room
from aspen_mp.shm.tables import (
    DTYPE_BYTES,
    DTYPES,
    KERNEL_BY_CODE,
    KERNELS,
    LAYOUT_HASH,
    LIMITS,
    NUMBER,
    NUMBER_TABLES,
    NUMBERS,
    OP,
    OPERAND,
    PLAN_HEADER,
    ROLES,
    SPACES,
    TILE,
    VALUE,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Buffer

Array = npt.NDArray[Any]
ALIGN = 64
U32 = np.dtype("<u4")
I64 = np.dtype("<i8")
MAX_SEGMENT = 1 << 46
"""No space is larger than what a process can map."""
LONGEST_AXIS = 1 << 40
STEEPEST = 1 << 40
MAX_SCRATCH = 1 << 30
"""Every worker has this much for itself."""
NONE, OBJECT = DTYPES["NONE"], DTYPES["OBJECT"]
PART_BYTES = 8 * LIMITS["tile_axes"]
"""The bytes of the part of a tile."""
JOIN_CODE, END_CODE, OPAQUE_CODE, REACH_CODE = (KERNELS[k].code for k in (*SILENT, OPAQUE, REACH))


def validate(segment: Buffer) -> None:
    """Raises PlanError unless `segment` (a plan segment, possibly followed by unused bytes) may be published to workers."""
    view = _Segment.open(segment)
    _check_operands(view)
    _check_ops(view)
    _check_tiles(view)
    _check_parts(view)
    _check_bucket(view)
    order = _check_edges(view)
    above = _common_ancestors(view, order)
    _check_memory(view, above)
    for smaller in _smaller(view):
        _check_extents(view, smaller, above)


@dataclass(slots=True)
class _Segment:
    """The arrays of a plan segment, in bounds."""

    header: Any
    ops: Array
    operands: Array
    params: Array
    tiles: Array
    children: Array
    parent_counts: Array
    parent_begin: Array
    parents: Array
    initial: Array
    values: Array
    numbers: Array
    op_kernel: list[str]
    op_operands: list[tuple[int, int, int]]
    """(first operand, outputs, inputs) of each op."""

    @property
    def least(self) -> Extents:
        return tuple(self.header["least"][: self.header["n_extents"]])

    @property
    def most(self) -> Extents:
        return tuple(self.header["most"][: self.header["n_extents"]])

    def rows(self) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        """(dtype, dims, strides) of each operand."""
        o = self.operands
        columns = (o[name].tolist() for name in ("dtype", "rank", "dims", "strides"))
        return [(dtype, tuple(d[:rank]), tuple(s[:rank])) for dtype, rank, d, s in zip(*columns, strict=True)]

    def forms(self) -> list[int]:
        """A number for each operand, the same for those that differ in where they are alone."""
        rows = self.operands.copy()
        rows["space"], rows["offset"] = 0, 0
        raw, size = rows.tobytes(), rows.itemsize
        numbers: dict[bytes, int] = {}
        return [numbers.setdefault(raw[at : at + size], len(numbers)) for at in range(0, len(raw), size)]

    @classmethod
    def open(cls, segment: Buffer) -> _Segment:
        raw = memoryview(segment).cast("B")
        if raw.nbytes < PLAN_HEADER.itemsize:
            refuse("bytes", raw.nbytes, f"the header alone has {PLAN_HEADER.itemsize}")
        header = np.frombuffer(raw, PLAN_HEADER, 1)[0]
        h = {name: header[name].tolist() for name in PLAN_HEADER.names or ()}
        for name, want in (("magic", MAGIC), ("layout", LAYOUT_HASH), ("role", ROLES["plan"]), ("version", VERSION)):
            if h[name] != want:
                refuse(f"header.{name}", h[name], f"this build has {want}")
        if not PLAN_HEADER.itemsize <= h["bytes"] <= raw.nbytes:
            refuse("header.bytes", h["bytes"], f"there are {raw.nbytes}")
        if h["n_tiles"] < 1:
            refuse("header.n_tiles", h["n_tiles"], "there is at least the END tile")
        if h["n_weights"] > LIMITS["weights"]:
            refuse("header.n_weights", h["n_weights"], f"at most {LIMITS['weights']}")
        _check_spaces(h)
        n = h["n_tiles"]
        sizes = {
            "ops": (OP, h["n_ops"]),
            "operands": (OPERAND, h["n_operands"]),
            "params": (I64, h["n_params"]),
            "tiles": (TILE, n),
            "children": (U32, h["n_children"]),
            "parent_counts": (U32, n),
            "parent_begin": (U32, n + 1),
            "parents": (U32, h["n_children"]),
            "initial": (U32, h["n_initial"]),
            "consts": (np.dtype("u1"), h["consts_bytes"]),
            "blobs": (np.dtype("u1"), h["blobs_bytes"]),
            "values": (VALUE, h["n_values"]),
            "numbers": (NUMBER, h["n_numbers"]),
        }
        arrays, spans = {}, []
        for name, (dtype, count) in sizes.items():
            begin, end = h[name], h[name] + count * dtype.itemsize
            if begin % ALIGN:
                refuse(f"header.{name}", begin, f"must be a multiple of {ALIGN}")
            if begin < PLAN_HEADER.itemsize or end > h["bytes"]:
                refuse(f"header.{name}", f"{begin} … {end}", f"the segment ends at {h['bytes']}")
            arrays[name] = np.frombuffer(raw, dtype, count, begin)
            if count:
                spans.append((begin, end, name))
        spans.sort()
        for (_, end, first), (begin, _, second) in pairwise(spans):
            if begin < end:
                refuse(f"header.{second}", begin, f"{first} ends at {end}")
        del arrays["consts"], arrays["blobs"]
        return cls(header=h, op_kernel=[], op_operands=[], **arrays)


def _check_spaces(h: dict[str, Any]) -> None:
    n = h["n_tiles"]
    at = SEGMENT_FIRST
    for name, size in (("arena_counters", 4 * n), ("arena_executed", 4 * n), ("arena_next", 8 * n), ("arena_data", 0)):
        if h[name] % ALIGN or h[name] < at:
            refuse(f"header.{name}", h[name], f"a multiple of {ALIGN} from {at} on")
        at = h[name] + size
    for name, most in (("arena_bytes", MAX_SEGMENT), ("request_bytes", MAX_SEGMENT), ("scratch_bytes", MAX_SCRATCH)):
        if h[name] > most:
            refuse(f"header.{name}", h[name], f"at most {most}")
    if h["arena_bytes"] < at:
        refuse("header.arena_bytes", h["arena_bytes"], f"its parts end at {at}")
    for k, size in enumerate(h["weights_bytes"]):
        if size > (MAX_SEGMENT if k < h["n_weights"] else 0):
            refuse(f"header.weights_bytes[{k}]", size, f"{h['n_weights']} weight segments of at most {MAX_SEGMENT} bytes")


def _first(mask: npt.NDArray[np.bool_]) -> int | None:
    """Where a check fails first."""
    return int(np.argmax(mask)) if mask.any() else None


# ---------------------------------------------------------------------------------------------------------------- operands


def _check_operands(s: _Segment) -> None:
    o, h = s.operands, s.header
    weights = SPACES["WEIGHTS"]
    spaces = [(h["arena_data"], h["arena_bytes"]), (0, h["request_bytes"]), (h["consts"], h["consts"] + h["consts_bytes"])]
    spaces += [(SEGMENT_FIRST, h["weights_bytes"][k]) for k in range(h["n_weights"])]
    assert [SPACES[k] for k in ("ARENA", "REQUEST", "PLAN")] == [0, 1, 2]
    assert weights == 3
    for name, bound in (("space", len(spaces) - 1), ("dtype", max(DTYPE_BYTES)), ("rank", LIMITS["rank"])):
        if (k := _first(o[name] > bound)) is not None:
            refuse(f"operands[{k}].{name}", o[name][k], f"at most {bound}")
    if (k := _first((o["flags"] != 0) | (o["reserved"] != 0))) is not None:
        refuse(f"operands[{k}].flags", o["flags"][k], "must be 0")
    present = o["dtype"] != NONE
    axis = np.arange(LIMITS["rank"]) < o["rank"][:, None]
    dims, strides = np.where(axis, o["dims"], 1), np.where(axis, o["strides"], 0)
    if (k := _first(np.asarray(((dims < 0) | (dims >= LONGEST_AXIS)).any(axis=1)))) is not None:
        refuse(f"operands[{k}].dims", dims[k].tolist(), f"at least 0 and less than {LONGEST_AXIS}")
    items = np.array([DTYPE_BYTES.get(c, 1) for c in range(max(DTYPE_BYTES) + 1)], np.int64)[o["dtype"]]
    # In floating point first: what passes that cannot wrap in 64 bits. Kernels multiply the strides of short axes, too.
    reach = (np.maximum(dims - 1, 1).astype(float) * np.abs(strides.astype(float))).sum(axis=1) * items + np.abs(o["offset"].astype(float))
    elements = np.prod(np.maximum(dims, 1).astype(float), axis=1) * items
    for what, size in (("offset", reach), ("dims", elements)):
        if (k := _first(present & np.asarray(size > MAX_SEGMENT))) is not None:
            refuse(f"operands[{k}].{what}", o[what][k].tolist(), f"reaches beyond {MAX_SEGMENT} bytes")
    steps = (dims - 1) * strides
    low = o["offset"] + np.where(steps < 0, steps, 0).sum(axis=1) * items
    high = o["offset"] + np.where(steps > 0, steps, 0).sum(axis=1) * items + items
    some = present & (dims > 0).all(axis=1)
    bounds = np.array(spaces, np.int64)[o["space"]]
    if (k := _first(some & ((low < bounds[:, 0]) | (high > bounds[:, 1])))) is not None:
        refuse(f"operands[{k}].offset", f"bytes {low[k]} … {high[k]}", f"its space has {bounds[k, 0]} … {bounds[k, 1]}")
    if (k := _first(some & (o["offset"] % np.maximum(items, 1) != 0) & (o["dtype"] != OBJECT))) is not None:
        refuse(f"operands[{k}].offset", o["offset"][k], f"must be a multiple of {items[k]}")
    plain = (o["dtype"] == OBJECT) & ((o["rank"] != 1) | ((strides[:, 0] != 1) & (dims[:, 0] > 1)))
    if (k := _first(plain)) is not None:
        refuse(f"operands[{k}].rank", o["rank"][k], "an OBJECT operand is one run of bytes")


# --------------------------------------------------------------------------------------------------------------------- ops


def _check_ops(s: _Segment) -> None:
    o, h = s.ops, s.header
    if (k := _first(~np.isin(o["kernel"], list(KERNEL_BY_CODE)))) is not None:
        refuse(f"ops[{k}].kernel", o["kernel"][k], f"the last one is {max(KERNEL_BY_CODE)}")
    kernels = [KERNEL_BY_CODE[code] for code in o["kernel"].tolist()]
    some = 1, LIMITS["operands"]
    unlike = {JOIN_CODE: (0, 0), END_CODE: (0, 0), OPAQUE_CODE: some}
    unlike |= {kernel.code: some for kernel in set(kernels) if kernel.n_outputs == NUMBERS["ANY_OUTPUTS"]}
    of_kernel = {
        kernel.code: (*unlike.get(kernel.code, (kernel.n_outputs,) * 2), kernel.min_inputs, kernel.max_inputs, kernel.n_params)
        for kernel in set(kernels)
    }
    bounds = np.array([of_kernel[kernel.code] for kernel in kernels], np.int64).reshape(-1, 5)
    for what, low, high in (("n_outputs", bounds[:, 0], bounds[:, 1]), ("n_inputs", bounds[:, 2], bounds[:, 3])):
        if (k := _first((o[what] < low) | (o[what] > high))) is not None:
            refuse(f"ops[{k}].{what}", o[what][k], f"{kernels[k].name} has {low[k]} … {high[k]}")
    wide = {name: o[name].astype(np.int64) for name in ("operand", "n_outputs", "n_inputs", "param", "n_params")}
    total = wide["n_outputs"] + wide["n_inputs"]
    if (k := _first((total > LIMITS["operands"]) | (wide["operand"] + total > h["n_operands"]))) is not None:
        there = f"there are {h['n_operands']}, at most {LIMITS['operands']} for an op"
        refuse(f"ops[{k}].operand", f"{wide['operand'][k]} + {total[k]}", there)
    unlike_params = (wide["n_params"] != bounds[:, 4]) & (bounds[:, 4] != NUMBERS["ANY_PARAMS"])
    if (k := _first(unlike_params | (wide["param"] + wide["n_params"] > h["n_params"]))) is not None:
        refuse(f"ops[{k}].n_params", o["n_params"][k], f"{kernels[k].name} has {bounds[k, 4]}, in an array of {h['n_params']}")
    for what in ("name", "blob"):
        ends = o[what].astype(np.int64) + o[f"{what}_bytes"]
        if (k := _first(ends > h["blobs_bytes"])) is not None:
            refuse(f"ops[{k}].{what}", f"{o[what][k]} + {o[f'{what}_bytes'][k]}", f"there are {h['blobs_bytes']} bytes")
    if (k := _first((o["kernel"] == OPAQUE_CODE) != (o["blob_bytes"] > 0))) is not None:
        refuse(f"ops[{k}].blob_bytes", o["blob_bytes"][k], "OPAQUE ops, and only they, have a sub-graph")
    for what in ("cost_ns", "flops", "cold_bytes"):
        if (k := _first(~((o[what] >= 0) & (o[what] < np.inf)))) is not None:
            refuse(f"ops[{k}].{what}", o[what][k], "finite and not negative")
    s.op_kernel += [kernel.name for kernel in kernels]
    s.op_operands += zip(*(wide[name].tolist() for name in ("operand", "n_outputs", "n_inputs")), strict=True)
    used = np.repeat(wide["operand"] - (np.cumsum(total) - total), total) + np.arange(int(total.sum()))
    if len(used) != h["n_operands"] or (np.sort(used) != np.arange(len(used))).any():
        refuse("ops[].operand", f"{len(used)} uses", f"each of the {h['n_operands']} operands belongs to one op")
    _check_calls(s)


def _check_calls(s: _Segment) -> None:
    """Of ops that are alike but for where their operands are, one is looked at."""
    space, number = s.operands["space"].tolist(), s.forms()
    writable = (SPACES["ARENA"], SPACES["REQUEST"])
    begin, count = s.ops["param"].tolist(), s.ops["n_params"].tolist()
    known: set[tuple[str, int, tuple[int, ...], bytes]] = set()
    rows = s.rows()
    for k, (first, n_outputs, n_inputs) in enumerate(s.op_operands):
        for i in range(first, first + n_outputs):
            if space[i] not in writable:
                refuse(f"operands[{i}].space", space[i], "an output lies in the arena or the request")
        params, operands = s.params[begin[k] : begin[k] + count[k]], tuple(number[first : first + n_outputs + n_inputs])
        like = (s.op_kernel[k], n_outputs, operands, params.tobytes())
        if like not in known:
            known.add(like)
            _check_call(s, k, params.tolist(), rows)


def _check_call(s: _Segment, k: int, params: list[int], rows: list[tuple[int, tuple[int, ...], tuple[int, ...]]]) -> None:
    first, n_outputs, n_inputs = s.op_operands[k]
    kernel, args = s.op_kernel[k], []
    for i in range(first, first + n_outputs + n_inputs):
        dtype, shape, strides = rows[i]
        if i < first + n_outputs:
            if dtype == NONE:
                refuse(f"operands[{i}].space", s.operands["space"][i], "an output lies in the arena or the request")
            if not _injective(shape, strides):
                refuse(f"operands[{i}].strides", strides, "an output's elements must lie apart")
        args.append(None if dtype == NONE else Arg(dtype, shape, same(shape, strides, dense(shape))))
    if kernel == OPAQUE:
        return
    if any(a is not None and a.dtype == OBJECT for a in args):
        refuse(f"ops[{k}].operand", "OBJECT", f"{kernel} has tensors")
    if not args:
        return
    outs = [a for a in args[:n_outputs] if a is not None]
    try:
        check_call(kernel, Call(outs[0], args[n_outputs:], params, outs[1:]))
    except Misfit as misfit:
        what, value, bound = misfit.args
        raise PlanError(f"plan ops[{k}] ({kernel}) {what}: {value}, but {bound}") from None


def _injective(shape: Sequence[int], strides: Sequence[int]) -> bool:
    if 0 in shape:
        return True
    reach = 0
    for stride, dim in sorted((abs(x), d) for x, d in zip(strides, shape, strict=True) if d > 1):
        if stride <= reach:
            return False
        reach += stride * (dim - 1)
    return True


# ------------------------------------------------------------------------------------------------------------------ extents


def _check_bucket(s: _Segment) -> None:
    h = s.header
    n = int(h["n_extents"])
    if n > MOST_EXTENTS:
        refuse("header.n_extents", n, f"at most {MOST_EXTENTS}")
    for name in ("least", "most"):
        if any(h[name][n:]):
            refuse(f"header.{name}", h[name], f"there are {n} extents")
    for least, most, limit in zip(s.least, s.most, room(n), strict=True):
        if not 1 <= least <= most <= limit:
            refuse("header.least", f"{least} … {most}", f"extents lie within 1 … {limit}")
    if n == 0:
        for name in ("n_values", "n_numbers"):
            if h[name]:
                refuse(f"header.{name}", h[name], "only the plan of a shape bucket has one")
        return
    largest, smallest = _values_at(s, s.most), _values_at(s, s.least)
    offset_of: dict[int, int] = {}
    seen = set()
    for k, (table, value, index, per) in enumerate(s.numbers.tolist()):
        if table not in NUMBER_TABLES.values():
            refuse(f"numbers[{k}].table", table, f"one of {NUMBER_TABLES}")
        if value >= len(largest):
            refuse(f"numbers[{k}].value", value, f"there are {len(largest)}")
        there = _number_at(s, k, table, index)
        param = table in (NUMBER_TABLES["PARAM"], NUMBER_TABLES["RATIO"])
        if (place := ("PARAM" if param else table, index)) in seen:
            refuse(f"numbers[{k}].index", index, "a number follows from one value")
        seen.add(place)
        if table == NUMBER_TABLES["RATIO"]:
            if not (0 <= per < len(largest) and smallest[per]):
                refuse(f"numbers[{k}].per", per, f"one of {len(largest)} values, and not 0")
            continue
        if not (-STEEPEST if param else -1) < per < STEEPEST:
            refuse(f"numbers[{k}].per", per, f"less than {STEEPEST}, and not negative but for a parameter")
        change = -per * (largest[value] - smallest[value])
        if abs(change) >= 1 << 63 or not (-(1 << 63) if param else 0) <= there + change < 1 << 63:
            refuse(f"numbers[{k}].per", per, f"the number would be {there + change} at extents {list(s.least)}")
        if table == NUMBER_TABLES["OFFSET"] and per:
            offset_of[index] = value
    _check_downwards(s, offset_of)
    # Between the ends nothing reaches further than at one of them: argued in workers/plans/bucket_checks.h, which checks the same.
    operands, _, _ = extents.at(s, s.least)
    operands["dims"] = np.where(s.operands["dims"] > 0, np.maximum(operands["dims"], 1), operands["dims"])
    _check_operands(replace(s, operands=operands))


def _check_downwards(s: _Segment, offset_of: dict[int, int]) -> None:
    """Where an operand's offset changes, the axes that go downwards follow from the same value. `offset_of`: which, by operand."""
    for k, (table, value, index, per) in enumerate(s.numbers.tolist()):
        operand, axis = divmod(index, LIMITS["rank"])
        if table != NUMBER_TABLES["DIM"] or not per or offset_of.get(operand, value) == value:
            continue
        if s.operands["strides"][operand, axis] < 0:
            refuse(f"numbers[{k}].value", value, f"the offset of operand {operand} follows from value {offset_of[operand]}")


def _values_at(s: _Segment, found: Extents) -> list[int]:
    """All values, none of which is negative or falls as an extent rises."""
    values = list(found)
    for k, (kind, u, v, _, a, b, c) in enumerate(s.values.tolist()):
        what = f"values[{k}]"
        if kind not in (FLOOR, PRODUCT, SUM):
            refuse(f"{what}.kind", kind, "a kind of value")
        if u >= len(values) or (kind != FLOOR and v >= len(values)):
            refuse(f"{what}.u", (u, v), f"there are {len(values)} before it")
        if (kind == FLOOR and (a < 0 or c < 1)) or (kind == SUM and (a < 0 or b < 0)):
            refuse(f"{what}.a", (a, b, c), "values do not fall")
        if kind == FLOOR and a * values[u] + b < 0:
            refuse(f"{what}.b", b, f"the value would be negative at extents {list(found)}")
        values.append(
            (a * values[u] + b) // c if kind == FLOOR else values[u] * values[v] if kind == PRODUCT else a * values[u] + b * values[v]
        )
        if values[-1] >= 1 << 60:
            refuse(f"{what}.a", values[-1], "it is too large")
    return values


def _number_at(s: _Segment, k: int, table: int, index: int) -> int:
    """A number that follows from a value, as it is at the largest extents."""
    if table in (NUMBER_TABLES["PARAM"], NUMBER_TABLES["RATIO"]):
        if index >= len(s.params):
            refuse(f"numbers[{k}].index", index, f"there are {len(s.params)} parameters")
        return int(s.params[index])
    operand, axis = (index, 0) if table == NUMBER_TABLES["OFFSET"] else divmod(index, LIMITS["rank"])
    if operand >= len(s.operands):
        refuse(f"numbers[{k}].index", index, f"there are {len(s.operands)} operands")
    row = s.operands[operand]
    if row["dtype"] == NONE:
        refuse(f"numbers[{k}].index", index, f"operand {operand} is absent")
    if row["space"] >= SPACES["WEIGHTS"] and table != NUMBER_TABLES["DIM"]:
        refuse(f"numbers[{k}].table", table, f"operand {operand} is a weight: it is only seen as longer or shorter")
    if table == NUMBER_TABLES["OFFSET"]:
        return int(row["offset"])
    if axis >= row["rank"]:
        refuse(f"numbers[{k}].index", index, f"operand {operand} has rank {row['rank']}")
    return int(row["dims" if table == NUMBER_TABLES["DIM"] else "strides"][axis])


def _smaller(s: _Segment) -> list[Extents]:
    """Extents besides the largest at which the plan of a shape bucket is checked. They are next to both ends, because numbers that jump
    there go unnoticed at the ends alone, and in the middle. One of several extents is small where another is large, too."""
    pairs = list(zip(s.least, s.most, strict=True))
    found = [s.least, tuple(min(a + 1, b) for a, b in pairs), tuple((a + b) // 2 for a, b in pairs), tuple(max(b - 1, a) for a, b in pairs)]
    if len(pairs) > 1:
        found.append(tuple(ends[k == 0] for k, ends in enumerate(pairs)))
    return [extents for extents in dict.fromkeys(found) if extents != s.most]


def _check_extents(s: _Segment, found: Extents, above: list[int] | None) -> None:
    operands, params, tiles = extents.at(s, found)
    short = replace(s, operands=operands, params=params, tiles=tiles)
    try:
        _check_operands(short)
        _check_calls(short)
        left = ((tiles["lo"] < tiles["hi"]) | (s.tiles["lo"] == s.tiles["hi"])).all(axis=1)
        _check_grids(short, left | (s.ops["kernel"][tiles["op"]] == OPAQUE_CODE))  # which runs whatever is left of its box
        _check_memory(short, above)
    except PlanError as error:
        raise PlanError(f"{error} (at extents {list(found)})") from None


# ------------------------------------------------------------------------------------------------------------------- tiles


def _check_tiles(s: _Segment) -> None:
    t, h = s.tiles, s.header
    n = len(t)
    for name, bound in (("op", h["n_ops"] - 1), ("depth", LIMITS["depths"] - 1), ("flags", 0), ("n_children", LIMITS["fanout"])):
        if (k := _first(t[name] > bound)) is not None:
            refuse(f"tiles[{k}].{name}", t[name][k], f"at most {bound}")
    ends = t["children"].astype(np.int64) + t["n_children"]
    if (k := _first(ends > h["n_children"])) is not None:
        refuse(f"tiles[{k}].children", ends[k], f"there are {h['n_children']}")
    if (k := _first(np.diff(t["op"].astype(np.int64)) < 0)) is not None:
        refuse(f"tiles[{k + 1}].op", t["op"][k + 1], f"tiles are ordered by op, the one before has {t['op'][k]}")
    kernel = s.ops["kernel"][t["op"]]
    if h["end_tile"] != n - 1 or kernel[-1] != END_CODE or (kernel[:-1] == END_CODE).any():
        refuse("header.end_tile", h["end_tile"], f"tile {n - 1} and no other is the END tile")
    _check_grids(s, np.ones(n, bool))
    join = (kernel == JOIN_CODE) | (kernel == END_CODE)
    if (k := _first(join & ((t["lo"] != 0) | (t["hi"] != 1)).any(axis=1))) is not None:
        refuse(f"tiles[{k}].hi", t["hi"][k].tolist(), "a tile without work has the box 0 … 1")


def _check_grids(s: _Segment, there: npt.NDArray[np.bool_]) -> None:
    """The tiles of an op are all cells of a grid over its output. `there`: tiles of which the extent has left something."""
    works, opaque = ~np.isin(s.ops["kernel"], (JOIN_CODE, END_CODE)), s.ops["kernel"] == OPAQUE_CODE
    ops = np.flatnonzero(works)
    outputs, axes = s.operands[s.ops["operand"][ops]], LIMITS["tile_axes"]
    real = np.arange(LIMITS["rank"]) < outputs["rank"][:, None]
    empty, box = np.zeros(len(s.ops), bool), np.ones((len(s.ops), axes), np.int64)
    empty[ops] = ((outputs["dims"] == 0) & real).any(axis=1)
    box[ops] = np.where(real, outputs["dims"], 1)[:, :axes]
    tiles = s.tiles[there]
    tiles = tiles[works[tiles["op"]]]
    op, n = tiles["op"].astype(np.int64), np.bincount(tiles["op"], minlength=len(s.ops))
    if (k := _first(opaque & (n != 1))) is not None:
        refuse(f"ops[{k}]", f"{n[k]} tiles", "an OPAQUE op has one")
    if (k := _first(empty & ~opaque & (n > 0))) is not None:
        refuse(f"ops[{k}]", f"{n[k]} tiles", "its output is empty")
    cells, counts, places = np.ones(len(s.ops)), [], []
    for axis in range(axes):
        lo, hi = tiles["lo"][:, axis].astype(np.int64), tiles["hi"][:, axis].astype(np.int64)
        order = np.lexsort((lo, op))
        fresh = (np.diff(op[order], prepend=-1) != 0) | (np.diff(lo[order], prepend=-1) != 0)
        cut_op, cut = op[order][fresh], lo[order][fresh]  # where cells of each op begin
        first, last = np.diff(cut_op, prepend=-1) != 0, np.diff(cut_op, append=-1) != 0
        until = np.where(last, box[cut_op, axis], np.roll(cut, -1))
        bad = (first & (cut != 0)) | ((until <= cut) & ~empty[cut_op])
        cell = np.empty(len(op), np.int64)
        cell[order] = np.cumsum(fresh) - 1
        if (k := _first(bad[cell] | (hi != until[cell]))) is not None:
            refuse(f"ops[{op[k]}]", f"boxes on axis {axis}", f"its tiles must be a grid over 0 … {box[op[k], axis]}")
        counts.append(np.bincount(cut_op, minlength=len(s.ops)))
        places.append(cell - (np.cumsum(counts[-1]) - counts[-1])[op])
        cells *= np.maximum(counts[-1], 1)
    number = np.cumsum(n)[op] - n[op]
    wrong = works & (opaque | ~empty) & (cells != n)
    if not wrong.any():
        within = np.zeros(len(op), np.int64)
        for count, place in zip(counts, places, strict=True):
            within = within * count[op] + place
        wrong[op[np.bincount(number + within, minlength=len(op)) != 1]] = True
    if (k := _first(wrong)) is not None:
        refuse(f"ops[{k}]", f"{n[k]} tiles", f"its grid has {cells[k]:.0f} cells, each once")


def _check_parts(s: _Segment) -> None:
    """Requests run parts of tiles if there is a REACH. One is the first op, and all other tiles wait for it. Each has one tile, and a row
    of parts for itself and each tile up to the next one. A line in front of the first one's input says whether activations are trusted."""
    h, kernel = s.header, s.ops["kernel"]
    reaches = kernel == REACH_CODE
    n = int((s.tiles["op"] < len(s.ops) - len(SILENT)).sum()) if reaches.any() else 0
    at = int(s.operands["offset"][0]) if n else 0
    if n and (not reaches[0] or len(s.initial) != 1 or s.initial[0] != 0):
        refuse("ops[].kernel", REACH, "one is the first op, the only one whose tile waits for nothing")
    firsts = np.searchsorted(s.tiles["op"], np.flatnonzero(reaches))
    for k, tile, end in zip(np.flatnonzero(reaches).tolist(), firsts.tolist(), [*firsts[1:].tolist(), n], strict=False):
        rows = s.operands[s.op_operands[k][0]]
        if (s.tiles["op"] == k).sum() != 1 or rows["offset"] != at + tile * PART_BYTES or rows["dims"][0] != end - tile:
            refuse(f"ops[{k}]", REACH, f"it has one tile, and rows of parts for tiles {tile} to {end - 1}")
    kept = int(s.operands["offset"][s.op_operands[0][0] + 2]) - LINE if n else 0
    for name, want in (("n_parts", n), ("arena_parts", at), ("request_kept", kept)):
        if h[name] != want:
            refuse(f"header.{name}", h[name], want)
    if n and (s.operands["space"][0] != SPACES["ARENA"] or s.operands["space"][2] != SPACES["REQUEST"] or kept < LINE or len(s.most)):
        refuse(
            "operands[0].space", s.operands["space"][0], "REACH writes to the arena, reads behind a line of the request, and has one shape"
        )


# ------------------------------------------------------------------------------------------------------------------- edges


def _check_edges(s: _Segment) -> list[int]:
    """Returns the tiles in an order of execution."""
    n = len(s.tiles)
    counts = s.tiles["n_children"].astype(np.int64)
    for name, array in (("children", s.children), ("parents", s.parents), ("initial", s.initial)):
        if (k := _first(array >= n)) is not None:
            refuse(f"{name}[{k}]", array[k], f"there are {n} tiles")
    begin = np.cumsum(counts) - counts
    if int(counts.sum()) != len(s.children) or (s.tiles["children"] != begin).any():
        refuse("tiles[].children", int(counts.sum()), f"the {len(s.children)} children in the order of tiles")
    if counts[-1] != 0:
        refuse(SILENT[-1], f"{counts[-1]} children", "it is the last tile")
    if (k := _first(counts[:-1] == 0)) is not None:
        refuse(f"tiles[{k}].n_children", 0, "every tile but END has children")
    parent_of = np.repeat(np.arange(n), counts)
    pb = s.parent_begin.astype(np.int64)
    if pb[0] != 0 or pb[-1] != len(s.parents) or (np.diff(pb) < 0).any():
        refuse("parent_begin", [int(pb[0]), int(pb[-1])], f"it rises from 0 to {len(s.parents)}")
    if (k := _first(np.diff(pb) != s.parent_counts)) is not None:
        refuse(f"parent_counts[{k}]", s.parent_counts[k], f"{pb[k + 1] - pb[k]} parents are listed")
    child_of = np.repeat(np.arange(n), np.diff(pb))
    down = np.sort(parent_of * n + s.children)
    up = np.sort(s.parents.astype(np.int64) * n + child_of)
    if (k := _first(down != up)) is not None:
        refuse("parents", f"edge {down[k] // n} → {down[k] % n}", "parents are the exact inverse of children")  # I4
    if (k := _first(np.diff(down) == 0)) is not None:
        refuse("children", f"edge {down[k] // n} → {down[k] % n} twice", "an edge is listed once")
    initial = np.sort(s.initial)
    want = np.flatnonzero(s.parent_counts == 0)
    if len(initial) != len(want) or (initial != want).any():
        refuse("initial", len(initial), f"the {len(want)} tiles without parents, each once")
    return _execution_order(s)


def _execution_order(s: _Segment) -> list[int]:
    begin, count, children = s.tiles["children"].tolist(), s.tiles["n_children"].tolist(), s.children.tolist()
    missing = s.parent_counts.tolist()
    order: list[int] = s.initial.tolist()
    for t in order:
        for c in children[begin[t] : begin[t] + count[t]]:
            missing[c] -= 1
            if not missing[c]:
                order.append(c)
    if len(order) != len(s.tiles):
        refuse("children", f"{len(s.tiles) - len(order)} tiles wait for each other", "the graph has no cycle")
    depth = s.tiles["depth"].astype(np.int64)
    parent_of = np.repeat(np.arange(len(s.tiles)), count)
    if (k := _first(depth[parent_of] > depth[s.children])) is not None:
        refuse(f"tiles[{s.children[k]}].depth", depth[s.children[k]], f"a parent has {depth[parent_of[k]]}")
    return order


# ------------------------------------------------------------------------------------------------------------------ memory


class _Live:
    """Accesses to a space that a later writer has to come after: those of ops so far, less what has been overwritten entirely (who comes
    after the new writer comes after them too). By length, so that those near a run are found without looking at all others."""

    def __init__(self) -> None:
        self.lows: dict[int, list[int]] = {}  # by the number of bits of their length; sorted
        self.runs: dict[int, list[tuple[int, Run]]] = {}  # (op, run), in the same order

    def add(self, op: int, run: Run) -> None:
        bits = (run.high - run.low).bit_length()
        lows = self.lows.setdefault(bits, [])
        at = bisect_right(lows, run.low)
        lows.insert(at, run.low)
        self.runs.setdefault(bits, []).insert(at, (op, run))

    def near(self, run: Run) -> list[tuple[int, Run]]:
        """(op, run) of accesses whose extent meets that of `run`."""
        found: list[tuple[int, Run]] = []
        for bits, lows in self.lows.items():
            begin, end = bisect_left(lows, run.low - (1 << bits)), bisect_right(lows, run.high)
            found += [one for one in self.runs[bits][begin:end] if one[1].high >= run.low]
        return found

    def overwritten(self, run: Run) -> None:
        """Forgets accesses inside a gapless run, or to the same bytes as another."""
        for bits, lows in self.lows.items():
            begin, end = bisect_left(lows, run.low), bisect_right(lows, run.high)
            if begin < end:
                whole = run.gapless
                kept = [one for one in self.runs[bits][begin:end] if not (one[1].high <= run.high if whole else one[1] == run)]
                lows[begin:end] = [left.low for _, left in kept]
                self.runs[bits][begin:end] = kept


def _check_memory(s: _Segment, above: list[int] | None) -> None:
    """No op overwrites what it reads (I5), and whoever writes bytes comes after every earlier op that touched them (I6).

    "Earlier" is the order of ops, which the edges must follow. Reading what an earlier op wrote is data flow: nothing to check here.
    In a plan that keeps activations, no op writes what an earlier one has touched in the request's region: the next request needs it. No
    op writes over the parts of tiles. But REFRESH writes what MOVED has compared with."""
    spaces = {SPACES["ARENA"]: _Live(), SPACES["REQUEST"]: _Live()}
    kept = int(s.header["request_kept"])
    if kept:
        spaces[SPACES["REQUEST"]].add(0, Run(kept, kept + LINE - 1, ((LINE, 1),)))
    begin = np.searchsorted(s.tiles["op"], np.arange(len(s.ops) + 1)).tolist()
    for op, (outputs, inputs) in enumerate(_accesses(s)):
        for i, space, run in outputs:
            for j, where, other in (*outputs, *inputs):
                if where == space and j != i and other.low <= run.high and run.low <= other.high and overlap(run, other):
                    refuse(f"operands[{i}].offset", f"ops[{op}] writes what it reads", "outputs lie apart from inputs")
            for earlier, old in spaces[space].near(run):
                tiles = ((1 << (begin[earlier + 1] - begin[earlier])) - 1) << begin[earlier]
                refreshes = old == run and (s.op_kernel[op], s.op_kernel[earlier]) == (REFRESH, MOVED)
                stays = kept and (space == SPACES["REQUEST"] or s.op_kernel[earlier] == REACH) and not refreshes
                if (stays or (above is not None and tiles & ~above[op])) and overlap(run, old):
                    what = f"ops[{op}] may overwrite what ops[{earlier}] still uses"
                    refuse(f"operands[{i}].offset", what, "recycled memory needs anti-dependencies")
        if (kept or above is not None) and begin[op] < begin[op + 1]:
            for _, space, run in outputs:
                spaces[space].overwritten(run)
            for _, space, run in (*outputs, *inputs):
                spaces[space].add(op, run)


_Place = tuple[int, int, Run]
"""(operand, space, bytes)"""


def _accesses(s: _Segment) -> Iterator[tuple[list[_Place], list[_Place]]]:
    """Of each op: what it writes and what it reads in memory that others write."""
    space, offset, number = s.operands["space"].tolist(), s.operands["offset"].tolist(), s.forms()
    shared = np.isin(s.operands["space"], (SPACES["ARENA"], SPACES["REQUEST"])) & (s.operands["dtype"] != NONE)
    runs: dict[int, Run | None] = {}  # of each form, from byte 0 on
    rows = s.rows()
    places: list[_Place | None] = []
    for i, mine in enumerate(shared.tolist()):
        if not mine:
            places.append(None)
            continue
        if number[i] not in runs:
            dtype, dims, strides = rows[i]
            runs[number[i]] = Run.of(0, dims, strides, DTYPE_BYTES[dtype])
        run = runs[number[i]]
        places.append(None if run is None else (i, space[i], Run(run.low + offset[i], run.high + offset[i], run.axes)))
    for first, outputs, inputs in s.op_operands:
        sides = places[first : first + outputs], places[first + outputs : first + outputs + inputs]
        yield [p for p in sides[0] if p is not None], [p for p in sides[1] if p is not None]


def _common_ancestors(s: _Segment, order: list[int]) -> list[int] | None:
    """For each op, the set of the tiles that precede all of its own (a bit each); all tiles for an op without tiles. None: too many tiles.

    Also makes sure that no tile waits for a later op."""
    n = len(s.tiles)
    if n > EXACT_TILES:
        return None
    op = s.tiles["op"].tolist()
    begin = np.searchsorted(s.tiles["op"], np.arange(len(s.ops) + 1)).tolist()
    first, parents = s.parent_begin.tolist(), s.parents.tolist()
    silent = [k in SILENT for k in s.op_kernel]
    everything = (1 << n) - 1
    common = [everything] * len(s.ops)
    above = [0] * n
    for t in order:
        mine = 0
        for p in parents[first[t] : first[t + 1]]:
            mine |= above[p]
            if not silent[op[p]]:
                mine |= 1 << p
        above[t] = mine
        k = op[t]
        if not silent[k]:
            if mine.bit_length() > begin[k]:
                refuse(f"tiles[{t}]", f"waits for tile {mine.bit_length() - 1}", f"its op begins at tile {begin[k]}, and ops are in order")
            common[k] &= mine
    return common
