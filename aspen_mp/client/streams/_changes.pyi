from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Span = tuple[int, int]

FAR: dict[str, int]
"""Names of types whose elements may differ by a tolerance, with their numbers in C."""

class Images:
    """An input as images whose blocks are compared.

    `sides`: batch, outer, height, between, width, and the bytes of all that lies inside. `rows`, `columns`: sides of a block. `most`: boxes
    that changes may have. `dtype`: the name of the elements' type; those of a type that is not in `FAR` have no tolerance."""

    def __init__(self, sides: Sequence[int], rows: int, columns: int, most: int, dtype: str = "") -> None: ...
    @property
    def blocks(self) -> tuple[int, int, int]:
        """Images, blocks down and blocks across."""

    def update(self, array: npt.NDArray[np.uint8], kept: npt.NDArray[np.uint8], tol: float = 0.0) -> list[tuple[Span, Span, Span]]:
        """Make `kept` what `array` is, but for blocks without an element that differs by more than `tol`. Both: the input's bytes, aligned.

        Returns boxes (images, rows, columns) that hold all other blocks. ValueError for buffers of other sizes."""

    def cover(self, marks: npt.NDArray[np.uint8]) -> list[tuple[Span, Span, Span]]:
        """Return boxes that hold all marked blocks. `marks`: u8, one for each of `blocks`. ValueError for another number."""
