"""Maps made of tables."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

def listed(keys: Sequence[Any], table: npt.NDArray[Any]) -> list[dict[Any, Any]]:
    """A dict for each row of `table` [maps, keys], from `keys` to its numbers, which come out as Python's. The table has a column for each
    key."""
