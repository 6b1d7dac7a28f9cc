"""Inputs made at random from good ones (see `fuzzing.py`), with fixed seeds; and every one that was ever found to be handled wrongly.

`ASPEN_MP_FUZZ_SECONDS` sets how long each fuzzer runs in the long tier, from a new seed each time (printed); there it is ten minutes.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable

import fuzz_bytes
import fuzz_models
import fuzz_plans
import pytest
from fuzzing import Finding, attempt, explore, others, touched

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
SECONDS = float(os.environ.get("ASPEN_MP_FUZZ_SECONDS", "600"))
FUZZERS: dict[str, tuple[Callable[[int], str], int]] = {
    "models": (fuzz_models.case, 400),
    "plans": (fuzz_plans.case, 1500),
    "files": (fuzz_bytes.plan_bytes, 300),
    "values": (fuzz_bytes.value, 3000),
    "frames": (fuzz_bytes.frames, 2000),
}
CORPUS = sorted(fuzz_models.CORPUS.glob("*.onnx"))


@pytest.fixture(scope="module", autouse=True)
def stock() -> None:
    """What the cases are made from, before processes are forked."""
    fuzz_models.bases()


@pytest.mark.parametrize("name", FUZZERS)
def test_nothing_is_found(name: str) -> None:
    case, count = FUZZERS[name]
    first = int(time.time()) * 1000 if LONG else 0
    report = explore(case, itertools.count(first), SECONDS) if LONG else explore(case, range(count))
    print(f"{name} from {first}: {report}")
    assert not report.findings, str(report)
    assert len(report.outcomes) > 1, str(report)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_corpus(path: object) -> None:
    """Models that once crashed something, hung it, or gave a wrong answer."""
    report = explore(lambda _: fuzz_models.check(path.read_bytes()), [0])  # type: ignore[attr-defined]
    assert not report.findings, str(report)


def test_findings_are_found() -> None:
    """The engine's own: an exception, a wrong answer, a crash and a flood of memory are told apart and do not stop the rest."""

    def busy(seconds: float) -> None:
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass

    def case(seed: int) -> str:
        match seed:
            case 1:
                raise KeyError("x")
            case 2:
                raise Finding("wrong")
            case 3:
                os.kill(os.getpid(), 11)
            case 4:
                busy(1.2)
                return "refused"
            case 5:
                bytearray(1 << 36)
            case 6:
                os._exit(3)
        return "fine"

    report = explore(case, range(10))
    assert set(report.findings) == {1, 2, 3, 5, 6}
    assert report.seeds == {"slow": [4]}
    assert report.outcomes["fine"] == 4
    assert "SIGSEGV" in report.findings[3]
    assert "MemoryError" in report.findings[5]
    assert attempt(lambda seed: "fine", 0) == ("fine", "")

    def foreign(seed: int) -> str:
        """What happens in a library is its own affair, unless we had a hand in it."""
        match seed:
            case 1 | 3:
                with others("onnx"):
                    os.kill(os.getpid(), 6)
            case 2:
                with others("onnx.reference"):
                    busy(1.2)
                return "refused"
            case 5:
                with others("onnx"):
                    busy(0.2)
                busy(1.2)
                return "refused"
            case 6:
                touched()
                with others("onnx"):
                    os.kill(os.getpid(), 6)
            case 7:
                seen.append(7)
            case 8 if seen:
                with others("onnx"):
                    os.kill(os.getpid(), 6)
            case 9:
                with others("onnx"):
                    os.kill(os.getpid(), 14)
            case 10:
                with others("onnx"):
                    pass
                os.kill(os.getpid(), 6)
        return "fine"

    seen: list[int] = []
    report = explore(foreign, range(11))
    assert set(report.findings) == {6, 8, 10}
    assert report.outcomes == {"fine": 4, "onnx dies": 2, "onnx.reference slow": 1, "slow": 1, "death": 2, "onnx hangs": 1}
    assert report.seeds == {"onnx dies": [1, 3], "onnx.reference slow": [2], "onnx hangs": [9], "slow": [5]}
    assert "but not alone" in report.findings[8]
    assert "in onnx" not in report.findings[10]
