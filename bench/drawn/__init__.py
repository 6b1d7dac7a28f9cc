"""Models by chance: one operator each, with attributes, types and shapes that onnxruntime takes, which says what is right.

`DRAWS[family](rng)` gives a `Case`; the same generator gives the same case. Nothing is drawn of which onnxruntime leaves a part of the
result unwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aspen_mp.bench.drawn import classical, columns
from aspen_mp.bench.drawn.case import Case, Rng

DRAWS: Final[dict[str, Callable[[Rng], Case]]] = classical.DRAWS | columns.DRAWS

__all__ = ["DRAWS", "Case", "Rng"]
