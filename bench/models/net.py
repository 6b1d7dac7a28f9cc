"""The writer of graphs for every builder of the zoo: parameters, nodes, inputs and outputs of one `onnx.ModelProto`.

A network is written straight into the protobuf. Parameters are drawn into one scratch buffer and copied once, because
`onnx.helper.make_graph` would copy BERT-large's 1.3 GB again. Every parameter has a random stream of its own, derived from the seed and the
parameter's name. So a network keeps its weights when options change how the same arithmetic is written (folded BatchNorm, decomposed
LayerNorm …).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

Array = NDArray[Any]
Dim = int | str

BATCH, SEQ = "batch", "sequence"  # names of the symbolic dimensions
PAST, TOTAL = "past", "total"  # and of those of a cache: before the step and after it

IR_VERSION = 8  # of opset 17, so that old readers open the files; newer opsets raise it
CHUNK = 1 << 16  # floats drawn at a time: 256 KiB, stays in L2


@dataclass(frozen=True, slots=True)
class Init:
    """Distribution of a parameter's values: uniform with the given mean and standard deviation."""

    std: float
    mean: float = 0.0


class Weights(Protocol):
    """Where parameter values come from. `get` returns C-contiguous bytes-like values of float32 `shape`."""

    def get(self, name: str, shape: tuple[int, ...], init: Init, transposed: bool) -> bytes: ...


class RandomWeights(Weights):
    """Seeded random values, one stream per parameter name."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._scratch = np.empty(0, np.float32)

    def get(self, name: str, shape: tuple[int, ...], init: Init, transposed: bool) -> bytes:
        return self.draw(name, shape, init).tobytes()

    def draw(self, name: str, shape: tuple[int, ...], init: Init) -> NDArray[np.float32]:
        """Values of a parameter, in a buffer that the next call overwrites."""
        size = math.prod(shape)
        if self._scratch.size < size:
            self._scratch = np.empty(size, np.float32)
        out = self._scratch[:size]
        if init.std == 0.0:
            out.fill(init.mean)
            return out.reshape(shape)
        rng = np.random.Generator(np.random.SFC64([self.seed, zlib.crc32(name.encode())]))
        width = init.std * math.sqrt(12.0)  # of the uniform distribution with this standard deviation
        scale, shift = np.float32(width), np.float32(init.mean - width / 2)
        for begin in range(0, size, CHUNK):
            part = out[begin : begin + CHUNK]
            rng.random(out=part, dtype=np.float32)
            np.multiply(part, scale, out=part)
            np.add(part, shift, out=part)
        return out.reshape(shape)


class ArrayWeights(Weights):
    """Values from a mapping of names to arrays (a checkpoint). A missing name or a wrong shape is an error that names it."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.arrays = arrays

    def get(self, name: str, shape: tuple[int, ...], init: Init, transposed: bool) -> bytes:
        if name not in self.arrays:
            raise KeyError(f"the checkpoint holds no {name!r}")
        value = np.asarray(self.arrays[name], np.float32)
        if transposed:
            value = value.T
        if value.shape != shape:
            raise ValueError(f"{name!r} has shape {list(value.shape)} in the checkpoint; the network needs {list(shape)}")
        return value.tobytes()


class NoWeights(Weights):
    """No values at all: for looking at a network's signature and costs. The model is not valid ONNX."""

    def get(self, name: str, shape: tuple[int, ...], init: Init, transposed: bool) -> bytes:
        return b""


