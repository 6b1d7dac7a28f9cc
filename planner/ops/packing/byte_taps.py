"""Weights of depthwise convolutions of bytes, which QDWCONV reads (``workers/kernels/bytes/qdwconv.c``): four rows of a window side by
side. Zero points of weights come off before, so a weight may need several bytes, whose sum it is."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Shape, Tensor
from aspen_mp.planner.ops.packing import PANEL
from aspen_mp.shm.tables import NUMBERS

ROWS, HEADER = NUMBERS["BYTES_GROUP"], NUMBERS["BYTES_HEADER"]
"""Rows of a window side by side, and groups in front of each panel."""
MOST_PARTS: Final = 3
"""Bytes that a difference of bytes is the sum of, at most: 255 = 127 + 127 + 1."""
_LEAST, _MOST = -128, 127


def packed_shape(channels: int, kernel: tuple[int, int], parts: int = 1) -> Shape:
    """The shape of the bytes of weights [channels, 1, KH, KW], with `parts` for each."""
    return -(-channels // PANEL), HEADER + parts * -(-kernel[0] // ROWS) * kernel[1], PANEL, ROWS


def packed(w: Tensor, zero: Tensor | None, constant: Tensor | None = None) -> tuple[Tensor, int]:
    """Constant bytes [OC, 1, KH, KW] less zero points → panels (`packed_shape`, i8), and the parts of a weight. `zero`: a constant of one
    element or one a channel; `constant`: i32, as many, an addend of the sums. ValueError: either fits another number of channels."""
    channels = w.shape[0]
    for what, tensor in (("zero points", zero), ("constants", constant)):
        if tensor is not None and tensor.size not in {1, channels}:
            raise ValueError(f"{tensor.size} {what} of {channels} channels")
    zeros, more = (np.zeros(channels, np.int32) + (0 if t is None else t.value().astype(np.int32).reshape(-1)) for t in (zero, constant))
    parts = _parts(w, zeros)
    tag = f"byte taps {hashlib.sha256(zeros.tobytes() + more.tobytes()).hexdigest()[:32]}"
    key = None if w.weight_key is None else f"{w.weight_key}|{tag}"
    shape = packed_shape(channels, (w.shape[2], w.shape[3]), parts)
    return Tensor(f"{w.name}|{tag}", shape, np.dtype(np.int8), weight_key=key, pack=partial(_pack, w, zeros, more, parts)), parts


def _parts(w: Tensor, zeros: npt.NDArray[np.int32]) -> int:
    """How many bytes the greatest difference takes. Most often types say it, and no weight is looked at."""
    info, least, most = np.iinfo(w.dtype), int(zeros.min()), int(zeros.max())
    if info.min - most >= _LEAST and info.max - least <= _MOST:
        return 1
    values = w.value().astype(np.int32) - zeros[:, None, None, None]
    return max(1, -(-int(values.max()) // _MOST), -(int(values.min()) // -_LEAST))


def _pack(w: Tensor, zeros: npt.NDArray[np.int32], more: npt.NDArray[np.int32], parts: int, out: npt.NDArray[Any]) -> None:
    values = w.value()[:, 0].astype(np.int32) - zeros[:, None, None]
    channels, height, width = values.shape
    out[...] = 0
    sums = np.zeros((HEADER, len(out) * PANEL), np.int32)
    sums[0, :channels], sums[2, :channels] = values.sum((1, 2)), more
    out[:, :HEADER] = sums.reshape(HEADER, len(out), PANEL, 1).transpose(1, 0, 2, 3).copy().view(np.int8)
    groups = -(-height // ROWS)
    for part in range(parts):
        taken = np.clip(values, _LEAST, _MOST)
        values = values - taken
        taps = np.zeros((len(out) * PANEL, groups * ROWS, width), np.int8)
        taps[:channels, :height] = taken
        first = HEADER + part * groups * width
        each = taps.reshape(len(out), PANEL, groups, ROWS, width).transpose(0, 2, 4, 1, 3)  # panel, group, column, channel, row
        out[:, first : first + groups * width] = each.reshape(len(out), -1, PANEL, ROWS)
