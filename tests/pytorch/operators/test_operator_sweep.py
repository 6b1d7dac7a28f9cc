"""Operators of PyTorch's own tests give what eager PyTorch gives, and run in the runtime where the committed table says that they do."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")
pytest.importorskip("expecttest", reason="PyTorch's own tests need it: pip install expecttest")

import operator_sweep  # noqa: E402

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
STRIDE = 11
"""One operator in so many belongs to the quick tests."""


def test_no_operator_has_got_worse() -> None:
    names = sorted(operator_sweep.operators())
    wanted = (
        operator_sweep.tasks(names, operator_sweep.DTYPES, operator_sweep.SIZES)
        if LONG
        else operator_sweep.tasks(names[::STRIDE], ["float32"], operator_sweep.SIZES)
    )
    table = operator_sweep.read()
    worse = [
        f"{' '.join(task)}: {entry}, not {operator_sweep.known(table, task)} {said}"
        for task, entry, said in operator_sweep.run(wanted)
        if operator_sweep.is_worse(entry, operator_sweep.known(table, task))
    ]
    assert not worse, "\n".join(worse)


def test_the_table_has_no_faults() -> None:
    table = operator_sweep.read()
    entries = {(name, dtype, entry) for name, row in table.items() for dtype, both in row.items() for entry in both}
    assert not {found for found in entries if operator_sweep.has_faults(found[2])}


@pytest.mark.parametrize(
    ("entry", "than", "worse"),
    [
        ("3 equal, 1 pytorch", "4 equal", True),
        ("4 equal", "3 equal, 1 pytorch", False),
        ("4 pytorch", "4 pytorch", False),
        ("3 equal, 1 wrong", "3 equal, 1 pytorch", True),
        ("3 equal, 1 wrong", "", True),
        ("3 equal", "", False),
        ("1 ended", "", True),
    ],
)
def test_what_is_worse(entry: str, than: str, worse: bool) -> None:
    assert operator_sweep.is_worse(entry, than) == worse
