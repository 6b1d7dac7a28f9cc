# cython: language_level=3, boundscheck=False, wraparound=False
"""What each request of a client runs through: the fast path through shared memory, and the watch over tensors that a model was made of.

Documentation of names: _fast_path.pyi.
"""

from functools import partial
from weakref import ref

cimport numpy as cnp
from cpython.dict cimport PyDict_GetItem
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from aspen_mp.shm.bindings._channel import FINE
from aspen_mp.shm.errors import RuntimeLost
from aspen_mp.shm.values import told

cdef extern from "Python.h":
    PyObject *PyTuple_GET_ITEM(tuple, Py_ssize_t)  # borrowed
    void __builtin_prefetch(const void *) nogil  # reads nothing, so any address will do

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


def address(cnp.ndarray array):
    return <size_t>cnp.PyArray_DATA(array)


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
        if stage.untidy:
            stage.tidy()
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


cdef struct Tensor:
    Py_ssize_t place  # among the arguments
    PyObject *who  # not owned: only compared
    uint64_t address
    uint64_t version
    Py_ssize_t first, last  # of its elements among all


cdef struct Element:
    const void *at
    uint64_t value


cdef inline uint64_t _value(const void *at, Py_ssize_t itemsize) noexcept nogil:
    if itemsize == 4:
        return (<const uint32_t *>at)[0]
    if itemsize == 2:
        return (<const uint16_t *>at)[0]
    if itemsize == 1:
        return (<const uint8_t *>at)[0]
    return (<const uint64_t *>at)[0]


cdef class Watched:
    cdef Tensor *_tensors
    cdef Element *_elements
    cdef Py_ssize_t *_sizes
    cdef Py_ssize_t _count, _least

    def __cinit__(self, tuple args, places):
        cdef Py_ssize_t k, total = sum([len(offsets) for _, _, offsets in places])
        cdef Tensor *tensor
        self._count = len(places)
        self._tensors = <Tensor *>PyMem_Malloc(max(1, self._count) * sizeof(Tensor))
        self._sizes = <Py_ssize_t *>PyMem_Malloc(max(1, self._count) * sizeof(Py_ssize_t))
        self._elements = <Element *>PyMem_Malloc(max(1, total) * sizeof(Element))
        if self._tensors == NULL or self._sizes == NULL or self._elements == NULL:
            raise MemoryError
        total = 0
        for k, (place, itemsize, offsets) in enumerate(places):
            tensor = &self._tensors[k]
            argument = args[place]
            tensor.place, tensor.who = place, <PyObject *>argument
            tensor.address, tensor.version = argument.data_ptr(), argument._version
            tensor.first = total
            self._sizes[k] = itemsize
            self._least = max(self._least, tensor.place + 1)
            for offset in offsets:
                self._elements[total].at = <const void *><size_t>(tensor.address + <uint64_t>offset)
                self._elements[total].value = _value(self._elements[total].at, itemsize)
                total += 1
            tensor.last = total

    def __dealloc__(self):
        PyMem_Free(self._tensors)
        PyMem_Free(self._sizes)
        PyMem_Free(self._elements)

    cdef bint _same(self, Py_ssize_t k) noexcept nogil:
        """Whether a tensor's elements are as they were."""
        cdef Py_ssize_t i, size = self._sizes[k]
        cdef uint64_t different = 0
        for i in range(self._tensors[k].first, self._tensors[k].last):
            different |= _value(self._elements[i].at, size) ^ self._elements[i].value
        return different == 0

    cdef bint _counted(self, Py_ssize_t k, PyObject *argument) except -1:
        """Whether a tensor's address or version is another than it was: a change that its library knows of."""
        cdef Tensor *tensor = &self._tensors[k]
        return <uint64_t>(<object>argument).data_ptr() != tensor.address or <uint64_t>(<object>argument)._version != tensor.version

    def holds(self, tuple args):
        cdef Py_ssize_t k, i
        cdef PyObject *argument
        if len(args) < self._least:
            return False
        for k in range(self._count):
            for i in range(self._tensors[k].first, self._tensors[k].last):
                __builtin_prefetch(self._elements[i].at)
            argument = PyTuple_GET_ITEM(args, self._tensors[k].place)
            if argument != self._tensors[k].who or self._counted(k, argument):
                return False
        for k in range(self._count):  # only now is it sure that memory lies there
            if not self._same(k):
                return False
        return True

    def changed(self, tuple args):
        cdef Py_ssize_t k
        cdef PyObject *argument
        cdef list found = []
        for k in range(self._count):
            if self._tensors[k].place < len(args):
                argument = PyTuple_GET_ITEM(args, self._tensors[k].place)
                if argument == self._tensors[k].who and (self._counted(k, argument) or not self._same(k)):
                    found.append(self._tensors[k].place)
        return found
