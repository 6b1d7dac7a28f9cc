"""Modules compiled ahead: ONNX files that a runtime loads without PyTorch and without the module's code. `load.py` reads them.

What makes such a file a module again, for programs that have PyTorch, lies in its metadata: the structure of arguments and results.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import torch
from onnx import NodeProto, TensorProto
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from aspen_mp.shm.errors import UnsupportedModelError
from aspen_mp.torch import backend, decompositions, sizes, weights
from aspen_mp.torch.ahead.load import KEY
from aspen_mp.torch.builder import ONNX_TYPES
from aspen_mp.torch.explanation import source_of
from aspen_mp.torch.importer import Constant, Imported, Output, import_graph, operator_name, value_info
from aspen_mp.torch.layers import recurrent

MOST_INSIDE: Final = 1 << 30
"""Larger weights lie in a file beside the model: an ONNX file has at most 2 GiB."""
_SHOWN: Final = 8
"""So many operators that cannot be expressed are named in an error."""
_WORD: Final = re.compile(r"\w+")


def compile_ahead(module: nn.Module, inputs: Any, path: Path, dynamic: Mapping[str, Any] | None) -> None:
    """See `aspen_mp.torch.compile_ahead`."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"compile_ahead takes a torch.nn.Module, not {type(module).__name__}")
    if module.training:
        raise ValueError(f"module {type(module).__name__} is in training mode. Call module.eval() first")
    args, kwargs = _arguments(module, inputs)
    backend.check_devices([*module.parameters(), *module.buffers(), *pytree.tree_leaves((args, kwargs))])
    program = _exported(module, args, kwargs, dynamic or {})
    _refuse_changes(program, type(module).__name__)
    imported = import_graph(program.graph, _constants(program))
    if imported.unsupported and _computed(program, imported.unsupported):
        imported = import_graph(program.graph, _constants(program))
    _refuse_operators(imported, type(module).__name__)
    results = _named(imported, program, _symbols(program, module, (args, kwargs), dynamic or {}))
    imported.proto.graph.name = type(module).__name__
    imported.proto.metadata_props.add(key=KEY, value=json.dumps(_described(imported, program, results)))
    _write(path, imported, {constant.name: _tensor(program, constant) for constant in imported.constants})


# ---- from a module to a graph


def _arguments(module: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional arguments and those by name, these in the order of `forward`, with every tensor in the usual order of its elements."""
    plain = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().contiguous(), inputs)
    if isinstance(plain, Mapping):
        order = list(inspect.signature(module.forward).parameters)
        return (), dict(sorted(plain.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))
    return (tuple(plain) if isinstance(plain, tuple | list) else (plain,)), {}


def _exported(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Mapping[str, Any]) -> ExportedProgram:
    given = _by_name(module, args, kwargs)
    for name in dynamic:
        if name not in given:
            raise ValueError(f"dynamic names {name!r}, which is none of the arguments: {', '.join(given)}")
    shapes = {name: _dims(name, value, dynamic.get(name)) for name, value in given.items()}
    with torch.no_grad():
        with recurrent.whole:
            program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes if dynamic else None)
        return program.run_decompositions(decompositions.table())


def _by_name(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the names that `forward` has for them, `*args` and `**kwargs` each as one."""
    return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)


def _dims(name: str, value: Any, given: Any) -> Any:
    """The axes of an argument that vary, as `torch.export` wants them: in the structure of the argument, in place of its tensors."""
    if given is None:
        return pytree.tree_map(lambda _: None, value)
    if isinstance(value, torch.Tensor):
        for axis, label in given.items():
            if not 0 <= axis < value.dim():
                raise ValueError(f"dynamic: argument {name!r} has no axis {axis}, its shape is {tuple(value.shape)}")
            if value.shape[axis] < 2:  # PyTorch takes 0 and 1 for fixed: they broadcast
                raise ValueError(f"dynamic: axis {axis} ({label!r}) of {name!r} is {value.shape[axis]}. Give an example with 2 or more")
        return dict.fromkeys(given, Dim.DYNAMIC)
    if isinstance(value, Mapping):
        return {key: _dims(f"{name}[{key!r}]", item, given.get(key)) for key, item in value.items()}
    return type(value)(_dims(f"{name}[{k}]", item, part) for k, (item, part) in enumerate(zip(value, given, strict=True)))


def _constants(program: ExportedProgram) -> list[int]:
    """The places of parameters, buffers and constant tensors among the placeholders."""
    return [place for place, spec in enumerate(program.graph_signature.input_specs) if spec.kind != InputKind.USER_INPUT]


