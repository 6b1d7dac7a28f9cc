"""Ensembles of decision trees: from the attributes of ONNX's operators to the tables that the kernel TREES reads.

All versions of ONNX's operators become one `Trees`. `pack` lays that out: the nodes of a tree lie together, level by level, and the two
children of a node side by side. So a step of a walk is ``child + (x <= value)``. Every other comparison is spelled as that one:

- ``x < v`` is ``x <= w`` with w the number before v;
- ``x > v``, ``x >= v`` and ``x != v`` are the opposites of others, with the children in the other order;
- ``x == v`` is ``x <= v`` and not ``x < v``, which a flag asks for;
- membership of a set is a chain of comparisons for equality.

Converters let several nodes share a child. The first of them owns it; for the others a node stands there that leads on to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.lower.builder import NoKernel
from aspen_mp.shm.errors import ModelInvalidError
from aspen_mp.shm.tables import NUMBERS

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]

LEAF, LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(8)
MODES: Final = {
    "LEAF": LEAF,
    "BRANCH_LEQ": LEQ,
    "BRANCH_LT": LT,
    "BRANCH_GTE": GTE,
    "BRANCH_GT": GT,
    "BRANCH_EQ": EQ,
    "BRANCH_NEQ": NEQ,
}
MODES_BY_NUMBER: Final = (LEQ, LT, GTE, GT, EQ, NEQ, MEMBER)
"""Those of TreeEnsemble, whose leaves are elsewhere."""
AGGREGATES: Final = ("SUM", "AVERAGE", "MIN", "MAX")
EQUAL, MISSING = 1 << NUMBERS["EQUAL_BIT"], 1 << NUMBERS["MISSING_BIT"]
"""Flags beside a node's feature (`workers/kernels/classical/ensemble.h`)."""
MOST_FEATURES, MOST_NODES, MOST_STEPS = 1 << 29, 1 << 30, 1 << 20
_SPREAD = 8
"""Leaves may have weights for targets far apart; with gaps filled they take at most this multiple of the room."""


@dataclass(frozen=True, slots=True)
class Trees:
    """Nodes of all trees. `yes`, `no`: where a node leads if its comparison holds or not, as places in these arrays; unused of a leaf.
    `missing`: a NaN counts as if the comparison held. `roots`: one a tree. `leaf`, `target`, `weight`: the results of leaves."""

    feature: Ints
    value: Floats
    mode: Ints
    missing: npt.NDArray[np.bool_]
    yes: Ints
    no: Ints
    roots: Ints
    leaf: Ints
    target: Ints
    weight: Floats


@dataclass(frozen=True, slots=True)
class Packed:
    """The operands of TREES. `nodes`: int32 [n, 4] or [n, 6]; `trees`: int32 [t, 4]; `weights`: [w] of leaves with several targets, if any.
    `flags`: 0, no node has one; 1, no other than MISSING; 2, others. `most`: steps to the deepest leaf of all. `steps`: of all trees
    together, about as many as a row takes."""

    nodes: npt.NDArray[np.int32]
    trees: npt.NDArray[np.int32]
    weights: Floats | None
    flags: int
    most: int
    steps: int


def _floats(attrs: dict[str, Any], name: str) -> Floats:
    """An attribute that is a list of floats or, of doubles, a tensor."""
    from onnx import numpy_helper

    if f"{name}_as_tensor" in attrs:
        return numpy_helper.to_array(attrs[f"{name}_as_tensor"]).reshape(-1)
    return np.array(attrs.get(name) or [], np.float32)


def _ints(attrs: dict[str, Any], name: str) -> Ints:
    return np.array(attrs.get(name) or [], np.int64)


def base_values(attrs: dict[str, Any]) -> Floats:
    """The initial values of targets or classes."""
    return _floats(attrs, "base_values")


