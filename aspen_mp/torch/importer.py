"""FX graph of core ATen operators → the model form that the planner process checks: ONNX nodes.

Each FX node is expressed by the rule of its operator (`operators/`). What no rule can express is collected with the reason, so that the
caller can leave it to PyTorch. Sizes that are not fixed become symbols of input shapes, and values computed from them.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from onnx import ModelProto, TensorProto, ValueInfoProto
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from aspen_mp.torch import operators, sizes
from aspen_mp.torch.builder import INT64, NUMPY_TYPES, ONNX_TYPES, OPSET, Builder, Value
from aspen_mp.torch.registry import REFUSED, RULES, Rule, Unsupported

IR_VERSION: Final = 11
_SIZES: Final = {"sym_size.int", "sym_numel.default", "sym_stride.int", "sym_storage_offset.default"}
FIXED: Final = {"_assert_tensor_metadata.default", "sym_constrain_range.default", "sym_constrain_range_for_size.default"}
"""Operators that `torch.export` writes to check types, devices and ranges of sizes. Tracing has decided these; they compute nothing."""
ASSERTION: Final = "_assert_scalar.default"
"""A check of a number. Where that follows from sizes of inputs, it says for which sizes the graph was traced, and computes nothing."""
_names: dict[Any, str] = {}
assert operators.views  # importing the package has filled RULES


@dataclass(frozen=True, slots=True)
class Input:
    """What a request gives. `place`: among the placeholders; `order`: its axes as they lie in memory, where that is not the usual order."""

    name: str
    place: int
    dtype: Any
    order: tuple[int, ...] | None = None
    is_size: bool = False


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that belongs to the model: placeholder `place`, or `tensor` itself."""

    name: str
    place: int
    tensor: Any = None


@dataclass(frozen=True, slots=True)
class View:
    """Which elements of a tensor's memory another has, as for `torch.as_strided`: each a function of the call's arguments. `offset` counts
    from the tensor's first element."""

    size: Callable[[Any], tuple[int, ...]]
    stride: Callable[[Any], tuple[int, ...]]
    offset: Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class Output:
    """A result: ONNX output `name`, whose axes stand in `order`; or placeholder `place`; or of the memory of either what `view` says; or a
    number computed from arguments."""

    name: str = ""
    order: tuple[int, ...] | None = None
    place: int = -1
    number: Callable[[Any], Any] | None = None
    view: View | None = None


@dataclass(slots=True)
class Imported:
    """A graph as an ONNX model without the data of its constants."""

    proto: ModelProto
    inputs: list[Input]
    constants: list[Constant]
    outputs: list[Output]
    unsupported: dict[fx.Node, str] = field(default_factory=dict)


def operator_name(target: Any) -> str:
    """ "add.Tensor"; with its name space where that is not aten."""
    name = _names.get(target)
    if name is None:
        name = _names[target] = str(target).removeprefix("aten.")
    return name


def import_graph(graph: fx.Graph, constants: Collection[int] = (), *, outputs: bool = True, share: bool = False) -> Imported:
    """Expresses a graph in ONNX.

    Args:
        graph: Of ATen operators; each node's ``meta["val"]`` says what it gives.
        constants: Which placeholders, by their place, always have the same values.
        outputs: Whether the model's outputs are wanted; without, only what is unsupported is found out.
        share: Whether results that share memory in PyTorch are to share it.

    Returns:
        The model. Its `proto` is of no use where `unsupported` names nodes.
    """
    with sizes.undecided(graph):
        return _Importer(graph, frozenset(constants), share).run(outputs)


