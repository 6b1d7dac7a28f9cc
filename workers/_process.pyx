# cython: language_level=3
"""System calls of processes that Python does not offer. Documentation of names: _process.pyi."""

from libc.errno cimport errno
from libc.signal cimport SIGKILL

import os

cdef extern from "Python.h":
    void PyOS_BeforeFork()
    void PyOS_AfterFork_Parent()
    void PyOS_AfterFork_Child()

cdef extern from "sibling.h" nogil:
    long aspen_fork_sibling()

cdef extern from "faults.h" nogil:
    int aspen_faults_tell(int)

cdef extern from "sys/prctl.h" nogil:
    int prctl(int, unsigned long, unsigned long, unsigned long, unsigned long)
    enum:
        PR_SET_PDEATHSIG, PR_SET_NAME


def set_death_signal():
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)


def set_name(name):
    cdef bytes text = name.encode()[:15]
    prctl(PR_SET_NAME, <unsigned long><const char *>text, 0, 0, 0)


def fork_sibling():
    cdef long pid
    cdef int error
    PyOS_BeforeFork()
    pid = aspen_fork_sibling()
    if pid == 0:
        PyOS_AfterFork_Child()
        return 0
    error = errno
    PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error, os.strerror(error))
    return pid


def faults_tell_scarcity(int status):
    if aspen_faults_tell(status):
        raise OSError(errno, os.strerror(errno))
