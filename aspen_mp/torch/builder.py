"""What rules write ONNX nodes with: values, constants, casts, sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, wraps
from itertools import chain, repeat
from typing import Any, Final, NamedTuple, TypeVar, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from onnx import AttributeProto, NodeProto, TensorProto
from onnx.defs import OpSchema, get_schema
from torch.utils import _pytree as pytree

from aspen_mp.torch import sizes
from aspen_mp.torch.registry import Unsupported

OPSET: Final = 23
ONNX_TYPES: Final[dict[Any, int]] = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int8: TensorProto.INT8,
    torch.int16: TensorProto.INT16,
    torch.int32: TensorProto.INT32,
    torch.int64: TensorProto.INT64,
    torch.uint8: TensorProto.UINT8,
    torch.bool: TensorProto.BOOL,
}
NUMPY_TYPES: Final[dict[Any, np.dtype[Any]]] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.uint8: np.dtype(np.uint8),
    torch.bool: np.dtype(np.bool_),
}
INT64: Final = torch.int64
HALVES: Final = (torch.float16, torch.bfloat16)
_REPEATED: Final = {"Add": "Add", "Mul": "Mul", "Max": "Max", "Min": "Min"}
_FLOORS: Final = {"FloorDiv", "CleanDiv"}
_MODULI: Final = {"Mod", "PythonMod"}
"""Classes of sympy's and PyTorch's in expressions of sizes."""
_KINDS: Final = {
    int: AttributeProto.INT,
    bool: AttributeProto.INT,
    float: AttributeProto.FLOAT,
    str: AttributeProto.STRING,
}


AnyRule = TypeVar("AnyRule", bound=Callable[..., Any])
Types = tuple[int | None, ...]
"""Element types of a node's values; None for one that is left out."""


class Value(NamedTuple):
    """A tensor of the ONNX graph. `shape`: ints and SymInts; empty for a scalar, and where a rule has not said it."""

    name: str
    dtype: Any
    shape: tuple[Any, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.shape)


Scalar = int | float | bool