class _Importer:
    def __init__(self, graph: fx.Graph, constants: frozenset[int], share: bool) -> None:
        self.graph = graph
        self.share = share
        self.builder = Builder()
        self.values: dict[fx.Node, Any] = {}
        self.places: dict[fx.Node, int] = {}
        self.constant_places = constants
        self.inputs: list[Input] = []
        self.constants: list[Constant] = []
        self.infos: dict[str, ValueInfoProto] = {}
        self.unsupported: dict[fx.Node, str] = {}
        self.finders = sizes.finders(graph)
        self.makers: dict[fx.Node, fx.Node] = {}
        self.made: dict[fx.Node, Output] = {}

    def run(self, outputs: bool) -> Imported:
        found: list[Output] = []
        for node in self.graph.nodes:
            if node.op == "placeholder":
                self.places[node] = len(self.places)
        self._placeholders()
        for node in self.graph.nodes:
            if node.op == "get_attr":
                self._attribute(node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output" and outputs and not self.unsupported:
                found = self._outputs(node)
        proto = self._model(found)
        return Imported(proto, self.inputs, self.constants, found, self.unsupported)

    # ---- what comes in

    def _placeholders(self) -> None:
        scalars = []
        for node, place in self.places.items():
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                self._tensor_input(node, place, value)
            elif sizes.is_size(value):
                self.values[node] = value
                expr = sizes.expression(value)
                if not isinstance(expr, int) and expr.is_Symbol:
                    scalars.append((expr, node, place))
            else:
                self.values[node] = value
        for expr, node, place in scalars:
            if expr not in self.builder.sources and node.users:
                self.inputs.append(Input(node.name, place, INT64, is_size=True))
                self.infos[node.name] = value_info(node.name, INT64, (1,))
                self.builder.sources[expr] = Value(node.name, INT64, (1,))

    def _tensor_input(self, node: fx.Node, place: int, fake: Any) -> None:
        if fake.dtype not in ONNX_TYPES or fake.layout != torch.strided:
            self.unsupported[node] = f"tensors of {fake.dtype}, {fake.layout}"
            return
        shape = tuple(fake.shape)
        value = Value(node.name, fake.dtype, shape)
        if place in self.constant_places:
            self.constants.append(Constant(node.name, place))
            self.builder.fixed.add(node.name)
            self.values[node] = value
            return
        order = memory_order(fake)
        if order is None:
            self.infos[node.name] = value_info(node.name, fake.dtype, shape)
            self.values[node] = value
        else:
            self.builder.begin(f"{node.name}.shape")
            raw = Value(f"{node.name}.raw", fake.dtype, tuple(shape[axis] for axis in order))
            self.infos[raw.name] = value_info(raw.name, fake.dtype, raw.shape)
            self.values[node] = self.builder.transpose(raw, [order.index(axis) for axis in range(len(order))])
            value = raw
        self.inputs.append(Input(value.name, place, fake.dtype, order))
        self._sources(value)

    def _sources(self, value: Value) -> None:
        """The symbols among the sizes of an input."""
        for axis, size in enumerate(value.shape):
            expr = sizes.expression(size)
            if isinstance(expr, int) or not expr.is_Symbol or expr in self.builder.sources:
                continue
            self.builder.begin(f"size.{expr}")
            shape = self.builder.emit("Shape", value, dtype=INT64, shape=(1,), start=axis, end=axis + 1)
            self.builder.sources[expr] = shape

    def _attribute(self, node: fx.Node) -> None:
        owner: Any = self.graph.owning_module
        for part in str(node.target).split("."):
            owner = getattr(owner, part)
        if not isinstance(owner, torch.Tensor) or owner.dtype not in ONNX_TYPES:
            self.unsupported[node] = f"an attribute of type {type(owner).__name__}"
            return
        self.constants.append(Constant(node.name, -1, owner))
        self.builder.fixed.add(node.name)
        self.values[node] = Value(node.name, owner.dtype, tuple(owner.shape))

    # ---- nodes

    def _call(self, node: fx.Node) -> None:
        out = node.meta.get("val")
        if sizes.is_number(out) or operator_name(node.target) in FIXED or _checks_sizes(node):
            self.values[node] = out
            return
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            source = self.values.get(node.args[0])
            if isinstance(source, tuple) and source[node.args[1]] is not None:
                self.values[node] = source[node.args[1]]
            else:
                self.unsupported[node] = self.unsupported.get(node.args[0], "a result that its operator does not give here")
            return
        before = len(self.builder.nodes)
        try:
            self.values[node] = self._expressed(node, out)
        except Unsupported as reason:
            self.builder.rollback(before)
            self.unsupported[node] = str(reason)
            self.values[node] = _as_if(node, out)

    def _expressed(self, node: fx.Node, out: Any) -> Any:
        name = operator_name(node.target)
        rule = _rule(name, out)
        used = {user.args[1] for user in node.users if user.target is operator.getitem}
        self.builder.begin(node.name, name, node, used)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._argument)
        for value in _tensors((args, kwargs)):
            if value.dtype not in ONNX_TYPES:
                raise Unsupported(f"tensors of {value.dtype}")
        try:
            result = rule(self.builder, *args, **kwargs)
        except Unsupported:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise Unsupported(f"arguments that the rule of {name} does not know: {type(error).__name__}: {reason}") from error
        if isinstance(result, Value):
            return Value(result.name, out.dtype, tuple(out.shape))
        return tuple(None if v is None else Value(v.name, fake.dtype, tuple(fake.shape)) for v, fake in zip(result, out, strict=False))

    def _argument(self, node: fx.Node) -> Any:
        if node not in self.values:
            raise Unsupported("what it reads is not supported")
        return self.values[node]

    # ---- what goes out

    def _outputs(self, node: fx.Node) -> list[Output]:
        given = node.args[0]
        if self.share:
            self.makers = makers_of_shared(self.graph)
        try:
            return [self._output(value, k) for k, value in enumerate(given if isinstance(given, tuple | list) else [given])]
        except Unsupported as reason:
            self.unsupported[node] = str(reason)
            return []

    def _output(self, value: Any, number: int) -> Output:
        if not isinstance(value, fx.Node):
            return Output(number=lambda args: value)
        if value in self.places:
            return Output(place=self.places[value])
        if value in self.makers:
            return self._shared(value, number)
        known = self.values[value]
        if sizes.is_number(known):
            if not sizes.is_size(known):
                raise Unsupported("a result that is a fraction or a truth value of sizes")
            return Output(number=sizes.function(sizes.expression(known), self.finders))
        return self._tensor_output(value, number)

    def _tensor_output(self, value: fx.Node, number: int) -> Output:
        known = self.values[value]
        assert isinstance(known, Value)
        order = memory_order(value.meta["val"])
        self.builder.begin(f"{value.name}.result{number}")
        result = known if order is None else self.builder.transpose(known, order)
        if result.name in self.infos or result.name not in self.builder.made:  # an input or a constant, or an output already
            result = self.builder.emit("Identity", result, shape=result.shape)
        shape = known.shape if order is None else tuple(known.shape[axis] for axis in order)
        self.infos[result.name] = value_info(result.name, known.dtype, shape)
        return Output(result.name, order)

    def _shared(self, value: fx.Node, number: int) -> Output:
        """A result that shares memory with others, or with an input."""
        maker, fake = self.makers[value], value.meta["val"]
        begin = fake.storage_offset()
        if maker in self.places:
            begin = begin - maker.meta["val"].storage_offset()
            output = Output(place=self.places[maker])
        else:
            if maker not in self.made:
                self.made[maker] = self._tensor_output(maker, number)
            output = self.made[maker]
        offset = sizes.function(sizes.expression(begin), self.finders)
        return replace(output, view=View(self._numbers(fake.shape), self._numbers(fake.stride()), offset))

    def _numbers(self, given: Sequence[Any]) -> Callable[[Any], tuple[int, ...]]:
        """Sizes as a function of the call's arguments."""
        expressions = [sizes.expression(n) for n in given]
        if all(isinstance(each, int) for each in expressions):
            return lambda args: tuple(expressions)
        parts = [sizes.function(each, self.finders) for each in expressions]
        return lambda args: tuple([part(args) for part in parts])

    def _model(self, outputs: Sequence[Output]) -> ModelProto:
        proto = ModelProto(ir_version=IR_VERSION, producer_name="aspen-mp")
        proto.opset_import.add(domain="", version=OPSET)
        graph = proto.graph
        graph.name = "torch"
        if self.unsupported:
            return proto
        graph.node.extend(_needed(self.builder.nodes, {output.name for output in outputs}))
        graph.input.extend(self.infos[item.name] for item in self.inputs)
        graph.output.extend(self.infos[output.name] for output in outputs if output.name)
        read = {name for node in graph.node for name in node.input}
        self.constants = [constant for constant in self.constants if constant.name in read]
        for name, array in self.builder.constants.items():
            if name in read:
                code = next(ONNX_TYPES[t] for t, dtype in NUMPY_TYPES.items() if dtype == array.dtype)
                graph.initializer.append(TensorProto(name=name, data_type=code, dims=array.shape, raw_data=array.tobytes()))
        return proto


