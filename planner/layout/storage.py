"""Where every tensor's elements live: physical order, views, concat in place, copies.

Logical axes stay ONNX's everywhere; the physical layout is only strides. In order:

1. Concats that repeat the inputs of another concat take its result instead (DenseNet as PyTorch exports it becomes nested concats).
2. Each tensor gets the order in which its producer likes to write it. That is channels last around convolutions, POOL and readers between
   pixels, and row-major for GEMM. For everything else it is that of the main input, also for POOL where it can share along rows.
3. From the results backwards, tensors are placed *into* their readers' memory, wherever no copy results from it. Graph outputs go into the
   request's region, inputs of a concat into slices of its buffer. A tensor before a transpose and reshape (attention heads) has the order
   in which the reshape is a view.
4. From the inputs forwards, views are resolved to (buffer, offset, strides), and COPY nodes put in where that is impossible.

Nothing here may depend on the number of workers: kernels with a fixed order of summation take it from shapes and strides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod

from aspen_mp.planner.ir.graph import VIEW_OPS, Graph, Node, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried
from aspen_mp.planner.layout import strides as st
from aspen_mp.planner.ops.sampling import FEW_SAMPLED
from aspen_mp.planner.ops.spec import COPY, Kind, Layout
from aspen_mp.planner.ops.table import ELEMENTWISE, SPECS, is_packed

PAGE = 4096
PAGED_BYTES = 64 << 10
"""Inputs of at least this many bytes begin and end with a page."""
ARENA, REQUEST, PLAN, WEIGHTS = "ARENA", "REQUEST", "PLAN", "WEIGHTS"
ALIGN = 64

VIEW_DEPTH = 64
"""This many views in a row are looked through when a layout is judged."""
_CHANNELS_LAST = (Layout.CHANNELS_LAST, Layout.LINES, Layout.SPREADS)
_ANY = (Layout.ANY, Layout.LINES)


@dataclass(eq=False, slots=True)
class Buffer:
    """A run of bytes in one space. ``offset`` is set by the memory plan (arena) or when the plan is laid out."""

    space: str
    nbytes: int
    name: str
    offset: int = -1
    const: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Ref:
    """Where a tensor is: element (0, 0, …) at ``offset`` elements into the buffer, ``strides`` in elements."""

    buffer: Buffer
    offset: int
    strides: st.Strides


@dataclass(slots=True)
class Storage:
    """The graph with its copies, and a place for each tensor.

    ``nodes``: everything in topological order, views and concats included; ``steps``: those that run. ``inputs``, ``outputs``:
    (name, tensor) of the graph, in the model's order; the tensor of an output is the one that lies in the request's region. ``kinds``: of
    the steps, once somebody has asked `aspen_mp.planner.layout.alike` for them.
    """

    nodes: list[Node]
    steps: list[Node]
    refs: dict[Tensor, Ref]
    producer: dict[Tensor, Node]
    inputs: list[tuple[str, Tensor]]
    outputs: list[tuple[str, Tensor]]
    request_bytes: int
    constants: list[Buffer] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)


def channels_last(rank: int) -> tuple[int, ...]:
    """The order of axes that convolutions and pooling like."""
    return (0, *range(2, rank), 1)


def item_bytes(tensor: Tensor) -> int:
    """Bytes of an element; an object tensor is a run of bytes."""
    return 1 if tensor.dtype.kind == "O" else tensor.dtype.itemsize


def nbytes(tensor: Tensor) -> int:
    return prod(tensor.shape) * (1 if tensor.dtype.kind == "O" else tensor.dtype.itemsize)


def aligned(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def assign_storage(graph: Graph) -> Storage:
    """Chooses a place for every tensor of a kernel-level graph. The graph is left as it is; nodes of the result are copies."""
    return _Assignment(graph).run()


def _nest_concats(nodes: list[Node]) -> list[Node]:
    """``concat(a, b, c)`` becomes ``concat(concat(a, b), c)`` where ``concat(a, b)`` is computed anyway. Keeps a topological order."""
    table: dict[tuple[int, tuple[int, ...]], Node] = {}
    for node in nodes:
        if node.op == "concat" and len(node.inputs) > 1:
            table.setdefault((node.attrs["axis"], tuple(id(t) for t in node.inputs)), node)
    if len(table) < 2:
        return nodes
    lengths: dict[tuple[int, int], set[int]] = {}
    for axis, ids in table:
        lengths.setdefault((axis, ids[0]), set()).add(len(ids))
    changed = False
    for node in nodes:
        if node.op != "concat":
            continue
        axis, ids = node.attrs["axis"], tuple(id(t) for t in node.inputs)
        for n in sorted(lengths.get((axis, ids[0]), ()), reverse=True):
            other = table.get((axis, ids[:n])) if n < len(ids) else None
            if other is not None and other is not node:
                node.inputs = [other.output, *node.inputs[n:]]
                changed = True
                break
    return _topological(nodes) if changed else nodes


def _topological(nodes: list[Node]) -> list[Node]:
    """A topological order that keeps the given one where it can."""
    producer = {t: node for node in nodes for t in node.outputs}
    done: set[int] = set()
    out: list[Node] = []
    for root in nodes:
        stack = [root]
        while stack:
            node = stack[-1]
            if id(node) in done:
                stack.pop()
                continue
            waiting = [producer[t] for t in node.inputs if t is not None and t in producer and id(producer[t]) not in done]
            if waiting:
                stack.extend(waiting)
            else:
                stack.pop()
                done.add(id(node))
                out.append(node)
    return out


def _layout(node: Node) -> Layout:
    """The order of axes in which the node likes to write its output."""
    spec = SPECS[node.op]
    return Layout.SPREADS if spec.planar(node) else spec.layout


def _by_lines(node: Node, x: Tensor) -> bool:
    """Is the main input, an image, worth a copy whose channels lie side by side, if they do not?"""
    spec, layout = SPECS[node.op], _layout(node)
    if layout is Layout.LINES:
        return x.shape[1] >= FEW_SAMPLED and spec.read_again * node.output.size > x.size
    return layout is Layout.CHANNELS_LAST and x.shape[1] > 1 and x.shape[1] // int(node.attrs.get("groups", 1)) >= spec.gathers


def _inner(t: Tensor, order: Sequence[int]) -> int | None:
    """The axis whose elements lie side by side."""
    return next((a for a in reversed(order) if t.shape[a] > 1), None)


_COPIED = {
    "row-major": "a reshape of where its elements lie is not a view",
    "channels-last": "the kernel that reads it wants channels side by side",
    "packed": "the kernel that reads it wants it without gaps",
    "concat": "it lies elsewhere, or several concatenations hold it",
    "output": "results lie in the request, in the order of their axes",
}
"""Why a tensor is copied."""


def _reason(node: Node, order: tuple[int, ...], by_rows: bool) -> Reason:
    """Why elements of a result of `node` lie in this order of axes."""
    names = {tuple(range(len(order))): "row-major"}
    if len(order) in (4, 5):
        names[channels_last(len(order))] = "channels last"
    if by_rows:
        rule = "the product that reads it wants the terms of a row side by side"
    elif _layout(node) in (Layout.FOLLOWS, Layout.SPREADS):
        rule = "as its main input lies"
    else:
        rule = "as its kernel writes"
    others = tuple([Tried(name, rule) for other, name in names.items() if other != order])
    return Reason("layout", names.get(order, f"axes in the order {order}"), rule, tried=others, node=node.name, op=node.op)


class _Assignment:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        copies = [Node(n.op, n.name, list(n.inputs), list(n.outputs), n.attrs, n.onnx_op, batch_slice=n.batch_slice) for n in graph.nodes]
        self.nodes = _nest_concats(copies)
        self.producer = {t: node for node in self.nodes for t in node.outputs}
        self.readers: dict[Tensor, list[tuple[Node, int]]] = {}
        for node in self.nodes:
            for i, t in enumerate(node.inputs):
                if t is not None:
                    self.readers.setdefault(t, []).append((node, i))
        self.order: dict[Tensor, tuple[int, ...]] = {}
        self.natural: dict[Tensor, st.Strides] = {}
        self.placed: dict[Tensor, Ref] = {}
        self.refs: dict[Tensor, Ref] = {}
        self.out: list[Node] = []
        self.copied: dict[tuple[Tensor, tuple[int, ...]], Tensor] = {}
        self.constants: list[Buffer] = []
        self.request_bytes = 0

    # ------------------------------------------------------------------------------------------------------ natural order

    def _channels_last(self) -> set[Tensor]:
        wanted: set[Tensor] = set()

        def add(t: Tensor | None) -> None:
            if t is not None and len(t.shape) in (4, 5):
                wanted.add(t)

        for node in self.nodes:
            layout = _layout(node)
            if layout is Layout.CHANNELS_LAST:
                add(node.inputs[0])
                add(node.output)
                if len(node.inputs) > 3:
                    add(node.inputs[3])
            elif layout is Layout.LINES and (x := node.inputs[0]) is not None and x.shape[1] >= FEW_SAMPLED:
                add(x)
                add(node.output)
        if not wanted:
            return wanted
        for node in reversed(self.nodes):
            if _layout(node) is Layout.SPREADS and not wanted.isdisjoint(node.outputs):
                for t in (*node.inputs, *node.outputs):
                    add(t)
        for node in self.nodes:
            if _layout(node) is Layout.SPREADS and any(t in wanted for t in node.inputs if t is not None):
                for t in node.outputs:
                    add(t)
        return wanted

    def _rows(self) -> dict[Tensor, tuple[int, ...]]:
        """Results of element-wise ops that products read row by row, maybe through views. Their order is the one in which the terms of a
        row lie side by side. Where products read different rows, there is none."""
        wanted: dict[Tensor, list[tuple[int, ...]]] = {}
        for node in self.nodes:
            t = node.inputs[0] if SPECS[node.op].kind is Kind.PRODUCT else None
            strides: st.Strides | None = None if t is None or 0 in t.shape else st.dense(t.shape)
            while t is not None and strides is not None:
                source = self.producer.get(t)
                if source is None or source.op not in ELEMENTWISE | {"view.transpose", "view.reshape"}:
                    break
                if source.op in ELEMENTWISE:
                    wanted.setdefault(t, []).append(st.order_of(t.shape, strides))
                    break
                before, t = t, source.inputs[0]
                if t is not None and source.op == "view.transpose":
                    strides = st.untranspose(strides, source.attrs["perm"])
                elif t is not None:
                    strides = st.reshape(before.shape, strides, t.shape)
        return {t: orders[0] for t, orders in wanted.items() if len({_inner(t, order) for order in orders}) == 1}

    def _natural_orders(self) -> None:
        """`order` for every tensor that a kernel writes, and `natural`: strides of every tensor if nothing had to be placed."""
        last, rows = self._channels_last(), self._rows()
        for t in self.graph.inputs:
            self.natural[t] = st.dense(t.shape)
        for node in self.nodes:
            for x in node.inputs:
                if x is not None and x not in self.natural:
                    self.natural[x] = st.dense(x.shape)
            if node.op in VIEW_OPS:
                source = node.inputs[0]
                assert source is not None
                strides = self._view(node, source.shape, self.natural[source])
                self.natural[node.output] = strides if strides is not None else st.dense(node.output.shape)
                continue
            for t in node.outputs:
                order = self._order(node, t, last)
                by_rows = t in rows and _inner(t, order) != _inner(t, rows[t]) and t not in last
                order = rows[t] if by_rows else order
                reasons.tell(partial(_reason, node, order, by_rows))
                self.order[t] = order
                self.natural[t] = st.dense(t.shape, order)

    def _order(self, node: Node, t: Tensor, last: set[Tensor]) -> tuple[int, ...]:
        rank = len(t.shape)
        layout = _layout(node)
        if t in last and layout in _CHANNELS_LAST:
            return channels_last(rank)
        if layout is Layout.FOLLOWS or layout is Layout.SPREADS:
            inputs = [x for x in node.inputs if x is not None and len(x.shape) == rank]
            main = next((x for x in inputs if x.shape == t.shape and not x.is_const), inputs[0] if inputs else None)
            if main is not None:
                return st.order_of(main.shape, self.natural[main])
        return tuple(range(rank))

    @staticmethod
    def _view(node: Node, shape: Sequence[int], strides: st.Strides) -> st.Strides | None:
        """Strides of a view's result (without its offset), or None if these strides allow no view."""
        out = node.output
        if node.op == "view.reshape":
            return st.reshape(shape, strides, out.shape)
        if node.op == "view.transpose":
            return st.transpose(strides, node.attrs["perm"])
        if node.op == "view.slice":
            return tuple(s * step for s, step in zip(strides, node.attrs["steps"], strict=True))
        skip = len(out.shape) - len(shape)
        return tuple(0 if a < skip or (shape[a - skip] == 1 and d > 1) else strides[a - skip] for a, d in enumerate(out.shape))

    # ----------------------------------------------------------------------------------------------------- backward placing

    def _failures(self, t: Tensor, strides: st.Strides) -> int:
        """How many reshapes that hang on `t` through views would need a copy if it had these strides."""
        count = 0
        todo = [(t, strides, 0)]
        while todo:
            t, strides, depth = todo.pop()
            for node, _ in self.readers.get(t, ()) if depth < VIEW_DEPTH else ():
                if node.op in VIEW_OPS:
                    out = self._view(node, t.shape, strides)
                    if out is None:
                        count += 1
                    else:
                        todo.append((node.output, out, depth + 1))
        return count

    def _likes(self, node: Node, t: Tensor, strides: st.Strides) -> bool:
        """Is writing `t` with these strides as good as in its natural order?"""
        if any(d > 1 and s == 0 for d, s in zip(t.shape, strides, strict=True)):
            return False
        if _layout(node) in _ANY or (node.op in ELEMENTWISE and len(self.readers.get(t, ())) <= 1):
            return True
        inner = _inner(t, self.order[t])
        return inner is None or strides[inner] == 1

    def _place(self, t: Tensor, ref: Ref) -> dict[Tensor, Ref] | None:
        """Assignments that put `t` there and leave its producer content, or None."""
        while True:
            node = self.producer.get(t)
            if node is None or t in self.placed or t.is_const or 0 in t.shape:
                return None
            if node.op not in ("view.reshape", "view.transpose"):
                break
            source = node.inputs[0]
            assert source is not None
            back: st.Strides | None
            if node.op == "view.transpose":
                back = st.untranspose(ref.strides, node.attrs["perm"])
            else:
                back = st.reshape(t.shape, ref.strides, source.shape)
            if back is None:
                return None
            t, ref = source, Ref(ref.buffer, ref.offset, back)
        if node.op in VIEW_OPS or not self._likes(node, t, ref.strides):
            return None
        if self._failures(t, ref.strides) > self._failures(t, self.natural[t]):
            return None
        return {t: ref}

    def _place_backwards(self, outputs: Iterable[tuple[Tensor, Buffer]]) -> None:
        for t, buffer in outputs:
            found = self._place(t, Ref(buffer, 0, st.dense(t.shape)))
            if found:
                self.placed.update(found)
        for node in reversed(self.nodes):
            t = node.output
            if node.op == "concat":
                if t not in self.placed:
                    self.placed[t] = self._fresh(t, st.dense(t.shape, self.order[t]))
                times = Counter(node.inputs)
                for x, ref in self._slices(node, self.placed[t]):
                    found = self._place(x, ref) if times[x] == 1 else None
                    if found:
                        self.placed.update(found)
            elif node.op == "view.reshape":
                source = node.inputs[0]
                assert source is not None
                if st.reshape(source.shape, self.natural[source], t.shape) is None:
                    found = self._place(t, self._fresh(t, st.dense(t.shape)))
                    if found and all(self._failures(x, r.strides) < self._failures(x, self.natural[x]) for x, r in found.items()):
                        self.placed.update(found)

    @staticmethod
    def _slices(node: Node, ref: Ref) -> list[tuple[Tensor, Ref]]:
        """Where each input of a concat belongs."""
        axis = node.attrs["axis"]
        at = 0
        out = []
        for x in node.inputs:
            assert x is not None
            out.append((x, Ref(ref.buffer, ref.offset + at * ref.strides[axis], ref.strides)))
            at += x.shape[axis]
        return out

    # --------------------------------------------------------------------------------------------------- forward resolution

    def _fresh(self, t: Tensor, strides: st.Strides) -> Ref:
        return Ref(Buffer(ARENA, nbytes(t), t.name), 0, strides)

    def _source(self, t: Tensor) -> Ref:
        """The place of a value that is there before the node at hand."""
        ref = self.refs.get(t)
        if ref is None:
            if not t.is_const:
                raise ValueError(f"{t.name} is read before it is written")
            buffer = Buffer(PLAN if t.weight_key is None else WEIGHTS, nbytes(t), t.name, const=t)
            self.constants.append(buffer)
            ref = self.refs[t] = Ref(buffer, 0, st.dense(t.shape))
        return ref

    def _copy(self, t: Tensor, ref: Ref, why: str) -> Tensor:
        """A COPY node that writes `t` to `ref`."""
        new = Tensor(f"{t.name}:{why}", t.shape, t.dtype)
        reasons.tell(lambda: Reason("layout", "a copy", _COPIED[why], tried=(Tried("a view", _COPIED[why]),), node=new.name))
        node = Node(COPY, f"{t.name}:{why}", [t], [new], {}, "Copy")
        new.producer = node
        self.out.append(node)
        self.producer[new] = node
        self.refs[new] = ref
        return new

    def _ordered(self, t: Tensor, order: tuple[int, ...], why: str) -> Tensor:
        """A dense copy of `t` in this order, made once."""
        key = (t, order)
        if key not in self.copied:
            self.copied[key] = self._copy(t, self._fresh(t, st.dense(t.shape, order)), why)
        return self.copied[key]

    def _resolve_view(self, node: Node) -> None:
        source = node.inputs[0]
        assert source is not None
        ref = self._source(source)
        strides = self._view(node, source.shape, ref.strides)
        if strides is None:
            source = self._ordered(source, tuple(range(len(source.shape))), "row-major")
            node.inputs = [source]
            ref = self.refs[source]
            strides = self._view(node, source.shape, ref.strides)
            assert strides is not None
        offset = ref.offset
        if node.op == "view.slice" and 0 not in node.output.shape:
            offset += sum(start * s for start, s in zip(node.attrs["starts"], ref.strides, strict=True))
        self.refs[node.output] = Ref(ref.buffer, offset, strides)

    def _resolve_concat(self, node: Node) -> None:
        ref = self.refs[node.output] = self.placed[node.output]
        inputs: list[Tensor | None] = []
        for x, want in self._slices(node, ref):
            have = self._source(x)
            fits = have.buffer is want.buffer and have.offset == want.offset and st.same(x.shape, have.strides, want.strides)
            inputs.append(x if fits or 0 in x.shape else self._copy(x, want, "concat"))
        node.inputs = inputs

    def _strides(self, t: Tensor) -> st.Strides:
        """Strides of a kernel's output."""
        return self.placed[t].strides if t in self.placed else self.natural[t]

    def _resolve_kernel(self, node: Node) -> None:
        lines = SPECS[node.op].planar(node) and self._strides(node.output)[1] == 1  # its input lies as its output does
        for i, x in enumerate(node.inputs):
            if x is None:
                continue
            ref = self._source(x)
            if i == 0 and (lines or _by_lines(node, x)) and ref.strides[1] != 1:
                node.inputs[i] = self._ordered(x, channels_last(len(x.shape)), "channels-last")
            if is_packed(node, i) and not st.same(x.shape, ref.strides, st.dense(x.shape)):
                node.inputs[i] = self._ordered(x, tuple(range(len(x.shape))), "packed")
        for t in node.outputs:
            self.refs[t] = self.placed[t] if t in self.placed else self._fresh(t, self.natural[t])

    def run(self) -> Storage:
        self._natural_orders()
        inputs, outputs = self._request()
        self._place_backwards((t, buffer) for t, buffer in outputs)
        for node in self.nodes:
            if node.op in VIEW_OPS:
                self._resolve_view(node)
            elif node.op == "concat":
                self._resolve_concat(node)
            else:
                self._resolve_kernel(node)
            self.out.append(node)
        results = []
        for (t, buffer), named in zip(outputs, self.graph.outputs, strict=True):
            ref = self._source(t)
            if not (ref.buffer is buffer and ref.offset == 0 and st.same(t.shape, ref.strides, st.dense(t.shape))):
                results.append((named.name, self._copy(t, Ref(buffer, 0, st.dense(t.shape)), "output")))
            else:
                results.append((named.name, t))
        steps = [n for n in self.out if n.op not in VIEW_OPS and n.op != "concat"]
        return Storage(self.out, steps, self.refs, self.producer, inputs, results, self.request_bytes, self.constants)

    def _request(self) -> tuple[list[tuple[str, Tensor]], list[tuple[Tensor, Buffer]]]:
        """Lays out the request's region: inputs, then outputs, each row-major at a multiple of 64 bytes. Large inputs have pages of
        their own, in whose place a client may lend pages of its own (`docs/protocol/borrow.md`, "Borrow")."""

        def take(t: Tensor, page: int = 1) -> Buffer:
            size = aligned(nbytes(t))
            at = -(-self.request_bytes // page) * page
            buffer = Buffer(REQUEST, nbytes(t), t.name, offset=at)
            self.request_bytes = at + -(-size // page) * page
            return buffer

        inputs = []
        for t in self.graph.inputs:
            self.refs[t] = Ref(take(t, PAGE if nbytes(t) >= PAGED_BYTES else 1), 0, st.dense(t.shape))
            inputs.append((t.name, t))
        return inputs, [(t, take(t)) for t in self.graph.outputs]


def buffers(storage: Storage) -> list[Buffer]:
    """Every buffer once, in order of first appearance."""
    seen: dict[int, Buffer] = {}
    for ref in storage.refs.values():
        seen.setdefault(id(ref.buffer), ref.buffer)
    return list(seen.values())
