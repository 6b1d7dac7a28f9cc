"""`.aspen` files: a plan on disk.

    8 bytes   "ASPENPLN"
    u32       format version
    u32       bytes of the header
    32 bytes  BLAKE2b-256 of everything that follows
    header    msgpack map, see `_FIELDS`
    zeros     up to a multiple of 64
    body      the plan segment (`shm/protocol/layout.h`), then `weight_uses` as i64 triples

Everything is little-endian; nothing depends on the instruction set. Weights are not in the file: it lists their
keys, and who loads it brings them (they come from the model). A file is refused by builds with another layout: plans are made again in a
second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from aspen_mp.planner.layout.strides import Run
from aspen_mp.planner.plan import plan_head
from aspen_mp.planner.plan.plan import OpInfo, Plan, TensorInfo, WeightItem
from aspen_mp.planner.plan.plan_head import MAX_HEADER, refuse
from aspen_mp.planner.plan.validate import validate
from aspen_mp.shm.errors import PlanError
from aspen_mp.shm.tables import DTYPE_BYTES, DTYPES, LAYOUT_HASH, NUMBER, NUMPY_BY_CODE, OP, OPERAND, PLAN_HEADER, SPACES, TILE, VALUE

__all__ = ["dump", "load", "save", "validate"]

MAX_ITEMS = 1 << 20
_FIELDS: dict[str, type] = {
    "name": str,
    "layout": int,
    "segment_bytes": int,
    "activation_bytes": int,
    "inputs": list,
    "outputs": list,
    "weights": list,
    "weight_uses": int,
    "info": list,
    "metadata": dict,
}

Write = Callable[[memoryview], None]


def dump(plan: Plan) -> bytes:
    """The plan as the bytes of an `.aspen` file."""
    segment = bytes(plan.segment())
    body = segment + plan.weight_uses.astype("<i8").tobytes()
    header: bytes = msgpack.packb(
        {
            "name": plan.name,
            "layout": LAYOUT_HASH,
            "segment_bytes": len(segment),
            "activation_bytes": plan.activation_bytes,
            "inputs": [_tensor_row(t) for t in plan.inputs],
            "outputs": [_tensor_row(t) for t in plan.outputs],
            "weights": [[w.key, w.nbytes] for w in plan.weights],
            "weight_uses": len(plan.weight_uses),
            "info": [[i.name, i.op, i.kernel, i.tiles, list(i.tile_shape), i.flops, i.bytes, i.predicted_ms, i.opaque] for i in plan.info],
            "metadata": plan.metadata,
        }
    )
    return plan_head.join(header, body)


def save(plan: Plan, path: str | Path) -> None:
    """Writes an `.aspen` file."""
    Path(path).write_bytes(dump(plan))


def load(data: bytes | bytearray | memoryview, weights: Mapping[str, Write] | None = None) -> Plan:
    """A plan from the bytes of an `.aspen` file, everything in it checked. PlanError names field, value and bound.

    `weights`: what writes each weight (`WeightItem.write`); without it the plan can be looked at, not run.
    """
    raw = memoryview(data).cast("B")
    header, body = _read_header(raw)
    n_segment, n_uses = header["segment_bytes"], header["weight_uses"]
    if n_segment < PLAN_HEADER.itemsize or n_uses < 0 or n_segment + 24 * n_uses != body.nbytes:
        refuse("segment_bytes", f"{n_segment} + 24 * {n_uses}", f"the body has {body.nbytes}")
    segment = bytes(body[:n_segment])
    validate(segment)
    return _plan(header, segment, np.frombuffer(bytes(body[n_segment:]), "<i8").reshape(-1, 3).copy(), weights)


def in_segment(segment: bytes | memoryview) -> Plan:
    """Return the tile graph of a checked plan segment, with what its tiles take on average: to be scheduled, not to be run.

    Names of ops come with it. Inputs, outputs, operands and weights do not.
    """
    raw = bytes(segment)
    h = np.frombuffer(raw, PLAN_HEADER, 1)[0]
    u32 = np.dtype("<u4")

    def array(name: str, dtype: np.dtype[Any], count: int) -> Any:
        return np.frombuffer(raw, dtype, int(count), int(h[name]))

    ops, blobs = array("ops", OP, h["n_ops"]), int(h["blobs"])
    places = zip((blobs + ops["name"].astype(np.int64)).tolist(), ops["name_bytes"].tolist(), strict=True)
    named = [raw[at : at + nbytes].decode("utf-8", "replace") for at, nbytes in places]
    none = np.zeros(0, np.uint32)
    return Plan(
        name="",
        ops=ops,
        operands=np.zeros(0, OPERAND),
        params=np.zeros(0, np.int64),
        tiles=array("tiles", TILE, h["n_tiles"]),
        children=array("children", u32, h["n_children"]),
        parent_counts=array("parent_counts", u32, h["n_tiles"]),
        parent_begin=none,
        parents=none,
        initial=array("initial", u32, h["n_initial"]),
        consts=b"",
        blobs=b"",
        activation_bytes=0,
        request_bytes=int(h["request_bytes"]),
        scratch_bytes=int(h["scratch_bytes"]),
        inputs=[],
        outputs=[],
        info=[OpInfo(name, "", "", 0, (), 0.0, 0.0, 0.0, False) for name in named],
        memory=int(h["memory"]),
        memory_cores=int(h["memory_cores"]),
    )


def _tensor_row(t: TensorInfo) -> list[Any]:
    return [t.name, t.dtype, list(t.shape), t.offset, t.nbytes]


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("duplicate keys")
    return out


def _read_header(raw: memoryview) -> tuple[dict[str, Any], memoryview]:
    head, body = plan_head.split(raw)
    try:
        header = msgpack.unpackb(
            head,
            object_pairs_hook=_unique,
            max_str_len=MAX_HEADER,
            max_bin_len=MAX_HEADER,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise PlanError(f"plan header: {str(error) or type(error).__name__}") from None
    if not isinstance(header, dict) or set(header) != set(_FIELDS):
        refuse("header", sorted(header) if isinstance(header, dict) else type(header).__name__, f"its keys are {sorted(_FIELDS)}")
    for name, kind in _FIELDS.items():
        if type(header[name]) is not kind:
            refuse(f"header.{name}", type(header[name]).__name__, f"must be {kind.__name__}")
    if header["layout"] != LAYOUT_HASH:
        refuse("layout", header["layout"], f"this build has {LAYOUT_HASH}")
    return header, body


def _rows(name: str, rows: list[Any], kinds: tuple[type, ...]) -> list[list[Any]]:
    for k, row in enumerate(rows):
        if type(row) is not list or len(row) != len(kinds) or any(type(x) is not kind for x, kind in zip(row, kinds, strict=True)):
            refuse(f"{name}[{k}]", str(row)[:80], f"must be {[kind.__name__ for kind in kinds]}")
    return rows


def _tensors(name: str, rows: list[Any], request_bytes: int) -> list[TensorInfo]:
    out = []
    for k, (label, dtype, shape, offset, nbytes) in enumerate(_rows(name, rows, (str, str, list, int, int))):
        if any(type(d) is not int or d < 0 for d in shape) or len(shape) > 64:
            refuse(f"{name}[{k}].shape", str(shape)[:80], "dimensions are not negative")
        if offset < 0 or nbytes < 0 or offset % 64 or offset + nbytes > request_bytes:
            refuse(f"{name}[{k}].offset", f"{offset} + {nbytes}", f"a request has {request_bytes} bytes")
        if nbytes != _nbytes(f"{name}[{k}].dtype", dtype, shape):
            refuse(f"{name}[{k}].nbytes", nbytes, "it does not fit dtype and shape")
        out.append(TensorInfo(label, dtype, tuple(shape), offset, nbytes))
    return out


def _nbytes(field: str, dtype: str, shape: list[int]) -> int:
    codes = {"object": DTYPES["OBJECT"]} | {d.name: c for c, d in NUMPY_BY_CODE.items()}
    if dtype not in codes:
        refuse(field, dtype, f"one of {sorted(codes)}")
    size = DTYPE_BYTES[codes[dtype]]
    for d in shape:
        size *= d
    return size


def _plan(header: dict[str, Any], segment: bytes, uses: np.ndarray[Any, np.dtype[np.int64]], weights: Mapping[str, Write] | None) -> Plan:
    h = np.frombuffer(segment, PLAN_HEADER, 1)[0]
    u32 = np.dtype("<u4")

    def array(name: str, dtype: np.dtype[Any], count: int) -> Any:
        return np.frombuffer(segment, dtype, count, int(h[name])).copy()

    if not 0 <= header["activation_bytes"] <= int(h["arena_bytes"]):
        refuse("activation_bytes", header["activation_bytes"], f"an arena has {h['arena_bytes']}")
    items = []
    for k, (key, nbytes) in enumerate(_rows("weights", header["weights"], (str, int))):
        if nbytes < 0:
            refuse(f"weights[{k}].nbytes", nbytes, "not negative")
        items.append(WeightItem(key, nbytes, weights[key] if weights is not None and key in weights else _absent(key)))
    if len({i.key for i in items}) != len(items):
        refuse("weights", "duplicate keys", "each is there once")
    plan = Plan(
        name=header["name"],
        ops=array("ops", OP, h["n_ops"]),
        operands=array("operands", OPERAND, h["n_operands"]),
        params=array("params", np.dtype("<i8"), h["n_params"]),
        tiles=array("tiles", TILE, h["n_tiles"]),
        children=array("children", u32, h["n_children"]),
        parent_counts=array("parent_counts", u32, h["n_tiles"]),
        parent_begin=array("parent_begin", u32, h["n_tiles"] + 1),
        parents=array("parents", u32, h["n_children"]),
        initial=array("initial", u32, h["n_initial"]),
        consts=segment[int(h["consts"]) : int(h["consts"]) + int(h["consts_bytes"])],
        blobs=segment[int(h["blobs"]) : int(h["blobs"]) + int(h["blobs_bytes"])],
        activation_bytes=header["activation_bytes"],
        request_bytes=int(h["request_bytes"]),
        scratch_bytes=int(h["scratch_bytes"]),
        inputs=_tensors("inputs", header["inputs"], int(h["request_bytes"])),
        outputs=_tensors("outputs", header["outputs"], int(h["request_bytes"])),
        weights=items,
        weight_uses=uses,
        weight_segments=[int(b) for b in h["weights_bytes"][: h["n_weights"]]],
        info=_info(header["info"]),
        parts=int(h["n_parts"]),
        kept_at=int(h["request_kept"]),
        metadata=header["metadata"],
        values=array("values", VALUE, h["n_values"]),
        numbers=array("numbers", NUMBER, h["n_numbers"]),
        least=tuple(h["least"][: h["n_extents"]].tolist()),
        most=tuple(h["most"][: h["n_extents"]].tolist()),
        memory=int(h["memory"]),
        memory_cores=int(h["memory_cores"]),
    )
    _check_uses(plan)
    if bytes(plan.segment()) != segment:
        refuse("segment", "another arrangement", "its arrays lie as this build writes them")
    return plan


def _info(rows: list[Any]) -> list[OpInfo]:
    out = []
    for row in _rows("info", rows, (str, str, str, int, list, float, float, float, bool)):
        if any(type(d) is not int for d in row[4]):
            refuse("info[].tile_shape", str(row[4])[:80], "integers")
        name, op, kernel, tiles, shape, flops, nbytes, ms, opaque = row
        out.append(OpInfo(name, op, kernel, tiles, tuple(shape), flops, nbytes, ms, opaque))
    return out


def _check_uses(plan: Plan) -> None:
    """Every operand that reads weights is listed once, and stays within its item wherever that is placed."""
    operand, item, within = plan.weight_uses.T
    readers = np.flatnonzero((plan.operands["space"] >= SPACES["WEIGHTS"]) & (plan.operands["dtype"] != 0))
    if len(operand) != len(readers) or (np.sort(operand) != readers).any():
        refuse("weight_uses", len(operand), f"{len(readers)} operands read weights, each once")
    if len(item) and (item.min() < 0 or item.max() >= len(plan.weights)):
        refuse("weight_uses", int(item.max()), f"there are {len(plan.weights)} weights")
    for o, i, at in zip(operand.tolist(), item.tolist(), within.tolist(), strict=True):
        row = plan.operands[o]
        rank = int(row["rank"])
        run = Run.of(at, row["dims"][:rank].tolist(), row["strides"][:rank].tolist(), DTYPE_BYTES[int(row["dtype"])])
        if run is not None and (run.low < 0 or run.high >= plan.weights[i].nbytes):
            refuse(f"weight_uses[{o}]", f"bytes {run.low} … {run.high}", f"{plan.weights[i].key!r} has {plan.weights[i].nbytes}")


def _absent(key: str) -> Write:
    def write(out: memoryview) -> None:
        raise PlanError(f"weights: {key!r} was not given when the plan was loaded")

    return write
