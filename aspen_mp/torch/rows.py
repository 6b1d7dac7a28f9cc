"""Which graphs compute each row of a batch by itself, as PyTorch's symbolic sizes and the operators' meanings prove.

The number of rows is a symbol that is the first dimension of an input. Each operator is asked where the rows are in its result: along one
axis, and outermost in it where that axis holds more (rows × tokens). A value without that symbol in its shape is the same for all rows.
Operators that are not known here, or that mix rows, end the proof. Nothing is guessed from the sizes of one call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from aspen_mp.torch import sizes
from aspen_mp.torch.builder import positive

ATTENTION: Final = "_scaled_dot_product_flash_attention_for_cpu"
"""It counts as random, which it is where values are dropped."""
MIXED: Final = object()
"""One of an operator's results for which there is no proof."""


class Mixed(Exception):
    """Rows are mixed, or there is no proof that they are not."""


class Rows(NamedTuple):
    """Where the rows of a value are. `numbers`: the value of each row is its own number in the batch."""

    axis: int
    numbers: bool = False


@dataclass(frozen=True, slots=True)
class Separable:
    """What a graph has for each row. `inputs`: the places of tensors with a row in each step of their first axis. `sizes`: the places of
    arguments that are the number of rows. `outputs`: of each result, the axis with the rows, or None where all rows share it."""

    inputs: frozenset[int]
    sizes: frozenset[int]
    outputs: tuple[int | None, ...]