def _checks_sizes(node: fx.Node) -> bool:
    """Whether a node is a check of what follows from the sizes of inputs alone."""
    if operator_name(node.target) != ASSERTION:
        return False
    given = node.args[0]
    checked = given.meta.get("val") if isinstance(given, fx.Node) else given
    return sizes.is_number(checked) and not free_unbacked_symbols(checked)


def _rule(name: str, out: Any) -> Rule:
    rule = RULES.get(name)
    if rule is None:
        raise Unsupported(REFUSED.get(name, f"there is no rule for {name}"))
    for value in out if isinstance(out, tuple | list) else [out]:
        if isinstance(value, torch.Tensor) and value.dtype not in ONNX_TYPES:
            raise Unsupported(f"results of {value.dtype}")
        if value is not None and not isinstance(value, torch.Tensor):
            raise Unsupported("results that are no tensors")
    return rule


def _tensors(arguments: Any) -> list[Value]:
    found: list[Value] = []

    def look(value: Any) -> None:
        if isinstance(value, Value):
            found.append(value)
        elif isinstance(value, tuple | list):
            for item in value:
                look(item)
        elif isinstance(value, dict):
            for item in value.values():
                look(item)

    look(arguments)
    return found


def _as_if(node: fx.Node, out: Any) -> Any:
    """What an unsupported node gives, so that the nodes behind it can be looked at."""
    if isinstance(out, torch.Tensor):
        return Value(node.name, out.dtype, tuple(out.shape))
    if isinstance(out, tuple | list):
        return tuple(Value(f"{node.name}.{k}", v.dtype, tuple(v.shape)) if isinstance(v, torch.Tensor) else None for k, v in enumerate(out))
    return out


