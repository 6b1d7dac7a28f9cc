"""python -m tests.simulation --seed N [--steps M] [--trace]"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.command import main

if __name__ == "__main__":
    sys.exit(main())
