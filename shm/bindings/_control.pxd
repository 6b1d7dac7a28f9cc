cdef class Mapped:
    cdef Py_buffer view
    cdef bint held
