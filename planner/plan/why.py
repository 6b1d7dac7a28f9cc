"""What `aspen-mp plan --why` shows: the decisions about a node, and about what has become part of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import msgspec

from aspen_mp.planner.job.reasons import NETWORK, Reason

if TYPE_CHECKING:
    from aspen_mp.planner.plan.plan import OpInfo

COSTLIEST: Final = 10
"""Nodes that are shown where no node is named."""


class UnknownNode(LookupError):
    """The model has no node of this name."""


class NodeReasons(msgspec.Struct, forbid_unknown_fields=True):
    """The decisions about some ops, in the order in which they were taken. `nodes`: the nodes of the model that these ops compute.
    `kernels`: one for each op. `predicted_ms`: of all of them on one core; None: no op is left of the node."""

    nodes: list[str]
    kernels: list[str]
    predicted_ms: float | None
    reasons: list[Reason]


class Why(msgspec.Struct, forbid_unknown_fields=True):
    """`nodes`: the node that was asked for, or the costliest. `network`: decisions about the whole network."""

    nodes: list[NodeReasons]
    network: list[Reason]


def explained(rows: Sequence[OpInfo], recorded: Iterable[Reason], names: Iterable[str], node: str = "", most: int = COSTLIEST) -> Why:
    """The reasons for a plan. `rows`: its ops. `names`: those of the model's nodes. `node`: which is asked for; "": `most` of them, the
    costliest.

    Raises UnknownNode, whose text names similar ones.
    """
    reasons = list(dict.fromkeys(recorded))
    group = _groups(reasons, [row.name for row in rows])
    known = {name: group.get(name, name) for name in (*names, *group) if name}
    if node and node not in known:
        near = get_close_matches(node, known, n=3, cutoff=0.4)
        hint = f". Similar names: {', '.join(map(repr, near))}" if near else ""
        raise UnknownNode(f"no node is named {node!r}{hint}")
    ops: dict[str, list[OpInfo]] = {}
    for row in rows:
        ops.setdefault(known.get(row.name, row.name), []).append(row)
    costs = {root: sum(row.predicted_ms for row in found) for root, found in ops.items()}
    roots = [known[node]] if node else sorted(costs, key=lambda root: -costs[root])[:most]
    about: dict[str, list[Reason]] = {root: [] for root in roots}
    for reason in reasons:
        if (root := group.get(reason.node or NETWORK)) in about:
            about[root].append(reason)
    nodes = [_node(root, [name for name in known if known[name] == root], ops.get(root, ()), about[root]) for root in roots]
    return Why(nodes, [reason for reason in reasons if reason.node == NETWORK])


def _node(root: str, names: list[str], rows: Sequence[OpInfo], reasons: list[Reason]) -> NodeReasons:
    if not rows:
        reasons = reasons or [Reason("fusion", "no op", "it is computed once, when the plan is made, or nothing reads it", node=root)]
        return NodeReasons(names, [], None, reasons)
    kernels = [row.kernel for row in rows if row.batch_slice[0] == 0]
    if len(kernels) == 1:  # there is nothing to tell apart
        reasons = list(dict.fromkeys(msgspec.structs.replace(reason, op="") for reason in reasons))
    return NodeReasons(names, kernels, sum(row.predicted_ms for row in rows), reasons)


def _groups(reasons: Iterable[Reason], names: Iterable[str]) -> dict[str, str]:
    """For each name the name of its group: nodes that have become part of each other."""
    parent = {name: name for name in names}

    def root(name: str) -> str:
        parent.setdefault(name, name)
        while parent[name] != name:
            parent[name] = name = parent[parent[name]]
        return name

    for reason in reasons:
        if reason.node:
            for name in filter(None, reason.absorbed):
                parent[root(name)] = root(reason.node)
            root(reason.node)
    return {name: root(name) for name in list(parent)}