def _computed(program: ExportedProgram, unsupported: Collection[Any]) -> bool:
    """Computes operators that have no rule and follow from constants alone, such as embeddings of places that are resized for larger
    images: they become constants of the graph. Returns whether there are any."""
    places = set(_constants(program))
    values: dict[fx.Node, Any] = {}
    found = False
    for place, node in enumerate(list(program.graph.nodes)):
        if node.op == "placeholder" and place in places:
            target = program.graph_signature.input_specs[place].target
            values[node] = program.state_dict[target] if target in program.state_dict else program.constants[target]
        elif node.op == "get_attr":
            values[node] = attrgetter(node.target)(program.graph_module)
        elif node.op == "call_function" and all(argument in values for argument in node.all_input_nodes):
            random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            if random or not isinstance(node.meta.get("val"), torch.Tensor) or not node.all_input_nodes:
                continue
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            with torch.no_grad():
                values[node] = node.target(*args, **kwargs)
            if node in unsupported:
                _becomes_constant(program, node, values[node])
                found = True
    return found


def _becomes_constant(program: ExportedProgram, node: fx.Node, value: Any) -> None:
    name = f"computed_{node.name}"
    program.graph_module.register_buffer(name, value.detach().clone(), persistent=False)
    with program.graph.inserting_before(node):
        constant = program.graph.get_attr(name)
    constant.meta.update(node.meta)
    node.replace_all_uses_with(constant)
    program.graph.erase_node(node)


def _tensor(program: ExportedProgram, constant: Any) -> Any:
    if constant.tensor is not None:
        return constant.tensor
    target = program.graph_signature.input_specs[constant.place].target
    return program.state_dict[target] if target in program.state_dict else program.constants[target]


# ---- what is refused


def _refuse_changes(program: ExportedProgram, name: str) -> None:
    changed = [spec.target for spec in program.graph_signature.output_specs if spec.kind != OutputKind.USER_OUTPUT]
    if changed:
        raise UnsupportedModelError(
            f"model {name!r} changes {', '.join(map(str, changed))} at each call, and a file keeps no state. "
            "Make that an argument and a result, or use aspen_mp.optimize"
        )


def _refuse_operators(imported: Imported, name: str) -> None:
    if not imported.unsupported:
        return
    lines = [f"  {node.name} ({operator_name(node.target)}) {source_of(node)}: {why}" for node, why in imported.unsupported.items()]
    more = [f"  and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    raise UnsupportedModelError(
        "\n".join(
            [
                f"model {name!r} has operators that a file cannot express. Use aspen_mp.optimize, which leaves them to PyTorch:",
                *lines[:_SHOWN],
                *more,
            ]
        )
    )


# ---- names


def _symbols(program: ExportedProgram, module: nn.Module, given: tuple[Any, Any], dynamic: Mapping[str, Any]) -> dict[str, str]:
    """{symbol of PyTorch's: name of the dimension}."""
    found: dict[str, str] = {}
    holders = [node for node in program.graph.nodes if node.op == "placeholder"]
    specs = program.graph_signature.input_specs
    leaves = [node.meta.get("val") for node, spec in zip(holders, specs, strict=True) if spec.kind == InputKind.USER_INPUT]
    labels: dict[int, Any] = {}
    for name, value in _by_name(module, *given).items():
        _label(value, dynamic.get(name), labels)
    for fake, value in zip(leaves, pytree.tree_leaves(given), strict=True):
        for axis, label in labels.get(id(value), {}).items():
            expr = sizes.expression(fake.shape[axis])
            if not isinstance(expr, int) and expr.is_Symbol:
                found.setdefault(str(expr), label)
    return found


def _label(value: Any, given: Any, labels: dict[int, Any]) -> None:
    if given is None:
        return
    if isinstance(value, torch.Tensor):
        labels[id(value)] = given
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _label(item, given.get(key), labels)
    else:
        for item, part in zip(value, given, strict=True):
            _label(item, part, labels)


def output_names(program: ExportedProgram) -> list[str]:
    """A name for each result: its keys and attributes, joined; "output" and its place for what has none."""
    spec = program.call_spec.out_spec
    paths, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten([0] * spec.num_leaves, spec))
    names = []
    for path, _ in paths:
        parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path]
        named = bool(path) and not isinstance(path[0], pytree.SequenceKey)
        names.append("_".join(parts if named else ["output", *parts]))
    return names


def _named(imported: Imported, program: ExportedProgram, symbols: Mapping[str, str]) -> list[str]:
    """Gives the model a user's names for results and dimensions. Returns the names of results, "" for those that are no tensors."""
    graph = imported.proto.graph
    infos = {info.name: info for info in [*graph.input, *graph.output]}
    inputs = {item.place: item.name for item in imported.inputs} | _returned_constants(imported, program, infos)
    wanted: dict[str, str] = {}
    results: list[str] = []
    del graph.output[:]
    for name, output in zip(output_names(program), imported.outputs, strict=True):
        if output.number is not None or (output.place >= 0 and output.place not in inputs):  # a number, or None
            results.append("")
            continue
        made = graph.output.add()
        made.CopyFrom(infos[inputs[output.place] if output.place >= 0 else output.name])
        if output.place >= 0:
            made.name = f"{name}.given"
            graph.node.append(NodeProto(op_type="Identity", name=made.name, input=[inputs[output.place]], output=[made.name]))
        else:
            made.name = _usual(graph, output, made)
        wanted[made.name] = name
        results.append(made.name)
    names = _rename(graph, wanted)
    for info in [*graph.input, *graph.output]:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = _WORD.sub(lambda word: symbols.get(word[0], word[0]), dim.dim_param)
    return [names.get(result, result) for result in results]


