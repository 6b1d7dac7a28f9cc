"""What ONNX's checker and shape inference say is wrong with a model, in this package's words: which node, and which rule."""

from __future__ import annotations

import re
from typing import Final

from onnx import TensorProto

UNNAMED: Final = "→ "
"""Begins the name that a node without one gets for the library's messages; its results follow."""
_MOST: Final = 2000
_FEW: Final = 5

_CONTEXT = re.compile(r"\s*==> Context: Bad node spec for node\. Name: ?(?P<name>.*?) ?OpType: ?(?P<op>\S*)")
_NODE = re.compile(r"\(op_type: ?(?P<op>[^,)]*)(?:, node name: (?P<name>.*?))?\): ")
_LABEL = re.compile(r"\[(?:Shape|Type)InferenceError\] |Inference error\(s\): ")
_NODE_AGAIN = (re.compile(r"^Node ?(?:\(.*?\))? ?with schema\(\S+\) "), re.compile(r"^Node ?\(.*?\)'s "))
_TYPES = re.compile(r"Inferred elem type differs from existing elem type: \((\d+)\) vs \((\d+)\)")


def explained(text: str) -> str:
    """A message of the library's, with the innermost node that it names in front."""
    text = " ".join(text.split())
    found = _CONTEXT.search(text)
    if found:
        rule = text[: found.start()].strip()
        for again, ours in zip(_NODE_AGAIN, ("it ", "its "), strict=True):
            rule = again.sub(ours, rule)
        return _short(f"{_called(found['name'], found['op'])}: {rule}")
    text = _TYPES.sub(_differing, _LABEL.sub("", text))
    nodes = list(_NODE.finditer(text))
    if not nodes:
        return _short(text)
    parts = []
    for found, following in zip(nodes, [*nodes[1:], None], strict=True):
        rule = text[found.end() : following.start() if following else len(text)].strip()
        if rule:  # otherwise what follows is inside this node
            parts.append(f"{_called(found['name'] or '', found['op'])}: {rule}")
    return _short("; ".join(dict.fromkeys(parts[:_FEW])) or text)


def _called(name: str, op: str) -> str:
    if not name:
        return f"node {op}"
    return f"node {op} {name}" if name.startswith(UNNAMED.strip()) else f"node {name!r} ({op})"


def _differing(found: re.Match[str]) -> str:
    have, want = (_type(int(number)) for number in found.groups())
    return f"its result is {have}, but it is declared as {want}"


def _type(number: int) -> str:
    return TensorProto.DataType.Name(number).lower() if number in TensorProto.DataType.values() else f"of element type {number}"


def _short(text: str) -> str:
    return text if len(text) <= _MOST else text[:_MOST] + " …"
