"""Kernels of elements, each of which stands for itself; and sub-graphs that run elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.boxes import Boxes, Region, broadcast, whole
from aspen_mp.planner.ops.call import F32, I32, LIMIT, Call, Check, has_function, in_range, need, shaped
from aspen_mp.planner.ops.params import Param, activation, choice, integer, real
from aspen_mp.planner.ops.spec import COPY, OPAQUE, PLAIN_NS, Cost, Input, Kind, Layout, OpSpec, Seen, each
from aspen_mp.shm.tables import BINARY, DTYPES, TERNARY, UNARY

EPILOGUE = 0.7
"""The time of a function in an epilogue, as a share of its time in a kernel of its own: nothing is read and written."""
FUNCTION_NS = {"EXP": 0.2, "LOG": 0.4, "SIGMOID": 0.3, "TANH": 0.4, "ERF": 0.6, "ELU": 0.3, "SELU": 0.3, "CELU": 0.4, "SOFTPLUS": 0.5}
FUNCTION_NS |= {"GELU_ERF": 0.5, "GELU_TANH": 0.35, "SWISH": 0.3, "MISH": 0.4, "SIN": 1.0, "COS": 1.0, "TAN": 1.2, "ASIN": 2.1}
FUNCTION_NS |= {"FAKE_QUANTIZE": 0.12, "ACOS": 2.1, "ATAN": 1.5, "SINH": 1.4, "COSH": 1.2, "ASINH": 1.8, "ACOSH": 1.7, "ATANH": 1.7}
"""An element of a function that takes more than a few instructions."""
_OPERATION_NS = {"POW": 3.0, "MOD": 12.0, "FMOD": 12.0}
"""The same of an operation of two arguments."""
_DIVIDED_NS = 1.9
"""Whole numbers are divided one by one."""


def activation_ns(node: Node) -> float:
    """The cost of a node's activation for each element of its output."""
    act = node.attrs.get("act")
    return EPILOGUE * FUNCTION_NS.get(act[0], 0.0) if act is not None else 0.0


def _binary_ns(node: Node) -> float:
    opcode, whole = node.attrs["opcode"], node.output.dtype.kind in "iu"
    if whole and opcode in ("DIV", "MOD", "FMOD"):
        return _DIVIDED_NS
    return _OPERATION_NS.get(opcode, PLAIN_NS)


