"""Ensembles of decision trees: TreeEnsembleRegressor, TreeEnsembleClassifier (ai.onnx.ml 1 and 3) and TreeEnsemble (5).

An ensemble is arrays over its nodes. All pairs of a row and a tree walk down at once, a level at a time. Then the weights of the reached
leaves are added up tree by tree, in the ensemble's own type: double for double inputs, else float. onnxruntime adds in that order, unless
it shares the trees of a row out to threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from aspen_mp.workers.fallback.ml import scores
from aspen_mp.workers.fallback.ml.attributes import Array, Attributes, labels, rows

_MODES: Final = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_MEMBER: Final = 6
LEAF: Final = 7
_COMPARE: Final[dict[int, Callable[[Array, Array], Array]]] = dict(
    enumerate((np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal))
)
AGGREGATES: Final = ("AVERAGE", "SUM", "MIN", "MAX")
_PAIRS: Final = 1 << 20
"""Pairs of a row and a tree that walk at once: some tens of megabytes."""


@dataclass(slots=True)
class Ensemble:
    """Nodes: `mode` (LEAF: 7), `feature`, `value`, children `true` and `false`, `missing` (NaN goes the true way). `value` is compared
    with; for a MEMBER node it is the number of its set. `roots`: of each tree. Weights of node k: entries `first[k]` … `first[k + 1]` of
    `targets` and `weights`. `members`, `keys`: all values that are in sets, and (set, value) pairs that are, as sorted numbers. `kinds`:
    modes of inner nodes; `columns`: the first and the last that they read, (0, -1) for none."""

    mode: Array
    feature: Array
    value: Array
    true: Array
    false: Array
    missing: Array
    roots: Array
    first: Array
    targets: Array
    weights: Array
    members: Array
    keys: Array
    kinds: list[int] = field(init=False)
    columns: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        inner = self.mode != LEAF
        self.kinds = np.unique(self.mode[inner]).tolist()
        read = self.feature[inner]
        self.columns = (int(read.min()), int(read.max())) if read.size else (0, -1)

    def leaves(self, x: Array) -> Array:
        """The leaf that each tree leads each row of x [rows, columns] to: [rows, trees]."""
        n = len(x)
        at = np.tile(self.roots, n)
        row = np.repeat(np.arange(n), len(self.roots))
        live = np.flatnonzero(self.mode[at] != LEAF)
        while live.size:
            node = at[live]
            v = x[row[live], self.feature[node]]
            node = np.where(self._goes(node, v), self.true[node], self.false[node])
            at[live] = node
            live = live[self.mode[node] != LEAF]
        return at.reshape(n, len(self.roots))

    def _goes(self, node: Array, v: Array) -> Array:
        """Whether values go the true way."""
        bound = self.value[node]
        out = np.zeros(len(v), bool)
        for kind in self.kinds:
            which = slice(None) if len(self.kinds) == 1 else self.mode[node] == kind
            if kind == _MEMBER:
                out[which] = self._member(bound[which], v[which])
            else:
                out[which] = _COMPARE[kind](v[which], bound[which])
        if v.dtype.kind == "f":
            out |= self.missing[node] & np.isnan(v)
        return out

    def _member(self, sets: Array, v: Array) -> Array:
        if not self.keys.size:
            return np.zeros(len(v), bool)
        place = np.minimum(np.searchsorted(self.members, v), len(self.members) - 1)
        key = sets.astype(np.int64) * len(self.members) + place
        found = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        return np.asarray((self.members[place] == v) & (self.keys[found] == key))

    def totals(self, x: Array, targets: int, aggregate: str) -> tuple[Array, Array]:
        """Aggregated weights [rows, targets] and whether any leaf had one, without base values."""
        dtype = self.weights.dtype
        start = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0)
        total, there = np.full((len(x), targets), start, dtype), np.zeros((len(x), targets), bool)
        function = {"MIN": np.minimum, "MAX": np.maximum}.get(aggregate, np.add)
        step = max(1, _PAIRS // max(len(self.roots), 1))
        for at in range(0, len(x), step):
            leaf = self.leaves(x[at : at + step])
            count = self.first[leaf + 1] - self.first[leaf]
            each = count.reshape(-1)
            row = np.repeat(np.arange(at, at + len(leaf)), count.sum(-1))
            begin = np.repeat(self.first[leaf].reshape(-1) - (np.cumsum(each) - each), each)
            entry = begin + np.arange(len(begin))
            where = row * targets + self.targets[entry]
            function.at(total.reshape(-1), where, self.weights[entry])  # in the order of rows, trees and weights
            there.reshape(-1)[where] = True
        if aggregate == "AVERAGE":
            total /= dtype.type(max(len(self.roots), 1))
        return np.where(there, total, 0), there


def _same(**lists: Array) -> None:
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"lists differ in length: {', '.join(f'{name} {n}' for name, n in lengths.items())}")


def _numbers(a: Attributes, name: str, dtype: np.dtype[Any] | None) -> Array:
    """A list of numbers in the ensemble's type, given as floats or as a tensor."""
    tensor = a.tensor(f"{name}_as_tensor")
    values = a.floats(name) if tensor is None else tensor
    return values if dtype is None else values.astype(dtype)


