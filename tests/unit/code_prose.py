"""The rules of prose for code, and a program that names what breaks them in docstrings, comments and messages of the product:

    python tests/unit/code_prose.py FOLDER…    # without a folder: all of the product
    python tests/unit/code_prose.py --lower    # writes the numbers of `ALLOWED` that have fallen

A sentence has at most `MOST_WORDS` words, begins with a subject or a verb, names its amounts, and says "is not a" instead of "is no". A
line of a comment in C has at most `MOST_LINE` characters. `ALLOWED` counts what breaks the rules still; `test_code_prose.py` holds each
folder to its number.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from prose_rules import MOST_WORDS, ROOT, Violation, sentences, words

PRODUCT: Final = ("aspen_mp", "bench", "planner", "shm", "workers")
MOST_LINE: Final = 140
LEAST_MESSAGE: Final = 4
"""A string of fewer words is a name or a unit, not a message."""
MOST_FRAGMENT: Final = 7
ALLOWED: Final[dict[str, int]] = {
    "aspen_mp/cli": 5,
    "aspen_mp/client": 115,
    "aspen_mp/control": 128,
    "aspen_mp/torch": 62,
    "bench": 11,
    "bench/coexecution": 10,
    "bench/figures": 14,
    "bench/peers": 2,
    "bench/ray": 2,
    "bench/render": 6,
    "bench/serve": 1,
    "planner": 5,
    "planner/job": 8,
    "planner/plan": 36,
    "planner/tiling": 12,
    "shm/protocol": 147,
    "workers/plans": 3,
}
"""Violations of each folder. The numbers may only fall."""

_DENIES: Final = re.compile(r"(?<!\bthere )\b(?:is|are|was|were) no (?!longer|more|less|better|further|sooner)", re.IGNORECASE)
_INVERTED: Final = re.compile(
    r"(?:Of|What|Which|Whose|Whom|Who|So (?:many|much|few|large|small|long|far|often|old|big|deep)"
    r"|(?:At|By|For|From|In|Into|On|Over|Through|To|Under|With) (?:what|which|whom|whose)"
    r"|That (?:an?|the|no|it|its|they|their|there|these|this|all|one|each|every|nothing|some\w*))\b"
)
_SO_MANY: Final = re.compile(r"\bso (?:many|much|few|large|small|long|often)\b(?!.*\b(?:that|as)\b)", re.IGNORECASE)
"""An amount that the sentence does not tell, as in "for so many workers"."""
_FRAGMENT: Final = re.compile(
    r"(?:As|At|By|For|From|In|Into|Of|On|Over|To|Until|With|Within|Without|After|Before|Instead|Also|Only|And|Not)\b[^,:]*$"
)
"""A docstring of few words (`MOST_FRAGMENT`) that begins so has no subject, mostly."""
_PARAGRAPH: Final = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. |[\w`]+(?: \([^)]*\))?:(?:\s|$)))")
"""Between two paragraphs: an empty line, or the mark of an item, or a name and a colon."""
_CODE: Final = re.compile(r"`[^`]*`|\[[^\]]*\]")
_DOCSTRING: Final = re.compile(r'"""(.*?)"""', re.DOTALL)
_COMMENT: Final = re.compile(r"(?:^[ \t]*# [^\n]*\n)+|  # [^\n]*", re.MULTILINE)
_C_COMMENT: Final = re.compile(r"/\*.*?\*/|//[^\n]*(?:\n[ \t]*//[^\n]*)*", re.DOTALL)


def broken(text: str) -> Iterator[tuple[str, str]]:
    """The rules that the sentences of a text break, each with the sentence. Diagrams and examples, indented further, are not read."""
    text = re.sub(r"(?<=\n)[ \t]*\n(?: {4}[^\n]*\n?)+(?=\s*\n|\Z)", "\n", inspect.cleandoc(text))
    for paragraph in _PARAGRAPH.split(text):
        for sentence in sentences(" ".join(paragraph.split())):
            count = words(_CODE.sub("code", sentence))
            if count > MOST_WORDS:
                yield f"a sentence of {count} words, {MOST_WORDS} at most", sentence
            if _DENIES.search(sentence):
                yield '"is no" before a noun', sentence
            if _SO_MANY.search(sentence):
                yield '"so many" in place of a name or a number', sentence
            if _INVERTED.match(sentence) and not sentence.endswith("?"):
                yield "begins with its object", sentence


def _strings(code: str) -> Iterator[tuple[int, str]]:
    """Docstrings and messages; a field of an f-string is one word."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(code)):
        text = ""
        if isinstance(node, ast.JoinedStr):
            inside.update(id(part) for part in ast.walk(node) if part is not node)
            text = "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            text = node.value
        if len(text.split()) >= LEAST_MESSAGE:
            yield node.lineno, text


