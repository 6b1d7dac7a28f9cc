"""The model's functions: those that are called, and whether they can be."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import FunctionProto, ModelProto, NodeProto

from aspen_mp.planner.frontends.check import all_nodes, name_of
from aspen_mp.shm.errors import ModelInvalidError

Key = tuple[str, str, str]


def keep_used(proto: ModelProto) -> None:
    """Removes functions that nothing calls. ModelInvalidError where two of them have one name, or a function calls itself, maybe through
    others. It is raised, too, where a call has too many inputs or outputs."""
    functions: dict[Key, FunctionProto] = {}
    for function in proto.functions:
        key = function.domain, function.name, function.overload
        if key in functions:
            raise ModelInvalidError(f"{_name(key)} is defined twice")
        functions[key] = function
    if not functions:
        return
    used = _reached(proto, functions)
    for at in reversed(range(len(proto.functions))):
        function = proto.functions[at]
        if (function.domain, function.name, function.overload) not in used:
            del proto.functions[at]


def _name(key: Key) -> str:
    return f"function {key[0]}.{key[1]}" + (f" (overload {key[2]})" if key[2] else "")


def _reached(proto: ModelProto, functions: dict[Key, FunctionProto]) -> set[Key]:
    """The functions that the graph calls, directly or not."""
    path: list[Key] = []
    done: set[Key] = set()
    stack: list[Iterator[NodeProto]] = [all_nodes(proto.graph.node)]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            if path:
                done.add(path.pop())
            continue
        key = node.domain, node.op_type, node.overload
        if key not in functions:
            continue
        _fits(node, key, functions[key])
        if key in path:
            way = " → ".join(f"{domain}.{name}" for domain, name, _ in (*path[path.index(key) :], key))
            raise ModelInvalidError(f"{name_of(node)}: functions of a model must not call themselves: {way}")
        if key not in done:
            path.append(key)
            stack.append(all_nodes(functions[key].node))
    return done


def _fits(node: NodeProto, key: Key, function: FunctionProto) -> None:
    for what, given, formal in (("gives", node.input, function.input), ("wants", node.output, function.output)):
        if len(given) > len(formal):
            raise ModelInvalidError(f"{name_of(node)} {what} {len(given)} values, but {_name(key)} has {len(formal)}")
