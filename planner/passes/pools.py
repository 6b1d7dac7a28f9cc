"""Element-wise nodes behind a pooling move into its kernel: scale and shift by channel, and an activation."""

from __future__ import annotations

import numpy as np

from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.passes.epilogues import ACTIVATIONS, by_channel
from aspen_mp.planner.passes.rewrite import Rewriter, no_act

_TERMS = {"FMA", "MUL", "ADD"}


def fuse_pools(graph: Graph) -> None:
    """Only where the pooling has no other reader, and only in float32."""
    rewriter = Rewriter(graph)
    for node in rewriter.live():
        if not rewriter.alive(node) or node.output.dtype != "float32":
            continue
        if node.op == "UNARY" and node.attrs["opcode"] in ACTIVATIONS:
            pool = _pool(rewriter, node, 0)
            if pool is not None:
                act = (node.attrs["opcode"], float(node.attrs["a"]), float(node.attrs["b"]))
                _absorb(rewriter, node, pool, pool.inputs, act)
        elif node.op in {"TERNARY", "BINARY"} and node.attrs["opcode"] in _TERMS:
            _scale(rewriter, node)
    rewriter.finish()


def _pool(rewriter: Rewriter, node: Node, k: int) -> Node | None:
    """The pooling that makes input `k`, if it is free for the work of `node`."""
    x = node.inputs[k]
    pool = rewriter.made_by(x, "POOL")
    if pool is None or x is None or not rewriter.only_use(x) or not no_act(pool) or x.shape != node.output.shape:
        return None
    return pool


def _scale(rewriter: Rewriter, node: Node) -> None:
    opcode = node.attrs["opcode"]
    for k in (0,) if opcode == "FMA" else (0, 1):
        pool = _pool(rewriter, node, k)
        if pool is None or len(pool.inputs) > 1:
            continue
        channels = node.output.shape[1]
        given = [by_channel(t, 1, channels) for i, t in enumerate(node.inputs) if i != k]
        constants = [t for t in given if t is not None]
        if len(constants) < len(given):
            continue
        if opcode == "ADD":
            constants.insert(0, _all("1", 1.0, constants[0]))
        elif opcode == "MUL":
            constants.append(_all("0", 0.0, constants[0]))
        _absorb(rewriter, node, pool, [pool.inputs[0], *constants], node.attrs["act"])
        return


def _all(name: str, value: float, like: Tensor) -> Tensor:
    return Tensor(name, like.shape, like.dtype, data=np.full(like.shape, value, np.float32))


def _absorb(rewriter: Rewriter, node: Node, pool: Node, inputs: list[Tensor | None], act: object) -> None:
    rewriter.replace(node, "POOL", list(inputs), {**pool.attrs, "act": act}, f"{pool.onnx_op} + {node.onnx_op}")
    node.name = pool.name
