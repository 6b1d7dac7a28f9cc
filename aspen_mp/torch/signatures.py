"""Which types ONNX's operators take and give, as their schemas say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain, repeat
from typing import Any, Final

from onnx import TensorProto
from onnx.defs import OpSchema, get_schema

OPSET: Final = 23
Types = tuple[int | None, ...]
"""Element types of a node's values; None for one that is left out."""


@cache
def fault(op: str, inputs: Types, outputs: Types) -> str | None:
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


def _repeated(formal: Sequence[Any]) -> Any:
    """The parameters of a schema, the last again and again where it stands for any number."""
    last = formal[-1:]
    more = last if last and last[0].option == OpSchema.FormalParameterOption.Variadic else []
    return chain(formal, *(repeat(parameter) for parameter in more))


@cache
def _word(code: int) -> str:
    return f"tensor({TensorProto.DataType.Name(code).lower()})"
