"""`ModelCompiler`: on a CPU onnxruntime compiles nothing and writes the optimized model, as this does."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aspen_mp.compat.onnxruntime.errors import Fail
from aspen_mp.compat.onnxruntime.options import GraphOptimizationLevel, OrtCompileApiFlags
from aspen_mp.compat.onnxruntime.values.ort_value import OrtValue


@dataclass(frozen=True, slots=True)
class OrtExternalInitializerInfo:
    """Where an initializer lies outside the model: file, offset and number of bytes."""

    filepath: str
    file_offset: int
    byte_size: int


class ModelCompiler:
    """Writes a model as a session would optimize it: functions inlined and, unless `graph_optimization_level` is ORT_DISABLE_ALL, the
    default, constants folded.

    `input_model_path_or_bytes`: a file or a serialised model. `external_initializers_file_path`: another file for initializers of at least
    `external_initializers_size_threshold` bytes. `get_initializer_location_func`: called with each initializer's name, OrtValue and place
    outside the model. It returns its new place, or None to keep it in the model. `flags`: ERROR_IF_NO_NODES_COMPILED always fails.
    """

    def __init__(
        self,
        sess_options: Any,
        input_model_path_or_bytes: str | os.PathLike[str] | bytes,
        embed_compiled_data_into_model: bool = False,
        external_initializers_file_path: str | os.PathLike[str] | None = None,
        external_initializers_size_threshold: int = 1024,
        flags: int = OrtCompileApiFlags.NONE,
        graph_optimization_level: int = GraphOptimizationLevel.ORT_DISABLE_ALL,
        get_initializer_location_func: Callable[[str, OrtValue, Any], Any] | None = None,
    ) -> None:
        if not isinstance(input_model_path_or_bytes, (str, os.PathLike, bytes)):
            raise TypeError(f"the model must be a path or bytes, not a {type(input_model_path_or_bytes).__name__}")
        if not os.fspath(input_model_path_or_bytes):
            raise ValueError("the path or the bytes of the model are empty. Give a model")
        if external_initializers_file_path is not None and get_initializer_location_func is not None:
            raise ValueError("give external_initializers_file_path or get_initializer_location_func, not both")
        self._options = sess_options
        self._source = input_model_path_or_bytes
        self._file = external_initializers_file_path
        self._threshold = external_initializers_size_threshold
        self._flags = OrtCompileApiFlags(0) if flags is None else int(flags)
        self._level = graph_optimization_level
        self._locate = get_initializer_location_func

    def compile_to_file(self, output_model_path: str | os.PathLike[str] | None = None) -> None:
        """Writes the file; None: beside the model, with ``_ctx`` at the end of the name. Fail as `flags` say."""
        if output_model_path is None:
            if isinstance(self._source, bytes):
                raise Fail("a model given as bytes has no file name. Give output_model_path")
            source = Path(self._source)
            output_model_path = source.with_name(f"{source.stem}_ctx.onnx")
        path = Path(output_model_path)
        if self._flags & OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS and path.exists():
            raise Fail(f"the file {str(path)!r} exists already. Remove it, or give another output_model_path")
        import onnx

        onnx.save(self._made(path.parent), path)

    def compile_to_bytes(self) -> bytes:
        data: bytes = self._made(None).SerializeToString()
        return data

    def compile_to_stream(self, write_function: Callable[[bytes], object]) -> None:
        """Gives `write_function` the bytes; Fail with its message where it raises."""
        data = self.compile_to_bytes()
        try:
            write_function(data)
        except Exception as error:  # the caller's own function
            raise Fail(f"the given function could not write the model: {error}") from error

    def set_ep_context_data_write_func(self, write_func: Any) -> None:
        """Does nothing: nothing is compiled that would be written."""

    def clear_ep_context_data_write_func(self) -> None:
        """Does nothing: nothing is compiled that would be written."""

    def set_ep_context_binary_information(self, output_directory: str | os.PathLike[str], model_name: str) -> None:
        """Does nothing: nothing is compiled that would be written."""

    def _made(self, folder: Path | None) -> Any:
        from onnx import external_data_helper

        from aspen_mp.compat.onnxruntime.models import edits, folding

        if self._flags & OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED:
            raise Fail("Unable to compile any nodes: aspen-mp compiles when a model is loaded, and writes ONNX")
        model = edits.read(edits.edited(self._source, self._options, None))
        outside = {t.name: _outside(t) for t in edits.tensors(model.graph)}
        edits.complete(model, self._source)
        model = folding.optimized(model, folded=self._level != GraphOptimizationLevel.ORT_DISABLE_ALL)
        if self._locate is not None:
            for tensor in model.graph.initializer:
                _move(tensor, self._locate, outside.get(tensor.name))
        elif self._file is not None:
            target = Path(self._file)
            (target if folder is None else folder / target).unlink(missing_ok=True)  # what is written there is appended
            folding.as_bytes(model)
            external_data_helper.convert_model_to_external_data(model, location=str(target), size_threshold=self._threshold)
        return model


def _outside(tensor: Any) -> OrtExternalInitializerInfo | None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if "location" not in entries:
        return None
    return OrtExternalInitializerInfo(entries["location"], int(entries.get("offset", 0)), int(entries.get("length", 0)))


def _move(tensor: Any, locate: Callable[[str, OrtValue, Any], Any], before: OrtExternalInitializerInfo | None) -> None:
    from onnx import TensorProto, numpy_helper

    place = locate(tensor.name, OrtValue(numpy_helper.to_array(tensor)), before)
    if place is None:
        return
    kept = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", place.filepath), ("offset", place.file_offset), ("length", place.byte_size)):
        kept.external_data.add(key=key, value=str(value))
    tensor.CopyFrom(kept)
