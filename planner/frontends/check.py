"""Checks a model before anything is planned. ONNX's own checker and shape inference do most of it. They let some faults pass: negative
dimensions, raw data of the wrong length, strides of 0, invalid permutations. Those are checked here first, with messages that name node and
tensor."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf, prod
from typing import Any, Final

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, defs, helper

from aspen_mp.planner.frontends import contrib, own_shapes, scalars, tensors
from aspen_mp.planner.frontends.functions import MOST_DEEP, expanded, subgraphs
from aspen_mp.planner.frontends.runnable import Nested, why_not
from aspen_mp.planner.frontends.said import explained, refusal
from aspen_mp.planner.frontends.wire import MAX_NODES, REFERENCE
from aspen_mp.planner.ir.graph import Tensor
from aspen_mp.shm.errors import ModelInvalidError, ModelParseError, ResourceLimitError, UnsupportedModelError

_MAX_EXTENT = 2**31 - 1
_FEW_INDICES = 4096
_LONGEST_SHAPE = 1 << 20
_MOST_SAMPLES = 1 << 10  # in each direction of a bin: more than any image has pixels there, and each of them costs memory
_MOST_SKIPPED = 1 << 16  # words between those of an n-gram: every number of them up to this one is tried
_WITH_SCHEMAS = ("ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "ai.onnx.preview")
_CONVOLUTIONS = ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv")
_POOLS = ("MaxPool", "AveragePool", "LpPool", "MaxUnpool", "MaxRoiPool")


def _positive(value: int) -> bool:
    return 0 < value <= _MAX_EXTENT


def _not_negative(value: int) -> bool:
    return 0 <= value <= _MAX_EXTENT


def _up_to(most: int) -> Callable[[int], bool]:
    return lambda value: 0 <= value <= most


def _one_of(*values: int) -> Callable[[int], bool]:
    return frozenset(values).__contains__


_WINDOW: dict[str, Callable[[int], bool]] = {
    "strides": _positive,
    "dilations": _positive,
    "kernel_shape": _positive,
    "pads": _not_negative,
    "output_padding": _not_negative,
    "group": _positive,
    "ceil_mode": _one_of(0, 1),
}
_RANGES: dict[str, dict[str, Callable[[int], bool]]] = {
    **dict.fromkeys(_CONVOLUTIONS + _POOLS, _WINDOW),
    "LRN": {"size": _positive},
    "RoiAlign": {"sampling_ratio": _up_to(_MOST_SAMPLES), "output_height": _positive, "output_width": _positive},
    "TfIdfVectorizer": {"max_skip_count": _up_to(_MOST_SKIPPED), "min_gram_length": _positive, "max_gram_length": _positive},
    **{op: {"periodic": _one_of(0, 1)} for op in ("BlackmanWindow", "HammingWindow", "HannWindow")},
    "Attention": {
        "qk_matmul_output_mode": _one_of(0, 1, 2, 3),
        "left_window_size": lambda v: v >= -1,
        "right_window_size": lambda v: v >= -1,
        "softmax_precision": _one_of(TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16),
    },
}
"""Valid integer attributes, by operator: sizes, steps and groups are positive, pads are not negative, choices are among the known ones."""
_ANYWHERE: dict[str, Callable[[int], bool]] = {"axis": lambda v: -_MAX_EXTENT <= v <= _MAX_EXTENT}
_BOUNDS = {op: {**_ANYWHERE, **bounds} for op, bounds in _RANGES.items()}
_BFLOAT16 = "tensor(bfloat16)"


@lru_cache(maxsize=4096)
def schema(op: str, version: int, domain: str) -> defs.OpSchema | None:
    """The definition of an operator at an opset version, or None."""
    try:
        found = defs.get_schema(op, version, domain)
    except defs.SchemaError:
        return None
    return None if found.deprecated else found


@lru_cache(maxsize=1024)
def taking_bfloat16(op: str, version: int) -> defs.OpSchema | None:
    """The definition of an operator of the default domain, or the first later one that takes bfloat16 and is otherwise the same. PyTorch
    gives operators values of that type whatever the opset."""
    found = schema(op, version, "")
    for later in range(version, defs.onnx_opset_version() + 1):
        other = schema(op, later, "")
        if other is None or found is None or other.attributes.keys() != found.attributes.keys() or len(other.inputs) != len(found.inputs):
            break
        if any(_BFLOAT16 in constraint.allowed_type_strs for constraint in other.type_constraints):
            return other
    return found


def domain_of(node: NodeProto) -> str:
    domain: str = node.domain
    return "" if domain == "ai.onnx" else domain


def name_of(node: NodeProto) -> str:
    """How messages call a node."""
    return f"node {node.name!r} ({node.op_type})" if node.name else f"node {node.op_type} → {', '.join(map(repr, node.output))}"


def structure(proto: ModelProto, store: tensors.Store, functions: Mapping[tuple[str, str, str], FunctionProto]) -> None:
    """Opsets, operators, constants and attributes.

    Raises ModelInvalidError, UnsupportedModelError (all nodes at once), ExternalDataError.
    """
    _opsets(proto)
    if functions:
        _expansion(proto.graph, functions)
    unknown: list[str] = []
    scopes: list[tuple[Any, Any]] = [(proto.graph.node, proto.opset_import)]
    scopes += [(f.node, f.opset_import) for f in proto.functions]
    for nodes, imports in scopes:
        versions = {o.domain: o.version for o in imports}
        for node, nested in _all_nodes(nodes):
            domain = domain_of(node)
            known = (domain, node.op_type, node.overload) in functions
            if not known and (reason := why_not(node, domain, versions.get(domain, 1), nested)):
                unknown.append(f"{name_of(node)} {reason}")
            elif not known and (domain not in versions or (domain != contrib.DOMAIN and _undefined(node, versions[domain], domain))):
                unknown.append(f"{name_of(node)}: {_absent(node, domain, versions.get(domain))}")
            if node.attribute:
                _attributes(node, store)
    if unknown:
        more = "" if len(unknown) <= 50 else f"\n  … and {len(unknown) - 50} more"
        raise UnsupportedModelError("the model has operators that cannot be run:\n  " + "\n  ".join(unknown[:50]) + more)
    _graph(proto.graph, store)


def _expansion(graph: GraphProto, functions: Mapping[tuple[str, str, str], FunctionProto]) -> None:
    """Functions that become too many nodes are refused before ONNX's library or anybody else puts their bodies in place."""
    total = 0.0
    for node, n in expanded(graph.node, functions):
        total += n
        if n == inf:
            raise ModelInvalidError(f"{name_of(node)}: functions call each other in a circle, or more than {MOST_DEEP} deep")
        if total > MAX_NODES:
            raise ResourceLimitError(
                f"{name_of(node)}: with the bodies of functions in their places the model has more than {MAX_NODES} nodes, "
                f"of which this one becomes {n}. Export the model with fewer functions, or in parts"
            )