def from_nodes(attrs: dict[str, Any], weights: str) -> Trees:
    """The trees of TreeEnsembleRegressor and TreeEnsembleClassifier. `weights`: "target" or "class", as their attributes are named.
    ModelInvalidError: these are not trees."""
    tree_ids, node_ids = _ints(attrs, "nodes_treeids"), _ints(attrs, "nodes_nodeids")
    names = [m.decode() if isinstance(m, bytes) else str(m) for m in attrs.get("nodes_modes") or []]
    n = len(node_ids)
    columns = {name: _ints(attrs, f"nodes_{name}") for name in ("featureids", "truenodeids", "falsenodeids")}
    values, tracks = _floats(attrs, "nodes_values"), _ints(attrs, "nodes_missing_value_tracks_true")
    lengths = {"nodes_treeids": len(tree_ids), "nodes_modes": len(names), "nodes_values": len(values)}
    lengths |= {f"nodes_{name}": len(column) for name, column in columns.items()}
    for name, length in lengths.items():
        if length != n:
            raise ModelInvalidError(f"{name} has {length} entries for {n} nodes")
    if n == 0:
        raise NoKernel("the trees have no nodes")
    unknown = sorted(set(names) - MODES.keys())
    if unknown:
        raise ModelInvalidError(f"nodes_modes names {unknown[0]!r}, not one of {', '.join(MODES)}")
    mode = np.array([MODES[m] for m in names], np.int64)
    starts = np.flatnonzero(np.r_[True, tree_ids[1:] != tree_ids[:-1]])
    if len(np.unique(tree_ids[starts])) != len(starts):
        raise NoKernel("the nodes of a tree are not beside each other")
    find = _Places(tree_ids, node_ids)
    inner = mode != LEAF
    yes, no = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for out, name in ((yes, "truenodeids"), (no, "falsenodeids")):
        out[inner] = find(tree_ids[inner], columns[name][inner], f"nodes_{name}")
    leaf = find(_ints(attrs, f"{weights}_treeids"), _ints(attrs, f"{weights}_nodeids"), f"{weights}_nodeids")
    target, weight = _ints(attrs, f"{weights}_ids"), _floats(attrs, f"{weights}_weights")
    if not len(leaf) == len(target) == len(weight):
        raise ModelInvalidError(
            f"{weights}_nodeids, {weights}_ids and {weights}_weights have {len(leaf)}, {len(target)}, {len(weight)} entries"
        )
    missing = np.zeros(n, np.bool_)
    missing[: len(tracks)] = tracks[:n] == 1
    keep = ~inner[leaf]
    return Trees(columns["featureids"], values, mode, missing, yes, no, starts, leaf[keep], target[keep], weight[keep])


class _Places:
    """Finds nodes by the ids of tree and node."""

    def __init__(self, tree_ids: Ints, node_ids: Ints) -> None:
        pairs = np.stack([tree_ids, node_ids], axis=1)
        self.order = np.lexsort((node_ids, tree_ids))
        self.pairs = pairs[self.order]
        twice = np.flatnonzero((self.pairs[1:] == self.pairs[:-1]).all(axis=1))
        if len(twice):
            raise ModelInvalidError(f"node {self.pairs[twice[0], 1]} of tree {self.pairs[twice[0], 0]} is there twice")
        self.keys = self._key(self.pairs)

    def _key(self, pairs: Ints) -> npt.NDArray[Any]:
        """Pairs as numbers that are in the same order. Ids are 64 bits wide, but few."""
        self.trees = np.unique(self.pairs[:, 0])
        self.nodes = np.unique(self.pairs[:, 1])
        return np.searchsorted(self.trees, pairs[:, 0]) * (len(self.nodes) + 1) + np.searchsorted(self.nodes, pairs[:, 1])

    def __call__(self, trees: Ints, nodes: Ints, what: str) -> Ints:
        if len(trees) != len(nodes):
            raise ModelInvalidError(f"{what} has {len(nodes)} entries for {len(trees)} trees")
        tree, node = np.searchsorted(self.trees, trees), np.searchsorted(self.nodes, nodes)
        at = np.minimum(np.searchsorted(self.keys, tree * (len(self.nodes) + 1) + node), len(self.keys) - 1)
        bad = np.flatnonzero((self.pairs[at, 0] != trees) | (self.pairs[at, 1] != nodes))
        if len(bad):
            raise ModelInvalidError(f"{what} names node {nodes[bad[0]]} of tree {trees[bad[0]]}, which is not there")
        return self.order[at]