class Net:
    """A model under construction. Tensors are their names; methods that add nodes return the name of the result."""

    def __init__(self, name: str, *, opset: int, weights: Weights) -> None:
        if not 13 <= opset <= 23:
            raise ValueError(f"opset {opset}: the zoo writes opsets 13 to 23")
        self.opset = opset
        self.weights = weights
        self.macs: int | None = 0  # None once a symbolic dimension entered
        self.parameters = 0
        self.model = onnx.ModelProto(ir_version=max(IR_VERSION, helper.find_min_ir_version_for([helper.make_opsetid("", opset)])))
        self.model.producer_name = "aspen-mp zoo"
        self.model.opset_import.add(domain="", version=opset)
        self.graph = self.model.graph
        self.graph.name = name
        self._names: dict[str, int] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    # ---- signature

    def input(self, name: str, dtype: int, shape: Sequence[Dim], **notes: str) -> str:
        """Adds a graph input. `notes` go to the model's metadata as `input.NAME.KEY` (see `inputs`)."""
        self.graph.input.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        for key, value in notes.items():
            self.note(f"input.{name}.{key}", value)
        return name

    def output(self, tensor: str, name: str, shape: Sequence[Dim], dtype: int = TensorProto.FLOAT) -> None:
        """Makes `tensor` the graph output `name`, by renaming it where its node writes it."""
        for node in reversed(self.graph.node):
            if tensor in node.output:
                node.output[list(node.output).index(tensor)] = name
                break
        for node in self.graph.node:
            for i, used in enumerate(node.input):
                if used == tensor:
                    node.input[i] = name
        self.graph.output.append(helper.make_tensor_value_info(name, dtype, list(shape)))

    def note(self, key: str, value: str) -> None:
        self.model.metadata_props.add(key=key, value=value)

    # ---- values

    def param(self, name: str, shape: Sequence[int], init: Init, *, count: bool = True, transposed: bool = False) -> str:
        """Adds a float32 parameter. `transposed`: the checkpoint holds its transpose. `count=False`: a buffer, not a trainable
        parameter."""
        dims = tuple(shape)
        tensor = self.graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=dims)
        tensor.raw_data = self.weights.get(name, dims, init, transposed)
        if count:
            self.parameters += math.prod(dims)
        return name

    def const(self, value: Array) -> str:
        """Adds a constant; equal constants share one initializer."""
        array = np.ascontiguousarray(value)
        data = array.tobytes()
        key = (array.dtype.str, np.shape(value), data)
        if key not in self._constants:
            name = self.fresh("const")
            tensor = self.graph.initializer.add(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=np.shape(value))
            tensor.raw_data = data
            self._constants[key] = name
        return self._constants[key]

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64))

    def scalar(self, value: float) -> str:
        return self.const(np.array(value, np.float32))

    # ---- nodes

    def fresh(self, stem: str) -> str:
        n = self._names.get(stem, 0)
        self._names[stem] = n + 1
        return f"{stem}_{n}"

    def op(self, op_type: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Adds a node with one output."""
        return self.ops(op_type, inputs, 1, name=name, **attributes)[0]

    def ops(self, op_type: str, inputs: Iterable[str], outputs: int, name: str | None = None, **attributes: Any) -> list[str]:
        """Adds a node with several outputs."""
        label = name or self.fresh(op_type)
        names = [f"{label}_output_{i}" for i in range(outputs)]
        node = self.graph.node.add(op_type=op_type, name=label, input=inputs, output=names)
        for key, value in attributes.items():
            if value is not None:
                node.attribute.append(helper.make_attribute(key, value))
        return names

    def add_macs(self, count: int | None) -> None:
        """Adds multiply-accumulates of the nodes just written; None where a dimension is symbolic."""
        self.macs = None if count is None or self.macs is None else self.macs + count

    # ---- ops that opsets spell differently

    def reduce_mean(self, x: str, axes: Sequence[int], keepdims: bool = True) -> str:
        if self.opset >= 18:
            return self.op("ReduceMean", x, self.ints(*axes), keepdims=int(keepdims))
        return self.op("ReduceMean", x, axes=list(axes), keepdims=int(keepdims))

    def split(self, x: str, axis: int, sizes: Sequence[int]) -> list[str]:
        return self.ops("Split", [x, self.ints(*sizes)], len(sizes), axis=axis)

    def finish(self) -> onnx.ModelProto:
        self.note("zoo.parameters", str(self.parameters))
        if self.macs is not None:
            self.note("zoo.macs", str(self.macs))
        return self.model


def product(*dims: Dim) -> int | None:
    """Product of dimensions, None if one is symbolic."""
    return None if any(isinstance(d, str) for d in dims) else math.prod(d for d in dims if isinstance(d, int))


def signature(value: onnx.ValueInfoProto) -> tuple[str, tuple[Dim, ...], str]:
    """Name, shape and numpy dtype name of a graph input or output."""
    tensor = value.type.tensor_type
    shape = tuple(dim.dim_param if dim.HasField("dim_param") else int(dim.dim_value) for dim in tensor.shape.dim)
    return value.name, shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