def elementwise(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """The same elements, as numpy broadcasts them."""
    return broadcast(shape, lo, hi)


def all_of_it(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """Every element."""
    return whole(shape, len(lo))


LEVELS = 256
"""The values of a byte."""
_BYTE_OPCODES = {BINARY[name] for name in ("ADD", "SUB", "MUL")}
_LEVELS = {DTYPES[name] for name in ("I8", "U8", "I16", "U16")}


def _elementwise_checks(n: int, opcodes: int | None) -> Check:
    def rule(call: Call) -> None:
        if opcodes is not None:
            in_range(call, 0, "opcode", 0, opcodes)
        for i in range(n):
            shaped(call.input(i), call.out.shape, f"shape of input {i}")

    return rule


def _binary_checks(call: Call) -> None:
    _elementwise_checks(2, len(BINARY))(call)
    has_function(call, 1)


def _ternary_checks(call: Call) -> None:
    _elementwise_checks(3, len(TERNARY))(call)
    has_function(call, 1)


def _same_dtype_checks(call: Call) -> None:
    _elementwise_checks(1, None)(call)
    need(call.input(0).dtype == call.out.dtype, "dtype of input 0", call.input(0).dtype, call.out.dtype)


def _levels_of(call: Call, stored: int) -> None:
    """Scale and zero point beside whole numbers of this dtype."""
    for i in range(2):
        shaped(call.input(i), call.out.shape, f"shape of input {i}")
    zero = call.optional(2)
    shaped(zero, call.out.shape, "shape of input 2")
    need(call.input(1).dtype == F32, "dtype of input 1", call.input(1).dtype, F32)
    need(zero is None or zero.dtype == stored, "dtype of input 2", zero and zero.dtype, stored)


def _quantize_checks(call: Call) -> None:
    in_range(call, 0, "times", 0, 2)
    need(call.input(0).dtype in (F32, I32), "dtype of input 0", call.input(0).dtype, (F32, I32))
    need(call.out.dtype in _LEVELS, "dtype of the output", call.out.dtype, sorted(_LEVELS))
    _levels_of(call, call.out.dtype)


def _dequantize_checks(call: Call) -> None:
    x = call.input(0)
    need(call.out.dtype == F32, "dtype of the output", call.out.dtype, F32)
    need(x.dtype in _LEVELS | {I32}, "dtype of input 0", x.dtype, sorted(_LEVELS | {I32}))
    _levels_of(call, x.dtype)


def _lookup_checks(call: Call) -> None:
    x, table, bytes_ = call.input(0), call.input(1), {DTYPES["I8"], DTYPES["U8"]}
    need(x.dtype in bytes_, "dtype of input 0", x.dtype, sorted(bytes_))
    need(call.out.dtype in bytes_ | {F32}, "dtype of the output", call.out.dtype, sorted(bytes_ | {F32}))
    shaped(x, call.out.shape, "shape of input 0")
    need(table.dtype == call.out.dtype, "dtype of input 1", table.dtype, call.out.dtype)
    need(table.shape == (LEVELS,), "shape of input 1", table.shape, (LEVELS,))
    need(table.dense, "strides of input 1", "others", "dense ones")


def _qbinary_checks(call: Call) -> None:
    _elementwise_checks(2, None)(call)
    in_range(call, 0, "opcode", 0, len(BINARY))
    need(call.params[0] in _BYTE_OPCODES, "opcode", call.params[0], sorted(_BYTE_OPCODES))
    has_function(call, 1)
    bytes_ = {DTYPES["I8"], DTYPES["U8"]}
    for arg, name in ((call.out, "the output"), (call.input(0), "input 0"), (call.input(1), "input 1")):
        need(arg.dtype in bytes_, f"dtype of {name}", arg.dtype, sorted(bytes_))
    for i in (5, 7, 9):
        in_range(call, i, "zero", -LIMIT, LIMIT)


def _looked_up(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """The same elements, and the whole table."""
    return whole(shape, len(lo)) if i == 1 else broadcast(shape, lo, hi)


def _function_ns(node: Node) -> float:
    return FUNCTION_NS.get(node.attrs["opcode"], PLAIN_NS)


def _spec(name: str, inputs: str, checks: Check, ns: Callable[[Node], float], *params: Param) -> OpSpec:
    """A kernel of elements; inputs whose role ends with a question mark are optional."""
    roles = [Input(role.rstrip("?"), optional=role.endswith("?"), seen=Seen.OUTPUT) for role in inputs.split()]
    return OpSpec(
        name=name,
        inputs=tuple(roles),
        params=params,
        region=elementwise,
        checks=checks,
        kind=Kind.ELEMENTWISE,
        layout=Layout.SPREADS,
        batch_rank=1,
        cost=Cost(element_ns=ns),
    )


_ACT = activation("act", "of the result")
_FUNCTION = (choice("opcode", UNARY, "a name of ASPEN_UNARY"), real("a", "of the function"), real("b", "of the function"))
SPECS = (
    _spec("UNARY", "x", _elementwise_checks(1, len(UNARY)), _function_ns, *_FUNCTION),
    _spec("BINARY", "x y", _binary_checks, _binary_ns, choice("opcode", BINARY, "a name of ASPEN_BINARY"), _ACT),
    _spec("TERNARY", "x y z", _ternary_checks, each(0.1), choice("opcode", TERNARY, "a name of ASPEN_TERNARY"), _ACT),
    _spec("CAST", "x", _elementwise_checks(1, None), each(0.1), integer("saturate", "whether what is too large becomes the largest")),
    _spec(COPY, "x", _same_dtype_checks, each(0.1)),
    _spec("QUANTIZE", "x scale zero?", _quantize_checks, each(0.07), integer("times", "multiply with the scale, do not divide by it")),
    _spec("DEQUANTIZE", "x scale zero?", _dequantize_checks, each(0.03)),
    _spec(
        "QBINARY",
        "x y",
        _qbinary_checks,
        each(0.1),
        choice("opcode", BINARY, "ADD, SUB or MUL"),
        _ACT,
        *(
            param
            for of in ("x", "y", "out")
            for param in (real(f"{of}_scale", f"of {of}'s bytes"), integer(f"{of}_zero", f"of {of}'s bytes"))
        ),
    ),
    OpSpec(
        name="LOOKUP",
        inputs=(Input("x", seen=Seen.OUTPUT), Input("table", "[256], a value for each byte, the lowest first")),
        region=_looked_up,
        checks=_lookup_checks,
        layout=Layout.SPREADS,
        batch_rank=1,
        cost=Cost(element_ns=each(0.1)),
    ),
    OpSpec(name=OPAQUE, outputs=0, region=all_of_it, layout=Layout.ANY),
)
"""The last one is any sub-graph. Its attribute ``model`` is a serialised ModelProto whose graph inputs and outputs are the node's, in
order. Missing optional inputs have no graph input, so its inputs hold no ``None``."""
