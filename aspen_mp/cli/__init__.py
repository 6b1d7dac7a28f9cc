"""The command line, `aspen-mp`. Nothing but this function is imported before a command runs."""

from __future__ import annotations


def main() -> None:
    """Entry point of the console script. Exit status: 0 done, 1 failed, 2 wrong use."""
    from aspen_mp.cli.app import app

    app(prog_name="aspen-mp")
