"""JSON schemas of types, as text."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec


def text(kind: Any, title: str) -> bytes:
    """The JSON schema of a type."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **msgspec.json.schema(kind)}
    return msgspec.json.format(msgspec.json.encode(_cleaned(schema)), indent=2) + b"\n"


def _cleaned(part: Any) -> Any:
    """Docstrings as descriptions without the indentation of the code. msgspec takes it away since version 0.23."""
    if isinstance(part, list):
        return [_cleaned(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        key: inspect.cleandoc(value) if key == "description" and isinstance(value, str) else _cleaned(value) for key, value in part.items()
    }
