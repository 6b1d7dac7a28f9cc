# cython: language_level=3, boundscheck=False, wraparound=False
"""The fast path of a request through shared memory: inputs in, publish, sleep, outputs out. Documentation of names: _fast_path.pyi."""

from functools import partial
from weakref import ref

cimport numpy as cnp
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from aspen_mp.shm.bindings._channel import FINE
from aspen_mp.shm.errors import RuntimeLost
from aspen_mp.shm.values import told

cnp.import_array()

cdef enum:
    LONG_COPY = 1 << 16  # bytes: other threads may run meanwhile


cdef bint _fits(cnp.ndarray array, cnp.dtype dtype, tuple shape):
    """Whether its bytes can be copied as they are."""
    cdef Py_ssize_t i
    cdef PyObject *own = <PyObject *>cnp.PyArray_DESCR(array)
    if cnp.PyArray_NDIM(array) != len(shape):
        return False
    if own != <PyObject *>dtype and not cnp.PyArray_EquivTypes(<cnp.dtype>own, dtype):  # of unpickled arrays it is equal, not the same
        return False
    for i in range(len(shape)):
        if cnp.PyArray_DIM(array, i) != <Py_ssize_t>shape[i]:
            return False
    return cnp.PyArray_IS_C_CONTIGUOUS(array)


cdef bint _own(cnp.ndarray array):
    """Whether it lies in memory of numpy's, and not in somebody else's that may be shared."""
    cdef PyObject *base = cnp.PyArray_BASE(array)
    while base != NULL and cnp.PyArray_Check(<object>base):
        base = cnp.PyArray_BASE(<cnp.ndarray>base)
    return base == NULL


cdef object _places(object value, dict codes):
    """The places of an array of strings among the words of `codes`; None where it is something else."""
    if not cnp.PyArray_CheckExact(value) or cnp.PyArray_TYPE(<cnp.ndarray>value) != cnp.NPY_OBJECT:
        return None
    cdef cnp.ndarray strings = <cnp.ndarray>value
    if not cnp.PyArray_IS_C_CONTIGUOUS(strings):
        return None
    cdef cnp.ndarray found = cnp.PyArray_EMPTY(cnp.PyArray_NDIM(strings), cnp.PyArray_DIMS(strings), cnp.NPY_INT64, 0)
    cdef PyObject **items = <PyObject **>cnp.PyArray_DATA(strings)
    cdef int64_t *to = <int64_t *>cnp.PyArray_DATA(found)
    cdef int64_t other = len(codes)
    cdef PyObject *place
    cdef Py_ssize_t i
    for i in range(cnp.PyArray_SIZE(strings)):
        if items[i] == NULL or not PyUnicode_CheckExact(<object>items[i]):
            return None
        place = PyDict_GetItem(codes, <object>items[i])
        to[i] = other if place == NULL else <int64_t><object>place
    return found


cdef class FastPath:
    cdef object _stage, _session, _plan, _generation, _extent
    cdef list _free
    cdef tuple _inputs, _outputs, _names
    cdef uint64_t _taken
    cdef Py_ssize_t _left

    def __init__(self, stage, session, ids, list free, inputs, outputs, Py_ssize_t requests=-1):
        self._stage = ref(stage)
        self._session = session
        self._plan, self._generation, self._extent = ids
        self._free = free
        self._inputs = tuple([(name, dtype, tuple(shape), bool(own), codes) for name, dtype, shape, own, codes in inputs])
        self._outputs = tuple(outputs)
        self._names = tuple([name for name, _ in outputs])
        self._left = requests

    @property
    def closed(self):
        return self._left == 0

    def open(self, Py_ssize_t requests):
        self._left = requests

    @property
    def stage(self):
        return self._stage()

    def run(self, feeds, names, urgency, timeout):
        if self._left == 0 or type(feeds) is not dict or len(<dict>feeds) != len(self._inputs):
            return None
        session = self._session
        stage = self._stage()
        if stage is None or session.error is not None or session.held:
            return None
        if names is not None:
            for name in names:
                if name not in self._names:
                    return None
        cdef PyObject *value
        cdef list arrays = []
        for name, dtype, shape, own, codes in self._inputs:
            value = PyDict_GetItem(feeds, name)
            if codes is not None and value != NULL:
                coded = _places(<object>value, codes)
                value = <PyObject *>coded
            if value == NULL or not cnp.PyArray_CheckExact(<object>value) or not _fits(<cnp.ndarray>value, dtype, shape):
                return None
            if own and not _own(<cnp.ndarray>value):
                return None
            arrays.append(<object>value)
        try:
            region = self._free.pop()
        except IndexError:
            return None
        ticket, channel = -1, session.channel
        try:
            self._copy(arrays, region.inputs)
            span = region.span
            ticket = channel.offer(self._plan, self._generation, span.index, span.offset, urgency, None, self._extent)
        except RuntimeLost:
            pass  # who takes the slow path learns that, or has another runtime started
        if ticket < 0:
            self._back(stage, region)
            return None
        try:
            result = channel.finish(ticket, timeout)
        except BaseException as error:
            region.holds = 1
            raise session.unfinished(ticket, error, partial(stage.end, region)) from None
        if result is None:
            region.holds = 1
            session.leave(ticket, partial(stage.end, region))
            raise stage.late(timeout)
        self._taken += 1
        if self._left > 0:
            self._left -= 1
        try:
            if session.wanting or session.queue:
                session.slot_is_free()
            if result is not FINE:
                stage.fail(result, region, urgency)
            return self._collect(region.outputs, names)
        finally:
            self._back(stage, region)

    cdef int _back(self, stage, region) except -1:
        self._free.append(region)
        if stage.closed:
            stage.close()
        return 0

    cdef int _copy(self, list arrays, list views) except -1:
        cdef Py_ssize_t i, nbytes
        cdef void *to
        cdef const void *source
        for i in range(len(arrays)):
            nbytes = cnp.PyArray_NBYTES(<cnp.ndarray>views[i])
            to = cnp.PyArray_DATA(<cnp.ndarray>views[i])
            source = cnp.PyArray_DATA(<cnp.ndarray>arrays[i])
            if nbytes < LONG_COPY:
                memcpy(to, source, nbytes)
            else:
                with nogil:
                    memcpy(to, source, nbytes)
        return 0

    cdef dict _collect(self, list views, names):
        cdef Py_ssize_t i
        cdef dict results = {}
        for i in range(len(self._outputs)):
            name, keys = self._outputs[i]
            if names is None or name in names:
                results[name] = cnp.PyArray_NewCopy(<cnp.ndarray>views[i], cnp.NPY_CORDER) if keys is None else told(keys, views[i])
        return results

    def drain(self):
        cdef uint64_t taken = self._taken
        self._taken = 0
        return taken
