"""Text that is generated when the site is built: ``<!-- generated: NAME ARGUMENTS -->`` becomes what `generators/NAME.py` returns.

A generator is a module with a function ``text(*arguments) -> str`` of Markdown. It reads what it describes when the site is built, so
the page cannot be out of date. Links in the text are relative to the page.
"""

from __future__ import annotations

import importlib
import re
from typing import Final

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

MARK: Final = re.compile(r"^<!-- generated: (\w+)((?: \S+)*) -->$", re.MULTILINE)


def filled(text: str) -> str:
    """Return `text` with every mark replaced."""

    def made(match: re.Match[str]) -> str:
        try:
            generator = importlib.import_module(f"generators.{match[1]}")
        except ModuleNotFoundError as error:
            if error.name != f"generators.{match[1]}":  # a package that it needs
                raise
            raise ExtensionError(f"{match[0]}: docs/_ext/generators has no {match[1]}.py") from error
        try:
            found: str = generator.text(*match[2].split())
        except OSError as error:
            raise ExtensionError(f"{match[0]}: {error}") from error
        return found.rstrip()

    return MARK.sub(made, text)


def _on_read(app: Sphinx, docname: str, source: list[str]) -> None:
    if MARK.search(source[0]):
        source[0] = filled(source[0])
        app.env.note_reread()  # what it was made from may change where this page does not


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _on_read, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
