# cython: language_level=3, boundscheck=False, wraparound=False
"""Puts the edges of steps together to a tile graph as the simulator takes it: numbers of tiles within steps become numbers in the graph."""

from libc.stdint cimport int64_t, uint32_t

import numpy as np


cdef class Piece:
    """The edges into one step, as `edges.Reads` names them."""
    cdef const int64_t[::1] steps, parents, children, member_of, member_steps, members, reads, readers
    cdef const float[::1] nbytes, member_bytes
    cdef list joins

    def __init__(self, const int64_t[::1] steps, const int64_t[::1] parents, const int64_t[::1] children, const float[::1] nbytes,
                 list joins, const int64_t[::1] member_of, const int64_t[::1] member_steps, const int64_t[::1] members,
                 const float[::1] member_bytes, const int64_t[::1] reads, const int64_t[::1] readers):
        self.steps, self.parents, self.children, self.nbytes, self.joins = steps, parents, children, nbytes, joins
        self.member_of, self.member_steps, self.members, self.member_bytes = member_of, member_steps, members, member_bytes
        self.reads, self.readers = reads, readers

    cdef Py_ssize_t size(self):
        return self.steps.shape[0] + self.members.shape[0] + self.reads.shape[0]


def wire(const int64_t[::1] base, list pieces, list sources):
    """(child_begin, children, parent_counts, initial, join_step, flow) of all tiles, JOINs and END: tiles of step k are base[k] …
    base[k + 1] - 1, `pieces[k]` are the edges into it, None where there are none, and `sources[k]` the steps that it reads from. `flow`:
    (begin, sources, nbytes) as `Flow` has them, whose groups are the JOINs. Unchecked."""
    cdef Py_ssize_t k, i, n_edges = 0, size = 0
    cdef int64_t tiles = base[base.shape[0] - 1], n, first
    cdef Piece p
    cdef dict known = {}
    cdef list join_step = [], found = []
    for k in range(len(pieces)):
        if pieces[k] is not None:
            p = <Piece>pieces[k]
            size += p.size()
    cdef uint32_t[::1] above = np.empty(size, np.uint32), below = np.empty(size, np.uint32)
    cdef float[::1] moved = np.zeros(size, np.float32)
    cdef const int64_t[::1] steps
    for k in range(len(pieces)):
        if pieces[k] is None:
            continue
        p = <Piece>pieces[k]
        first, steps = base[k], sources[k]
        for i in range(p.steps.shape[0]):
            above[n_edges] = <uint32_t>(base[steps[p.steps[i]]] + p.parents[i])
            below[n_edges] = <uint32_t>(first + p.children[i])
            moved[n_edges] = p.nbytes[i]
            n_edges += 1
    cdef int64_t[::1] ids, fresh
    for k in range(len(pieces)):
        if pieces[k] is None:
            continue
        p = <Piece>pieces[k]
        if not p.joins:
            continue
        first, steps = base[k], sources[k]
        ids, fresh = np.empty(len(p.joins), np.int64), np.zeros(len(p.joins), np.int64)
        i = 0
        for step, begins, ends in p.joins:
            key = (steps[<Py_ssize_t>step], begins, ends)
            number = known.get(key)
            if number is None:
                number = known[key] = tiles + len(join_step)
                join_step.append(key[0])
                fresh[i] = 1
            ids[i] = number
            i += 1
        for i in range(p.members.shape[0]):
            if fresh[p.member_of[i]]:
                above[n_edges] = <uint32_t>(base[steps[p.member_steps[i]]] + p.members[i])
                below[n_edges] = <uint32_t>ids[p.member_of[i]]
                moved[n_edges] = p.member_bytes[i]
                n_edges += 1
        for i in range(p.reads.shape[0]):
            above[n_edges] = <uint32_t>ids[p.reads[i]]
            below[n_edges] = <uint32_t>(first + p.readers[i])
            n_edges += 1
    n = tiles + len(join_step) + 1
    begin_array, count_array = np.zeros(n + 1, np.uint32), np.zeros(n, np.uint32)
    cdef uint32_t[::1] begin = begin_array, counts = count_array
    cdef Py_ssize_t sinks = 0, initial = 0
    for i in range(n_edges):
        begin[above[i] + 1] += 1
        counts[below[i]] += 1
    for i in range(n - 1):  # whatever leads nowhere leads to END
        if begin[i + 1] == 0:
            begin[i + 1] = 1
            sinks += 1
        if counts[i] == 0:
            initial += 1
    counts[n - 1] = <uint32_t>sinks
    for i in range(n):
        begin[i + 1] += begin[i]
    child_array, initial_array = np.full(n_edges + sinks, n - 1, np.uint32), np.empty(initial, np.uint32)
    cdef uint32_t[::1] children = child_array, ready = initial_array, at = begin_array[:n].copy()
    for i in range(n_edges):
        children[at[above[i]]] = below[i]
        at[above[i]] += 1
    flow_array, source_array, bytes_array = np.zeros(n, np.uint32), np.empty(n_edges, np.uint32), np.empty(n_edges, np.float32)
    cdef uint32_t[::1] rows = flow_array, origins = source_array
    cdef float[::1] nbytes = bytes_array
    for i in range(n - 1):  # counts, but that of END
        rows[i + 1] = rows[i] + counts[i]
        at[i] = rows[i]
    for i in range(n_edges):
        origins[at[below[i]]] = above[i]
        nbytes[at[below[i]]] = moved[i]
        at[below[i]] += 1
    initial = 0
    for i in range(n - 1):
        if counts[i] == 0:
            ready[initial] = <uint32_t>i
            initial += 1
    return begin_array, child_array, count_array, initial_array, join_step, (flow_array, source_array, bytes_array)