def _undefined(node: NodeProto, version: int, domain: str) -> bool:
    return schema(node.op_type, version, domain) is None


def _absent(node: NodeProto, domain: str, version: int | None) -> str:
    what = f"no operator {domain + '.' if domain else ''}{node.op_type}"
    if version is None:
        return f"{what}: the model does not say which version of the domain {domain!r} it uses. Export it again"
    if domain not in {"", *_WITH_SCHEMAS}:
        return f"{what} in opset {version}: custom operators must be functions of the model, or be computed outside it"
    later = schema(node.op_type, defs.onnx_opset_version(), domain) if domain == "" else None
    advice = (
        f"it exists since opset {later.since_version}, so export the model with that" if later is not None else "export the model again"
    )
    return f"{what} in opset {version}: {advice}"


def _text(names: Iterable[object]) -> None:
    """The protobuf library hands out bytes where a string is not valid UTF-8."""
    for name in names:
        if type(name) is not str:
            raise ModelParseError(f"not an ONNX model: the name {name!r} is not valid UTF-8")


def texts(proto: ModelProto) -> None:
    """ModelParseError where a name is not valid UTF-8."""
    graph = proto.graph
    names: list[object] = [graph.name, *(v.name for v in (*graph.input, *graph.output, *graph.value_info, *graph.initializer))]
    names += (d.dim_param for v in (*graph.input, *graph.output) for d in v.type.tensor_type.shape.dim)
    for nodes in (graph.node, *(function.node for function in proto.functions)):
        for node in all_nodes(nodes):
            names += (node.name, node.op_type, node.domain)
            names += node.input
            names += node.output
    _text(names)


