"""Settings of processes."""

from __future__ import annotations

import io
import os
import sys

import pytest

from aspen_mp.workers import process


class Unread(io.RawIOBase):
    """A stream whose reader has gone."""

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        raise BrokenPipeError


def test_output_that_nobody_reads_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be written stays in the buffer, and each flush fails again."""
    stream = io.TextIOWrapper(io.BufferedWriter(Unread()))
    stream.write("an event\n")
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(BrokenPipeError):
        sys.stderr.flush()
    process.flush_output()
    monkeypatch.setattr(sys, "stdout", None)
    process.flush_output()
    monkeypatch.undo()
    with pytest.raises(BrokenPipeError):
        stream.detach()


def test_output_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    with os.fdopen(read) as reader, os.fdopen(write, "w") as stream:
        stream.write("an event\n")
        monkeypatch.setattr(sys, "stderr", stream)
        process.flush_output()
        assert reader.readline() == "an event\n"
        monkeypatch.undo()
