# cython: language_level=3, boundscheck=False, wraparound=False
"""A client's counts of its own requests, in memory that the planner process reads. Documentation of names: _tally.pyi."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint64_t

from aspen_mp.shm.errors import ProtocolError

cdef extern from "atomics.h" nogil:
    uint64_t aspen_now_ns()

# A row's words. Word 0 is the model's number, 0 for a row that is not used; row 0 is the queue's, which is of no model.
cdef enum:
    ROWS = 64
    WORDS = 40
    MODEL = 0
    IN_FLIGHT = 1
    OUTCOME = 2  # and the six behind it
    REFUSED = 5
    SUM_NS = 9
    BUCKET = 10  # and those behind it: 2^LEAST_BITS ns and less, twice as much each, then all above
    BUCKETS = 22
    LEAST_BITS = 16
    DERIVED = 32
    WAITED = 33
    WAITED_NS = 34

OUTCOMES = ("completed", "failed", "timed_out", "cancelled", "lost", "refused", "missed")
BYTES = ROWS * WORDS * 8
BOUNDS_S = tuple([(1 << (LEAST_BITS + k)) / 1e9 for k in range(BUCKETS - 1)])


def now():
    return aspen_now_ns()


cdef class Tally:
    def __init__(self, buffer):
        PyObject_GetBuffer(buffer, &self.view, PyBUF_WRITABLE)
        self.words = <uint64_t *>self.view.buf
        if self.view.len < BYTES:
            self.close()
            raise ProtocolError(f"a tally of {self.view.len} bytes, expected {BYTES}")

    def close(self):
        if self.words != NULL:
            self.words = NULL
            PyBuffer_Release(&self.view)

    def __dealloc__(self):
        if self.words != NULL:
            PyBuffer_Release(&self.view)

    def row(self, model):
        cdef uint64_t number = model
        cdef int i
        for i in range(1, ROWS):
            if self.words == NULL or self.words[i * WORDS + MODEL] in (0, number) or i == ROWS - 1:
                break
        if self.words != NULL and self.words[i * WORDS + MODEL] == 0:
            self.words[i * WORDS + MODEL] = number
        return Row(self, i)

    cdef void add(self, int row, uint64_t ns) noexcept:
        """A duration to a row's sum and histogram."""
        cdef uint64_t *w
        cdef int k = 0
        if self.words == NULL:
            return
        w = self.words + row * WORDS
        w[SUM_NS] += ns
        while k < BUCKETS - 1 and ns > (<uint64_t>1 << (LEAST_BITS + k)):
            k += 1
        w[BUCKET + k] += 1


cdef class Row:
    cdef Tally _tally
    cdef int _row

    def __init__(self, Tally tally, int row):
        self._tally, self._row = tally, row

    cdef void flight(self, long change) noexcept:
        if self._tally.words != NULL:
            self._tally.words[self._row * WORDS + IN_FLIGHT] += <uint64_t>change

    cdef void answered(self, uint64_t began_ns, int outcome) noexcept:
        cdef uint64_t now = aspen_now_ns()
        if self._tally.words != NULL:
            self._tally.words[self._row * WORDS + OUTCOME + outcome] += 1
            self._tally.add(self._row, now - began_ns if now > began_ns else 0)

    cdef void refused(self) noexcept:
        if self._tally.words != NULL:
            self._tally.words[self._row * WORDS + OUTCOME + REFUSED] += 1

    def derived(self):
        if self._tally.words != NULL:
            self._tally.words[self._row * WORDS + DERIVED] += 1

    def waited(self, uint64_t began_ns):
        cdef uint64_t now = aspen_now_ns()
        if self._tally.words != NULL:
            self._tally.words[self._row * WORDS + WAITED] += 1
            self._tally.words[self._row * WORDS + WAITED_NS] += now - began_ns if now > began_ns else 0


cdef class Requests:
    cdef Row _row
    cdef readonly long begun
    cdef readonly bint gone

    def counted_in(self, Row row):
        row.flight(self.begun)
        self._row = row

    def begins(self):
        if self.gone:
            return 0
        self.begun += 1
        if self._row is not None:
            self._row.flight(1)
        return aspen_now_ns()

    def withdraws(self):
        self.begun -= 1
        if self._row is not None:
            self._row.flight(-1)
        return self.gone and self.begun == 0

    def answered(self, uint64_t began_ns, int outcome):
        if self._row is not None:
            self._row.answered(began_ns, outcome)

    def ends(self):
        self.begun -= 1
        if self._row is not None:
            self._row.flight(-1)
        return self.gone and self.begun == 0

    def refused(self):
        if self._row is not None:
            self._row.refused()

    def leaves(self):
        first = not self.gone
        self.gone = True
        return first and self.begun == 0


def read(bytes data):
    """Documented in the stub."""
    cdef list rows = []
    cdef int i, k
    cdef const uint64_t *w
    cdef const unsigned char *start = data
    if len(data) < BYTES:
        return rows
    for i in range(ROWS):
        w = <const uint64_t *>start + i * WORDS
        if i == 0 or w[MODEL]:
            outcomes, durations = [w[OUTCOME + k] for k in range(7)], [w[BUCKET + k] for k in range(BUCKETS)]
            plans = [w[DERIVED], w[WAITED], w[WAITED_NS]]
            rows.append((w[MODEL] if i else 0, w[IN_FLIGHT], outcomes, w[SUM_NS], durations, plans))
    return rows