class _Places:
    """The number of each node in each tree."""

    def __init__(self, trees: Array, nodes: Array) -> None:
        self._trees, self._nodes = np.unique(trees), np.unique(nodes)
        key, _ = self._key(trees, nodes)
        self._order = np.argsort(key, kind="stable")
        self._keys = key[self._order]
        twice = np.flatnonzero(self._keys[1:] == self._keys[:-1])
        if twice.size:
            k = self._order[twice[0] + 1]
            raise ValueError(f"tree {trees[k]} has two nodes {nodes[k]}")

    def _key(self, trees: Array, nodes: Array) -> tuple[Array, Array]:
        """One number for a tree and a node, whatever theirs are; and whether both are known."""
        tree, node = (np.minimum(np.searchsorted(of, x), len(of) - 1) for of, x in ((self._trees, trees), (self._nodes, nodes)))
        return tree * len(self._nodes) + node, (self._trees[tree] == trees) & (self._nodes[node] == nodes)

    def __call__(self, trees: Array, nodes: Array) -> Array:
        if not trees.size:
            return np.zeros(0, np.int64)
        if not self._keys.size:
            raise ValueError("there are no nodes")
        key, known = self._key(trees, nodes)
        place = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        absent = np.flatnonzero(~(known & (self._keys[place] == key)))
        if absent.size:
            raise ValueError(f"tree {trees[absent[0]]} has no node {nodes[absent[0]]}")
        return self._order[place]


def _checked(ensemble: Ensemble) -> Ensemble:
    """The ensemble, if every walk ends: nodes whose parents have all been taken away are taken away, until none is left."""
    inner = ensemble.mode != LEAF
    true, false = ensemble.true[inner], ensemble.false[inner]
    parents = np.bincount(np.concatenate([true, false]), minlength=len(inner))
    free = np.flatnonzero(parents == 0)
    left = len(inner)
    while free.size:
        left -= len(free)
        going = free[inner[free]]
        children = np.concatenate([ensemble.true[going], ensemble.false[going]])
        np.subtract.at(parents, children, 1)
        free = np.unique(children)
        free = free[parents[free] == 0]
    if left:
        raise ValueError("a node of a tree is its own descendant")
    return ensemble


