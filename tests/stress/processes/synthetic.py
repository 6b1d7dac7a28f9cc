"""Random tile graphs with known answers, written by hand straight into the plan format: the scheduler's tests need no planner.

Every node is an elementwise u64 operation of two earlier values (one of them perhaps reversed), cut into the same number of tiles along its
one axis. Buffers are recycled as soon as every reader is an ancestor in the edge list, with write-after-read edges from each reader, as in
real plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from aspen_mp.shm import tables

U64 = npt.NDArray[np.uint64]
LINE = 64
OPS = (("ADD", np.add), ("SUB", np.subtract), ("MUL", np.multiply), ("BIT_XOR", np.bitwise_xor))


def up(n: int) -> int:
    return -(-n // LINE) * LINE


@dataclass
class Synthetic:
    """A plan's bytes and what it computes. `reads[t]`, `writes[t]`: (buffer, first, last) intervals of tile t, for dependency checks."""

    plan: bytes
    n_tiles: int
    arena_bytes: int
    request_bytes: int
    length: int
    x_offset: int
    y_offset: int
    nodes: list[tuple[int, int, bool, int]] = field(default_factory=list)  # (left, right, right reversed, op); -1 is the input
    constants: U64 | None = None

    def reference(self, x: U64) -> U64:
        values = [x]
        for left, right, flip, op in self.nodes:
            r = values[right + 1]
            values.append(OPS[op][1](values[left + 1], r[::-1] if flip else r))
        return values[-1]


def random_plan(
    seed: int, *, nodes: int = 24, parts: int = 4, length: int = 256, reach: int = 8, opaque: frozenset[int] = frozenset()
) -> Synthetic:
    """A random graph of `nodes` nodes of `parts` tiles each over vectors of `length` u64. Nodes in `opaque` are one OPAQUE tile
    each (identity ops only work through the caller's executor, which gets the op's number as its blob)."""
    rng = np.random.default_rng(seed)
    spec: list[tuple[int, int, bool, int]] = []
    for v in range(nodes):
        lo = max(-1, v - reach)
        spec.append((int(rng.integers(lo, v)), int(rng.integers(lo, v)), bool(rng.integers(2)), int(rng.integers(len(OPS)))))
    cut = np.linspace(0, length, parts + 1).astype(int)
    uses = [0] * nodes
    for v, (first, second, flip, op) in enumerate(spec):
        # At most three readers a node: the rest of the fan-out is for edges of recycled buffers.
        left, right = (p if p < 0 or uses[p] < 3 else -1 for p in (first, second))
        for p in {left, right} - {-1}:
            uses[p] += 1
        spec[v] = (left, right, flip, op)
    first_tile: list[int] = []
    tiles: list[tuple[int, int, int]] = []  # (node, lo, hi)
    for v in range(nodes):
        first_tile.append(len(tiles))
        tiles.extend([(v, 0, length)] if v in opaque else [(v, int(cut[j]), int(cut[j + 1])) for j in range(parts)])
    n = len(tiles) + 1
    end = n - 1
    children: list[set[int]] = [set() for _ in range(n)]

    def tiles_of(v: int, lo: int, hi: int) -> list[int]:
        last = first_tile[v + 1] if v + 1 < nodes else end
        return [t for t in range(first_tile[v], last) if tiles[t][1] < hi and lo < tiles[t][2]]

    def read_range(t: int, flip: bool) -> tuple[int, int]:
        _, lo, hi = tiles[t]
        return (length - hi, length - lo) if flip else (lo, hi)

    readers: list[list[tuple[int, bool]]] = [[] for _ in range(nodes)]  # (node, flipped)
    buffer: list[int] = []
    tenants: list[list[int]] = []
    for v, (left, right, flip, _) in enumerate(spec):
        for p, f in ((left, False), (right, flip)):
            if p < 0:
                continue
            readers[p].append((v, f))
            for t in range(first_tile[v], first_tile[v + 1] if v + 1 < nodes else end):
                for parent in tiles_of(p, *read_range(t, f)):
                    children[parent].add(t)
    for v in range(nodes):
        place = -1
        if v != nodes - 1:
            for b, tenant in enumerate(tenants):
                old = tenant[-1]
                needed = any(old in spec[u][:2] for u in range(v, nodes))  # by v itself (it may not overwrite what it reads) or later nodes
                if needed or not readers[old]:
                    continue
                edges = {
                    (r, t)
                    for u, f in readers[old]
                    for r in range(first_tile[u], first_tile[u + 1] if u + 1 < nodes else end)
                    for t in tiles_of(v, *read_range(r, f))
                }
                grown = {r: len(children[r] | {t for q, t in edges if q == r}) for r, _ in edges}
                if all(k <= tables.LIMITS["fanout"] for k in grown.values()):
                    for r, t in edges:
                        children[r].add(t)
                    place = b
                    break
        if place < 0:
            place = len(tenants)
            tenants.append([])
        tenants[place].append(v)
        buffer.append(place)
    for t in range(end):
        if not children[t]:
            children[t].add(end)
    assert max(len(c) for c in children) <= tables.LIMITS["fanout"]
    return _write(spec, tiles, children, buffer, len(tenants), length, opaque)


