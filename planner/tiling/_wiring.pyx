# cython: language_level=3, boundscheck=False, wraparound=False
"""Edges of tiles. `connect` finds those into one step. `wire` puts those of all steps together to a tile graph as the simulator takes it.
There numbers of tiles within steps become numbers in the graph."""

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
    """(child_begin, children, parent_counts, initial, join_step, flow) of all tiles, JOINs and END. Tiles of step k are base[k] … base[k +
    1] - 1. `pieces[k]` are the edges into it, None where there are none, and `sources[k]` the steps that it reads from. `flow`: (begin,
    sources, nbytes) as `Flow` has them, whose groups are the JOINs. Unchecked."""
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


cdef enum:
    AXES = 8  # at least as many as tiles are cut along


cdef class _Grid:
    """A `grids.Grid`. `cuts`: of all axes, those of one from `at[axis]` on."""
    cdef Py_ssize_t axes
    cdef int64_t n
    cdef int64_t[AXES] steps, counts
    cdef Py_ssize_t[AXES] at
    cdef const int64_t[::1] cuts

    def __init__(self, grid):
        cdef Py_ssize_t axis, at = 0
        self.axes, self.n = len(grid.cuts), grid.n
        self.cuts = np.concatenate(grid.cuts) if self.axes else np.empty(0, np.int64)
        for axis in range(self.axes):
            self.steps[axis], self.counts[axis], self.at[axis] = grid.steps[axis], grid.counts[axis], at
            at += self.counts[axis] + 1

    cdef double overlap(self, Py_ssize_t axis, int64_t cell, int64_t lo, int64_t hi):
        """How much of [lo, hi) lies in a cell."""
        cdef Py_ssize_t at = self.at[axis] + cell
        return max(min(hi, self.cuts[at + 1]) - max(lo, self.cuts[at]), 0)

    cdef double whole(self, int64_t tile):
        """How much of the axes that are cut lies in a tile."""
        cdef double out = 1
        cdef Py_ssize_t axis, at
        for axis in range(self.axes):
            if self.counts[axis] > 1:
                at = self.at[axis] + tile // self.steps[axis] % self.counts[axis]
                out *= self.cuts[at + 1] - self.cuts[at]
            else:
                out *= self.cuts[self.at[axis] + 1] - self.cuts[self.at[axis]]
        return out