def from_leaves(attrs: dict[str, Any]) -> Trees:
    """The trees of TreeEnsemble, whose leaves have tables of their own."""
    from onnx import numpy_helper

    values = numpy_helper.to_array(attrs["nodes_splits"]).reshape(-1)
    weight = numpy_helper.to_array(attrs["leaf_weights"]).reshape(-1)
    numbers = numpy_helper.to_array(attrs["nodes_modes"]).reshape(-1).astype(np.int64)
    target, n, leaves = _ints(attrs, "leaf_targetids"), len(values), len(weight)
    if n == 0 or ((numbers < 0) | (numbers >= len(MODES_BY_NUMBER))).any():
        raise ModelInvalidError("nodes_modes has no nodes, or numbers outside 0 … 6")
    children = []
    for side in ("true", "false"):
        ids, is_leaf = _ints(attrs, f"nodes_{side}nodeids"), _ints(attrs, f"nodes_{side}leafs") != 0
        if len(ids) != n or len(is_leaf) != n or ((ids < 0) | (ids >= np.where(is_leaf, leaves, n))).any():
            raise ModelInvalidError(f"nodes_{side}nodeids and nodes_{side}leafs do not name nodes or leaves")
        children.append(np.where(is_leaf, n + ids, ids))
    roots, feature = _ints(attrs, "tree_roots"), _ints(attrs, "nodes_featureids")
    if len(target) != leaves or len(feature) != n or len(numbers) != n or ((roots < 0) | (roots >= n)).any():
        raise ModelInvalidError("leaf_targetids, nodes_featureids, nodes_modes or tree_roots do not fit the nodes and leaves")
    tracks, missing = _ints(attrs, "nodes_missing_value_tracks_true"), np.zeros(n + leaves, np.bool_)
    missing[: min(len(tracks), n)] = tracks[:n] == 1
    mode = np.r_[np.array(MODES_BY_NUMBER)[numbers], np.full(leaves, LEAF)]
    pad = np.zeros(leaves, np.int64)
    feature, value = np.r_[feature, pad], np.r_[values, pad.astype(values.dtype)]
    yes, no = (np.r_[c, pad] for c in children)
    trees = Trees(feature, value, mode, missing, yes, no, roots, n + np.arange(leaves), target, weight)
    return _without_sets(trees, attrs) if (mode == MEMBER).any() else trees


def _without_sets(t: Trees, attrs: dict[str, Any]) -> Trees:
    """Membership of a set as a chain of comparisons: the first takes the node's place, the others follow all nodes."""
    from onnx import numpy_helper

    members = numpy_helper.to_array(attrs["membership_values"]).reshape(-1) if "membership_values" in attrs else np.zeros(0, t.value.dtype)
    sets = np.split(members, np.flatnonzero(np.isnan(members)) + 1)
    where = np.flatnonzero(t.mode == MEMBER)
    if len(sets) < len(where):
        raise ModelInvalidError(f"membership_values has {len(sets)} sets for {len(where)} nodes")
    columns = {k: [getattr(t, k)] for k in ("feature", "value", "mode", "missing", "yes", "no")}
    mode, value, no, n = t.mode.copy(), t.value.copy(), t.no.copy(), len(t.mode)
    for at, values in zip(where.tolist(), sets, strict=False):
        chain = values[~np.isnan(values)]
        mode[at], value[at] = EQ, chain[0] if len(chain) else np.nan
        more = len(chain) - 1
        if more > 0:
            places = n + np.arange(more)
            rows = {"feature": t.feature[at], "value": chain[1:], "mode": EQ, "missing": t.missing[at], "yes": t.yes[at]}
            rows["no"] = np.r_[places[1:], t.no[at]]
            for k, row in rows.items():
                columns[k].append(np.broadcast_to(row, (more,)))
            no[at] = places[0]
            n += more
    columns["mode"][0], columns["value"][0], columns["no"][0] = mode, value, no
    joined = {k: np.concatenate(v) for k, v in columns.items()}
    return Trees(roots=t.roots, leaf=t.leaf, target=t.target, weight=t.weight, **joined)


