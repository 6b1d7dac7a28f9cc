# cython: language_level=3, boundscheck=False, wraparound=False
"""Boxes of an array that differ from the one before. Documentation of names: _changes.pyi."""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc

cdef extern from "changes.h" nogil:
    struct aspen_image:
        int64_t batch, outer, height, between, width, inner, rows, columns
    struct aspen_block_box:
        int64_t image, top, bottom, left, right
    int64_t aspen_blocks_down(const aspen_image *)
    int64_t aspen_blocks_across(const aspen_image *)
    enum: ASPEN_FAR_BITS, ASPEN_FAR_F32, ASPEN_FAR_F64, ASPEN_FAR_U8, ASPEN_FAR_I8, ASPEN_FAR_U16, ASPEN_FAR_I16
    int64_t aspen_compare(const aspen_image *, const char *, char *, uint8_t *, int, double)
    int64_t aspen_boxes(const aspen_image *, uint8_t *, uint8_t *, aspen_block_box *, int64_t)

FAR = {
    "float32": ASPEN_FAR_F32,
    "float64": ASPEN_FAR_F64,
    "uint8": ASPEN_FAR_U8,
    "int8": ASPEN_FAR_I8,
    "uint16": ASPEN_FAR_U16,
    "int16": ASPEN_FAR_I16,
}


cdef class Images:
    cdef aspen_image g
    cdef int64_t nbytes
    cdef uint8_t *marks
    cdef uint8_t *spare
    cdef aspen_block_box *box
    cdef int64_t most
    cdef int type

    def __init__(self, sides, rows, columns, most, dtype=""):
        self.type = FAR.get(dtype, ASPEN_FAR_BITS)
        self.g.batch, self.g.outer, self.g.height, self.g.between, self.g.width, self.g.inner = sides
        self.g.rows, self.g.columns, self.most = rows, columns, most
        self.nbytes = self.g.batch * self.g.outer * self.g.height * self.g.between * self.g.width * self.g.inner
        blocks = self.g.batch * aspen_blocks_down(&self.g) * aspen_blocks_across(&self.g)
        self.marks, self.spare = <uint8_t *>malloc(blocks), <uint8_t *>malloc(blocks)
        self.box = <aspen_block_box *>malloc(most * sizeof(aspen_block_box))
        if not self.marks or not self.spare or not self.box:
            raise MemoryError(f"{2 * blocks} bytes for marks of changed blocks")

    def __dealloc__(self):
        free(self.marks)
        free(self.spare)
        free(self.box)

    @property
    def blocks(self):
        return self.g.batch, aspen_blocks_down(&self.g), aspen_blocks_across(&self.g)

    cdef list _found(self):
        cdef int64_t n, k, image
        with nogil:
            n = aspen_boxes(&self.g, self.marks, self.spare, self.box, self.most)
        found = []
        for k in range(n):
            image = self.box[k].image  # negative: all
            images = (max(image, 0), self.g.batch if image < 0 else image + 1)
            rows = (self.box[k].top * self.g.rows, min(self.box[k].bottom * self.g.rows, self.g.height))
            columns = (self.box[k].left * self.g.columns, min(self.box[k].right * self.g.columns, self.g.width))
            found.append((images, rows, columns))
        return found

    def update(self, const uint8_t[::1] array, uint8_t[::1] kept, double tol=0.0):
        cdef int64_t marked
        cdef int type = self.type if tol > 0 else ASPEN_FAR_BITS
        if array.shape[0] != self.nbytes or kept.shape[0] != self.nbytes:
            raise ValueError(f"arrays of {array.shape[0]} and {kept.shape[0]} bytes, instead of {self.nbytes}")
        with nogil:
            marked = aspen_compare(&self.g, <const char *>&array[0], <char *>&kept[0], self.marks, type, tol)
        return self._found() if marked else []

    def cover(self, const uint8_t[::1] marks):
        cdef int64_t k, n = self.g.batch * aspen_blocks_down(&self.g) * aspen_blocks_across(&self.g)
        if marks.shape[0] != n:
            raise ValueError(f"{marks.shape[0]} marks, instead of {n}")
        for k in range(n):
            self.marks[k] = marks[k] != 0
        return self._found()