def _of_lists(a: Attributes, kind: str, dtype: np.dtype[Any], targets: int) -> Ensemble:
    """The ensemble of the lists of versions 1 to 4. `kind`: "target" or "class"."""
    names = a.strings("nodes_modes")
    known = {name: k for k, name in enumerate(_MODES[:_MEMBER])} | {"LEAF": LEAF}
    odd = next((name for name in names if name not in known), None)
    if odd is not None:
        raise ValueError(f"a node has the mode {odd!r}, which is not one of {', '.join(map(str, known))}")
    mode = np.array([known[str(name)] for name in names], np.int8)
    tree, node, feature = (a.ints(f"nodes_{name}") for name in ("treeids", "nodeids", "featureids"))
    true, false, value = a.ints("nodes_truenodeids"), a.ints("nodes_falsenodeids"), _numbers(a, "nodes_values", dtype)
    _same(
        nodes_modes=mode,
        nodes_treeids=tree,
        nodes_nodeids=node,
        nodes_featureids=feature,
        nodes_truenodeids=true,
        nodes_falsenodeids=false,
        nodes_values=value,
    )
    tracks = a.ints("nodes_missing_value_tracks_true")
    missing = np.zeros(len(mode), bool)
    missing[: len(tracks)] = tracks[: len(mode)] == 1
    place = _Places(tree, node)
    inner = mode != LEAF
    true[~inner] = false[~inner] = 0
    true[inner], false[inner] = place(tree[inner], true[inner]), place(tree[inner], false[inner])
    roots = np.flatnonzero(np.diff(tree, prepend=tree[:1] - 1))

    ids, weights = a.ints(f"{kind}_ids"), _numbers(a, f"{kind}_weights", dtype)
    trees, nodes = a.ints(f"{kind}_treeids"), a.ints(f"{kind}_nodeids")
    _same(**{f"{kind}_ids": ids, f"{kind}_weights": weights, f"{kind}_treeids": trees, f"{kind}_nodeids": nodes})
    if ids.size and not (ids.min() >= 0 and ids.max() < targets):
        raise ValueError(f"{kind}_ids reach from {ids.min()} to {ids.max()}, but there are {targets}")
    owner = place(trees, nodes)
    ends = ~inner[owner]  # weights of inner nodes, which old converters wrote, say nothing
    owner, ids, weights = owner[ends], ids[ends], weights[ends]
    order = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[order], np.arange(len(mode) + 1))
    none = np.zeros(0, dtype)
    return _checked(
        Ensemble(
            mode, np.where(inner, feature, 0), value, true, false, missing, roots, first, ids[order], weights[order], none, none.astype(int)
        )
    )


def _index(name: str, values: Array, count: int) -> Array:
    if values.size and not (values.min() >= 0 and values.max() < count):
        raise ValueError(f"{name} reach from {values.min()} to {values.max()}, but there are {count}")
    return values


def _way(name: str, to: Array, leaf: Array, leaves: int) -> Array:
    """Children of all inner nodes on one side, where leaves are counted on from inner nodes; 0 for each leaf."""
    _index(f"nodes_{name}nodeids of leaves", to[leaf], leaves)
    _index(f"nodes_{name}nodeids", to[~leaf], len(to))
    return np.concatenate([np.where(leaf, to + len(to), to), np.zeros(leaves, np.int64)])


def _of_version_5(a: Attributes, dtype: np.dtype[Any], targets: int) -> Ensemble:
    """Leaves follow the inner nodes."""
    modes, splits, leaf_weights = a.tensor("nodes_modes"), a.tensor("nodes_splits"), a.tensor("leaf_weights")
    if modes is None or splits is None or leaf_weights is None:
        raise ValueError("nodes_modes, nodes_splits or leaf_weights is missing")
    feature, ids = a.ints("nodes_featureids"), a.ints("leaf_targetids")
    true, false, true_leaf, false_leaf = (a.ints(f"nodes_{name}") for name in ("truenodeids", "falsenodeids", "trueleafs", "falseleafs"))
    _same(
        nodes_modes=modes,
        nodes_splits=splits,
        nodes_featureids=feature,
        nodes_truenodeids=true,
        nodes_falsenodeids=false,
        nodes_trueleafs=true_leaf,
        nodes_falseleafs=false_leaf,
    )
    _same(leaf_weights=leaf_weights, leaf_targetids=ids)
    n, m = len(modes), len(ids)
    if n and modes.max() > _MEMBER:
        raise ValueError(f"a node has the mode {modes.max()}; there are 0 to {_MEMBER}")
    _index("leaf_targetids", ids, targets)
    true_way, false_way = _way("true", true, true_leaf != 0, m), _way("false", false, false_leaf != 0, m)
    tracks = a.ints("nodes_missing_value_tracks_true")
    missing = np.zeros(n + m, bool)
    missing[: min(len(tracks), n)] = tracks[:n] == 1
    members, keys, value = _sets(modes, splits.astype(dtype), a.tensor("membership_values"), dtype)
    return _checked(
        Ensemble(
            np.concatenate([modes.astype(np.int8), np.full(m, LEAF, np.int8)]),
            np.concatenate([feature, np.zeros(m, np.int64)]),
            np.concatenate([value, np.zeros(m, dtype)]),
            true_way,
            false_way,
            missing,
            _index("tree_roots", a.ints("tree_roots"), n),
            np.concatenate([np.zeros(n, np.int64), np.arange(m + 1)]),
            ids,
            leaf_weights.astype(dtype),
            members,
            keys,
        )
    )