def _returned_constants(imported: Imported, program: ExportedProgram, infos: dict[str, Any]) -> dict[int, str]:
    """Parameters that are results: the names of those that the file has for them, by their places."""
    holders = [node for node in program.graph.nodes if node.op == "placeholder"]
    places = {output.place for output in imported.outputs} & set(_constants(program))
    known = {constant.place for constant in imported.constants}
    for place in sorted(places):
        node, fake = holders[place], holders[place].meta["val"]
        infos[node.name] = value_info(node.name, fake.dtype, tuple(fake.shape))
        if place not in known:
            imported.constants.append(Constant(node.name, place))
    return {place: holders[place].name for place in places}


def _usual(graph: Any, output: Output, info: Any) -> str:
    """The name of a result with its axes in the usual order."""
    if output.order is None:
        return output.name
    back = [output.order.index(axis) for axis in range(len(output.order))]
    node = graph.node.add(op_type="Transpose", name=f"{output.name}.usual", input=[output.name], output=[f"{output.name}.usual"])
    attribute = node.attribute.add(name="perm", type=7)
    attribute.ints.extend(back)
    dims = [info.type.tensor_type.shape.dim[place] for place in back]
    shape = type(info.type.tensor_type.shape)(dim=dims)
    info.type.tensor_type.shape.CopyFrom(shape)
    return f"{output.name}.usual"


def _rename(graph: Any, wanted: Mapping[str, str]) -> dict[str, str]:
    """Gives values other names; those that have such a name already get another. Returns all new names."""
    fixed = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    taken = {value for node in graph.node for value in node.output} - set(wanted)
    names = {**{name: f"{name}.inner" for name in taken & set(wanted.values())}, **wanted}
    for old, new in wanted.items():
        if new in fixed:
            names[old] = f"{new}.result"
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for info in graph.output:
        info.name = names[info.name]
    return names


# ---- the file


def _described(imported: Imported, program: ExportedProgram, results: list[str]) -> dict[str, Any]:
    """What `load_ahead` needs to know, as JSON. A result is called by its name, or is a place among arguments or a number."""
    first = len(_constants(program))
    return {
        "inputs": [[item.name, item.place - first, str(item.dtype)] for item in imported.inputs],
        "fixed": _fixed(program, {item.place - first for item in imported.inputs}),
        "results": [[name, None if name else _number(output, first)] for name, output in zip(results, imported.outputs, strict=True)],
        "arguments": pytree.treespec_dumps(program.call_spec.in_spec),
        "structure": pytree.treespec_dumps(program.call_spec.out_spec),
    }


def _fixed(program: ExportedProgram, inputs: Collection[int]) -> list[Any]:
    """Arguments that the graph was made for: numbers, strings and truth values, each with its place among all arguments."""
    args, kwargs = program.example_inputs or ((), {})
    leaves = enumerate(pytree.tree_leaves((args, kwargs)))
    return [[place, value] for place, value in leaves if place not in inputs and isinstance(value, bool | int | float | str)]


def _number(output: Output, first: int) -> Any:
    """A result that is no tensor: an argument that is None, a fixed number, or None for a size of an argument."""
    if output.number is None:
        return None
    try:
        return output.number(())
    except (IndexError, KeyError):
        return None


def _write(path: Path, imported: Imported, tensors: Mapping[str, Any]) -> None:
    """The model, and its weights where they are large in a file beside it. A reader of `path` finds the old file or the new one."""
    if sum(tensor.nbytes for tensor in tensors.values()) <= MOST_INSIDE:
        _replace(path, weights.written(imported, tensors, {}))
        return
    beside = path.with_name(path.name + ".data")
    at = 0
    for name, tensor in tensors.items():
        proto = TensorProto(name=name, data_type=ONNX_TYPES[tensor.dtype], dims=tensor.shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", beside.name), ("offset", at), ("length", tensor.nbytes)):
            proto.external_data.add(key=key, value=str(value))
        imported.proto.graph.initializer.append(proto)
        at += tensor.nbytes
    _replace(beside, (weights.bytes_of(tensor) for tensor in tensors.values()))
    _replace(path, [imported.proto.SerializeToString()])


def _replace(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.writelines(pieces)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
