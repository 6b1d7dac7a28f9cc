# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Greedy choice among boxes that overlap. Documentation: _boxes.pyi."""

from libc.math cimport isfinite
from libc.stdlib cimport calloc, free

import numpy as np

cdef enum:
    BLOCK = 32  # kept boxes that a box is compared with before it is asked whether that was enough
    MOST_CELLS = 1 << 16


cdef struct Cells:
    Py_ssize_t n
    double first
    double width


cdef inline Py_ssize_t cell(const Cells *cells, double at) noexcept nogil:
    cdef double k = (at - cells.first) / cells.width
    return 0 if cells.n == 1 or k < 0 else cells.n - 1 if k >= cells.n else <Py_ssize_t>k


cdef inline bint clashes(const float *box, float area, const float *kept, Py_ssize_t n, float overlap) noexcept nogil:
    """Whether a box shares more than `overlap` of the union with one of n kept ones: [n / BLOCK][coordinates and area][BLOCK]."""
    cdef Py_ssize_t start, i
    cdef const float *k
    cdef float high, wide, shared, both
    cdef int any_of
    start = 0
    while start < n:
        k = kept + 5 * start
        start += BLOCK
        any_of = 0
        for i in range(BLOCK):  # those that are not there have no area
            high = (box[2] if box[2] < k[2 * BLOCK + i] else k[2 * BLOCK + i]) - (box[0] if box[0] > k[i] else k[i])
            wide = (box[3] if box[3] < k[3 * BLOCK + i] else k[3 * BLOCK + i]) - (box[1] if box[1] > k[BLOCK + i] else k[BLOCK + i])
            shared = (high if high > 0 else 0) * (wide if wide > 0 else 0)
            both = area + k[4 * BLOCK + i] - shared
            any_of |= (area > 0) & (k[4 * BLOCK + i] > 0) & (both > 0) & (shared / both > overlap)
        if any_of:
            return True
    return False


def best(const float[:, ::1] corners, const float[::1] areas, float overlap, Py_ssize_t most):
    cdef Py_ssize_t n = corners.shape[0], i, j, c, axis, low, high, taken = 0, blocks = 0
    cdef double least[2]
    cdef double largest[2]
    cdef double span[2]
    cdef Cells cells
    cdef bint fine = True
    cdef const float *box
    cdef float *place
    found = np.empty(min(n, most), np.int64)
    cdef long long[::1] out = found
    if not n or most <= 0:
        return found[:0]
    for axis in range(2):
        least[axis], largest[axis], span[axis] = corners[0, axis], corners[0, axis], 0
    for i in range(n):
        for axis in range(2):
            fine = fine and isfinite(corners[i, axis]) and isfinite(corners[i, axis + 2])
            least[axis] = min(least[axis], corners[i, axis])
            largest[axis] = max(largest[axis], corners[i, axis + 2])
            span[axis] += max(0, corners[i, axis + 2] - corners[i, axis])
    # Boxes that do not touch on one axis need not be compared. Those of an image, or of classes that were moved apart, are together many
    # times wider than each.
    axis = 0 if (largest[0] - least[0]) * span[1] >= (largest[1] - least[1]) * span[0] else 1
    cells.n, cells.first, cells.width = 1, least[axis], max(1e-30, largest[axis] - least[axis])
    if fine and span[axis] > 0:
        cells.n = <Py_ssize_t>min(MOST_CELLS, max(1.0, cells.width / (span[axis] / n)))
        cells.width = cells.width / cells.n
    # How many boxes of all lie in a cell is the most that can be kept in it.
    cdef Py_ssize_t *begin = <Py_ssize_t *>calloc(cells.n + 1, sizeof(Py_ssize_t))
    cdef Py_ssize_t *held = <Py_ssize_t *>calloc(cells.n, sizeof(Py_ssize_t))
    cdef float *kept = NULL
    try:
        if begin == NULL or held == NULL:
            raise MemoryError
        for i in range(n):
            for c in range(cell(&cells, corners[i, axis]), cell(&cells, corners[i, axis + 2]) + 1):
                begin[c + 1] += 1
        for c in range(cells.n):
            blocks += (begin[c + 1] + BLOCK - 1) // BLOCK
            begin[c + 1] = blocks
        kept = <float *>calloc(blocks * BLOCK * 5 + 1, sizeof(float))
        if kept == NULL:
            raise MemoryError
        with nogil:
            for i in range(n):
                box = &corners[i, 0]
                low, high = cell(&cells, box[axis]), cell(&cells, box[axis + 2])
                fine = True
                for c in range(low, high + 1):
                    if clashes(box, areas[i], kept + begin[c] * BLOCK * 5, held[c], overlap):
                        fine = False
                        break
                if not fine:
                    continue
                out[taken] = i
                taken += 1
                if taken == most:
                    break
                for c in range(low, high + 1):
                    place = kept + begin[c] * BLOCK * 5 + held[c] // BLOCK * BLOCK * 5 + held[c] % BLOCK
                    for j in range(4):
                        place[j * BLOCK] = box[j]
                    place[4 * BLOCK] = areas[i]
                    held[c] += 1
    finally:
        free(begin)
        free(held)
        free(kept)
    return found[:taken]
