"""The commands of `aspen-mp` with their options, as typer describes them."""

from __future__ import annotations

import re

import typer
import typer.main
from typer.cli import get_docs_for_click

from aspen_mp.cli.app import app

_SHORTENED = re.compile(r"\*\*Commands\*\*:\n\n(?:\* .*\n)+\n?")  # the lists in which typer cuts what each command's own section says whole


def text() -> str:
    group = typer.main.get_command(app)
    found = get_docs_for_click(obj=group, ctx=typer.Context(group, info_name="aspen-mp"), name="aspen-mp", indent=1)
    return _SHORTENED.sub("", found)