def _write(
    spec: list[tuple[int, int, bool, int]],
    tiles: list[tuple[int, int, int]],
    children: list[set[int]],
    buffer: list[int],
    n_buffers: int,
    length: int,
    opaque: frozenset[int],
) -> Synthetic:
    n, nbytes, nodes = len(children), up(8 * length), len(spec)
    level = [0] * n
    parents: list[list[int]] = [[] for _ in range(n)]
    for t, kids in enumerate(children):
        for k in sorted(kids):
            assert k > t
            parents[k].append(t)
            level[k] = max(level[k], level[t] + 1)
    ops = np.zeros(nodes + 1, tables.OP)
    operands = np.zeros(3 * nodes, tables.OPERAND)
    params: list[int] = []
    names, blobs = [f"n{v} (Synthetic)".encode() for v in range(nodes)] + [b"end"], bytearray()
    counters = LINE
    executed = up(counters + 4 * n)
    links = up(executed + 4 * n)
    data = up(links + 8 * n)
    x_offset, y_offset = 0, nbytes

    def operand(i: int, node: int, flip: bool) -> None:
        o = operands[i]
        o["dtype"], o["rank"], o["dims"][0], o["strides"][0] = tables.DTYPES["U64"], 1, length, -1 if flip else 1
        if node < 0:
            o["space"], o["offset"] = tables.SPACES["REQUEST"], x_offset
        elif node == nodes - 1:
            o["space"], o["offset"] = tables.SPACES["REQUEST"], y_offset
        else:
            o["space"], o["offset"] = tables.SPACES["ARENA"], data + buffer[node] * nbytes
        if flip:
            o["offset"] += 8 * (length - 1)

    for v, (left, right, flip, op) in enumerate(spec):
        operand(3 * v, v, False)
        operand(3 * v + 1, left, False)
        operand(3 * v + 2, right, flip)
        ops[v]["operand"], ops[v]["n_outputs"], ops[v]["n_inputs"] = 3 * v, 1, 2
        if v in opaque:
            ops[v]["kernel"] = tables.KERNELS["OPAQUE"].code
            ops[v]["blob"], ops[v]["blob_bytes"] = len(blobs), len(OPS[op][0])
            blobs += OPS[op][0].encode()
        else:
            ops[v]["kernel"], ops[v]["param"], ops[v]["n_params"] = tables.KERNELS["BINARY"].code, len(params), 4
            params += [tables.BINARY[OPS[op][0]], tables.UNARY["IDENTITY"], 0, 0]
    ops[nodes]["kernel"] = tables.KERNELS["END"].code
    for v, name in enumerate(names):
        ops[v]["name"], ops[v]["name_bytes"] = len(blobs), len(name)
        blobs += name
    rows = np.zeros(n, tables.TILE)
    rows["hi"] = 1
    flat: list[int] = []
    top = max(level) + 1
    for t, kids in enumerate(children):
        rows[t]["children"], rows[t]["n_children"] = len(flat), len(kids)
        flat += sorted(kids)
        rows[t]["depth"], rows[t]["rank"] = level[t] * tables.LIMITS["depths"] // top, t
        rows[t]["op"] = tiles[t][0] if t < n - 1 else nodes
        if t < n - 1:
            rows[t]["lo"][0], rows[t]["hi"][0] = tiles[t][1:]
    begin = np.cumsum([0] + [len(p) for p in parents]).astype(np.uint32)
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "ops": ops,
        "operands": operands,
        "params": np.array(params, np.int64),
        "tiles": rows,
        "children": np.array(flat, np.uint32),
        "parent_counts": np.array([len(p) for p in parents], np.uint32),
        "parent_begin": begin,
        "parents": np.array([p for row in parents for p in row], np.uint32),
        "initial": np.array([t for t in range(n) if not parents[t]], np.uint32),
        "consts": np.zeros(0, np.uint8),
        "blobs": np.frombuffer(bytes(blobs), np.uint8),
    }
    header = np.zeros(1, tables.PLAN_HEADER)
    h = header[0]
    at = up(header.nbytes)
    for name, array in arrays.items():
        h[name] = at
        at = up(at + array.nbytes)
    h["magic"], h["layout"], h["bytes"] = int.from_bytes(b"ASPENMP\0", "little"), tables.LAYOUT_HASH, at
    h["role"], h["version"], h["n_ops"], h["n_operands"], h["n_params"] = 5, 1, nodes + 1, len(operands), len(params)
    h["n_tiles"], h["n_children"], h["n_initial"], h["end_tile"] = n, len(flat), len(arrays["initial"]), n - 1
    h["blobs_bytes"], h["arena_counters"], h["arena_executed"], h["arena_next"], h["arena_data"] = (
        len(blobs),
        counters,
        executed,
        links,
        data,
    )
    h["arena_bytes"], h["request_bytes"] = data + n_buffers * nbytes, 2 * nbytes
    image = np.zeros(at, np.uint8)
    image[: header.nbytes] = header.view(np.uint8)
    for name, array in arrays.items():
        image[int(h[name]) : int(h[name]) + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    return Synthetic(image.tobytes(), n, int(h["arena_bytes"]), int(h["request_bytes"]), length, x_offset, y_offset, spec)