def separable(graph: fx.Graph) -> Separable | None:
    """Return what says how to split a graph's calls by rows; None where rows are not proved independent, or nothing else changes."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    shapes = [[sizes.expression(dim) for dim in node.meta["val"].shape] for node in placeholders if _is_tensor(node)]
    symbols = {symbol for shape in shapes for dim in shape if not isinstance(dim, int) for symbol in dim.free_symbols}
    first = dict.fromkeys(shape[0] for shape in shapes if shape and not isinstance(shape[0], int) and shape[0].is_Symbol)
    if len(symbols) < 2:
        return None
    for symbol in first:
        try:
            return _Proof(graph, symbol).result()
        except Mixed:
            continue
    return None


def _is_tensor(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


def _rank(node: fx.Node) -> int:
    return len(node.meta["val"].shape)


class _Proof:
    def __init__(self, graph: fx.Graph, symbol: Any) -> None:
        self.graph = graph
        self.symbol = symbol
        self.rows: dict[fx.Node, Any] = {}
        """Of each tensor, its rows or None; a list of these and `MIXED` where an operator gives several."""

    def result(self) -> Separable:
        """Raises Mixed."""
        inputs, numbers, outputs = set[int](), set[int](), list[int | None]()
        place = 0
        for node in self.graph.nodes:
            if node.op == "placeholder":
                if _is_tensor(node):
                    self.rows[node] = self.of_shape(node.meta["val"])
                    if self.rows[node] is not None:
                        if self.rows[node].axis or sizes.expression(node.meta["val"].shape[0]) != self.symbol:
                            raise Mixed(node.name)
                        inputs.add(place)
                elif self.has(node.meta.get("val")):
                    if sizes.expression(node.meta["val"]) != self.symbol:
                        raise Mixed(node.name)
                    numbers.add(place)
                place += 1
            elif node.op == "get_attr":
                self.rows[node] = None
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                outputs = [self._output(value) for value in pytree.tree_leaves(node.args[0])]
        return Separable(frozenset(inputs), frozenset(numbers), tuple(outputs))

    def has(self, value: Any) -> bool:
        """Whether a size depends on the number of rows."""
        expr = sizes.expression(value)
        return hasattr(expr, "free_symbols") and self.symbol in expr.free_symbols

    def of_shape(self, fake: Any) -> Rows | None:
        """The one axis that has the rows in it, by the shape alone. Raises Mixed where it does not grow evenly with their number."""
        axes = [axis for axis, dim in enumerate(fake.shape) if self.has(dim)]
        if not axes:
            return None
        if len(axes) > 1 or self.symbol in (sizes.expression(fake.shape[axes[0]]) / self.symbol).free_symbols:
            raise Mixed("a shape")
        return Rows(axes[0])

    def _output(self, value: Any) -> int | None:
        found = self.rows.get(value) if isinstance(value, fx.Node) else None
        if isinstance(found, list) or (found is not None and found.numbers):
            raise Mixed("a result")
        return None if found is None else found.axis

    # ---- operators

    def _call(self, node: fx.Node) -> None:
        out = node.meta.get("val")
        if sizes.is_number(out):
            return
        if node.target is operator.getitem:
            source = self.rows[node.args[0]]
            if not isinstance(source, list) or source[node.args[1]] is MIXED:
                raise Mixed(node.name)
            self.rows[node] = source[node.args[1]]
            return
        carried = [n for n in node.all_input_nodes if self.rows.get(n) is not None]
        name = str(node.target).removeprefix("aten.").partition(".")[0]
        leaves = [leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf for leaf in pytree.tree_leaves((node.args, node.kwargs))]
        sized = any(self.has(leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor))
        tags = getattr(node.target, "tags", ())
        random = torch.Tag.nondeterministic_seeded in tags and not (name == ATTENTION and _given(node)["dropout_p"] == 0)
        if random or (sized and name not in SIZED):
            raise Mixed(node.name)
        if any(isinstance(self.rows[n], list) for n in carried):
            raise Mixed(node.name)
        if any(self.rows[n].numbers for n in carried) and name not in NUMBERED:
            raise Mixed(node.name)
        found = self._rows_of(node, name, carried, torch.Tag.pointwise in tags) if carried or sized else None
        self.rows[node] = self._agrees(out, found)

    def _rows_of(self, node: fx.Node, name: str, carried: Sequence[fx.Node], pointwise: bool) -> Rows | None:
        rule = RULES.get(name, _pointwise if pointwise else None)
        if rule is None:
            raise Mixed(f"{node.name}: {name}")
        return rule(_Call(self, node, carried))

    def _agrees(self, out: Any, found: Rows | None) -> Any:
        """The rows of what a node gives, where its shape says the same; of several tensors, all have their rows along that axis."""
        if isinstance(out, tuple | list):
            return [self._one_of(fake, found) for fake in out]
        seen = self.of_shape(out)
        if (seen is None) != (found is None) or (seen is not None and found is not None and seen.axis != found.axis):
            raise Mixed("a result's shape")
        return found

    def _one_of(self, fake: Any, found: Rows | None) -> Any:
        """The same for one of several results, which may be one that nobody reads."""
        try:
            return self._agrees(fake, found) if isinstance(fake, torch.Tensor) else MIXED
        except Mixed:
            return MIXED


class _Call:
    """A node whose arguments have rows. `given`: its arguments by their names."""

    def __init__(self, proof: _Proof, node: fx.Node, carried: Sequence[fx.Node]) -> None:
        self.proof, self.node, self.carried = proof, node, carried
        self.given = _given(node)

    def rows(self, value: Any) -> Rows | None:
        return self.proof.rows.get(value) if isinstance(value, fx.Node) else None

    def first(self) -> tuple[fx.Node, Rows]:
        """The first argument, which alone may have rows."""
        node = self.node.args[0]
        found = self.rows(node)
        if found is None or self.carried != [node]:
            raise Mixed(self.node.name)
        assert isinstance(node, fx.Node)
        return node, found

    def dims(self, name: str, rank: int) -> list[int]:
        """The axes that an argument names."""
        value = self.given.get(name)
        found = [value] if isinstance(value, int) else value
        if not found or not all(isinstance(dim, int) for dim in found):
            raise Mixed(self.node.name)
        return [positive(dim, rank) for dim in found]

    def only(self, allowed: bool) -> None:
        if not allowed:
            raise Mixed(self.node.name)


def _given(node: fx.Node) -> dict[str, Any]:
    arguments = node.target._schema.arguments
    given: dict[str, Any] = {a.name: a.default_value for a in arguments if a.has_default_value()}
    given |= {a.name: value for a, value in zip(arguments, node.args, strict=False)}
    return {**given, **node.kwargs}


Rule = Callable[[_Call], Rows | None]


def _pointwise(call: _Call) -> Rows:
    rank = _rank(call.node)
    axes = {call.proof.rows[n].axis + rank - _rank(n) for n in call.carried}
    call.only(len(axes) == 1)
    return Rows(axes.pop())


def _same(call: _Call) -> Rows:
    return call.first()[1]


def _view(call: _Call) -> Rows:
    """Rows stay where they are in memory: what stands before their axis is the same, or one element."""
    x, rows = call.first()
    shape, out = ([sizes.expression(n) for n in node.meta["val"].shape] for node in (x, call.node))
    found = call.proof.of_shape(call.node.meta["val"])
    call.only(found is not None)
    assert found is not None
    before, after = shape[: rows.axis], out[: found.axis]
    call.only(before == after or (all(n == 1 for n in before) and all(n == 1 for n in after)))
    return rows._replace(axis=found.axis)


def _permute(call: _Call) -> Rows:
    x, rows = call.first()
    return rows._replace(axis=call.dims("dims", _rank(x)).index(rows.axis))


def _transpose(call: _Call) -> Rows:
    x, rows = call.first()
    (first,), (second,) = call.dims("dim0", _rank(x)), call.dims("dim1", _rank(x))
    return rows._replace(axis={first: second, second: first}.get(rows.axis, rows.axis))


def _t(call: _Call) -> Rows:
    x, rows = call.first()
    return rows._replace(axis=_rank(x) - 1 - rows.axis)


def _unsqueeze(call: _Call) -> Rows:
    x, rows = call.first()
    (dim,) = call.dims("dim", _rank(x) + 1)
    return rows._replace(axis=rows.axis + (dim <= rows.axis))


def _squeeze(call: _Call) -> Rows:
    x, rows = call.first()
    dims = [dim for dim in call.dims("dim", _rank(x)) if x.meta["val"].shape[dim] == 1]
    call.only(rows.axis not in dims)
    return rows._replace(axis=rows.axis - sum(dim < rows.axis for dim in dims))


def _select(call: _Call) -> Rows:
    x, rows = call.first()
    (dim,) = call.dims("dim", _rank(x))
    call.only(dim != rows.axis)
    return rows._replace(axis=rows.axis - (dim < rows.axis))


def _slice(call: _Call) -> Rows:
    x, rows = call.first()
    dim = positive(call.given["dim"], _rank(x))
    whole, part = (sizes.expression(node.meta["val"].shape[dim]) for node in (x, call.node))
    call.only(dim != rows.axis or (whole == part and call.given["step"] == 1))
    return rows


def _expand(call: _Call) -> Rows:
    x = call.node.args[0]
    rows = call.rows(x)
    if rows is None:  # the same for all rows, now once for each
        return _alike(call)
    assert isinstance(x, fx.Node)
    return rows._replace(axis=rows.axis + _rank(call.node) - _rank(x))


def _alike(call: _Call) -> Rows:
    """All rows have the same values, and the shape says where they are."""
    found = call.proof.of_shape(call.node.meta["val"])
    call.only(found is not None)
    assert found is not None
    return found


def _made(call: _Call) -> Rows | None:
    """A new tensor of one value, which is not the number of rows."""
    call.only(not call.proof.has(_value(call.given.get("fill_value"))))
    return call.proof.of_shape(call.node.meta["val"])


def _value(argument: Any) -> Any:
    return argument.meta.get("val") if isinstance(argument, fx.Node) else argument


def _arange(call: _Call) -> Rows:
    start, step = call.given.get("start", 0), call.given.get("step", 1)
    call.only(start == 0 and step == 1 and sizes.expression(_value(call.given["end"])) == call.proof.symbol)
    return Rows(0, numbers=True)


def _index(call: _Call) -> Rows:
    """Elements of each row, as `x[rows, places]` where `rows` are the rows' own numbers."""
    x, places = call.given["self"], call.given["indices"]
    rows, own = call.rows(x), call.rows(places[0])
    whole = rows == Rows(0) and sizes.expression(x.meta["val"].shape[0]) == call.proof.symbol
    call.only(whole and own is not None and own.numbers and all(_is_tensor(place) for place in places))
    rank = max(_rank(place) for place in places)
    axes = {call.proof.rows[place].axis + rank - _rank(place) for place in places if call.rows(place) is not None}
    numbers = [place for place in places[1:] if (found := call.rows(place)) is not None and found.numbers]
    call.only(len(axes) == 1 and not numbers)
    return Rows(axes.pop())


