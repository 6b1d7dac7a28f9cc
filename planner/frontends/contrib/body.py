"""The builder that rules for onnxruntime's operators are written with: it records the ONNX nodes that a node stands for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, helper, numpy_helper

from aspen_mp.planner.frontends import tensors
from aspen_mp.planner.ir.graph import Shape, Tensor
from aspen_mp.shm.errors import ModelInvalidError, UnsupportedModelError

Array = npt.NDArray[Any]
ADVICE: Final = "load the model as it was before onnxruntime's optimizer or quantisation tools wrote it"
_AT_ONCE = 4096
"""Bytes of constants that are not worth to be put off."""


class Body:
    """Takes down the nodes that stand for one. `constants`: made of constant inputs, when they are needed."""

    def __init__(self, node: NodeProto, inputs: Sequence[Tensor | None]) -> None:
        self.node = node
        self.inputs = inputs
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Tensor] = {}
        self.attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self._noted: set[str] = set()

    def unknown(self, what: str, advice: str = ADVICE) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self._who} {what}: {advice}")

    def invalid(self, what: str) -> ModelInvalidError:
        return ModelInvalidError(f"{self._who} {what}")

    @property
    def _who(self) -> str:
        return f"node {self.node.name or self.node.output[0]!r} ({self.node.op_type})"

    # ------------------------------------------------------------------------------------------------ inputs, attributes

    def name(self, k: int) -> str:
        """The name of input k, empty where it is missing."""
        return self.node.input[k] if k < len(self.node.input) else ""

    def optional(self, k: int) -> Tensor | None:
        return self.inputs[k] if k < len(self.node.input) else None

    def tensor(self, k: int) -> Tensor:
        found = self.optional(k)
        if found is None:
            raise self.unknown(f"lacks its input {k}")
        return found

    def shape(self, k: int, rank: int) -> Shape:
        """The shape of input k, which must have `rank` axes."""
        shape = self.tensor(k).shape
        if len(shape) != rank:
            raise self.invalid(f"has an input {self.name(k)!r} of shape {list(shape)}, not of {rank} axes")
        return shape

    def get(self, name: str, default: Any) -> Any:
        return self.attributes.get(name, default)

    def kept(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: self.attributes[name] for name in names if name in self.attributes}

    # ------------------------------------------------------------------------------------------------------------ nodes

    def emit(self, op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        return self.several(op, *inputs, outs=[out or f"{self.node.output[0]}\0{len(self.nodes)}"], **attributes)[0]

    def several(self, op: str, *inputs: str, outs: Sequence[str], **attributes: Any) -> list[str]:
        """A node of several results."""
        name = f"{self.node.name or self.node.output[0]}/{op}"
        self.nodes.append(helper.make_node(op, given(*inputs), list(outs), name=name, **attributes))
        return list(outs)

    def once(self, op: str, *inputs: str, **attributes: Any) -> str:
        """The same node for all that say it of the same values: masks and angles that the layers of a model share. Where a node of that
        name is there already, the binder leaves this one out."""
        what = hashlib.sha256(repr((op, inputs, sorted(attributes.items()))).encode()).hexdigest()[:24]
        out = f"{op}\0{what}"
        if out not in self._noted:
            self._noted.add(out)
            self.nodes.append(helper.make_node(op, given(*inputs), [out], name=f"{inputs[0]}/{op}", **attributes))
        return out

    def constant(self, value: Any) -> str:
        """Named after its value: equal names are equal constants, whatever the shapes of inputs."""
        array = np.asarray(value)
        out = f"constant\0{array.dtype} {array.tolist()}"
        if out not in self._noted:
            self._noted.add(out)
            self.nodes.append(helper.make_node("Constant", [], [out], name=out, value=numpy_helper.from_array(array)))
        return out

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def number(self, value: float, k: int = 0) -> str:
        """A constant of the type of input k."""
        return self.constant(np.asarray(value).astype(self.tensor(k).dtype))

    def derived(self, what: str, sources: Sequence[int], shape: Shape, dtype: npt.DTypeLike, make: Callable[..., Array]) -> str:
        """A constant made of the values of constant inputs, none of which may be computed; `what` says what `make` does."""
        given = [self.tensor(k) for k in sources]
        for tensor in given:
            if not tensor.is_const:
                raise self.unknown(f"computes its input {tensor.name!r}, which has to be constant here")
        keys = [t.weight_key for t in given]
        key = None if None in keys else f"{what}:{'|'.join(map(str, keys))}"
        out = f"{what}\0{'|'.join(t.name for t in given)}"
        tensor = Tensor(out, shape, np.dtype(dtype), weight_key=key, pack=partial(_make, make, given))
        if key is None or sum(t.nbytes for t in given) <= _AT_ONCE:
            tensor = Tensor(out, shape, np.dtype(dtype), data=tensor.value(), weight_key=key)
        self.constants[out] = tensor
        return out

    # ------------------------------------------------------------------------------------------------------- small things

    def plus(self, x: str, y: str) -> str:
        return self.emit("Add", x, y) if y else x

    def split(self, x: str, axis: int, sizes: Sequence[int]) -> list[str]:
        outs = [f"{self.node.output[0]}\0{len(self.nodes)}.{k}" for k in range(len(sizes))]
        return self.several("Split", x, self.ints(*sizes), outs=outs, axis=axis)

    def cut(self, x: str, axis: int, start: int, stop: int) -> str:
        return self.emit("Slice", x, self.ints(start), self.ints(stop), self.ints(axis))

    def cast(self, x: str, dtype: npt.DTypeLike) -> str:
        return self.emit("Cast", x, to=tensors.elem_type(np.dtype(dtype)))

    def length(self, x: str, axis: int) -> str:
        """The length of an axis, as the model computes it: its results may differ from length to length."""
        return self.once("Squeeze", self.once("Shape", x, start=axis, end=axis + 1), self.ints(0))

    def counted(self, start: str, stop: str) -> str:
        return self.once("Range", start, stop, self.constant(np.int64(1)))

    def real(self, k: int, axis: int | None = None) -> str:
        """Inputs k, k + 1 and k + 2, dequantised."""
        scale = self.inputs[k + 1]
        along: dict[str, Any] = {"axis": axis} if axis is not None and scale is not None and scale.size > 1 else {}
        return self.emit("DequantizeLinear", self.name(k), self.name(k + 1), self.name(k + 2), **along)

    def quantised(self, x: str, k: int) -> str:
        """x by the scale and zero point that are inputs k and k + 1."""
        return self.emit("QuantizeLinear", x, self.name(k), self.name(k + 1))


Rule = Callable[[Body], list[str]]
"""The names of a node's results, in order; empty where it does not give one."""


def given(*names: str) -> list[str]:
    """The names without those missing at the end."""
    return list(names[: max((k for k, name in enumerate(names) if name), default=-1) + 1])


def _make(make: Callable[..., Array], sources: Sequence[Tensor], out: Array) -> None:
    out[...] = make(*(t.value() for t in sources))
