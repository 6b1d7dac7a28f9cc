"""Errors of ONNX's checker and shape inference in this package's words: which node, and which rule."""

from __future__ import annotations

import re
from typing import Any, Final

from google.protobuf.message import Message
from onnx import TensorProto

from aspen_mp.shm.errors import ModelInvalidError, ModelParseError

UNNAMED: Final = "→ "
"""Begins the name that a node without one gets for the library's messages; its results follow."""
_MOST: Final = 2000
_FEW: Final = 5

_CONTEXT = re.compile(r"\s*==> Context: Bad node spec for node\. Name: ?(?P<name>.*?) ?OpType: ?(?P<op>\S*)")
_NODE = re.compile(r"\(op_type: ?(?P<op>[^,)]*)(?:, node name: (?P<name>.*?))?\): ")
_LABEL = re.compile(r"\[(?:Shape|Type)InferenceError\] |Inference error\(s\): ")
_NODE_AGAIN = (re.compile(r"^Node ?(?:\(.*?\))? ?with schema\(\S+\) "), re.compile(r"^Node ?\(.*?\)'s "))
_TYPES = re.compile(r"Inferred elem type differs from existing elem type: \((\d+)\) vs \((\d+)\)")


def refusal(error: Exception, proto: Any) -> ModelInvalidError | ModelParseError:
    """Return the error to raise where ONNX's library refuses `proto`.

    The library's message is lost, on some versions of Python, if it quotes a string that is not UTF-8.
    """
    if text := explained(str(error)):
        return ModelInvalidError(text)
    if (name := undecodable(proto)) is not None:
        return ModelParseError(f"not an ONNX model: the name {name!r} is not valid UTF-8")
    return ModelInvalidError(f"ONNX refuses the model without a reason ({type(error).__name__}). Export the model again")


def undecodable(message: Any) -> bytes | None:
    """Return the first string of a protobuf message that is not valid UTF-8: the library hands it out as bytes. None: all are."""
    for field, content in message.ListFields():
        if field.type not in {field.TYPE_STRING, field.TYPE_MESSAGE}:
            continue
        for value in [content] if isinstance(content, str | bytes | Message) else content:
            found = undecodable(value) if isinstance(value, Message) else value
            if isinstance(found, bytes):
                return found
    return None


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
        if rule:  # otherwise the rest is inside this node
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