def _opsets(proto: ModelProto) -> None:
    for entry in (*proto.opset_import, *(entry for function in proto.functions for entry in function.opset_import)):
        if entry.domain == "" and entry.version > defs.onnx_opset_version():
            raise UnsupportedModelError(
                f"opset {entry.version} is above {defs.onnx_opset_version()}, the latest of onnx {onnx.__version__}. Install a newer one"
            )


def all_nodes(nodes: Any) -> Iterator[NodeProto]:
    """Nodes of a list and of the sub-graphs in them."""
    for node in nodes:
        yield node
        if node.attribute:
            for graph in subgraphs(node):
                yield from all_nodes(graph.node)


def _all_nodes(nodes: Any, nested: Nested = "") -> Iterator[tuple[NodeProto, Nested]]:
    """All nodes, and the kind of sub-graph that they are in."""
    for node in nodes:
        yield node, nested
        if not node.attribute:
            continue
        inside: Nested = "branch" if node.op_type == "If" and nested != "body" else "body"
        for graph in subgraphs(node):
            yield from _all_nodes(graph.node, inside)


def _graph(graph: GraphProto, store: tensors.Store) -> None:
    """The graph's own lists: constants, inputs, outputs."""
    for tensor in graph.initializer:
        constant(tensor, store)
    for value in (*graph.input, *graph.output):
        _known_type(value)
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value < -1:
                raise ModelInvalidError(f"tensor {value.name!r}: negative dimension {dim.dim_value}")


def _known_type(value: ValueInfoProto) -> None:
    elem = value.type.tensor_type.elem_type
    if elem:  # of an output it may be missing, shape inference finds it
        try:
            tensors.numpy_dtype(elem)
        except (KeyError, TypeError, ValueError):
            raise UnsupportedModelError(f"tensor {value.name!r}: unknown element type {elem}") from None


def constant(tensor: TensorProto, store: tensors.Store) -> None:
    """Shape, element type and length of the data of a constant, without reading them."""
    shape, need = tensors.shape_of(tensor), 0
    dtype = tensors.dtype_of(tensor)
    if dtype == tensors.OBJECT:
        return
    need = tensors.stored_bytes(tensor)
    if tensor.data_location == TensorProto.EXTERNAL:
        entries = tensors.entries_of(tensor)
        if entries.get("location") != REFERENCE:
            store.array(tensor)  # a view: opens the file and compares lengths
            return
        span = store.span(tensor, entries)
        have = need if isinstance(span, TensorProto) else len(span)
    elif tensor.HasField("raw_data"):
        have = len(tensor.raw_data)
    else:
        return
    if have != need:
        raise ModelInvalidError(f"{tensors.describe(tensor)}: {have} bytes of data, but shape {list(shape)} of {dtype} needs {need}")


def _attributes(node: NodeProto, store: tensors.Store) -> None:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            try:
                constant(attribute.t, store)
            except ModelInvalidError as error:
                raise ModelInvalidError(f"{name_of(node)}: {error}") from None
        if attribute.HasField("g"):
            _graph(attribute.g, store)
    if domain_of(node) == "":
        _ranges(node)
    if node.op_type == "Transpose":
        perm = _ints(node, "perm")
        if perm is not None and sorted(perm) != list(range(len(perm))):
            raise ModelInvalidError(f"{name_of(node)}: perm {perm} of tensor {node.input[0]!r} is not a permutation")
    elif node.op_type == "TfIdfVectorizer":
        counts = _ints(node, "ngram_counts") or []
        pool = sum(len(a.ints) + len(a.strings) for a in node.attribute if a.name in {"pool_int64s", "pool_strings"})
        if counts != sorted(counts) or not all(0 <= n <= pool for n in counts):
            raise ModelInvalidError(f"{name_of(node)}: ngram_counts {counts} do not divide a pool of {pool}")


def _ints(node: NodeProto, name: str) -> list[int] | None:
    for attribute in node.attribute:
        if attribute.name == name and not attribute.ref_attr_name:
            if attribute.type not in {AttributeProto.INTS, AttributeProto.INT}:
                raise ModelInvalidError(
                    f"{name_of(node)}: attribute {name!r} has type {AttributeProto.AttributeType.Name(attribute.type)}, not INTS"
                )
            return list(attribute.ints) if attribute.type == AttributeProto.INTS else [attribute.i]
    return None


