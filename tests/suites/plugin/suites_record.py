"""A pytest plugin: appends one JSON line for each test that ends to the file that `SUITES_RECORD` names, and ends tests that take too long.

The line has the test's name, its outcome, and of a failure its last exception, in one line.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

_LIMIT_S = float(os.environ.get("SUITES_TEST_SECONDS", "120"))


class _TookTooLong(BaseException):
    """Not an Exception: tests that catch those must not go on."""


def _end(number: int, frame: Any) -> None:
    raise _TookTooLong(f"the test took more than {_LIMIT_S:g} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    signal.signal(signal.SIGALRM, _end)
    signal.setitimer(signal.ITIMER_REAL, _LIMIT_S)
    try:
        return (yield)
    except _TookTooLong as error:
        _write(item.nodeid, "failed", str(error))
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _write(report.nodeid, report.outcome, _why(report))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(report.nodeid, "failed", "not collected: " + _why(report))


def _why(report: Any) -> str:
    if report.passed:
        return ""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        text = str(crash.message)
    elif isinstance(report.longrepr, tuple):
        text = str(report.longrepr[-1])
    else:
        lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")]
        text = lines[-1][2:] if lines else str(report.longrepr)
    return " ".join(text.split())[:600]


def _write(name: str, outcome: str, why: str) -> None:
    with open(os.environ["SUITES_RECORD"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"test": name, "outcome": outcome, "why": why}, ensure_ascii=False) + "\n")
