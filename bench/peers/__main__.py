"""`python -m aspen_mp.bench.peers …` is `aspen-mp bench peers …`."""

from __future__ import annotations

import sys

from aspen_mp.cli.app import app

if __name__ == "__main__":
    app(["bench", "peers", *sys.argv[1:]], prog_name="aspen-mp")
