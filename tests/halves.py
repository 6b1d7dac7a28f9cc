"""`python tests/halves.py [options of pytest]`: all tests in two halves, with one summary at the end. `make test` calls it.

Tests of the first half run beside each other. Those of the second kill processes, or look at what the whole machine has left over. The
second half runs even if tests of the first have failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

TESTS = Path(__file__).parent
BESIDE = [
    *(f"stress/{name}" for name in ("engine", "model_checker", "sanitizers")),
    *("unit", "docs", "kernels", "conformance", "models", "api", "pytorch"),
]
"""Folders of the first half."""
CONCLUDED = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED}


def main(options: list[str]) -> int:
    folders = [str(TESTS / name) for name in BESIDE]
    halves = [
        ["-n", "auto", "--maxprocesses", "4", "--dist", "loadgroup", *options, *folders],
        [*options, str(TESTS), *(f"--ignore={folder}" for folder in folders)],
    ]
    began, found = time.monotonic(), Counter[str]()
    failed: list[str] = []
    codes = []
    with tempfile.TemporaryDirectory() as folder:
        for k, arguments in enumerate(halves):
            report = Path(folder, f"{k}.xml")
            command = [sys.executable, "-m", "pytest", "--durations", "20", "-o", "junit_family=xunit2", f"--junit-xml={report}"]
            codes.append(subprocess.run([*command, *arguments], check=False).returncode)
            if codes[-1] not in CONCLUDED:  # Ctrl-C, or options that pytest does not know
                return codes[-1]
            read(report, found, failed)
    for name in failed:
        print(f"FAILED {name}")
    seconds = time.monotonic() - began
    print(f"both halves: {found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped", f"in {seconds:.0f} s", flush=True)
    return max(code for code in codes if code != pytest.ExitCode.NO_TESTS_COLLECTED) if found else codes[0]


def read(report: Path, found: Counter[str], failed: list[str]) -> None:
    """Count the tests of a report of pytest's, and note those that failed."""
    for case in ElementTree.parse(report).iter("testcase"):
        ends = {child.tag for child in case}
        end = "failed" if ends & {"failure", "error"} else "skipped" if "skipped" in ends else "passed"
        found[end] += 1
        if end == "failed":
            failed.append(f"{case.get('classname')}::{case.get('name')}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
