"""Writes a JSON schema for each document into a folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from aspen_mp.cli.documents import schemas


def main(arguments: Sequence[str]) -> None:
    (folder,) = map(Path, arguments)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (folder / name).write_bytes(text)


if __name__ == "__main__":
    main(sys.argv[1:])
