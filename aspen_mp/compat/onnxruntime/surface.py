"""The table of onnxruntime's public names, made from the code:
``python -m aspen_mp.compat.onnxruntime.surface > aspen_mp/compat/onnxruntime/SURFACE.md``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

from aspen_mp.compat import onnxruntime
from aspen_mp.compat.onnxruntime.environment import SURFACE
from aspen_mp.compat.onnxruntime.names import WHERE

CLASSES: Final = (
    *("InferenceSession", "SessionOptions", "RunOptions", "OrtValue", "IOBinding", "SparseTensor", "ModelCompiler"),
    *("AdapterFormat", "LoraAdapter"),
)
"""Classes whose members are listed, too."""


def rows() -> Iterator[tuple[str, str, str]]:
    """(name, "works", "does nothing" or "raises", what to know)."""
    for name in sorted(WHERE, key=str.lower):
        yield (name, *_state(getattr(onnxruntime, name)))
    for owner in CLASSES:
        kind = getattr(onnxruntime, owner)
        for name in sorted(members(kind), key=str.lower):
            yield (f"{owner}.{name}", *_state(inspect.getattr_static(kind, name)))


def members(kind: type) -> list[str]:
    """Public attributes and methods."""
    return [name for name in dir(kind) if not name.startswith("_")]


def _state(value: Any) -> tuple[str, str]:
    if inspect.ismemberdescriptor(value):  # an option: which of them do something, their class says
        return "works", ""
    function = getattr(value, "__func__", value)
    text = inspect.getdoc(function) or ""
    about = " ".join(text.split())
    if about.startswith("Raises"):
        return "raises", re.sub(r"^Raises \w+: ", "", about)
    for state in ("does nothing", "Does nothing"):
        if inspect.isroutine(function) and state in about:
            return "does nothing", re.sub(r"^.*?[Dd]oes nothing[:.]? ?", "", about)
    return "works", ""


def table() -> str:
    """The page, as Markdown."""
    lines = [
        "# onnxruntime's names, and what they do here",
        "Made by `python -m aspen_mp.compat.onnxruntime.surface`; a test holds it to the code.",
        "",
        "- **works**: as in onnxruntime. Options that change no result are kept and do nothing (`SessionOptions` says which do something).",
        "- **does nothing**: can be called; there is nothing to do.",
        "- **raises**: `aspen_mp.compat.onnxruntime.errors.Unsupported` or `Fail`, with the advice that stands here.",
        "",
        f"The names are those of onnxruntime {SURFACE}.",
        "",
        "| name | here | what to know |",
        "|---|---|---|",
    ]
    lines += [f"| `{name}` | {state} | {about} |" for name, state, about in rows()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
