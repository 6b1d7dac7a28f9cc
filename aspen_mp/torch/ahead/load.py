"""Modules that were compiled ahead, called as they were: `export.py` wrote the files.

A program that only loads such files does not need PyTorch's compiler, which takes seconds to import. Nothing here imports it.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from onnx import ModelProto
from torch.utils import _pytree as pytree

from aspen_mp.planner.frontends import wire
from aspen_mp.shm.errors import ModelParseError, RequestError
from aspen_mp.torch import compiled
from aspen_mp.torch.builder import NUMPY_TYPES
from aspen_mp.torch.importer import Input, Output

KEY: Final = "aspen_mp.torch"
"""Of the metadata that say what of a module is not in the ONNX model."""
_NODES: Final = 10_000_000
"""More than any runtime takes, which says so itself."""
_TYPES: Final = {str(dtype): dtype for dtype in NUMPY_TYPES}


def load_ahead(path: Path, runtime: Any, precision: Any) -> Callable[..., Any]:
    """See `aspen_mp.torch.load_ahead`."""
    about = next((entry.value for entry in _without_weights(path).metadata_props if entry.key == KEY), None)
    if about is None:
        raise ModelParseError(f"{str(path)!r} was not written by aspen_mp.torch.compile_ahead. Load it with Runtime.load")
    described = json.loads(about)
    arguments, structure = (_structure(path, described[part]) for part in ("arguments", "structure"))
    model = compiled.runtime_of(compiled.Options(runtime)).load(path, precision=precision)
    return Loaded(model, described, arguments, structure)


def _without_weights(path: Path) -> ModelProto:
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return ModelProto()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages, memoryview(pages) as view:
            return ModelProto.FromString(wire.strip(view, _NODES).model)  # type: ignore[no-any-return]


def _structure(path: Path, written: str) -> Any:
    try:
        return pytree.treespec_loads(written)
    except NotImplementedError as unknown:
        raise ModelParseError(
            f"{str(path)!r}: the module takes or returns objects of a class that this program has not imported. Import the package that "
            f"defines it, or use Runtime.load, which gives results by name. PyTorch says: {unknown}"
        ) from unknown


class Loaded:
    """A module that was compiled ahead. It is called as the module was."""

    def __init__(self, model: Any, about: Mapping[str, Any], arguments: Any, structure: Any) -> None:
        """`arguments`, `structure`: the structures of arguments and results."""
        self.model = model
        self._arguments, self._structure = arguments, structure
        inputs = [Input(name, place, _TYPES[kind]) for name, place, kind in about["inputs"]]
        self._feeds = [(item.name, item.place, compiled.feed(item)) for item in inputs]
        self._fixed = about.get("fixed", [])
        self._results = [(compiled.result(Output(name)) if name else None, value) for name, value in about["results"]]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _, example = pytree.tree_unflatten([None] * self._arguments.num_leaves, self._arguments)
        if set(kwargs) == set(example):
            kwargs = {name: kwargs[name] for name in example}
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._arguments:
            raise RequestError(
                f"model {self.model.name!r}: arguments are structured as {spec}, and the module was compiled for {self._arguments}"
            )
        for place, value in self._fixed:
            if type(flat[place]) is not type(value) or flat[place] != value:
                raise RequestError(
                    f"model {self.model.name!r}: argument {place} is {flat[place]!r}, and the module was compiled for {value!r}. "
                    "Compile it again with that value"
                )
        results = self.model.run({name: feed(flat[place]) for name, place, feed in self._feeds})
        return pytree.tree_unflatten([value if find is None else find(results, flat) for find, value in self._results], self._structure)
