"""What programs read of the command line: schemas of documents, wrong use in JSON, completion."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import folders
import msgspec
import pytest
import typer.main
from rich.progress import Progress

from aspen_mp.cli import documents, output
from aspen_mp.cli.app import app

SCHEMAS = folders.TESTS.parent / "docs" / "reference" / "schemas"


def test_schemas_in_the_docs_are_those_of_the_documents() -> None:
    written = {path.name: path.read_bytes() for path in SCHEMAS.glob("*.json")}
    assert written == documents.schemas(), "write them: python -m aspen_mp.cli.documents docs/reference/schemas"


def commands() -> Iterator[list[str]]:
    """Every command, those below `bench` too."""
    group: Any = typer.main.get_command(app)
    for name in group.list_commands(None):
        below = getattr(group.commands[name], "commands", None)
        yield from ([name, other] for other in below) if below else [[name]]


def test_every_command_that_prints_json_has_a_document() -> None:
    group: Any = typer.main.get_command(app)
    for words in commands():
        if words[0] != "bench":  # benchmarks say themselves what they record
            takes = any("--json" in parameter.opts for parameter in group.commands[words[0]].params)
            assert takes == (words[0] in documents.DOCUMENTS), words


@pytest.mark.parametrize("wrong", [["--no-such-option"], ["--name"], ["--workers", "many"]])
def test_wrong_use_is_json_where_json_is_asked_for(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    group: Any = typer.main.get_command(app)
    for words in [*commands(), ["nothing"], ["bench", "nothing"], ["bench"]]:
        with pytest.raises(SystemExit) as ended:
            group.main([*words, "--json", *wrong], "aspen-mp")
        assert ended.value.code == 2, words
        printed = capsys.readouterr()
        assert msgspec.json.decode(printed.out, type=documents.Error).error.type == "WrongUse"
        assert printed.err == ""


def test_wrong_use_without_json_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    group: Any = typer.main.get_command(app)
    with pytest.raises(SystemExit) as ended:
        group.main(["run", "--", "--json"], "aspen-mp")
    assert ended.value.code != 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err


def test_numbers_that_json_does_not_know_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit_json({"a": math.inf, "b": [-math.inf, math.nan, 1.5], "NaN": "Infinity and beyond"})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, None, 1.5], "NaN": "Infinity and beyond"}


def test_progress_counts_only_what_has_an_end() -> None:
    with Progress(disable=True) as bar:
        for total in (None, 7):
            bar.add_task("", total=total)
        assert [output._Count().render(task).plain for task in bar.tasks] == ["", "0/7"]


def test_completion_is_installed_and_completes(tmp_path: Path) -> None:
    def run(*arguments: str, **environment: str) -> str:
        code = f"import sys; sys.argv[0] = 'aspen-mp'; sys.path[:] = {sys.path!r}; from aspen_mp.cli import main; main()"
        told = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", **environment}
        return subprocess.run([sys.executable, "-c", code, *arguments], env=told, check=True, capture_output=True, text=True).stdout

    run("--install-completion", "bash")
    (script,) = (tmp_path / ".bash_completions").iterdir()
    assert "_ASPEN_MP_COMPLETE=complete_bash" in script.read_text()
    asked = {"_ASPEN_MP_COMPLETE": "complete_bash"}
    assert run(**asked, COMP_WORDS="aspen-mp sta", COMP_CWORD="1").split() == ["status"]
    assert "peers" in run(**asked, COMP_WORDS="aspen-mp bench pe", COMP_CWORD="2").split()
    assert "--drain" in run(**asked, COMP_WORDS="aspen-mp stop --dr", COMP_CWORD="2").split()