def connect(list found, list grids, const int64_t[::1] sources, int64_t limit):
    """The fields of `edges.Reads` for the reads of a step: cells (`edges.Cells`) of these grids, and the steps of all of them in order.
    None where that takes more edges than `limit`. A JOIN stands for a range that many tiles read where fewer edges come of it.
    Unchecked."""
    cdef Py_ssize_t n_found = len(found), rows = 0, i, j, k, r, axis, at, begin
    cdef int64_t most = 0, size, first_tile, last_tile, n, cell, tile, step
    cdef list known = [_Grid(one) for one in grids]
    cdef _Grid grid
    cdef Py_ssize_t[::1] ends = np.zeros(n_found + 1, np.intp)
    for i in range(n_found):
        rows += len(found[i].tiles)
        ends[i + 1] = rows
        most = max(most, (<_Grid>known[i]).n)
    code_array = np.empty(rows, np.int64)
    cdef int64_t[::1] codes = code_array, sizes = np.empty(rows, np.int64), firsts = np.empty(rows, np.int64)
    cdef int64_t[::1] lasts = np.empty(rows, np.int64)
    cdef const int64_t[:, :] first, last, lo, hi
    for i in range(n_found):
        grid, first, last, step = known[i], found[i].first, found[i].last, found[i].step
        for r in range(ends[i], ends[i + 1]):
            j = r - ends[i]
            first_tile, last_tile, size = 0, 0, 1
            for axis in range(first.shape[1]):
                first_tile += first[j, axis] * grid.steps[axis]
                last_tile += last[j, axis] * grid.steps[axis]
                size *= last[j, axis] - first[j, axis] + 1
            firsts[r], lasts[r], sizes[r], codes[r] = first_tile, last_tile, size, (step * most + first_tile) * most + last_tile
    # Rows of one code read the same range. `joined`: the number of its JOIN, -1 where each of its readers waits for each of its tiles.
    cdef const Py_ssize_t[::1] order = np.argsort(code_array, kind="stable")
    cdef int64_t[::1] joined = np.empty(rows, np.int64)
    cdef list examples = []
    cdef int64_t direct = 0, members = 0, readers = 0, mine
    begin = 0
    while begin < rows:
        at = begin
        while at < rows and codes[order[at]] == codes[order[begin]]:
            at += 1
        size, mine = sizes[order[begin]], at - begin
        n = -1
        if size * mine <= size + mine + 2:
            direct += size * mine
        else:
            n = len(examples)
            examples.append(order[begin])
            members += size
            readers += mine
        for k in range(begin, at):
            joined[order[k]] = n
        begin = at
    if direct + members + readers > limit:
        return None
    directs, ranges, reading = ([np.empty(many, np.int64) for _ in range(3)] for many in (direct, members, readers))
    nbytes_array, member_bytes_array = np.empty(direct, np.float32), np.empty(members, np.float32)
    cdef int64_t[::1] steps = directs[0], parents = directs[1], children = directs[2]
    cdef int64_t[::1] member_of = ranges[0], member_steps = ranges[1], member = ranges[2], reads = reading[0], readers_ = reading[1]
    cdef float[::1] nbytes = nbytes_array, member_bytes = member_bytes_array
    cdef const int64_t[::1] tiles
    cdef double item, rest, part
    cdef Py_ssize_t cut, d = 0, q = 0, m = 0
    cdef int64_t[::1] places = np.searchsorted(sources, [cells.step for cells in found])
    for i in range(n_found):
        cells, grid = found[i], known[i]
        first, last, lo, hi, tiles, item, step = cells.first, cells.last, cells.lo, cells.hi, cells.tiles, cells.item, places[i]
        cut = 0 if grid.n == 1 else grid.axes
        for r in range(ends[i], ends[i + 1]):
            j = r - ends[i]
            if joined[r] >= 0:
                reads[q], readers_[q] = joined[r], tiles[j]
                q += 1
                continue
            rest = item
            for axis in range(cut, lo.shape[1]):
                rest *= hi[j, axis] - lo[j, axis]
            for k in range(sizes[r]):
                n, tile, part = k, firsts[r], rest
                for axis in range(first.shape[1]):
                    size = last[j, axis] - first[j, axis] + 1
                    cell = n % size
                    n //= size
                    tile += cell * grid.steps[axis]
                    if cut:
                        part *= grid.overlap(axis, first[j, axis] + cell, lo[j, axis], hi[j, axis])
                steps[d], parents[d], children[d], nbytes[d] = step, tile, tiles[j], <float>part
                d += 1
    joins = []
    for r in examples:
        i = 0
        while ends[i + 1] <= r:
            i += 1
        cells, grid, step = found[i], known[i], places[i]
        first, last, j = cells.first, cells.last, r - ends[i]
        shape = grids[i].shape
        item = cells.item
        for axis in range(grid.axes, len(shape)):
            item *= <int64_t>shape[axis]
        for k in range(sizes[r]):
            n, tile = k, firsts[r]
            for axis in range(first.shape[1]):
                size = last[j, axis] - first[j, axis] + 1
                tile += n % size * grid.steps[axis]
                n //= size
            member_of[m], member_steps[m], member[m] = len(joins), step, tile
            member_bytes[m] = <float>(item * grid.whole(tile))
            m += 1
        joins.append((step, firsts[r], lasts[r]))
    return (*directs, nbytes_array, joins, *ranges, member_bytes_array, reading[0], reading[1])