def _ranges(node: NodeProto) -> None:
    """Integers that no rule of ONNX's own bounds, or where its library does not survive others (an axis beyond 32 bits)."""
    for name, good in _BOUNDS.get(node.op_type, _ANYWHERE).items():
        values = _ints(node, name)
        if values is not None and not all(map(good, values)):
            tensor = f" on tensor {node.input[0]!r}" if node.input else ""
            raise ModelInvalidError(f"{name_of(node)}: {name} = {values[0] if len(values) == 1 else values}{tensor} is out of range")


def onnx_rules(light: ModelProto) -> None:
    """ONNX's checker. Raises ModelInvalidError.

    Inputs and outputs of unknown rank and outputs of no type pass. Exporters and people write them; inference finds the type and binding
    the rank. Versions of operators in functions are the functions' own.
    """
    if any(_unranked(v) for v in light.graph.input) or any(_unranked(v) or _untyped(v) for v in light.graph.output):
        copy = ModelProto()
        copy.CopyFrom(light)
        light = copy
        for value in light.graph.output:
            if _untyped(value):
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        for value in (*light.graph.input, *light.graph.output):
            if _unranked(value):
                value.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(light, skip_opset_compatibility_check=True)
    except onnx.checker.ValidationError as error:
        raise refusal(error, light) from None


def _unranked(value: ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")


def _untyped(value: ValueInfoProto) -> bool:
    return value.type.WhichOneof("value") is None


WINDOWED_POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})
_NO_EMPTY_WINDOWS: Final = 22
"""Opset from which on inference leaves out windows of pools that hold nothing but padding, as ONNX's reference and runtimes always do."""
_AXES_FROM_THE_END: Final = 11
"""Opset from which on inference of Squeeze and Unsqueeze counts negative axes from the end; before, it forgets them."""
_LATER: Final = "aspen.later"
"""Domain of functions that hold nodes of a later opset than the model's."""
_HIDDEN: Final = "aspen.hidden"
"""Domain of nodes of which nothing is known."""


def inference_opset(node: NodeProto, version: int) -> int:
    """The opset by whose rules the shapes of a node of the default domain are inferred. It is later than the model's where that has rules
    that are wrong for this node."""
    if node.op_type in WINDOWED_POOLS and any(a.name == "ceil_mode" and a.i for a in node.attribute):
        return max(version, _NO_EMPTY_WINDOWS)  # its last window may be cut off
    if node.op_type in {"Squeeze", "Unsqueeze"} and any(a.name == "axes" and min(a.ints, default=0) < 0 for a in node.attribute):
        return max(version, _AXES_FROM_THE_END)
    return version


def _with_later_nodes(light: ModelProto) -> ModelProto:
    """The model with nodes that a later opset's inference is right for in functions of that opset. Itself where it has none."""
    version = next((o.version for o in light.opset_import if o.domain in {"", "ai.onnx"}), 1)

    def later(node: NodeProto) -> bool:
        return bool(node.attribute) and domain_of(node) == "" and inference_opset(node, version) > version

    if not any(map(later, all_nodes(light.graph.node))):
        return light
    copy = ModelProto()
    copy.CopyFrom(light)
    for node in list(filter(later, all_nodes(copy.graph.node))):
        inputs, outputs = ([f"{kind}{k}" for k in range(len(names))] for kind, names in (("x", node.input), ("y", node.output)))
        body = NodeProto()
        body.CopyFrom(node)
        body.input[:], body.output[:] = inputs, outputs
        opset = helper.make_opsetid("", inference_opset(node, version))
        node.op_type, node.domain = f"{node.op_type}{len(copy.functions)}", _LATER
        del node.attribute[:]
        copy.functions.append(helper.make_function(_LATER, node.op_type, inputs, outputs, [body], [opset]))
    copy.opset_import.append(helper.make_opsetid(_LATER, 1))
    return copy


def _without_own(light: ModelProto) -> ModelProto | None:
    """The model with the nodes hidden whose shapes binding finds itself; None where it has none."""
    copy = ModelProto()
    copy.CopyFrom(light)
    names = own_shapes.NAMES | scalars.INPUTS.keys()
    hidden = [node for node in all_nodes(copy.graph.node) if domain_of(node) == "" and node.op_type in names]
    for node in hidden:
        node.domain = _HIDDEN
    copy.opset_import.append(helper.make_opsetid(_HIDDEN, 1))
    return copy if hidden else None