def _sets(modes: Array, value: Array, given: Array | None, dtype: np.dtype[Any]) -> tuple[Array, Array, Array]:
    """The sets of MEMBER nodes, written one after the other with NaN between them: values, keys, and `value` with their numbers."""
    nodes = np.flatnonzero(modes == _MEMBER)
    if not nodes.size:
        return np.zeros(0, dtype), np.zeros(0, np.int64), value
    flat = np.zeros(0, dtype) if given is None else given.astype(dtype)
    between = np.isnan(flat)
    which = np.cumsum(between)[~between]
    if int(between.sum()) + (flat.size > 0 and not between[-1]) < len(nodes):
        raise ValueError(f"membership_values has fewer sets than there are nodes with the mode {_MODES[_MEMBER]}: {len(nodes)}")
    members, codes = np.unique(flat[~between], return_inverse=True)
    value = value.copy()
    value[nodes] = np.arange(len(nodes))
    return members, np.unique(which * max(len(members), 1) + codes.reshape(-1)), value


class _Inputs:
    """Ensembles by the type of the rows that they are asked about: double stays double, everything else is compared as float."""

    def __init__(self, make: Callable[[np.dtype[Any]], Ensemble]) -> None:
        self._make = make
        self._made: dict[np.dtype[Any], Ensemble] = {}

    def __call__(self, x: Array) -> tuple[Ensemble, Array]:
        dtype: np.dtype[Any] = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
        found = self._made.get(dtype)
        if found is None:
            found = self._made[dtype] = self._make(dtype)
        table = rows(x).astype(dtype, copy=False)
        first, last = found.columns
        if first < 0 or last >= table.shape[1]:
            raise ValueError(f"trees read columns {first} to {last} of rows of {table.shape[1]}")
        return found, table


def _regressed(ensemble: Ensemble, x: Array, targets: int, aggregate: str, base: Array, transform: str) -> Array:
    """[rows, targets], float32. For one target only PROBIT is a transform, as in onnxruntime."""
    if base.size not in {0, targets}:
        raise ValueError(f"{base.size} base values for {targets} targets")
    total, there = ensemble.totals(x, targets, aggregate)
    total = total + base if base.size else total
    if targets == 1:
        return (scores.transformed(total, transform) if transform == "PROBIT" else total).astype(np.float32)
    return scores.transformed(np.where(there, total, 0), transform)


def regressor(a: Attributes) -> Callable[[Array], Array]:
    """TreeEnsembleRegressor: [rows, targets] of float32."""
    targets, aggregate = a.integer("n_targets", 1), a.word("aggregate_function", "SUM")
    if aggregate not in AGGREGATES:
        raise ValueError(f"no aggregate_function is called {aggregate!r}; there are {', '.join(AGGREGATES)}")
    transform = scores.checked(a.word("post_transform", "NONE"))
    ensembles = _Inputs(lambda dtype: _of_lists(a, "target", dtype, targets))

    def run(x: Array) -> Array:
        ensemble, table = ensembles(x)
        return _regressed(ensemble, table, targets, aggregate, _numbers(a, "base_values", ensemble.weights.dtype), transform)

    return run


