# cython: language_level=3
"""Mapped shared memory. Documentation of names: _mapping.pyi."""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint64_t

import os

cdef extern from "<unistd.h>" nogil:
    int ftruncate(int, int64_t)

cdef extern from "<fcntl.h>" nogil:
    int posix_fallocate(int, int64_t, int64_t)

cdef extern from "atomics.h" nogil:
    uint64_t aspen_now_ns()

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *, size_t, int, int, int, long)
    int munmap(void *, size_t)
    int madvise(void *, size_t, int)
    enum:
        PROT_NONE, PROT_READ, PROT_WRITE, MAP_SHARED, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE, MAP_FIXED, MADV_DONTFORK
    void *MAP_FAILED
    enum:
        MFD_CLOEXEC, MFD_ALLOW_SEALING

cdef extern from "system/descriptors.h" nogil:
    enum:
        ASPEN_SIMULATED
    int aspen_memory_make(const char *, unsigned)
    void aspen_memory_close(int)
    int aspen_sim_descriptor(int)
    void aspen_sim_mapped(const void *, size_t, int, uint64_t)
    void aspen_sim_unmapped(const void *, size_t)

cdef extern from "borrow.h" nogil:
    int aspen_borrow(char *, uint64_t, int, uint64_t, uint64_t)
    void aspen_borrow_end(const char *, uint64_t)
    int aspen_is_memory(int)

cdef enum:
    HUGE = 2 << 20
    COLLAPSE = 25  # MADV_COLLAPSE, Linux 6.1
    PIECE = 64 << 20  # each call makes every CPU flush its lists of new pages, so not one for each huge page
    PATIENCE_NS = 3000000  # for each, where other memory has to be moved: far more than that takes where there is enough


cdef void *_map(int fd, size_t nbytes, int prot) noexcept nogil:
    """At a multiple of HUGE where it is long enough, or no huge page could ever be mapped there."""
    cdef char *space
    cdef char *at
    if nbytes < HUGE:
        return mmap(NULL, nbytes, prot, MAP_SHARED, fd, 0)
    nbytes = (nbytes + 4095) // 4096 * 4096
    space = <char *>mmap(NULL, nbytes + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    if space == <char *>MAP_FAILED:
        return MAP_FAILED
    at = space + (HUGE - <size_t>space % HUGE) % HUGE
    if at > space:
        munmap(space, at - space)
    munmap(at + nbytes, space + HUGE - at)
    if mmap(at, nbytes, prot, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED:
        munmap(at, nbytes)
        return MAP_FAILED
    return at


cdef size_t _huge(int fd, size_t nbytes, uint64_t patience_ns) noexcept nogil:
    """An empty file's space in huge pages, until they take longer than that each. Returns the bytes that lie in them."""
    cdef size_t end = nbytes // HUGE * HUGE, start = 0, stop, at
    cdef uint64_t began
    cdef char *space = <char *>_map(fd, nbytes, PROT_READ)
    if space == <char *>MAP_FAILED:
        return 0
    while start < end:
        began = aspen_now_ns()
        stop = min(start + PIECE, end)
        at = start
        while at < stop and posix_fallocate(fd, at, 1) == 0:  # one small page each, for holes are left alone
            at += HUGE
        if at < stop or madvise(space + start, stop - start, COLLAPSE):
            break
        began = (aspen_now_ns() - began) // ((stop - start) // HUGE)
        start = stop
        if began > patience_ns:
            break
    munmap(space, nbytes)
    return start


def free_huge(str file="/proc/buddyinfo"):
    cdef int order = (HUGE // os.sysconf("SC_PAGE_SIZE")).bit_length() - 1
    try:
        with open(file, encoding="ascii") as lines:
            counts = [[int(n) for n in line.split("zone", 1)[1].split()[1:]] for line in lines]
    except (OSError, ValueError, IndexError):
        return 0
    return sum(n * HUGE << k for row in counts for k, n in enumerate(row[order:]))


def is_memory(int fd):
    return aspen_is_memory(fd) != 0


def reserve(int fd, Py_ssize_t nbytes, holes=()):
    cdef size_t huge = 0
    cdef uint64_t patience
    cdef int error
    cdef int64_t at = 0, to
    fd = aspen_sim_descriptor(fd)
    if ftruncate(fd, nbytes):
        raise OSError(errno, os.strerror(errno))
    if holes:
        for begin, end in [*holes, (nbytes, nbytes)]:
            to = begin
            if to > at:
                with nogil:
                    error = posix_fallocate(fd, at, to - at)
                if error:
                    raise OSError(error, os.strerror(error))
            at = end
        return 0
    # Where nothing has to be moved, what takes long is the memory itself, which some virtual machines first have to be given.
    patience = <uint64_t>-1 if free_huge() >= nbytes else PATIENCE_NS
    with nogil:
        if nbytes >= HUGE and not ASPEN_SIMULATED:  # how many there are of them is up to the machine
            huge = _huge(fd, nbytes, patience)
        error = posix_fallocate(fd, 0, nbytes)
    if error:
        raise OSError(error, os.strerror(error))
    return huge


cdef class Memfd:
    cdef readonly int fd

    def __cinit__(self, str name):
        self.fd = -1
        label = name.encode()
        self.fd = aspen_memory_make(label, MFD_CLOEXEC | MFD_ALLOW_SEALING)
        if self.fd < 0:
            raise OSError(errno, "memfd_create")

    def __dealloc__(self):
        self._end()

    cdef void _end(self) noexcept:
        if self.fd >= 0:
            aspen_memory_close(self.fd)
            self.fd = -1

    def close(self):
        self._end()


cdef class Mapping:
    cdef void *at
    cdef readonly Py_ssize_t nbytes
    cdef readonly bint writable
    cdef int exports
    cdef bint borrows

    def __cinit__(self, int fd, Py_ssize_t nbytes, bint writable):
        cdef void *at
        if nbytes <= 0:
            raise ValueError(f"cannot map {nbytes} bytes")
        with nogil:
            at = _map(aspen_sim_descriptor(fd), nbytes, PROT_READ | (PROT_WRITE if writable else 0))
        if at == MAP_FAILED:
            raise OSError(errno, f"mmap of {nbytes} bytes")
        aspen_sim_mapped(at, nbytes, fd, 0)
        self.at, self.nbytes, self.writable = at, nbytes, writable

    def __dealloc__(self):
        self._unmap()

    cdef void _unmap(self) noexcept:
        if self.at != NULL:
            if self.borrows:
                aspen_borrow_end(<const char *>self.at, self.nbytes)
            aspen_sim_unmapped(self.at, self.nbytes)
            munmap(self.at, self.nbytes)
            self.at = NULL

    def borrow(self, Py_ssize_t at, int fd, Py_ssize_t offset, Py_ssize_t nbytes):
        cdef int error
        if self.at == NULL:
            raise ValueError("the mapping is closed")
        if at <= 0 or offset < 0 or nbytes <= 0 or at > self.nbytes - nbytes or (at | offset | nbytes) % 4096:
            raise ValueError(f"{nbytes} bytes of a file from {offset} on do not fit at {at} into {self.nbytes}")
        error = aspen_borrow(<char *>self.at, at, fd, offset, nbytes)
        if error:
            raise OSError(error, os.strerror(error))
        self.borrows = True

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
        self._unmap()

    def keep_from_children(self):
        if self.at != NULL and madvise(self.at, self.nbytes, MADV_DONTFORK):
            raise OSError(errno, "madvise")