class Builder:
    """The ONNX nodes of a graph, in order. `out`: what PyTorch says that the present FX node gives (a FakeTensor, or several)."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, npt.NDArray[Any]] = {}
        self.out: Any = None
        self.node: Any = None
        """The FX node whose nodes are being written."""
        self.used: set[int] = set()
        """Which results of the present FX node are read, where it has several."""
        self.made: dict[str, NodeProto] = {}
        self.sources: dict[Any, Value] = {}
        """Symbol of a size → the int64 [1] value that has it."""
        self.fixed: set[str] = set()
        """Values that are constants of the model: parameters and buffers."""
        self.wide = False
        """Whether the present rule computes halves in float32."""
        self._label = ""
        self._rule = ""
        self._count = 0
        self._known: dict[Any, Value] = {}
        self._sizes: dict[Any, Value] = {}

    def begin(self, label: str, rule: str = "", node: Any = None, used: set[int] | None = None) -> None:
        """What follows is called after `label`, and is written for the FX node `node` by the rule of this name."""
        self._label, self._rule, self._count = label, rule, 0
        self.node, self.out, self.used = node, None if node is None else node.meta.get("val"), used or set()

    def made_for(self, operator: str) -> bool:
        """Whether the present node is this operator, whichever overload unless one is named."""
        return operator in (self._rule, self._rule.rpartition(".")[0])

    @property
    def dtype(self) -> Any:
        """The type of the result; float32 for halves within rules that are computed `in_float32`."""
        return torch.float32 if self.wide else self.out.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(self.out.shape)

    def rollback(self, n: int) -> None:
        """Forgets all nodes behind the first `n`: the FX node for which they were written is not supported after all."""
        for node in self.nodes[n:]:
            for name in node.output:
                self.made.pop(name, None)
        gone = {name for node in self.nodes[n:] for name in node.output}
        self._sizes = {key: value for key, value in self._sizes.items() if value.name not in gone}
        del self.nodes[n:]

    # ---- nodes

    def emit(self, op: str, *inputs: Value | None, dtype: Any = None, shape: Sequence[Any] | None = None, **attrs: Any) -> Value:
        """One node with one output, of `dtype` (None: that of the first input)."""
        return self.emit_all(op, inputs, [inputs[0].dtype if dtype is None and inputs[0] is not None else dtype], [shape or ()], **attrs)[0]

    def emit_all(
        self, op: str, inputs: Sequence[Value | None], dtypes: Sequence[Any], shapes: Sequence[Sequence[Any]] | None = None, **attrs: Any
    ) -> list[Value]:
        """One node with an output for each of `dtypes`; None for one that is left out."""
        kinds = [tuple(None if dtype is None else ONNX_TYPES[dtype] for dtype in each) for each in (_dtypes(inputs), dtypes)]
        if (fault := type_fault(op, *kinds)) is not None:
            raise Unsupported(fault)
        node = NodeProto(op_type=op)
        names = ["" if value is None else value.name for value in inputs]
        while names and not names[-1]:
            names.pop()
        node.input.extend(names)
        outputs = []
        for place, dtype in enumerate(dtypes):
            name = f"{self._label}:{self._count}" if self._count else self._label
            self._count += 1
            node.output.append("" if dtype is None else name)
            outputs.append(Value(name, dtype, tuple(shapes[place]) if shapes is not None else ()))
        node.name = node.output[0] or self._label
        for key, value in attrs.items():
            if value is not None:
                _attribute(node, key, value)
        self.nodes.append(node)
        for value in outputs:
            self.made[value.name] = node
        return outputs

    # ---- constants

    def constant(self, value: Any, dtype: Any) -> Value:
        """A constant: a number, nested lists or an array, of a dtype of PyTorch's. Unsupported where it cannot hold the number."""
        if not holds(value, dtype):
            raise Unsupported(f"{value} in {dtype}")
        key = (type(value), value, dtype) if isinstance(value, int | float) else None
        if key is not None and not math.isnan(value) and (value or str(value)[0] != "-"):
            found = self._known.get(key)
            if found is not None:
                return found
        with np.errstate(over="ignore"):
            array = np.asarray(value)
            array = np.ascontiguousarray(array.astype(NUMPY_TYPES[dtype])).reshape(array.shape)
        result = Value(f"constant.{len(self.constants)}", dtype, array.shape)
        self.constants[result.name] = array
        if key is not None:
            self._known[key] = result
        return result

    def ints(self, values: Iterable[Any]) -> Value:
        """A 1-D int64 tensor of ints and SymInts."""
        plain = [sizes.plain(value) for value in values]
        if all(isinstance(value, int) for value in plain):
            key = tuple(plain)
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self.constant(np.array(plain, np.int64), INT64)
            return found
        parts: list[Value] = []
        run: list[int] = []
        for value in plain:
            if isinstance(value, int):
                run.append(value)
                continue
            if run:
                parts.append(self.ints(run))
                run = []
            parts.append(self.size(value))
        if run:
            parts.append(self.ints(run))
        return parts[0] if len(parts) == 1 else self.emit("Concat", *parts, dtype=INT64, shape=(len(plain),), axis=0)

    def size(self, value: Any) -> Value:
        """An int or SymInt as an int64 [1] tensor, computed from the sizes of inputs."""
        expression = sizes.expression(value)
        if isinstance(expression, int):
            return self.ints([expression])
        found = self._sizes.get(expression)
        if found is None:
            found = self._sizes[expression] = self._whole(expression)
        return found

    def number(self, value: Any, dtype: Any) -> Value:
        """A number as a scalar tensor; SymInts and SymFloats too."""
        plain = sizes.plain(value)
        if isinstance(plain, int | float | bool):
            return self.constant(plain, dtype)
        found = self._fraction(sizes.expression(plain)) if isinstance(plain, torch.SymFloat) else self.size(plain)
        scalar = self.emit("Reshape", found, self.ints([]), dtype=found.dtype)
        return self.cast(scalar, dtype)

    def _whole(self, expr: Any) -> Value:
        """An expression as an int64 [1] tensor."""
        if expr.is_Integer:
            return self.ints([int(expr)])
        if expr.is_Symbol:
            found = self.sources.get(expr)
            if found is None:
                raise Unsupported(f"the size {expr} is not one of an input's")
            return found
        name = type(expr).__name__
        if name in _REPEATED:
            total = self._whole(expr.args[0])
            for term in expr.args[1:]:
                total = self._sized(_REPEATED[name], total, self._whole(term))
            return total
        if name == "Pow" and expr.args[1].is_Integer and int(expr.args[1]) > 0:
            base = total = self._whole(expr.args[0])
            for _ in range(int(expr.args[1]) - 1):
                total = self._sized("Mul", total, base)
            return total
        if name in _FLOORS or name in _MODULI:
            a, b = (self._whole(part) for part in expr.args)
            rest = self._sized("Mod", a, b)
            return rest if name in _MODULI else self._sized("Div", self._sized("Sub", a, rest), b)
        raise Unsupported(f"the size {expr} cannot be computed from those of inputs")

    def _fraction(self, expr: Any) -> Value:
        """An expression with fractions as a float64 [1] tensor."""
        wide = torch.float64
        if expr.is_integer and not expr.is_number:
            return self.cast(self._whole(expr), wide)
        if expr.is_number:
            return self.constant(np.array([float(expr)]), wide)
        name = type(expr).__name__
        if name == "ToFloat":
            return self.cast(self._whole(expr.args[0]), wide)
        if name in {"FloatTrueDiv", "IntTrueDiv"}:
            a, b = (self._fraction(part) for part in expr.args)
            return self.emit("Div", a, b, dtype=wide, shape=(1,))
        if name in {"Add", "Mul"}:
            total = self._fraction(expr.args[0])
            for term in expr.args[1:]:
                total = self.emit(name, total, self._fraction(term), dtype=wide, shape=(1,))
            return total
        raise Unsupported(f"the number {expr} cannot be computed from the sizes of inputs")

    def _sized(self, op: str, a: Value, b: Value) -> Value:
        return self.emit(op, a, b, dtype=INT64, shape=(1,))

    # ---- values

    def cast(self, value: Value, dtype: Any) -> Value:
        if value.dtype == dtype:
            return value
        return self.emit("Cast", value, dtype=dtype, shape=value.shape, to=ONNX_TYPES[dtype])

    def operand(self, value: Any, dtype: Any) -> Value:
        """A tensor or a number as a tensor of `dtype`."""
        return self.cast(value, dtype) if isinstance(value, Value) else self.number(value, dtype)

    def reshape(self, value: Value, shape: Sequence[Any]) -> Value:
        plain = [sizes.plain(dim) for dim in shape]
        symbolic = [place for place, dim in enumerate(plain) if not isinstance(dim, int)]
        empty = any(sizes.same(dim, 0) for dim in plain)
        if len(symbolic) == 1 and not any(sizes.same(dim, -1) for dim in plain) and not empty:
            target = self.ints([-1 if place == symbolic[0] else dim for place, dim in enumerate(plain)])
        else:
            target = self.ints(plain)
        return self.emit("Reshape", value, target, shape=shape, allowzero=1 if empty else None)

    def transpose(self, value: Value, perm: Sequence[int]) -> Value:
        if list(perm) == list(range(len(perm))):
            return value
        return self.emit("Transpose", value, shape=[value.shape[p] for p in perm] if value.shape else None, perm=list(perm))

    def expand(self, value: Value, shape: Sequence[Any]) -> Value:
        return self.emit("Expand", value, self.ints(shape), shape=shape)