def makers_of_shared(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Of each result that is a view, the input or the node that has made its memory: of an input, of another result, of fewer elements.

    PyTorch makes views of inputs anew. Where sizes vary, it takes the strides of what it gets.
    """
    makers: dict[int, fx.Node] = {}
    for node in graph.nodes:
        if (memory := memory_of(node)) is not None:
            makers.setdefault(memory, node)
        elif node.op == "output":
            results = [(result, memory_of(result)) for result in pytree.tree_leaves(node.args[0]) if isinstance(result, fx.Node)]
    times = Counter(memory for _, memory in results)
    found = {}
    for result, memory in results:
        maker = None if memory is None else makers[memory]
        if maker is None or maker.meta["val"].dtype != result.meta["val"].dtype:
            continue
        computed = maker.op == "call_function" and _is_whole(maker.meta["val"])
        if (maker.op == "placeholder" and result is not maker) or (computed and (times[memory] > 1 or _repeats(result.meta["val"]))):
            found[result] = maker
    return found


def _repeats(fake: Any) -> bool:
    """Whether a tensor has elements of its memory several times."""
    return any(sizes.same(stride, 0) and not sizes.same(n, 1) for stride, n in zip(fake.stride(), fake.shape, strict=True))


def memory_of(node: fx.Node) -> int | None:
    """A number for the memory of a node's tensor; None where it gives none."""
    fake = node.meta.get("val")
    if not isinstance(fake, torch.Tensor) or fake.layout != torch.strided:
        return None
    return int(fake.untyped_storage()._cdata)


def _is_whole(fake: Any) -> bool:
    """Whether a tensor has every element of its memory once, in some order of its axes."""
    if sizes.hint(fake.storage_offset()):
        return False
    expected = 1
    for stride, n in sorted(zip(map(sizes.hint, fake.stride()), map(sizes.hint, fake.shape), strict=True)):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return expected > 0


def memory_order(fake: Any) -> tuple[int, ...] | None:
    """The axes of a tensor from the outermost in memory to the innermost; None for the usual order, and where elements share memory."""
    moving = [axis for axis, n in enumerate(fake.shape) if sizes.hint(n) != 1]
    strides = [sizes.hint(n) for n in fake.stride()]
    if any(sizes.hint(n) == 0 for n in fake.shape) or any(strides[axis] == 0 for axis in moving):
        return None
    order = sorted(range(fake.dim()), key=lambda axis: (-strides[axis], axis))
    return None if [axis for axis in order if axis in moving] == moving else tuple(order)


def value_info(name: str, dtype: Any, shape: Sequence[Any]) -> ValueInfoProto:
    """The type and shape of a value, as a model says it of its inputs and outputs."""
    info = ValueInfoProto(name=name)
    kind = info.type.tensor_type
    kind.elem_type = ONNX_TYPES[dtype]
    kind.shape.SetInParent()
    for size in shape:
        plain = sizes.plain(size)
        if isinstance(plain, int):
            kind.shape.dim.add(dim_value=plain)
        else:
            kind.shape.dim.add(dim_param=str(sizes.expression(plain)))
    return info


def _needed(nodes: Sequence[Any], outputs: Collection[str]) -> list[Any]:
    """Nodes that outputs depend on, in order."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if any(name in wanted for name in node.output):
            wanted.update(node.input)
            kept.append(node)
    return kept[::-1]
