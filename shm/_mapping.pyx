# cython: language_level=3
"""Mapped shared memory. Documentation of names: _mapping.pyi."""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport errno

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *, size_t, int, int, int, long)
    int munmap(void *, size_t)
    int madvise(void *, size_t, int)
    enum:
        PROT_READ, PROT_WRITE, MAP_SHARED, MADV_DONTFORK
    void *MAP_FAILED


cdef class Mapping:
    cdef void *at
    cdef readonly Py_ssize_t nbytes
    cdef readonly bint writable
    cdef int exports

    def __cinit__(self, int fd, Py_ssize_t nbytes, bint writable):
        cdef void *at
        if nbytes <= 0:
            raise ValueError(f"cannot map {nbytes} bytes")
        with nogil:
            at = mmap(NULL, nbytes, PROT_READ | (PROT_WRITE if writable else 0), MAP_SHARED, fd, 0)
        if at == MAP_FAILED:
            raise OSError(errno, f"mmap of {nbytes} bytes")
        self.at, self.nbytes, self.writable = at, nbytes, writable

    def __dealloc__(self):
        if self.at != NULL:
            munmap(self.at, self.nbytes)

    def __len__(self):
        return self.nbytes

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.at == NULL:
            raise ValueError("the mapping is closed")
        PyBuffer_FillInfo(view, self, self.at, self.nbytes, not self.writable, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

    @property
    def closed(self):
        return self.at == NULL

    def close(self):
        if self.exports:
            raise BufferError(f"{self.exports} views of the mapping exist")
        if self.at != NULL:
            munmap(self.at, self.nbytes)
            self.at = NULL

    def keep_from_children(self):
        if self.at != NULL and madvise(self.at, self.nbytes, MADV_DONTFORK):
            raise OSError(errno, "madvise")