def in_float32(rule: AnyRule) -> AnyRule:
    """Have a rule of several nodes compute float16 and bfloat16 in float32. Its result is rounded once, as by PyTorch's kernels."""

    @wraps(rule)
    def widened(b: Builder, *args: Any, **kwargs: Any) -> Any:
        dtype = (b.out[0] if isinstance(b.out, tuple | list) else b.out).dtype
        if dtype not in HALVES:
            return rule(b, *args, **kwargs)

        def wide(value: Any) -> Any:
            return b.cast(value, torch.float32) if isinstance(value, Value) and value.dtype in HALVES else value

        args, kwargs = pytree.tree_map(wide, (args, kwargs), is_leaf=lambda value: isinstance(value, Value))
        b.wide = True
        try:
            found = rule(b, *args, **kwargs)
        finally:
            b.wide = False
        if isinstance(found, Value):
            return b.cast(found, dtype)
        return tuple(value if value is None else b.cast(value, dtype) for value in found)

    return cast("AnyRule", widened)


def _dtypes(values: Sequence[Value | None]) -> list[Any]:
    return [None if value is None else value.dtype for value in values]


def _attribute(node: NodeProto, key: str, value: Any) -> None:
    attribute = node.attribute.add(name=key)
    kind = _KINDS.get(type(value))
    if kind is not None:
        attribute.type = kind
        if kind == AttributeProto.INT:
            attribute.i = int(value)
        elif kind == AttributeProto.FLOAT:
            if not math.isfinite(value):
                raise Unsupported(f"{node.op_type}: {key} is {value}")
            attribute.f = value
        else:
            attribute.s = value.encode()
    elif isinstance(value, TensorProto):
        attribute.type = AttributeProto.TENSOR
        attribute.t.CopyFrom(value)
    elif all(isinstance(item, int) for item in value):
        attribute.type = AttributeProto.INTS
        attribute.ints.extend(value)
    elif all(isinstance(item, float) for item in value):
        attribute.type = AttributeProto.FLOATS
        attribute.floats.extend(value)
    elif all(isinstance(item, str) for item in value):
        attribute.type = AttributeProto.STRINGS
        attribute.strings.extend(item.encode() for item in value)
    else:
        raise Unsupported(f"{node.op_type}: {key} depends on a size that is not fixed")


