"""Whether two graphs at ONNX level are the same but for how their values are called in memory."""

from __future__ import annotations

from aspen_mp.planner.ir.graph import Graph, Node, Tensor

Form = tuple[object, ...]


def form(graph: Graph) -> Form:
    """Return what is equal for two graphs only if they compute the same: nodes in order, what they read and make, constants. Inputs that
    nothing reads do not count."""
    numbers: dict[Tensor, int] = {}
    nodes = [_node(node, numbers) for node in graph.nodes]
    made = [numbers.setdefault(tensor, len(numbers)) for tensor in graph.outputs]
    return tuple(nodes), tuple(made), tuple(map(_tensor, numbers))


def _node(node: Node, numbers: dict[Tensor, int]) -> Form:
    reads, gives = ([None if t is None else numbers.setdefault(t, len(numbers)) for t in row] for row in (node.inputs, node.outputs))
    attrs = sorted((name, repr(value)) for name, value in node.attrs.items()) if node.source is None else ()
    proto = None if node.source is None else node.source.proto.SerializeToString(deterministic=True)
    return node.op, node.name, proto, tuple(attrs), tuple(reads), tuple(gives)


def _tensor(tensor: Tensor) -> Form:
    value: object = tensor.weight_key
    if tensor.is_const and value is None:  # it follows from shapes
        value = object() if tensor.data is None or tensor.dtype == object else tensor.data.tobytes()
    return tensor.name, tensor.shape, tensor.dtype, tensor.is_const, tensor.placed, value
