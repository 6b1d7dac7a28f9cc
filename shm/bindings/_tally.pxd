from libc.stdint cimport uint64_t


cdef class Tally:
    cdef Py_buffer view
    cdef uint64_t *words
    cdef void add(self, int row, uint64_t ns) noexcept
