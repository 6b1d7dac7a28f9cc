"""The frame of an `.aspen` file: magic, version, checksum, header, body. Light: read by the planner process before numpy is there.

What the header and the body mean is `planfile`'s; here only that they are whole and of this build.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Final, NoReturn

import msgspec

from aspen_mp.shm.bindings._tables import LAYOUT_HASH
from aspen_mp.shm.errors import PlanError

MAGIC: Final = b"ASPENPLN"
VERSION: Final = 1
PREFIX: Final = struct.Struct("<8sII32s")
MAX_HEADER: Final = 16 << 20
ALIGN: Final = 64


def refuse(field: str, value: object, bound: object) -> NoReturn:
    """PlanError: what is wrong, its value, and what it would have to be."""
    raise PlanError(f"plan {field}: {value}, but {bound}")


def join(header: bytes, body: bytes) -> bytes:
    """A whole file."""
    begin = PREFIX.size + len(header)
    rest = header + bytes(-begin % ALIGN) + body
    return PREFIX.pack(MAGIC, VERSION, len(header), _digest(rest)) + rest


def split(raw: memoryview) -> tuple[memoryview, memoryview]:
    """Header and body of a file. PlanError: it is none, is damaged, or is of another version."""
    if raw.nbytes < PREFIX.size:
        refuse("file", f"{raw.nbytes} bytes", f"it begins with {PREFIX.size}")
    magic, version, size, digest = PREFIX.unpack_from(raw)
    if magic != MAGIC:
        refuse("magic", magic, f"an .aspen file begins with {MAGIC!r}")
    if version != VERSION:
        refuse("version", version, f"this build reads {VERSION}")
    if size > min(MAX_HEADER, raw.nbytes - PREFIX.size):
        refuse("header bytes", size, f"at most {min(MAX_HEADER, raw.nbytes - PREFIX.size)}")
    if _digest(raw[PREFIX.size :]) != digest:
        refuse("checksum", digest.hex()[:16], "the contents have another one: the file is damaged")
    end = PREFIX.size + size
    begin = -(-end // ALIGN) * ALIGN
    if any(raw[end:begin]):
        refuse("header", "bytes behind it", "they are zero")
    return raw[PREFIX.size : end], raw[begin:]


def segment_of(raw: memoryview) -> tuple[dict[str, Any], memoryview]:
    """The header's metadata and the plan segment of a file that this build has written itself: whole, but not checked field by field."""
    head, body = split(raw)
    try:
        header = msgspec.msgpack.decode(head)
        layout, nbytes, metadata = header["layout"], header["segment_bytes"], header["metadata"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError) as error:
        raise PlanError(f"plan header: {error}") from None
    if layout != LAYOUT_HASH:
        refuse("layout", layout, f"this build has {LAYOUT_HASH}")
    if type(nbytes) is not int or not 0 < nbytes <= body.nbytes or not isinstance(metadata, dict):
        refuse("segment_bytes", nbytes, f"the body has {body.nbytes}")
    return metadata, body[:nbytes]


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()
