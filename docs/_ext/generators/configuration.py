"""The keys of a profile: types and defaults from the types of `aspen_mp.config`, meanings from the comments of `default.toml`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from aspen_mp import config


def text() -> str:
    meanings = _meanings((Path(config.__file__).parent / "default.toml").read_text(encoding="utf-8"))
    top: list[str] = []
    sections: list[str] = []
    for field in _fields(config.Profile):
        if isinstance(field.type, inspect.StructType):
            sections += [f"## `[{field.name}]`", "", *_table(_fields(field.type.cls), field.name, meanings), ""]
        else:
            top += _table([field], "", meanings)
    return "\n".join(["## Outside sections", "", *top, "", *sections])


def _fields(kind: type) -> tuple[inspect.Field, ...]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return found.fields


def _table(fields: tuple[inspect.Field, ...] | list[inspect.Field], section: str, meanings: dict[tuple[str, str], str]) -> list[str]:
    rows = [f"| `{f.name}` | {_kind(f.type)} | `{_toml(f.default)}` | {meanings[section, f.name]} |" for f in fields]
    return ["| key | value | default | meaning |", "|---|---|---|---|", *rows]


def _meanings(toml: str) -> dict[tuple[str, str], str]:
    """{(section, key): the comment above it}."""
    found: dict[tuple[str, str], str] = {}
    section, comment = "", []
    for line in toml.splitlines():
        if line.startswith("#"):
            comment.append(line.removeprefix("#").strip())
        elif match := re.match(r"\[(\w+)\]", line):
            section, comment = match[1], []
        elif match := re.match(r"(\w+) *=", line):
            found[section, match[1]] = _markdown(" ".join(comment))
            comment = []
        else:
            comment = []
    return found


def _markdown(comment: str) -> str:
    """A comment with what it quotes as code; bars would end a cell."""
    return re.sub(r'"([^"`]*)"', r'`"\1"`', comment).replace("|", "\\|")


def _kind(kind: inspect.Type) -> str:
    match kind:
        case inspect.UnionType(types=types):
            return " or ".join(map(_kind, types))
        case inspect.LiteralType(values=values):
            return ", ".join(f"`{_toml(value)}`" for value in values)
        case inspect.BoolType():
            return "`true` or `false`"
        case inspect.StrType():
            return "a string"
        case inspect.IntType(ge=least, le=most):
            return f"a whole number from {least} to {most}"
        case inspect.FloatType(ge=least, le=most):
            return f"a number from {least:g} to {most:g}"
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return f"a list, each {_kind(item)}"
    raise TypeError(f"configuration.py does not describe {kind}")


def _toml(value: Any) -> str:
    return msgspec.json.encode(value).decode()
