"""Runtimes for tests of the interface."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import aspen_mp


@pytest.fixture(scope="module")
def shared_runtime() -> Iterator[aspen_mp.Runtime]:
    """One runtime for the tests of a module that leave it as they found it."""
    with aspen_mp.Runtime(workers=2) as runtime:
        yield runtime


@pytest.fixture
def runtime() -> Iterator[aspen_mp.Runtime]:
    """A runtime of the test's own."""
    with aspen_mp.Runtime(workers=2) as own:
        yield own