def pack(t: Trees, targets: int, aggregate: str, dtype: np.dtype[Any]) -> Packed:
    """Tables of f32 or f64 thresholds and weights. ModelInvalidError: a node is its own ancestor, or a target is not there."""
    level, owner = _levels(t)
    if len(t.target) and ((t.target < 0) | (t.target >= targets)).any():
        raise ModelInvalidError(f"a leaf has a weight for target {t.target[(t.target < 0) | (t.target >= targets)][0]} of {targets}")
    with np.errstate(over="ignore"):
        value = t.value.astype(dtype)
    slots, size, starts = _slots(t, level, owner)
    if size > MOST_NODES or level.max() > MOST_STEPS:
        raise NoKernel(f"the trees are too large: {size} nodes, {level.max()} deep")
    below = np.isin(t.mode, (LT, GTE))
    value = np.where(below, np.where(np.isneginf(value), dtype.type(np.nan), np.nextafter(value, dtype.type(-np.inf))), value)
    turned = _turned(t)
    missing = np.where(turned, ~t.missing & (t.mode != NEQ), t.missing)
    flags = np.where(np.isin(t.mode, (EQ, NEQ)), EQUAL, 0) | np.where(missing, MISSING, 0)
    layout = [("value", dtype), ("weight", dtype), ("feature", np.int32), ("child", np.int32)]
    nodes = np.zeros(size, np.dtype(layout))
    nodes["value"], nodes["child"] = np.nan, np.arange(size)
    inner = np.flatnonzero((level >= 0) & (t.mode != LEAF))
    at, pair = slots.node[inner], slots.pair[inner]
    nodes["value"][at], nodes["child"][at], nodes["feature"][at] = value[inner], pair, t.feature[inner] | flags[inner]
    for side in (0, 1):  # who is not the first to have a child leads on to it
        child = np.where(turned[inner] == bool(side), t.no[inner], t.yes[inner])
        shared = slots.node[child] != pair + side
        nodes["child"][pair[shared] + side] = slots.node[child[shared]]
    table = np.zeros((len(t.roots), 4), np.int32)
    table[:, 0] = starts
    weights = _weights(t, level, slots, nodes, table, targets, aggregate, dtype)
    depth = np.zeros(len(t.roots), np.int64)
    np.maximum.at(depth, slots.tree[level >= 0], 2 * level[level >= 0] if slots.shared else level[level >= 0])
    table[:, 1] = depth
    words = nodes.view(np.int32).reshape(size, -1)
    kind = 2 if (flags[inner] & EQUAL).any() else int((flags[inner] != 0).any())
    return Packed(words, table, weights, kind, int(depth.max()), int(np.maximum(depth, 1).sum()))


def _turned(t: Trees) -> npt.NDArray[np.bool_]:
    """The nodes whose comparison is the opposite of the one to make. Nothing is greater than a NaN threshold."""
    turned: npt.NDArray[np.bool_] = (t.mode == NEQ) | (np.isin(t.mode, (GT, GTE)) & ~np.isnan(t.value))
    return turned


def features(t: Trees) -> int:
    """One more than the last feature that is looked at; ModelInvalidError for one before the first."""
    inner = t.mode != LEAF
    if inner.any() and t.feature[inner].min() < 0:
        raise ModelInvalidError(f"nodes_featureids names feature {t.feature[inner].min()}")
    return int(t.feature[inner].max(initial=-1)) + 1


def _levels(t: Trees) -> tuple[Ints, Ints]:
    """The most steps of each node from its root (-1: none leads there), and the edge (2 * node + side) that reaches it first."""
    n = len(t.mode)
    level, owner, waits = np.full(n, -1, np.int64), np.full(n, -1, np.int64), np.zeros(n, np.int64)
    seen = np.zeros(n, np.bool_)
    front = t.roots
    seen[front] = True
    reached = [front]
    while len(front):
        inner = front[t.mode[front] != LEAF]
        children = np.concatenate([t.no[inner], t.yes[inner]])
        np.add.at(waits, children, 1)
        front = np.unique(children[~seen[children]])
        seen[front] = True
        reached.append(front)
    front, depth, done = t.roots, 0, 0
    if waits[front].any() or len(np.unique(front)) != len(front):
        raise ModelInvalidError("the root of a tree is a node of another, or below itself")
    while len(front):
        level[front] = depth
        done += len(front)
        inner = front[t.mode[front] != LEAF]
        edges = np.concatenate([2 * inner, 2 * inner + 1])
        children = np.concatenate([t.no[inner], t.yes[inner]])
        np.subtract.at(waits, children, 1)
        owner[children[::-1]] = edges[::-1]
        front = np.unique(children[waits[children] == 0])
        depth += 1
    if done != sum(map(len, reached)):
        raise ModelInvalidError(f"node {np.flatnonzero(waits > 0)[0]} (in the order of the attributes) is below itself")
    return level, owner


