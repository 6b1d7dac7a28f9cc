# cython: language_level=3
"""The choice of an instruction set, without the kernels. Documentation of names: _isa.pyi."""

cdef extern from "dispatch/isa.h" nogil:
    enum:
        ASPEN_N_ISA, ASPEN_ISA_AVX2, ASPEN_ISA_AVX512
    cdef enum aspen_isa:
        pass
    const char *aspen_isa_name(aspen_isa)
    int aspen_isa_supported(aspen_isa)
    int aspen_isa_halves()
    int aspen_isa_vnni(aspen_isa)
    int aspen_isa_bf16(aspen_isa)
    int aspen_isa_amx_sums(aspen_isa)
    int aspen_isa_select(const char *)
    const char *aspen_isa_from_env()


def names():
    return [aspen_isa_name(<aspen_isa>i).decode() for i in range(ASPEN_N_ISA - 1, -1, -1) if aspen_isa_supported(<aspen_isa>i)]


def name_of(code):
    return aspen_isa_name(<aspen_isa><int>code).decode()


def find(name=None):
    cdef const char *env = aspen_isa_from_env()
    if name is None:
        name = env.decode("ascii", "backslashreplace") if env != NULL else ""
    cdef bytes encoded = name.encode()
    cdef int code = aspen_isa_select(encoded)
    if code == -1:
        known = ", ".join(name_of(i) for i in range(ASPEN_N_ISA))
        raise ValueError(f"unknown instruction set {name!r}: expected one of {known}")
    if code == -2:
        raise NotImplementedError(
            f"kernels for {repr(name) if name else 'any instruction set of this CPU'} are missing: this CPU, operating system or build lacks them. "
            f"It has {', '.join(names()) or 'none'}. `pip install .` builds all"
        )
    return code


def vectors():
    try:
        code = find()
    except (ValueError, NotImplementedError):
        return ""
    if code == ASPEN_ISA_AVX512:
        return "halved" if aspen_isa_halves() else "whole"
    return "short" if code == ASPEN_ISA_AVX2 else ""


def sums_bytes(name=None):
    try:
        return bool(aspen_isa_vnni(<aspen_isa><int>find(name)))
    except (ValueError, NotImplementedError):
        return False


def sums_pairs(name=None):
    try:
        return bool(aspen_isa_bf16(<aspen_isa><int>find(name)))
    except (ValueError, NotImplementedError):
        return False


def sums_amx(name=None):
    try:
        return bool(aspen_isa_amx_sums(<aspen_isa><int>find(name)))
    except (ValueError, NotImplementedError):
        return False
