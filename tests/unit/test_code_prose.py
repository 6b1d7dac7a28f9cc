"""Docstrings, comments and messages keep the rules of `code_prose.py` but for a number a folder; each rule is broken once on purpose."""

from __future__ import annotations

import code_prose as rules
import pytest

LONG = " ".join(["word"] * (rules.MOST_WORDS + 1))


def test_violations_are_as_many_as_allowed() -> None:
    """A folder with fewer fails, too: its number in `ALLOWED` falls with each sentence that is mended (`code_prose.py --lower`)."""
    found = {folder: count for folder, count in rules.count().items() if count}
    assert found == rules.ALLOWED, "python tests/unit/code_prose.py FOLDER names them all"


@pytest.mark.parametrize(
    ("name", "code", "rule"),
    [
        ("a.py", f'"""{LONG}."""\n', "words"),
        ("a.py", f'def f():\n    """Short.\n\n    Args:\n        x: {LONG}.\n        y (int): Short.\n    """\n', "words"),
        ("a.py", f"# {LONG[:60]}\n# {LONG[60:]}\n", "words"),
        ("a.py", f"x = 1  # {LONG}\n", "words"),
        ("a.py", f'raise E(f"{{x!r}} {LONG}")\n', "words"),
        ("a.py", "raise E(f'{x} is no sparse tensor')\n", "is no"),
        ("a.py", '"""Of a plan alone."""\n', "begins"),
        ("a.pyi", '"""What a request needs."""\n', "begins"),
        ("a.py", '"""Short. So far it is."""\n', "begins"),
        ("a.py", '"""Which cores are free."""\n', "begins"),
        ("a.py", '"""The plan for so many cores."""\n', "so many"),
        ("a.py", '"""In which order they run."""\n', "begins"),
        ("a.py", '"""That a core is free is said once."""\n', "begins"),
        ("a.py", 'def f():\n    """As `g`."""\n', "phrase"),
        ("a.py", 'A = 1\n"""Until the end of a request. More."""\n', "phrase"),
        ("a.pyx", 'def f():\n    """What it gives."""\n', "begins"),
        ("a.pxd", "cdef int a # b\ncdef int c  # Of the caller alone.\n", "begins"),
        ("a.h", "/* Of a tile. */\n", "begins"),
        ("a.h", f"/* {LONG[:40]}\n * {LONG[40:]}.\n */\n", "words"),
        ("a.c", "int a; // The value is no number.\n", "is no"),
        ("a.c", f"int a; /* {'x' * rules.MOST_LINE} */\n", "characters"),
    ],
)
def test_violations_are_found(name: str, code: str, rule: str) -> None:
    found = rules.violations(name, code)
    assert len(found) == 1
    assert rule in found[0].rule


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a.py", f'"""{LONG[10:]}. {LONG[10:]}.\n\n{LONG[10:]}"""\n'),
        ("a.py", f'"""Short.\n\n- {LONG[10:]}\n- {LONG[10:]}\nname: {LONG[10:]}\nraises: {LONG[10:]}"""\n'),
        ("a.py", f'"""`{LONG}`, x[{LONG}] are one word each."""\n'),
        ("a.py", f"# {LONG[10:]}\nx = 1\n# {LONG[10:]}\n"),
        ("a.py", '"""There is no such plan. What is it for? This is no longer so. That is why. It is no more than that."""\n'),
        ("a.py", '"""By name: the value. Until the end."""\n'),
        ("a.py", '"""It has so many parts that it is slow."""\n'),
        ("a.py", 'x = "Of a"\n'),
        ("a.py", f'"""Short.\n\n    {LONG}\n    {LONG}\n\nShort."""\n'),
        ("a.pyx", f'cdef extern from *:\n    """\n    #include <{LONG}>\n    """\n'),
        ("a.h", f"/* Short. */\n{'x' * rules.MOST_LINE};\n"),
    ],
)
def test_what_keeps_the_rules_passes(name: str, code: str) -> None:
    assert not rules.violations(name, code)
