# cython: language_level=3, boundscheck=False, wraparound=False
"""Cython shell of search.h: arrays in, schedules out, no GIL while it searches. `search.py` checks its arguments."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

import numpy as np

cdef extern from "search.h" nogil:
    cdef struct cs_memory:
        uint32_t n_own, n_others
        const double *own
        const double *others
        const double *factor
        double capacity
    cdef struct cs_problem:
        uint32_t jobs, sets, domains, memories, objective
        const uint32_t *first
        const double *ns
        const double *demand
        const double *leave
        const double *enter
        const uint8_t *moves
        const uint32_t *uses
        const uint32_t *cores
        const double *share
        const double *release
        const uint32_t *before
        const int32_t *twin
        const uint8_t *counts
        const cs_memory *memory
    cdef struct cs_search:
        double best, bound
        int settled, proven, finished
        uint64_t expanded, width
        uint32_t n_steps
        uint32_t *step_job
        uint32_t *step_group
        uint32_t *step_set
        double *step_start
        double *step_end
    int CS_FOUND, CS_OUT_OF_TIME, CS_FINISHED, CS_NO_MEMORY
    uint32_t CS_JOBS, CS_GROUPS, CS_SETS, CS_DOMAINS, CS_MEMORIES
    int cs_open(cs_search *s, const cs_problem *p, double best)
    int cs_run(cs_search *s, double deadline)
    void cs_release(cs_search *s)

JOBS, GROUPS, SETS, DOMAINS, MEMORIES = CS_JOBS, CS_GROUPS, CS_SETS, CS_DOMAINS, CS_MEMORIES


cdef class Engine:
    """A search that goes on from call to call."""

    cdef cs_search s
    cdef cs_problem p
    cdef cs_memory *memories
    cdef object kept
    cdef bint opened

    def __init__(self, tuple arrays, list tables, int objective, double best):
        cdef const uint32_t[::1] first, before, cores
        cdef const double[:, ::1] ns, demand, leave, enter, share
        cdef const uint8_t[:, ::1] moves
        cdef const uint32_t[:, ::1] uses
        cdef const double[::1] release, own, others
        cdef const int32_t[::1] twin
        cdef const uint8_t[::1] counts
        cdef const double[:, ::1] factor
        cdef Py_ssize_t m
        first, ns, demand, leave, enter, moves, uses, cores, share, release, before, twin, counts = arrays
        self.kept = (arrays, tables)
        self.p.jobs, self.p.sets, self.p.objective = <uint32_t>(first.shape[0] - 1), <uint32_t>ns.shape[1], <uint32_t>objective
        self.p.domains, self.p.memories = <uint32_t>cores.shape[0], <uint32_t>share.shape[1]
        self.p.first, self.p.ns, self.p.demand, self.p.leave, self.p.enter = &first[0], &ns[0, 0], &demand[0, 0], &leave[0, 0], &enter[0, 0]
        self.p.moves, self.p.uses, self.p.cores, self.p.share = &moves[0, 0], &uses[0, 0], &cores[0], &share[0, 0]
        self.p.release, self.p.before, self.p.twin, self.p.counts = &release[0], &before[0], &twin[0], &counts[0]
        self.memories = <cs_memory *>calloc(len(tables), sizeof(cs_memory))
        if self.memories == NULL:
            raise MemoryError("tables of contention")
        for m in range(len(tables)):
            own, others, factor, self.memories[m].capacity = tables[m]
            self.memories[m].n_own, self.memories[m].n_others = <uint32_t>own.shape[0], <uint32_t>others.shape[0]
            self.memories[m].own, self.memories[m].others, self.memories[m].factor = &own[0], &others[0], &factor[0, 0]
        self.p.memory = self.memories
        if cs_open(&self.s, &self.p, best) == CS_NO_MEMORY:
            raise MemoryError("states of the search")
        self.opened = True

    def __dealloc__(self):
        if self.opened:
            cs_release(&self.s)
        free(self.memories)

    def run(self, double deadline):
        """Whether there is a better schedule than before, found until the monotonic clock says `deadline`."""
        cdef int result
        with nogil:
            result = cs_run(&self.s, deadline)
        return result == CS_FOUND

    def steps(self):
        """The best schedule found: (job, group, set, start, end) of each group, in the order of ends."""
        cdef uint32_t k
        return [(self.s.step_job[k], self.s.step_group[k], self.s.step_set[k], self.s.step_start[k], self.s.step_end[k])
                for k in range(self.s.n_steps)]

    @property
    def value(self):
        return self.s.best

    @property
    def bound(self):
        return self.s.bound

    @property
    def settled(self):
        return bool(self.s.settled)

    @property
    def proven(self):
        return bool(self.s.proven)

    @property
    def finished(self):
        return bool(self.s.finished)

    @property
    def expanded(self):
        return self.s.expanded
