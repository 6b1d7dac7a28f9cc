"""Modules compiled ahead: an ONNX file with the weights, which says how arguments and results of the module fit its inputs and outputs.

`Runtime.load` takes the file, too. What makes it a module again lies in its metadata: the structure of arguments and results, and how axes
lie in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import onnx
import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from aspen_mp.shm.errors import ModelParseError, RequestError, UnsupportedModelError
from aspen_mp.torch import compiled, decompositions, weights
from aspen_mp.torch.builder import NUMPY_TYPES
from aspen_mp.torch.importer import Imported, Input, Output, import_graph

KEY: Final = "aspen_mp.torch"
"""Of the metadata."""
_TYPES: Final = {str(dtype): dtype for dtype in NUMPY_TYPES}


def compile_ahead(module: torch.nn.Module, inputs: Sequence[Any], path: str | os.PathLike[str], dynamic_shapes: Any) -> None:
    """See `aspen_mp.torch.compile_ahead`."""
    with torch.no_grad():
        program = torch.export.export(module, tuple(inputs), dynamic_shapes=dynamic_shapes, strict=False)
        program = program.run_decompositions(decompositions.table())
    specs = program.graph_signature.input_specs
    places = [place for place, spec in enumerate(specs) if spec.kind == InputKind.USER_INPUT]
    fixed = [place for place, spec in enumerate(specs) if spec.kind != InputKind.USER_INPUT]
    changed = [spec.target for spec in program.graph_signature.output_specs if spec.kind != OutputKind.USER_OUTPUT]
    if changed:
        raise UnsupportedModelError(f"the module changes {', '.join(map(str, changed))}, and a file cannot change. Use optimize instead")
    imported = import_graph(program.graph, fixed)
    if imported.unsupported:
        lines = [f"{node.name} ({node.target}): {why}" for node, why in imported.unsupported.items()]
        raise UnsupportedModelError("\n".join(["some operators cannot run without PyTorch. Use optimize instead:", *lines]))
    tensors = {
        constant.name: _constant(program, specs[constant.place].target) if constant.tensor is None else constant.tensor
        for constant in imported.constants
    }
    imported.proto.metadata_props.add(key=KEY, value=json.dumps(_described(imported, places, program.call_spec)))
    with open(path, "wb") as file:
        for piece in weights.written(imported, tensors, {}):
            file.write(piece)


def _constant(program: Any, name: str) -> Any:
    """A parameter, buffer or constant tensor of an exported program."""
    return program.state_dict[name] if name in program.state_dict else program.constants[name]


def _described(imported: Imported, places: Sequence[int], call_spec: Any) -> dict[str, Any]:
    """What `load` needs to know, as JSON."""
    number = {place: k for k, place in enumerate(places)}
    return {
        "inputs": [[item.name, number[item.place], str(item.dtype), item.order, item.is_size] for item in imported.inputs],
        "outputs": [_output(output, number) for output in imported.outputs],
        "arguments": pytree.treespec_dumps(call_spec.in_spec),
        "results": pytree.treespec_dumps(call_spec.out_spec),
    }


def _output(output: Output, number: Mapping[int, int]) -> list[Any]:
    if output.number is None:
        return [output.name, output.order, number.get(output.place, -1), None]
    try:
        return ["", None, -1, output.number(())]  # fixed: it needs no arguments
    except (IndexError, KeyError):
        raise UnsupportedModelError("a result is a size that depends on inputs. Return a tensor, or use optimize instead") from None


def load_ahead(path: str | os.PathLike[str], runtime: Any, precision: Any) -> Callable[..., Any]:
    """See `aspen_mp.torch.load_ahead`."""
    about = next((entry.value for entry in onnx.load(path, load_external_data=False).metadata_props if entry.key == KEY), None)
    if about is None:
        raise ModelParseError(f"{os.fspath(path)!r} was not written by aspen_mp.torch.compile_ahead. Load it with Runtime.load")
    model = compiled.runtime_of(compiled.Options(runtime)).load(path, precision=precision)
    return Loaded(model, json.loads(about))


class Loaded:
    """A module that was compiled ahead. It is called as the module was."""

    def __init__(self, model: Any, about: Mapping[str, Any]) -> None:
        self.model = model
        self._arguments = pytree.treespec_loads(about["arguments"])
        self._results = pytree.treespec_loads(about["results"])
        inputs = [Input(name, place, _TYPES[kind], order and tuple(order), size) for name, place, kind, order, size in about["inputs"]]
        self._feeds = [(item.name, item.place, compiled.feed(item)) for item in inputs]
        self._outputs = [
            compiled.result(Output(name, order and tuple(order), place)) if name or place >= 0 else _fixed(value)
            for name, order, place, value in about["outputs"]
        ]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._arguments:
            raise RequestError(
                f"model {self.model.name!r}: arguments are structured as {spec}, and the module was compiled for {self._arguments}"
            )
        results = self.model.run({name: feed(flat[place]) for name, place, feed in self._feeds})
        return pytree.tree_unflatten([output(results, flat) for output in self._outputs], self._results)


def _fixed(value: Any) -> Callable[[Any, Any], Any]:
    return lambda results, args: value