def fragments(code: str) -> Iterator[tuple[int, str]]:
    """Docstrings and notes whose first sentence is a phrase without a subject."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first = next(iter(sentences(" ".join(node.value.value.split()))), "")
            if _FRAGMENT.match(first) and words(first) <= MOST_FRAGMENT and not _INVERTED.match(first):
                yield node.lineno, first


def _matches(pattern: re.Pattern[str], mark: str, code: str) -> Iterator[tuple[int, str]]:
    """What a pattern finds, without the marks at the beginning of its lines."""
    for found in pattern.finditer(code):
        yield code.count("\n", 0, found.start()) + 1, re.sub(rf"^[ \t]*{mark}", "", found[found.lastindex or 0], flags=re.MULTILINE)


def violations(name: str, code: str) -> list[Violation]:
    """What breaks the rules in a file; `name`: its path in the repository."""
    lines = []
    if name.endswith((".c", ".h")):
        texts = [*_matches(_C_COMMENT, r"(?:/\*+|\*+/?|//+)", code)]
        for at, text in texts:
            count = text.count("\n") + 1
            lines += [at + i for i, line in enumerate(code.splitlines()[at - 1 : at - 1 + count]) if len(line) > MOST_LINE]
    elif name.endswith((".pyx", ".pxd")):
        docstrings = [each for each in _matches(_DOCSTRING, "", code) if "#include" not in each[1]]
        texts = [*docstrings, *_matches(_COMMENT, "[# ]*", code)]
    else:
        texts = [*_strings(code), *_matches(_COMMENT, "[# ]*", code)]
    found = [Violation(line, rule, sentence) for line, text in texts for rule, sentence in broken(text)]
    if name.endswith((".py", ".pyi")):
        found += [Violation(line, "a phrase without a subject", text) for line, text in fragments(code)]
    return sorted(found + [Violation(line, f"more than {MOST_LINE} characters", "") for line in sorted(set(lines))])


def files(folders: Sequence[str] = PRODUCT) -> Iterator[str]:
    """Python, Cython and C below these folders."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".pyi", ".pyx", ".pxd", ".c", ".h"}:
                yield path.relative_to(ROOT).as_posix()


def folder_of(name: str) -> str:
    """The room of a file, such as `planner/ops`."""
    return "/".join(name.split("/")[:-1][:2])


def count() -> Counter[str]:
    """Violations of each folder."""
    found: Counter[str] = Counter()
    for name in files():
        found[folder_of(name)] += len(violations(name, (ROOT / name).read_text(encoding="utf-8")))
    return found


def lower() -> None:
    """Write the numbers that have fallen into `ALLOWED`."""
    found, text = count(), Path(__file__).read_text(encoding="utf-8")
    for folder, allowed in ALLOWED.items():
        now = min(found[folder], allowed)
        text = text.replace(f'    "{folder}": {allowed},\n', f'    "{folder}": {now},\n' if now else "")
    Path(__file__).write_text(text, encoding="utf-8")


def main(folders: Sequence[str]) -> None:
    """Print what breaks the rules below these folders."""
    if folders == ["--lower"]:
        lower()
        return
    for name in files(folders or PRODUCT):
        for line, rule, text in violations(name, (ROOT / name).read_text(encoding="utf-8")):
            print(f"{name}:{line}: {rule}\n    {text}")


if __name__ == "__main__":
    main(sys.argv[1:])