def _reduced(call: _Call) -> Rows:
    x, rows = call.first()
    dims = call.dims("dim", _rank(x))
    call.only(rows.axis not in dims)
    return Rows(rows.axis if call.given.get("keepdim") else rows.axis - sum(dim < rows.axis for dim in dims))


def _along(call: _Call) -> Rows:
    """Computed along one axis, which is not that of the rows."""
    x, rows = call.first()
    call.only(rows.axis not in call.dims("dim", _rank(x)))
    return rows


def _layer_norm(call: _Call) -> Rows:
    x, rows = call.first()
    call.only(rows.axis < _rank(x) - len(call.given["normalized_shape"]))
    return rows


def _embedding(call: _Call) -> Rows:
    rows = call.rows(call.given["indices"])
    call.only(rows is not None and call.carried == [call.given["indices"]])
    assert rows is not None
    return rows


def _gather(call: _Call) -> Rows:
    x, index = call.rows(call.given["self"]), call.rows(call.given["index"])
    call.only(x is not None and x == index and x.axis not in call.dims("dim", _rank(call.node)))
    assert x is not None
    return x


def _product(call: _Call) -> Rows:
    """Rows of the left factor; what is added and the right factor are the same for all of them."""
    left = call.given.get("mat1", call.given.get("self"))
    call.only(call.carried == [left] and call.rows(left) == Rows(0))
    return Rows(0)