def infer(light: ModelProto, *, outputs: bool = False) -> ModelProto:
    """ONNX's shape inference over the whole model, strict. `outputs`: the caller looks at the outputs alone. Raises ModelInvalidError."""
    light = _with_later_nodes(light)
    try:
        return _inferred(light, outputs, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        # A declared shape that differs from the inferred one does not stop a model: declarations may be sloppy, inferences wrong (STFT).
        if (
            "Inferred shape and existing shape differ" in str(error)
            or _of_unknown_length(str(error))
            or _in_function_body(light, str(error))
            or _old_constant(str(error))
            or f"has unsupported type: {_BFLOAT16}" in str(error)  # see `taking_bfloat16`
            or _other_floats(str(error))
        ):
            return _leniently(light, outputs)
        others = _without_own(light)  # results of shapes that ONNX's inference gets wrong may not fit
        if others is not None:
            try:
                return _inferred(others, outputs, check_type=True, strict_mode=True)
            except onnx.shape_inference.InferenceError as still:
                error = still
        raise refusal(error, light) from None
    except (RuntimeError, ValueError, IndexError) as error:  # models that the C++ library lets through
        raise ModelInvalidError(f"shape inference fails: {explained(str(error))}") from None


def _leniently(light: ModelProto, outputs: bool) -> ModelProto:
    """The result of an inference that may leave out nodes that it does not understand."""
    try:
        return _inferred(light, outputs)
    except onnx.shape_inference.InferenceError as error:
        raise refusal(error, light) from None


def _inferred(light: ModelProto, outputs: bool, **how: bool) -> ModelProto:
    """With the values of shape arithmetic, unless some vector is too long or nothing is left to be found: without them first, to see.

    ONNX propagates values without their axes, as if all were vectors, and refuses those that fit together as columns and rows. Real faults
    of shapes have been found by then, without values."""
    found = onnx.shape_inference.infer_shapes(light, **how)
    if all(map(_known_shape, found.graph.output)) and (outputs or all(map(_known_shape, found.graph.value_info))):
        return found
    if not _few_values(found.graph):
        return found
    try:
        return onnx.shape_inference.infer_shapes(light, **how, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return found


def _known_shape(value: ValueInfoProto) -> bool:
    """Whether nothing remains to be found of a value's shape."""
    tensor = value.type.tensor_type
    return tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)


def _few_values(graph: GraphProto) -> bool:
    """Whether values may be propagated: ONNX keeps a record of each element of every vector, whatever its type and however long."""
    declared = [v.type.tensor_type for v in (*graph.input, *graph.value_info, *graph.output)]
    lengths = [t.shape.dim[0].dim_value for t in declared if len(t.shape.dim) == 1]
    lengths += [t.dims[0] for t in graph.initializer if len(t.dims) == 1]
    return max(lengths, default=0) <= _LONGEST_SHAPE


def _of_unknown_length(message: str) -> bool:
    """Whether inference failed because it takes the length of a vector that it does not know for 0 (sizes and scales of Resize)."""
    return re.search(r"Number of elements of input '\w+' \(0\)", message) is not None


def _old_constant(message: str) -> bool:
    """Whether inference failed because a Constant of before opset 9 holds integers, which exporters wrote long before ONNX said so."""
    return re.search(r"\(op_type: ?Constant\b.*has unsupported type", message) is not None


def _other_floats(message: str) -> bool:
    """Whether inference failed because an operator that has a rule for it gets other floats than ONNX's definition takes."""
    found = re.search(r"\(op_type: ?(\w+).*has unsupported type: tensor\((float16|double)\)", message)
    return found is not None and found[1] in contrib.OF_ANY_FLOAT


def _in_function_body(light: ModelProto, message: str) -> bool:
    """Whether inference failed inside an operator that ONNX defines by a function alone. Some of ONNX's own bodies fail
    (MeanVarianceNormalization with its axes left out); binding to shapes finds real errors there."""
    version = next((o.version for o in light.opset_import if o.domain == ""), 1)
    found = [schema(op, version, "") for op in re.findall(r"\(op_type: ?(\w+)", message)]
    return any(one is not None and not one.has_type_and_shape_inference_function for one in found)


_BIASED = {"Conv": 2, "ConvTranspose": 2, "DeformConv": 3, "QLinearConv": 8}
"""The input of a convolution that has a number for each channel of the output."""
_WEIGHTED = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}
"""The input of a convolution that has its weights."""
CHECKED = frozenset({"Reshape", "Gather", *_BIASED, *_WEIGHTED, *WINDOWED_POOLS})


