"""Markdown and help texts keep the rules of prose (`prose_rules.py`), and each rule is broken once on purpose."""

from __future__ import annotations

import argparse
import importlib
import inspect
import shlex
from collections.abc import Iterator
from typing import Any

import prose_rules as rules
import pytest
import typer.main

from aspen_mp.cli.app import app


def commands(command: Any, path: str = "aspen-mp") -> Iterator[tuple[str, Any]]:
    """Every command with what calls it; groups, too."""
    yield path, command
    if hasattr(command, "list_commands"):
        names = command.list_commands(None)
        for name in names:
            yield from commands(command.commands[name], f"{path} {name}")


def broken_by_help(path: str, command: Any) -> list[str]:
    """What breaks the rules in the help of a command; `path`: what calls it."""
    shown = [param for param in command.params if not getattr(param, "hidden", False)]
    texts = [command.help, *(param.help for param in shown)]
    found = [f"{each.rule}: {each.text}" for text in texts for each in rules.prose(text or "")]
    found += [f"no help: {param.name}" for param in shown if not param.help]
    found += [] if command.help else ["no help"]
    if not hasattr(command, "list_commands"):
        found += broken_by_example(path, command)
    return found


def broken_by_example(path: str, command: Any) -> list[str]:
    """What is wrong with the examples below the help of a command: "Example: aspen-mp run model.onnx", one on each paragraph."""
    lines = [line for line in (command.epilog or "").split("\n\n") if line]
    if not lines:
        return ["no example"]
    known = {option for param in command.params for option in [*param.opts, *param.secondary_opts]}
    found = []
    for line in lines:
        call = line.removeprefix("Example: ").removeprefix("Or: ")
        if call == line or not f"{call} ".startswith(f"{path} "):
            found.append(f"no example of {path}: {line}")
        options = {word.partition("=")[0] for word in shlex.split(call.partition(" # ")[0]) if word.startswith("-")}
        found += [f"the example names {each}, which {path} does not know" for each in sorted(options - known)]
    return found


def test_documents_keep_the_rules() -> None:
    found = {name: rules.violations(name, (rules.ROOT / name).read_text(encoding="utf-8")) for name in rules.documents()}
    assert "docs/glossary.md" in found
    assert not {name: each for name, each in found.items() if each}, "python tests/unit/prose_rules.py names them all"


def test_help_texts_keep_the_rules() -> None:
    found = {path: broken_by_help(path, command) for path, command in commands(typer.main.get_command(app))}
    assert {"aspen-mp", "aspen-mp run", "aspen-mp bench", "aspen-mp bench peers"} <= found.keys()
    assert not {path: each for path, each in found.items() if each}


EXTRAS = ("torch", "expecttest")
"""Packages that programs need and that may be missing."""


class Made(Exception):
    """A parser that is about to read its arguments."""


