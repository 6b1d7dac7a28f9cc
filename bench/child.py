"""Processes of ours that a benchmark starts and tells what to do, over pipes."""

from __future__ import annotations

import pickle
import subprocess
from collections.abc import Sequence
from typing import IO, Any, Self, cast

from aspen_mp.errors import AspenError


class Child:
    """A process that hears pickles at its standard input, and says some at its standard output. Use as a context manager.

    Attributes:
        pid: Its process id.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
        self.pid = self._process.pid

    def tell(self, what: object) -> None:
        """Sends a pickle."""
        stdin = cast("IO[bytes]", self._process.stdin)
        pickle.dump(what, stdin)
        stdin.flush()

    def hear(self) -> Any:
        """The next pickle. AspenError where the process has ended."""
        try:
            return pickle.load(cast("IO[bytes]", self._process.stdout))
        except (EOFError, pickle.UnpicklingError):
            raise AspenError(f"a client process ended with status {self._process.wait()}, see above") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        cast("IO[bytes]", self._process.stdin).close()
        cast("IO[bytes]", self._process.stdout).close()
