"""Every test of the onnx package that the table lists as passed still passes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import pytest

import aspen_mp
from aspen_mp.bench import conformance

CHUNK = 60
VERSION, TABLE = conformance.read_table(conformance.table_path())
CASES, REFUSED = conformance.cases()
LISTED = [case for case in CASES if TABLE.get(case.name) == ""]
CHUNKS = [LISTED[i : i + CHUNK] for i in range(0, len(LISTED), CHUNK)]


@pytest.fixture(scope="module")
def runtime() -> Iterator[aspen_mp.Runtime]:
    with aspen_mp.Runtime(workers=2) as rt:
        yield rt


@pytest.mark.parametrize("chunk", CHUNKS, ids=lambda chunk: chunk[0].name)
def test_still_passes(runtime: aspen_mp.Runtime, chunk: list[conformance.Case]) -> None:
    failed = [v for v in conformance.judge_all(chunk, conformance.OnRuntime(runtime)) if not v.passed]
    assert not failed, "\n".join(f"{v.name}: {v.error}" for v in failed)


def test_table_is_complete() -> None:
    """With the onnx version of the table every test has a line, with another one most do (that version's new tests have none)."""
    names = {case.name for case in CASES} | set(REFUSED)
    if onnx.__version__ == VERSION:
        assert names == set(TABLE), "regenerate: python -m aspen_mp.bench.conformance"
    assert len(LISTED) > 1900
    assert all(reason.strip() for reason in TABLE.values() if reason), "an excluded test has no reason"


def test_a_wrong_result_is_noticed() -> None:
    class Wrong(conformance.Reference):
        def run(self, inputs: list[object]) -> list[object]:
            return [x + 1 for x in super().run(inputs)]

    case = next(case for case in CASES if case.name == "test_add")
    assert conformance.judge(case, conformance.Reference).passed
    assert "Mismatched" in conformance.judge(case, Wrong).error
