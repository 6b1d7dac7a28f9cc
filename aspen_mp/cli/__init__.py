"""The command line, `aspen-mp`. Nothing but this function is imported before a command runs."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point of the console script. Exit status: 0 done, 1 failed, 2 wrong use, 130 ended by Ctrl-C."""
    _open_streams()
    try:
        from aspen_mp.cli.app import app

        app(prog_name="aspen-mp")
    except KeyboardInterrupt:  # while the commands were imported; typer sees to the rest
        sys.exit(130)


def _open_streams() -> None:
    """A standard stream that was closed (``aspen-mp … >&-``) leads to nowhere, in the processes that we start, too. Left closed, its number
    would go to the next file or socket, and what is printed into that."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        nowhere = os.open(os.devnull, os.O_RDWR)
        if nowhere == number:
            os.set_inheritable(nowhere, True)
        setattr(sys, name, open(nowhere, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115
