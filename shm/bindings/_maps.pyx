# cython: language_level=3, boundscheck=False, wraparound=False
"""Maps made of tables. Documentation of names: _maps.pyi."""


def listed(keys, table):
    cdef list names = list(keys), row, maps = []
    cdef dict made
    cdef Py_ssize_t i, n = len(names)
    for row in <list>table.tolist():
        made = {}
        for i in range(n):
            made[names[i]] = row[i]
        maps.append(made)
    return maps
