# cython: language_level=3, boundscheck=False, wraparound=False
"""Cython shell of simulate.h: arrays in, arrays out, no GIL in between. `simulate.py` checks its arguments."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

import numpy as np

cdef extern from "simulate.h" nogil:
    cdef struct sim_graph:
        uint32_t n
        uint32_t n_initial
        const uint32_t *child_begin
        const uint32_t *children
        const uint32_t *parent_counts
        const uint32_t *initial
        const uint32_t *rank
        const uint8_t *depth
        const double *ns
        const double *bytes
        double far
        uint32_t flow_tiles
        uint32_t flow_rows
        const uint32_t *flow_begin
        const uint32_t *flow_source
        const float *flow_bytes
        const uint32_t *made
        const double *made_first
        const double *made_again
    cdef struct sim_engine:
        double tile, join, push, pushed, steal, look, wake, spin, claim, claimed, submit, end
    cdef struct sim_machine:
        uint32_t cores
        const double *speed
        const uint16_t *victim
        double bytes_per_ns
        sim_engine engine
    cdef struct sim_rules:
        uint32_t order, steal, seed, requests, in_flight
    cdef struct sim_outcome:
        double *latency
        double *busy
        double *schedule
        uint32_t *tiles
        uint32_t *steals
        double makespan
        uint64_t events
        uint32_t *line_tile
        uint32_t *line_request
        uint16_t *line_core
        double *line_start
        double *line_end
    int SIM_OK, SIM_STUCK, SIM_NO_MEMORY
    int sim_run(const sim_graph *g, const sim_machine *m, const sim_rules *r, sim_outcome *o)


def run(const uint32_t[::1] child_begin, const uint32_t[::1] children, const uint32_t[::1] parent_counts, const uint32_t[::1] initial,
        const uint32_t[::1] rank, const uint8_t[::1] depth, const double[::1] ns, const double[::1] nbytes, double far,
        uint32_t flow_tiles, const uint32_t[::1] flow_begin, const uint32_t[::1] flow_source, const float[::1] flow_bytes,
        const uint32_t[::1] made, const double[::1] made_first, const double[::1] made_again, const double[::1] speed,
        const uint16_t[:, ::1] victims, double bytes_per_ns, tuple engine, tuple rules, bint timeline):
    cdef sim_graph g
    cdef sim_machine m
    cdef sim_rules r
    cdef sim_outcome o
    cdef int result
    cdef Py_ssize_t n = ns.shape[0], cores = speed.shape[0]
    r.order, r.steal, r.seed, r.requests, r.in_flight = rules
    g.n, g.n_initial = <uint32_t>n, <uint32_t>initial.shape[0]
    g.child_begin, g.parent_counts, g.rank, g.depth = &child_begin[0], &parent_counts[0], &rank[0], &depth[0]
    g.ns, g.bytes, g.far = &ns[0], &nbytes[0], far
    g.flow_tiles, g.flow_rows, g.flow_begin = flow_tiles, <uint32_t>(flow_begin.shape[0] - 1), &flow_begin[0]
    g.flow_source = &flow_source[0] if flow_source.shape[0] else NULL
    g.flow_bytes = &flow_bytes[0] if flow_bytes.shape[0] else NULL
    g.made, g.made_first, g.made_again = NULL, NULL, NULL
    if made.shape[0]:
        g.made, g.made_first, g.made_again = &made[0], &made_first[0], &made_again[0]
    g.children = &children[0] if children.shape[0] else NULL
    g.initial = &initial[0] if initial.shape[0] else NULL
    m.cores, m.bytes_per_ns = <uint32_t>cores, bytes_per_ns
    m.speed = &speed[0]
    m.victim = &victims[0, 0] if cores > 1 else NULL
    (m.engine.tile, m.engine.join, m.engine.push, m.engine.pushed, m.engine.steal, m.engine.look, m.engine.wake, m.engine.spin,
     m.engine.claim, m.engine.claimed, m.engine.submit, m.engine.end) = engine
    cdef double[::1] latency = np.zeros(r.requests), busy = np.zeros(cores), schedule = np.zeros(cores)
    cdef uint32_t[::1] tiles = np.zeros(cores, np.uint32), steals = np.zeros(cores, np.uint32)
    cdef Py_ssize_t lines = n * r.requests if timeline else 0
    cdef uint32_t[::1] line_tile = np.empty(lines, np.uint32), line_request = np.empty(lines, np.uint32)
    cdef uint16_t[::1] line_core = np.empty(lines, np.uint16)
    cdef double[::1] line_start = np.empty(lines), line_end = np.empty(lines)
    o.latency, o.busy, o.schedule, o.tiles, o.steals = &latency[0], &busy[0], &schedule[0], &tiles[0], &steals[0]
    o.makespan, o.events = 0, 0
    o.line_tile = o.line_request = NULL
    o.line_core = NULL
    o.line_start = o.line_end = NULL
    if timeline:
        o.line_tile, o.line_request, o.line_core = &line_tile[0], &line_request[0], &line_core[0]
        o.line_start, o.line_end = &line_start[0], &line_end[0]
    with nogil:
        result = sim_run(&g, &m, &r, &o)
    if result == SIM_NO_MEMORY:
        raise MemoryError("simulation of %d tiles" % n)
    if result == SIM_STUCK:
        raise ValueError("tiles that never become ready: the graph has a cycle, or counts that do not fit its edges")
    lines_out = None
    if timeline:
        lines_out = (np.asarray(line_tile), np.asarray(line_request), np.asarray(line_core), np.asarray(line_start), np.asarray(line_end))
    return (np.asarray(latency), o.makespan, np.asarray(busy), np.asarray(schedule), np.asarray(tiles), np.asarray(steals), o.events, lines_out)