def parsers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parser of every program of `bench` and of the tests that is run by hand, with its file."""

    def made(parser: argparse.ArgumentParser, *arguments: object) -> None:
        raise Made(parser)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", made)
    for path in sorted([*(rules.ROOT / "bench").rglob("*.py"), *(rules.ROOT / "tests").rglob("*.py")]):
        if "= argparse.ArgumentParser(" in path.read_text(encoding="utf-8") and path.name != "test_prose.py":
            place = path.relative_to(rules.ROOT).with_suffix("").parts
            if place[0] == "tests":
                monkeypatch.syspath_prepend(str(path.parent))
            try:
                module = importlib.import_module(place[-1] if place[0] == "tests" else ".".join(["aspen_mp", *place]))
            except ModuleNotFoundError as missing:
                if missing.name not in EXTRAS:
                    raise
                continue
            with pytest.raises(Made) as caught:
                module.main()
            yield str(path.relative_to(rules.ROOT)), caught.value.args[0]


def broken_by_parser(parser: argparse.ArgumentParser) -> list[str]:
    """What breaks the rules in the help of a parser. Each text is a sentence: it begins with a capital and ends with a full stop."""
    shown = {action.dest: (action.help or "").replace("%%", "%") for action in parser._actions if action.dest != "help"}
    texts = [inspect.cleandoc(parser.description or ""), *shown.values()]
    found = [f"{each.rule}: {each.text}" for text in texts for each in rules.prose(text)]
    found += [] if parser.description else ["no description"]
    return found + [f"no sentence: {name}: {text!r}" for name, text in shown.items() if not (text[:1].isupper() and text.endswith("."))]


def test_help_of_programs_keeps_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {path: broken_by_parser(parser) for path, parser in parsers(monkeypatch)}
    assert {"bench/profile.py", "bench/demo/__main__.py", "tests/suites/run.py"} <= found.keys()
    assert not {path: each for path, each in found.items() if each}


LONG = " ".join(["word"] * rules.MOST_WORDS)
MANY = "From 1 to 2."


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f"{LONG} word.", "words"),
        (f"Short. {LONG} `one word more`.", "words"),
        (f"- {LONG}\n  word.", "words"),
        (f"> {LONG} [word](a.md).", "words"),
        (f"Term\n: {LONG} word.", "words"),
        (f"```{{note}}\n:class: x\n{LONG} word.\n```", "words"),
        (f":::{{note}}\n{LONG} word.\n:::", "words"),
        ("From 1 to 2 by 3.", "numbers"),
        ("It takes 0.97 of 12 ms, or 3 %.", "numbers"),
        ("ResNet-50 takes 1e-3, 1×1 and 10 000 s.", "numbers"),
        (f"| a |\n|---|\n| {'x' * (rules.MOST_CELL + 1)} |", "cell"),
        ("x" * (rules.MOST_LINE + 1), "line"),
        (f"{rules.GENERATED} a program -->\n{'x' * (rules.MOST_LINE + 1)}", "line"),
    ],
)
def test_violations_are_found(text: str, rule: str) -> None:
    found = rules.violations("docs/page.md", text)
    assert len(found) == 1
    assert rule in found[0].rule


@pytest.mark.parametrize(
    "text",
    [
        f"{LONG}.\n{LONG}!\n{LONG}?\n\n{LONG}",
        f"- {LONG}\n- {LONG}",
        f"Term\n: {LONG}\n: {LONG}",
        f"{MANY} ({MANY}) {MANY}",
        "ResNet-50 on Python 3.11, 3.12 and 3.13, Debian 12, section 4, in 2023, 1.2.3, `1 2 3`, f32 and 8-bit.",
        f"```\n{LONG}\n{LONG}\n1 2 3 4\n```",
        f"---\ntitle: {LONG}\n  {LONG}\n---\nText.",
        f"<!-- {LONG}\n{LONG} -->\nText.",
        f"{rules.GENERATED} a program -->\n{LONG}\n{LONG}\n1 2 3 4",
        "A word, e.g. this, i.e. that, is followed by another (Park et al. 2018).",
    ],
)
def test_what_keeps_the_rules_passes(text: str) -> None:
    assert not rules.violations("docs/page.md", text)


@pytest.mark.parametrize(("name", "limits"), rules.LIMITS.items())
def test_sizes_of_documents_are_held(name: str, limits: rules.Limits) -> None:
    assert not rules.violations(name, "word.\n\n" * 10)
    assert any("words" in each.rule for each in rules.violations(name, "word. " * (limits.words + 1)))
    assert any("line of" in each.rule for each in rules.violations(name, "x" * (limits.line + 1)))
    if limits.lines:
        assert any("lines" in each.rule for each in rules.violations(name, "\n" * (limits.lines + 1)))


@pytest.mark.parametrize(
    ("help_text", "option_help", "epilog", "broken"),
    [
        ("Run.", "How.", "Example: aspen-mp x --how\n\nOr: aspen-mp x --how=1 # with one", None),
        (f"{LONG} word.", "How.", "Example: aspen-mp x", "words"),
        ("Run.", f"{LONG} word.", "Example: aspen-mp x", "words"),
        ("Run.", "1, 2, 3.", "Example: aspen-mp x", "numbers"),
        ("", "How.", "Example: aspen-mp x", "no help"),
        ("Run.", "", "Example: aspen-mp x", "no help"),
        ("Run.", "How.", "", "no example"),
        ("Run.", "How.", "Example: aspen-mp y", "no example of"),
        ("Run.", "How.", "aspen-mp x", "no example of"),
        ("Run.", "How.", "Example: aspen-mp x --what", "--what"),
    ],
)
def test_violations_in_help_are_found(help_text: str, option_help: str, epilog: str, broken: str | None) -> None:
    planted = typer.Typer(add_completion=False)

    @planted.command(help=help_text, epilog=epilog)
    def _x(how: int = typer.Option(0, "--how", help=option_help)) -> None:
        pass

    found = broken_by_help("aspen-mp x", typer.main.get_command(planted))
    assert not found if broken is None else broken in " ".join(found)


@pytest.mark.parametrize(
    ("description", "option_help", "broken"),
    [
        ("Run.", "How.", None),
        ("", "How.", "no description"),
        ("Run.", None, "no sentence: how"),
        ("Run.", "how.", "no sentence: how"),
        ("Run.", "How", "no sentence: how"),
        (f"{LONG} word.", "How.", "words"),
        ("Run.", "From 1 to 2 by 3.", "numbers"),
    ],
)
def test_violations_in_a_parser_are_found(description: str, option_help: str | None, broken: str | None) -> None:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--how", help=option_help)
    found = broken_by_parser(parser)
    assert not found if broken is None else broken in " ".join(found)