def _products(call: _Call) -> Rows:
    left, right = call.rows(call.given["self"]), call.rows(call.given["mat2"])
    call.only((left == Rows(0) and right == left) or (left == Rows(1) and right is None))
    assert left is not None
    return left


def _attention(call: _Call) -> Rows:
    call.only(all(call.rows(call.given[name]) == Rows(0) for name in ("query", "key", "value")))
    call.only(call.rows(call.given.get("attn_mask")) in (None, Rows(0)))
    return Rows(0)


def _image(call: _Call) -> Rows:
    """Convolutions, their normalisation with known statistics, and pools of images, of which each row has one."""
    x, rows = call.first()
    call.only(rows.axis == 0 and _rank(x) >= 3 and sizes.expression(x.meta["val"].shape[0]) == call.proof.symbol)
    return rows


def _joined(call: _Call) -> Rows:
    tensors = call.given["tensors"]
    found = {call.rows(tensor) for tensor in tensors}
    rows = found.pop()
    call.only(not found and rows is not None)
    assert rows is not None
    (dim,) = call.dims("dim", _rank(call.node))
    if _rank(call.node) > _rank(tensors[0]):  # stack
        return rows._replace(axis=rows.axis + (dim <= rows.axis))
    call.only(dim != rows.axis)
    return rows


def _padded(call: _Call) -> Rows:
    x, rows = call.first()
    pad, place = call.given["pad"], 2 * (_rank(x) - 1 - rows.axis)
    call.only(all(isinstance(n, int) and n == 0 for n in pad[place : place + 2]))
    return rows


RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(["clone", "_to_copy", "alias", "detach", "full_like", "zeros_like", "ones_like"], _same),
    **dict.fromkeys(["view", "_unsafe_view", "reshape"], _view),
    **dict.fromkeys(["full", "zeros", "ones", "new_full", "new_zeros", "new_ones"], _made),
    **dict.fromkeys(["sum", "mean", "amax", "amin", "any", "all", "argmax", "argmin", "var", "std"], _reduced),
    **dict.fromkeys(["_softmax", "_safe_softmax", "_log_softmax", "cumsum", "split", "split_with_sizes"], _along),
    **dict.fromkeys(["mm", "addmm"], _product),
    **dict.fromkeys(["convolution", "_native_batch_norm_legit_no_training", "_adaptive_avg_pool2d", "avg_pool2d"], _image),
    **dict.fromkeys(["cat", "stack"], _joined),
    "permute": _permute,
    "transpose": _transpose,
    "t": _t,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "select": _select,
    "slice": _slice,
    "expand": _expand,
    "arange": _arange,
    "index": _index,
    "native_layer_norm": _layer_norm,
    "embedding": _embedding,
    "gather": _gather,
    "bmm": _products,
    ATTENTION: _attention,
    "max_pool2d_with_indices": _image,
    "constant_pad_nd": _padded,
}
"""Where an operator's result has its rows; operators that compute element by element have `_pointwise`."""
SIZED: Final = {
    *("view", "_unsafe_view", "reshape", "expand", "slice"),
    *("full", "zeros", "ones", "new_full", "new_zeros", "new_ones", "arange"),
}
"""Operators that may be told the number of rows, as a part of their result's shape."""
NUMBERED: Final = {"view", "unsqueeze", "slice", "expand", "clone", "_to_copy", "index"}
"""Operators that the rows' own numbers may go through, or where they name rows."""
