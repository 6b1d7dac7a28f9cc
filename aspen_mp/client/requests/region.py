"""Regions of shared memory: the inputs and outputs of one request, as arrays that view them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aspen_mp.client.requests.memory import Span
from aspen_mp.control.wire import protocol
from aspen_mp.shm import values
from aspen_mp.shm.errors import RequestError

if TYPE_CHECKING:
    from aspen_mp.client.requests.zero_copy import Loan

Layout = tuple[int, list[protocol.Slot], list[protocol.Slot]]
"""Bytes of a region, its inputs, its outputs."""


class Region:
    """Inputs and outputs of one request in shared memory, as arrays (or buffers of serialised values) that view it. ``holds``: how many use
    it, the request and the outputs that are lent; guarded by `stage._regions`.

    `layout`: the plan's description of it. `user`: its arrays are in the hands of the user (`InputBuffers`); then `busy` says whether a
    request uses it. `loan`: its inputs `borrowed` are pages of a file of the user's, and `inputs` has the user's arrays in their place.
    """

    __slots__ = ("borrowed", "busy", "holds", "inputs", "layout", "loan", "outputs", "span", "user")

    def __init__(self, span: Span, layout: Layout, loan: Loan | None = None, borrowed: frozenset[int] = frozenset()) -> None:
        self.span = span
        self.layout = layout
        self.holds = 0
        self.user = False
        self.busy = False
        self.loan = loan
        self.borrowed = borrowed
        self.inputs = [_view(span, slot) for slot in layout[1]]
        self.outputs = [_view(span, slot) for slot in layout[2]]


def _view(span: Span, slot: protocol.Slot) -> npt.NDArray[Any]:
    if slot.offset + slot.nbytes > span.nbytes:
        raise RequestError(f"{slot.name!r} lies outside its region")
    dtype = np.dtype(np.uint8) if slot.dtype == "object" else values.dtype_by_name(slot.dtype)
    # The array's base is the memoryview, which keeps the segment mapped as long as the array lives, whoever closes what.
    return np.ndarray(slot.shape, dtype, span.buffer, span.offset + slot.offset)