def _bias(node: NodeProto, inputs: Sequence[Tensor | None], output: tuple[int, ...]) -> None:
    at = _BIASED[node.op_type]
    bias = inputs[at] if at < len(inputs) else None
    if bias is not None and bias.shape != output[1:2]:
        raise ModelInvalidError(
            f"{name_of(node)}: bias {node.input[at]!r} has shape {list(bias.shape)}, but {node.output[0]!r} has {output[1]} channels"
        )


def _pool(node: NodeProto, x: Tensor, output: tuple[int, ...], attrs: Mapping[str, Any]) -> None:
    """Windows that fit nowhere: where the output's length is rounded up, inference finds room for one too many (it rounds towards zero)."""
    kernel, n = list(attrs.get("kernel_shape") or []), len(x.shape) - 2
    pads = list(attrs.get("pads") or [0] * 2 * n)
    dilations, strides = (list(attrs.get(name) or [1] * n) for name in ("dilations", "strides"))
    if attrs.get("auto_pad", "NOTSET") != "NOTSET" or not len(kernel) == len(dilations) == len(strides) == len(pads) // 2 == n:
        return
    for axis, (size, before, after, step, stride) in enumerate(zip(kernel, pads[:n], pads[n:], dilations, strides, strict=True), 2):
        room = before + x.shape[axis] + after - (size - 1) * step - 1
        if (-(-room // stride) if attrs.get("ceil_mode") else room // stride) < 0 < output[axis]:
            raise ModelInvalidError(
                f"{name_of(node)}: its windows are longer than axis {axis} of {node.input[0]!r} of shape {list(x.shape)}"
            )


def operands(node: NodeProto, inputs: Sequence[Tensor | None], output: tuple[int, ...], attrs: Mapping[str, Any]) -> None:
    """Checks operands that shape inference does not compare: sizes of Reshape, channels of convolutions, windows of pools, constant
    indices. Raises ModelInvalidError."""
    x = inputs[0] if inputs else None
    second = inputs[1] if len(inputs) > 1 else None
    if x is not None and node.op_type in WINDOWED_POOLS:
        _pool(node, x, output, attrs)
    if x is None or second is None:
        return
    if node.op_type in _BIASED:
        _bias(node, inputs, output)
    if node.op_type == "Reshape":
        if prod(x.shape) != prod(output):
            raise ModelInvalidError(f"{name_of(node)}: {node.input[0]!r} of shape {list(x.shape)} cannot take shape {list(output)}")
    elif node.op_type in _WEIGHTED:
        at, groups = _WEIGHTED[node.op_type], int(attrs.get("group", 1))
        weights = inputs[at] if at < len(inputs) else None
        if weights is not None and (x.shape[1] != weights.shape[1] * groups or weights.shape[0] % groups):
            raise ModelInvalidError(
                f"{name_of(node)}: {node.input[0]!r} has {x.shape[1]} channels, "
                f"but weights {node.input[at]!r} of shape {list(weights.shape)} in {groups} groups take {weights.shape[1] * groups}"
            )
    elif node.op_type == "ConvTranspose":
        if x.shape[1] != second.shape[0] or x.shape[1] % int(attrs.get("group", 1)):
            raise ModelInvalidError(
                f"{name_of(node)}: {node.input[0]!r} has {x.shape[1]} channels, weights {node.input[1]!r} take {second.shape[0]}"
            )
    elif node.op_type == "Gather" and second.data is not None and second.size and second.size <= _FEW_INDICES:
        dim = x.shape[int(attrs.get("axis", 0))]
        if second.data.min() < -dim or second.data.max() >= dim:
            raise ModelInvalidError(f"{name_of(node)}: an index in {node.input[1]!r} is outside axis of {dim} of {node.input[0]!r}")
