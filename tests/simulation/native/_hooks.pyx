# cython: language_level=3
"""Hooks of the C parts, for Python. Documentation of names: _hooks.pyi."""

from cpython.exc cimport PyErr_SetFromErrno
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

cdef extern from "Python.h":
    ctypedef struct PyObject
    void Py_XINCREF(PyObject *)
    void Py_XDECREF(PyObject *)

cdef extern from "hooks.h":
    enum:
        N_HOOKS
    const char *hook_names[]
    PyObject *hook_functions[]
    uint64_t hook_calls[]
    uint64_t aspen_sim_budget, aspen_sim_time_ns, budgets_set
    object hook_place(const void *)
    int hook_vacate(void *, size_t)

NAMES = tuple([hook_names[k].decode() for k in range(N_HOOKS)])


def install(**functions):
    cdef PyObject *old
    cdef int k
    unknown = functions.keys() - set(NAMES)
    if unknown:
        raise TypeError(f"unknown hooks: {', '.join(sorted(unknown))}. There are {', '.join(NAMES)}")
    for k, name in enumerate(NAMES):
        if name not in functions:
            continue
        old = hook_functions[k]
        function = functions[name]
        hook_functions[k] = NULL if function is None else <PyObject *>function
        Py_XINCREF(hook_functions[k])
        Py_XDECREF(old)


def budget(uint64_t operations):
    global aspen_sim_budget, budgets_set
    aspen_sim_budget = operations
    budgets_set += 1


def left():
    return aspen_sim_budget


def set_now(uint64_t ns):
    global aspen_sim_time_ns
    aspen_sim_time_ns = ns


def now():
    return aspen_sim_time_ns


def place(uintptr_t address):
    return hook_place(<const void *>address)


def vacate(uintptr_t address, size_t nbytes):
    if hook_vacate(<void *>address, nbytes):
        PyErr_SetFromErrno(OSError)


def word(uintptr_t address):
    return (<uint32_t *>address)[0]


def calls():
    return {name: hook_calls[k] for k, name in enumerate(NAMES)}
