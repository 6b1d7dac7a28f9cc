from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Span = tuple[int, int]

class Images:
    """An input as images whose blocks are compared.

    `sides`: batch, outer, height, between, width, and the bytes of all that lies inside. `rows`, `columns`: sides of a block. `most`: boxes
    that changes may have."""

    def __init__(self, sides: Sequence[int], rows: int, columns: int, most: int) -> None: ...
    @property
    def blocks(self) -> tuple[int, int, int]:
        """Images, blocks down and blocks across."""

    def update(self, array: npt.NDArray[np.uint8], kept: npt.NDArray[np.uint8]) -> list[tuple[Span, Span, Span]]:
        """Make `kept` what `array` is. Both: the input's bytes.

        Returns boxes (images, rows, columns) that hold all that differed. ValueError for buffers of other sizes."""

    def cover(self, marks: npt.NDArray[np.uint8]) -> list[tuple[Span, Span, Span]]:
        """Return boxes that hold all marked blocks. `marks`: u8, one for each of `blocks`. ValueError for another number."""