@dataclass(frozen=True, slots=True)
class _Slots:
    node: Ints
    """Slot of each node; -1 where none leads there."""
    pair: Ints
    """Slot of the children of each inner node."""
    tree: Ints
    shared: bool
    """Whether some slots only lead on."""


def _slots(t: Trees, level: Ints, owner: Ints) -> tuple[_Slots, int, Ints]:
    """Where nodes go, how many slots there are, and where each tree's root is. A tree has its root, an empty slot, and pairs."""
    n = len(level)
    tree = np.full(n, -1, np.int64)
    tree[t.roots] = np.arange(len(t.roots))
    order = np.argsort(level, kind="stable")
    order = order[level[order] > 0]
    bounds = np.searchsorted(level[order], np.arange(1, level.max() + 2))
    for first, last in pairwise(bounds.tolist()):
        nodes = order[first:last]
        tree[nodes] = tree[owner[nodes] // 2]
    inner = np.flatnonzero((level >= 0) & (t.mode != LEAF))
    inner = inner[np.lexsort((level[inner], tree[inner]))]
    counts = np.bincount(tree[inner], minlength=len(t.roots))
    starts = np.r_[0, np.cumsum(2 + 2 * counts)]
    rank = np.arange(len(inner)) - np.repeat(np.cumsum(counts) - counts, counts)
    pair, slot = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    pair[inner] = starts[tree[inner]] + 2 + 2 * rank
    slot[t.roots] = starts[:-1]
    below = np.flatnonzero(level > 0)
    parent, is_yes = owner[below] // 2, owner[below] % 2
    slot[below] = pair[parent] + (is_yes ^ _turned(t)[parent])
    return _Slots(slot, pair, tree, 2 * len(inner) != len(below)), int(starts[-1]), starts[:-1]


def _weights(
    t: Trees, level: Ints, slots: _Slots, nodes: Any, table: npt.NDArray[np.int32], targets: int, aggregate: str, dtype: np.dtype[Any]
) -> Floats | None:
    """Writes weights, or where they begin, into leaves, and the range of its targets into each tree. Returns the weights that lie
    elsewhere, if any do."""
    none = dtype.type(0 if aggregate in ("SUM", "AVERAGE") else np.nan)
    leaves = np.flatnonzero((level >= 0) & (t.mode == LEAF))
    used = level[t.leaf] >= 0
    leaf, target, weight = t.leaf[used], t.target[used], t.weight[used].astype(dtype)
    if len(np.unique(leaf * targets + target)) != len(leaf):
        raise NoKernel("a leaf has several weights for a target")
    if aggregate in ("MIN", "MAX") and np.isnan(weight).any():
        raise NoKernel("some weights are NaN")
    tree = slots.tree[leaf]
    first, last = np.full(len(table), targets), np.full(len(table), -1)
    np.minimum.at(first, tree, target)
    np.maximum.at(last, tree, target)
    count = np.maximum(last - first + 1, 1)
    first = np.minimum(first, targets - 1)
    table[:, 2], table[:, 3] = first, count
    nodes["weight"][slots.node[leaves]] = none
    single = count[tree] == 1
    nodes["weight"][slots.node[leaf[single]]] = weight[single]
    wide = leaves[count[slots.tree[leaves]] > 1]
    if not len(wide):
        return None
    sizes = count[slots.tree[wide]]
    begin = np.cumsum(sizes) - sizes
    total = int(sizes.sum())
    if total > _SPREAD * (len(weight) + len(wide)) + (1 << 16) or total > MOST_NODES:
        raise NoKernel(f"{len(weight)} weights are spread over {total} places")
    place = np.zeros(len(t.mode), np.int64)
    place[wide] = begin
    out = np.full(total, none, dtype)
    many = ~single
    out[place[leaf[many]] + target[many] - first[tree[many]]] = weight[many]
    nodes.view(np.uint32).reshape(len(nodes), -1)[slots.node[wide], dtype.itemsize // 4] = begin
    return out
