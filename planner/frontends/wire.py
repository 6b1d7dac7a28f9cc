"""Takes the large tensors out of a serialised ONNX model without copying them.

The protobuf library copies every byte of a model when it parses it, and again whenever a weight is read. A model is little structure and
much raw data, so the wire format is walked here first. `strip` returns the bytes of the same model with each long ``raw_data`` replaced by
a reference, and the places of those data in the file. A reference is an external-data entry whose location no file can have.

Field numbers are those of onnx.proto; only messages that are long enough to hide a long tensor are entered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from aspen_mp.shm.errors import ModelParseError, ResourceLimitError

INLINE_LIMIT = 4096
"""Tensors of fewer bytes stay in the stripped model."""

MAX_NODES = 200_000
"""Most nodes of a model, with the bodies of functions in their places."""

REFERENCE = "\0aspen"
"""Location of a reference; no path may contain a NUL."""

PARSED_DEPTH = 100
"""Messages in messages that the protobuf library parses."""
_MAX_DEPTH = 400  # messages in messages: 100 levels of sub-graphs are graph, node, attribute each

# message kind → {field number: kind of the embedded message}
_EMBEDDED: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_RAW_DATA = 9
_LENGTH = 2  # wire type of length-delimited fields


@dataclass(slots=True)
class Stripped:
    """`model`: the serialised model without long tensors; `spans[n]`: (offset, length) in the original of the data of reference n."""

    model: bytes
    spans: list[tuple[int, int]] = field(default_factory=list)


def strip(buffer: memoryview, max_nodes: int) -> Stripped:
    """Splits a serialised ModelProto. Raises ModelParseError where the bytes are not a protobuf message, ResourceLimitError for more
    nodes."""
    walker = _Walker(buffer, max_nodes)
    pieces, _ = walker.rewrite(0, len(buffer), "model", 0)
    return Stripped(b"".join(pieces), walker.spans)


def nests_too_deeply(model: bytes) -> bool:
    """Whether sub-graphs are the reason why the protobuf library refuses a serialised ModelProto: what it says differs from version to
    version."""
    walker = _Walker(memoryview(model), 0)
    todo = [(0, len(model), "model", 1)]
    try:
        while todo:
            at, end, kind, depth = todo.pop()
            if depth > PARSED_DEPTH:
                return True
            for number, _, begin, stop in walker.fields(at, end):
                if number in _EMBEDDED[kind]:
                    todo.append((begin, stop, _EMBEDDED[kind][number], depth + 1))
    except ModelParseError:
        pass
    return False


def reference(index: int) -> bytes:
    """TensorProto fields, serialised, that stand for the data of span `index`."""
    entries = b"".join(
        _field(13, _field(1, key) + _field(2, value)) for key, value in ((b"location", REFERENCE.encode()), (b"span", b"%d" % index))
    )
    return entries + b"\x70\x01"  # data_location (14) = EXTERNAL


def varint(value: int) -> bytes:
    """A number from 0 on, as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | _LENGTH) + varint(len(content)) + content


class _Walker:
    def __init__(self, buffer: memoryview, max_nodes: int) -> None:
        self.buffer = buffer
        self.nodes_left = max_nodes
        self.max_nodes = max_nodes
        self.spans: list[tuple[int, int]] = []

    def count_node(self) -> None:
        self.nodes_left -= 1
        if self.nodes_left < 0:
            raise ResourceLimitError(f"the model has more than {self.max_nodes} nodes")

    def varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            if at >= end or shift > 63:
                raise ModelParseError(f"not an ONNX model: damaged field at byte {at}")
            byte = self.buffer[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7

    def fields(self, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """(number, start, begin, end) of each length-delimited field of a message; `begin` and `end` are those of its content."""
        while at < end:
            start = at
            key, at = self.varint(at, end)
            wire = key & 7
            if wire == 0:
                _, at = self.varint(at, end)
                continue
            if wire == _LENGTH:
                length, at = self.varint(at, end)
                if at + length > end:
                    raise ModelParseError(f"not an ONNX model: truncated (a field at byte {start} needs {at + length - end} bytes more)")
                yield key >> 3, start, at, at + length
                at += length
                continue
            if wire not in {1, 5}:
                raise ModelParseError(f"not an ONNX model: unknown wire type {wire} at byte {start}")
            at += 8 if wire == 1 else 4
            if at > end:
                raise ModelParseError(f"not an ONNX model: truncated at byte {start}")

    def rewrite(self, at: int, end: int, kind: str, depth: int) -> tuple[list[bytes | memoryview], int]:
        """The pieces of a message without long raw data, and their total length."""
        if depth > _MAX_DEPTH:
            raise ModelParseError("not an ONNX model: sub-graphs are nested too deeply")
        embedded = _EMBEDDED[kind]
        pieces: list[bytes | memoryview] = []
        last: list[bytes] = []  # references: a data_location that the tensor has itself comes before theirs, and the last one counts
        total = 0
        kept = at  # start of the bytes that are copied as they stand
        for number, start, begin, stop in self.fields(at, end):
            length = stop - begin
            if embedded.get(number) == "node":
                self.count_node()
            replacement: list[bytes | memoryview] | None = None
            size = 0
            if length > INLINE_LIMIT:
                if kind == "tensor" and number == _RAW_DATA:
                    replacement = []
                    last.append(reference(len(self.spans)))
                    self.spans.append((begin, length))
                elif number in embedded:
                    inner, size = self.rewrite(begin, stop, embedded[number], depth + 1)
                    head = varint(number << 3 | _LENGTH) + varint(size)
                    replacement = [head, *inner]
                    size += len(head)
            if replacement is not None:
                if start > kept:
                    pieces.append(self.buffer[kept:start])
                    total += start - kept
                pieces.extend(replacement)
                total += size
                kept = stop
        if end > kept:
            pieces.append(self.buffer[kept:end])
            total += end - kept
        return [*pieces, *last], total + sum(map(len, last))
