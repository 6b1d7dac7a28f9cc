"""Requests in JSON that are large: long lists of numbers are taken out of the text, and decoded piece by piece.

`split` takes the lists out. The rest is decoded as every request is, which finds any fault of its JSON. `array` decodes one list. No piece
of this work takes long, whatever the text is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aspen_mp.serving.protocol import turns
from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.serving.protocol.turns import Work
from aspen_mp.shm.errors import RequestError
from aspen_mp.system import randomness

LARGE: Final = 256 << 10
"""Bytes of JSON from which on it is decoded in this way."""
LONG: Final = 32 << 10
"""Bytes of a list that is taken out."""
WHOLE: Final = 4 << 20
"""Bytes of a flat list that is one piece, of some milliseconds: cut up, it takes twice as long."""
MOST_KEYS: Final = 1024
"""How many keys `data` are looked at. Further ones stay in the text, where its marks are counted."""
_WINDOW: Final = 1 << 20
"""Bytes that are looked through in one piece, by code that takes nanoseconds for each."""
_KEY: Final = re.compile(rb'(?<!\\)"data"[ \t\n\r]*+:[ \t\n\r]*+(?=\[)')
_KEY_ROOM: Final = 256
"""Bytes of a key with the white space around it that are found wherever they lie."""
_NUMBERS: Final = b"0123456789+-.eEtrufalsn"
"""The letters of numbers, and of true, false and null."""
_SPACE: Final = b" \t\n\r"
_ENDS: Final = (b'"', b"{", b"}")
_NO_MARKS: Final = bytes(set(range(256)) - set(b',:"[]{}'))
_AS_ONE: Final = bytes.maketrans(_NUMBERS, b"0" * len(_NUMBERS))
_FLAT: Final = bytes.maketrans(b"[]", b"  ")

Runs = dict[bytes, memoryview]
"""Lists that were taken out, by the marks in their place."""


def split(text: memoryview, most_marks: int) -> Work[tuple[bytes, Runs]]:
    """The text without its long lists of numbers, and these.

    A list follows a key `data` and consists of nothing but numbers, white space, commas and brackets. One that is of no input is never
    read: its key is ignored. Refused (413) where the rest has more than `most_marks` commas, colons, quotes and brackets.
    """
    word, runs, at = randomness.urandom(8).hex(), Runs(), 0
    parts: list[bytes | memoryview] = []
    for _ in range(MOST_KEYS):
        begin = yield from _next_list(text, at)
        if begin is None:
            break
        end = yield from _end(text, begin)
        if end - begin >= LONG:
            place = f'"{word}-{len(runs)}"'.encode()
            parts += [text[at:begin], place]
            runs[place] = text[begin:end]
        else:
            end = begin
            parts.append(text[at:begin])
        at = end
    parts.append(text[at:])
    marks = 0
    for part in parts:
        for k in range(0, len(part), _WINDOW):
            marks += len(bytes(part[k : k + _WINDOW]).translate(None, _NO_MARKS))
            if marks > most_marks:
                raise Refused(
                    413,
                    f"the JSON part has more than the {most_marks} commas, colons, quotes and brackets that this server takes beside long "
                    "lists of numbers. Send tensors as binary data",
                )
            yield
    return b"".join(parts), runs


def _next_list(text: memoryview, at: int) -> Work[int | None]:
    """Where the next list begins that follows a key `data`."""
    while at < len(text):
        found = bytes(text[at : at + _WINDOW]).find(b'"data"')
        if found < 0:
            at += _WINDOW - _KEY_ROOM
        else:
            at += found
            if match := _KEY.search(text, at, min(len(text), at + turns.STEP + _KEY_ROOM)):
                return match.end()
            at += turns.STEP
        yield
    return None


def _end(text: memoryview, begin: int) -> Work[int]:
    """The end of the list that begins there, if it has neither strings nor objects; otherwise where the first of these may be."""
    at = begin
    while at < len(text):
        block = bytes(text[at : at + _WINDOW])
        found = [place for mark in _ENDS if (place := block.find(mark)) >= 0]
        if found:
            at += min(found)
            break
        at += len(block)
        yield
    tail = bytes(text[max(begin, at - _KEY_ROOM) : at])
    closing = tail.rfind(b"]")  # its rest belongs to the object around the list
    return begin if closing < 0 else at - len(tail) + closing + 1


def array(
    run: memoryview, shape: Sequence[int], dtype: np.dtype[Any], where: str, decode: Callable[[bytes, int], npt.NDArray[Any]]
) -> Work[npt.NDArray[Any]]:
    """The tensor whose list was taken out. `decode`: reads a flat list, whose length it is told. RequestError where it does not fit."""
    n = math.prod(shape)
    if len(run) <= WHOLE:
        text = bytes(run)
        if _count(text, "[") == 1 and _count(text, ",") + 1 == n:
            return decode(text, n).reshape(shape)
    yield from _check_form(run, shape, n, where)
    found = np.empty(n, dtype)
    at = 0
    for block in _blocks(run):
        k = _count(block, ",") + 1
        found[at : at + k] = decode(b"[" + block.translate(_FLAT) + b"]", k)
        at += k
        yield
    return found.reshape(shape)


def _count(text: bytes, letter: str) -> int:
    """How often it is there. `bytes.count` takes longer than the numbers take to decode, where there are as many commas."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord(letter)))


def _check_form(run: memoryview, shape: Sequence[int], n: int, where: str) -> Work[None]:
    """RequestError unless the list is flat or nested as the shape is, and has `n` elements."""
    form, last, beside_lists = [], b"", False
    for k in range(0, len(run), turns.STEP):
        block = bytes(run[k : k + turns.STEP])
        form.append(block.translate(None, _NUMBERS + _SPACE))
        dense = last + block.translate(_AS_ONE, _SPACE)
        beside_lists = beside_lists or b"]0" in dense or b"0[" in dense
        last = dense[-1:]
        yield
    marks = b"".join(form)
    commas = _count(marks, ",")
    if commas + 1 != n:
        raise RequestError(f"{where}: shape {list(shape)} has {n} elements, and data has {commas + 1}")
    for extents in ([n], shape):
        nested = sum(math.prod(extents[:k]) for k in range(len(extents)))
        if len(marks) == commas + 2 * nested and not beside_lists and marks == _form(extents):
            return
    raise RequestError(f"{where}: data of such a size must be a flat list, or nested as shape {list(shape)} is")


def _form(shape: Sequence[int]) -> bytes:
    """The commas and brackets of a list of this shape."""
    form = b""
    for extent in reversed(shape):
        form = b"[" + (form + b",") * (extent - 1) + form + b"]"
    return form


def _blocks(run: memoryview) -> Iterator[bytes]:
    """The list in pieces that end before a comma."""
    at = 0
    while at < len(run):
        step = turns.STEP
        block = bytes(run[at : at + step])
        end = block.rfind(b",")
        while end < 0 and at + step < len(run):
            step *= 2
            block = bytes(run[at : at + step])
            end = block.rfind(b",")
        if at + step >= len(run):
            end = len(block)
        yield block[:end]
        at += end + 1
