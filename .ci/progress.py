"""Runs a command and says how far it is. Usage: progress.py TITLE COMMAND…

Where the command prints `[k/n]`, as ninja does, the line says how many files are done and about how long the rest takes; else how long it
has taken. On a terminal one line is written again and again, elsewhere a line every some seconds. If the command fails, all that it printed
follows, and its status is that of this program.
"""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import sys
import time
from typing import IO, Final

STEP: Final = re.compile(rb"\[(\d+)/(\d+)\]")
TERMINAL_S: Final = 0.5
"""Seconds between two lines on a terminal."""
ELSEWHERE_S: Final = 10.0
MEASURED: Final = 3
"""One in so many files says how long the rest takes. The first ones take longest."""


def line(title: str, seconds: float, done: int, of: int) -> str:
    """One line of progress. `of` 0: nothing is known of files."""
    if not of:
        return f"{title}: {seconds:.0f} s"
    left = f", about {seconds / done * (of - done):.0f} s left" if done * MEASURED >= of else ""
    return f"{title}: {done} of {of} files, {seconds:.0f} s{left}"


class Teller:
    """Writes lines of progress to a stream, not too often."""

    def __init__(self, out: IO[str], title: str) -> None:
        self._out, self._title = out, title
        self._terminal = out.isatty()
        self._begin, self._files_begin, self._next = time.monotonic(), 0.0, 0.0
        self._done = self._of = 0

    @property
    def wait(self) -> float:
        return max(self._next - time.monotonic(), 0.0)

    def heard(self, output: bytes) -> None:
        """The command has printed something."""
        for step in STEP.finditer(output):
            self._files_begin = self._files_begin or time.monotonic()
            self._done, self._of = int(step[1]), int(step[2])

    def tell(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (TERMINAL_S if self._terminal else ELSEWHERE_S)
        self._write(line(self._title, now - (self._files_begin or self._begin), self._done, self._of))

    def end(self, failed: bool) -> None:
        result = "failed" if failed else "done"
        self._write(f"{self._title}: {result} in {time.monotonic() - self._begin:.0f} s")
        if self._terminal:
            self._out.write("\n")
            self._out.flush()

    def _write(self, text: str) -> None:
        self._out.write(f"\r\033[K{text}" if self._terminal else f"{text}\n")
        self._out.flush()


def run(title: str, command: list[str], out: IO[str]) -> int:
    """The command's exit status."""
    teller, heard = Teller(out, title), bytearray()
    with (
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process,
        selectors.DefaultSelector() as selector,
    ):
        assert process.stdout is not None
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            teller.tell()
            if selector.select(teller.wait):
                output = os.read(process.stdout.fileno(), 1 << 16)
                if not output:
                    break
                heard += output
                teller.heard(output)
        status = process.wait()
    teller.end(bool(status))
    if status:
        out.write(heard.decode(errors="replace"))
        out.flush()
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:], sys.stderr))
