"""Puts every folder of the tests on the path, so that helpers and what tests of several folders share are imported by their names.

`conftest.py` imports this; a program that a test runs in another process does so, too, once `TESTS` is on its path.
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
FOLDERS = sorted({str(file.parent) for file in TESTS.rglob("*.py")} - {str(file.parent) for file in (TESTS / "suites").rglob("*.py")})

sys.path += [folder for folder in FOLDERS if folder not in sys.path]