def holds(value: Any, dtype: Any) -> bool:
    """Whether a number of Python's is within the range of a dtype of floats. Integers wrap, as PyTorch's do."""
    if not isinstance(value, int | float) or not dtype.is_floating_point or not math.isfinite(value):
        return True
    return bool(abs(value) <= torch.finfo(dtype).max)


def static(values: Iterable[Any], what: str) -> list[int]:
    """Ints; `Unsupported` where one depends on a size that is not fixed."""
    plain = [sizes.plain(value) for value in values]
    if not all(isinstance(value, int) for value in plain):
        raise Unsupported(f"{what} depends on a size that is not fixed")
    return plain


def positive(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim + rank if dim < 0 else dim


# ---- types that ONNX's operators take


@cache
def type_fault(op: str, inputs: Types, outputs: Types) -> str | None:
    """Return what is wrong with a node that has values of these types; None where ONNX allows it."""
    schema = get_schema(op, OPSET)
    if not schema.min_input <= len(inputs) <= schema.max_input:
        return f"ONNX's {op} does not take {len(inputs)} inputs"
    bound: dict[str, str] = {}
    return _mismatch(op, schema.inputs, inputs, bound) or _mismatch(op, schema.outputs, outputs, bound)


def _mismatch(op: str, formal: Sequence[Any], actual: Types, bound: dict[str, str]) -> str | None:
    """Parameters that name one type variable have one type."""
    for parameter, code in zip(_repeated(formal), actual, strict=False):
        if code is None:
            continue
        word = _word(code)
        same = parameter.is_homogeneous and parameter.type_str in bound and bound[parameter.type_str] != word
        if word not in parameter.types or same:
            return f"ONNX's {op} does not take {parameter.name} of {word[7:-1]}"
        bound[parameter.type_str] = word
    return None


def _repeated(formal: Sequence[Any]) -> Iterator[Any]:
    """The parameters of a schema, the last again and again where it stands for any number."""
    last = formal[-1:]
    more = last if last and last[0].option == OpSchema.FormalParameterOption.Variadic else []
    return chain(formal, *(repeat(parameter) for parameter in more))


@cache
def _word(code: int) -> str:
    return f"tensor({TensorProto.DataType.Name(code).lower()})"
