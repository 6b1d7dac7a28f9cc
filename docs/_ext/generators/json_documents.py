"""The documents that commands print with --json and benchmarks record, from their schemas in `reference/schemas`."""

from __future__ import annotations

import json
from typing import Any

from repository_links import DOCS


def text() -> str:
    schemas = DOCS / "reference" / "schemas"
    parts: list[str] = []
    for file in sorted(schemas.glob("*.json")):
        schema = json.loads(file.read_text(encoding="utf-8"))
        title = schema["title"]
        heading = f"`{title}`" if "--json" in title else title.capitalize()
        parts += [f"## {heading}", "", f"Schema: [{file.name}](schemas/{file.name})", ""]
        main = _name(schema.get("$ref", ""))
        definitions = schema.get("$defs", {})
        for name in sorted(definitions, key=lambda name: name != main):  # the document itself first
            parts += _described(name, definitions[name], of_document=name == main)
    records = sorted((schemas / "bench").glob("*.json"))
    parts += [
        "## Records of benchmarks",
        "",
        "All records have the same keys; only `result` differs.",
        "",
        "| command | schema |",
        "|---|---|",
    ]
    parts += [f"| `aspen-mp bench {file.stem}` | [{file.name}](schemas/bench/{file.name}) |" for file in records]
    return "\n".join(parts)


def _described(name: str, definition: dict[str, Any], *, of_document: bool) -> list[str]:
    parts = [] if of_document else [f"**{name}**", ""]
    if definition.get("description"):
        parts += [definition["description"], ""]
    if not definition.get("properties"):
        return parts
    always = set(definition.get("required", ()))
    parts += ["| key | value | always there |", "|---|---|---|"]
    parts += [f"| `{key}` | {_kind(value)} | {'yes' if key in always else 'no'} |" for key, value in definition["properties"].items()]
    return [*parts, ""]


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]


def _kind(value: dict[str, Any]) -> str:
    """A schema of a value in words."""
    if "$ref" in value:
        return f"**{_name(value['$ref'])}**"
    if "anyOf" in value:
        return " or ".join(map(_kind, value["anyOf"]))
    if "enum" in value:
        return ", ".join(f"`{json.dumps(each)}`" for each in value["enum"])
    if value.get("type") == "array":
        return f"list of {_kind(value['items'])}" if value.get("items") else "list"
    if value.get("type") == "object":
        inner = value.get("additionalProperties")
        return f"map to {_kind(inner)}" if isinstance(inner, dict) and inner else "map"
    return str(value.get("type", "any"))