def ensemble(a: Attributes) -> Callable[[Array], Array]:
    """TreeEnsemble of version 5: [rows, targets] in the type of the input."""
    targets = a.integer("n_targets", 1)
    k, t = a.integer("aggregate_function", 1), a.integer("post_transform", 0)
    if not 0 <= k < len(AGGREGATES) or not 0 <= t < len(scores.NAMES):
        raise ValueError(f"aggregate_function {k} or post_transform {t} is not known")
    ensembles = _Inputs(lambda dtype: _of_version_5(a, dtype, targets))

    def run(x: Array) -> Array:
        found, table = ensembles(x)
        return _regressed(found, table, targets, AGGREGATES[k], np.zeros(0, table.dtype), scores.NAMES[t]).astype(x.dtype)

    return run


def classifier(a: Attributes) -> Callable[[Array], tuple[Array, Array]]:
    """TreeEnsembleClassifier: labels [rows], and scores [rows, classes] of float32."""
    names = labels(a, "classlabels_int64s")
    classes = len(names)
    if not classes:
        raise ValueError("there are no class labels")
    transform = scores.checked(a.word("post_transform", "NONE"))
    ensembles = _Inputs(lambda dtype: _of_lists(a, "class", dtype, classes))
    alone = classes == 2 and len(np.unique(a.ints("class_ids"))) == 1
    positive = not bool((_numbers(a, "class_weights", None) < 0).any())
    # Integers of two classes that both have weights: onnxruntime answers 0 and 1, whatever the classes are called.
    answers = np.arange(2) if classes < 3 and not alone and names.dtype != object else names

    def run(x: Array) -> tuple[Array, Array]:
        ensemble, table = ensembles(x)
        total, there = ensemble.totals(table, classes, "SUM")
        base = _numbers(a, "base_values", total.dtype)
        if base.size not in {0, classes} and not (classes == 2 and base.size == 1):
            raise ValueError(f"{base.size} base values for {classes} classes")
        if classes > 2:
            which, out = _of_many(total, there, base, transform)
        elif classes == 2:
            which, out = _of_two(total, there, base, alone, positive, transform)
        else:
            total = total + base if base.size else total
            which, out = (total[:, 0] > 0).astype(int), total.astype(np.float32)
            out = scores.transformed(out, transform) if transform == "PROBIT" else out
        return answers[np.minimum(which, len(answers) - 1)], out

    return run


def _of_many(total: Array, there: Array, base: Array, transform: str) -> tuple[Array, Array]:
    """The class with the highest score among those that have any, the first of equal ones; the scores."""
    if base.size:
        total, there = total + base, np.ones_like(there)
    which = np.where(there, total, -np.inf).argmax(-1)
    return which, scores.transformed(np.where(there, total, 0), transform)


def _of_two(total: Array, there: Array, base: Array, alone: bool, positive: bool, transform: str) -> tuple[Array, Array]:
    """The winner of two classes, and both scores, by onnxruntime's rules. `alone`: all weights are of one class. `positive`: none is
    negative.

    The score that decides is the second class's, or the first one's in rows where the second has none. If it is `alone` and `positive`, it
    counts as a probability: more than 0.5 is the second class, and the other class has the rest. Otherwise it is a margin: more than 0 is
    the second class, and the other class has the opposite. A class without a score counts as 0.
    """
    (first, second), (has_first, has_second) = total.T, there.T
    if base.size == 2:
        second = np.where(has_second, first, second) + base[1]
        first = np.where(has_second, -second, first + base[0])
    elif base.size == 1:
        first = first + base[0]
    first, second = np.where(has_first, first, 0), np.where(has_second, second, 0)
    decides = np.where(has_second, second, first)
    complement = alone and positive
    which = (decides > (0.5 if complement else 0)).astype(int)
    out = scores.transformed(np.stack([first, second], -1), transform)
    single = ~has_second
    if base.size < 2 and single.any():
        if alone or not base.size:
            out[single] = scores.paired(first[single], transform, complement)
        else:
            score = first[single].astype(np.float32)
            out[single] = np.stack([scores.probit(score) if transform == "PROBIT" else score, np.zeros_like(score)], -1)
    return which, out
