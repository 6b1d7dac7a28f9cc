"""`InferenceSession` with onnxruntime's habits, for programs that were written for it:

import aspen_mp as ort
session = ort.InferenceSession("model.onnx")
(y,) = session.run(None, {"x": x})
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aspen_mp.errors import RequestError

if TYPE_CHECKING:
    import onnx

    from aspen_mp import Runtime
    from aspen_mp.model import ValueInfo

_PROVIDER = "CPUExecutionProvider"
_ONNX_NAMES = {
    "float32": "float",
    "float64": "double",
    "bool": "bool",
    "object": "string",
    "str": "string",
    "float8_e4m3fn": "float8e4m3fn",
    "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2": "float8e5m2",
    "float8_e5m2fnuz": "float8e5m2fnuz",
    "float8_e8m0fnu": "float8e8m0",
    "float4_e2m1fn": "float4e2m1",
}


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output: `name`, `shape` (ints, symbols, None where nothing is known), `type` in onnxruntime's words ("tensor(float)")."""

    name: str
    shape: list[int | str | None]
    type: str


@dataclass
class SessionOptions:
    """The options that mean something here. `intra_op_num_threads`: workers of the runtime, if this session is the one that starts it."""

    intra_op_num_threads: int = 0


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What the model file says about itself."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


class InferenceSession:
    """A loaded model.

    `path_or_bytes`: file, serialised bytes or ModelProto. `sess_options`: anything with `intra_op_num_threads`. `providers`: accepted;
    everything runs on the CPU. `runtime`: a `Runtime`, or the name of a running one; without it all sessions of the process share one
    private runtime, which the first session starts. Raises what `Runtime.load` raises.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | onnx.ModelProto,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        runtime: Runtime | str | None = None,
        **load_options: Any,
    ) -> None:
        wanted = [p[0] if isinstance(p, tuple) else p for p in providers or ()]
        if wanted and _PROVIDER not in wanted:
            warnings.warn(f"aspen-mp runs on the CPU; none of the providers {wanted} is used", stacklevel=2)
        self._source = path_or_bytes
        self._options = sess_options if sess_options is not None else SessionOptions()
        self._own: Runtime | None = None
        if runtime is None:
            from aspen_mp import shared

            threads = int(getattr(self._options, "intra_op_num_threads", 0) or 0)
            runtime = shared.runtime(threads or None)
        elif isinstance(runtime, str):
            import aspen_mp

            runtime = self._own = aspen_mp.connect(runtime)
        self._runtime = runtime
        try:
            self._model = runtime.load(path_or_bytes, **load_options)
        except BaseException:
            if self._own is not None:
                self._own.close()
            raise
        self._outputs = [o.name for o in self._model.outputs]
        self._closed = False

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None) -> list[Any]:
        """Outputs in the order of `output_names` (None: all, in the model's order). `RequestError` for what does not fit the model."""
        names = [output_names] if isinstance(output_names, str) else None if output_names is None else list(output_names)
        if names is not None:
            unknown = [name for name in names if name not in self._outputs]
            if unknown:
                raise RequestError(f"the model has no output {', '.join(map(repr, unknown))}; it has {', '.join(self._outputs)}")
        results = self._model.run(input_feed, names)
        return [results[name] for name in (self._outputs if names is None else names)]

    def get_inputs(self) -> list[NodeArg]:
        return [_node_arg(i) for i in self._model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(o) for o in self._model.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        return []

    def get_providers(self) -> list[str]:
        return [_PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {_PROVIDER: {}}

    def get_session_options(self) -> Any:
        return self._options

    def get_modelmeta(self) -> ModelMetadata:
        import onnx

        source = self._source
        if isinstance(source, onnx.ModelProto):
            model = source
        elif isinstance(source, (bytes, bytearray, memoryview)):
            model = onnx.load_from_string(bytes(source))
        else:
            model = onnx.load(source, load_external_data=False)
        return ModelMetadata(
            producer_name=model.producer_name,
            graph_name=model.graph.name,
            domain=model.domain,
            description=model.doc_string,
            graph_description=model.graph.doc_string,
            version=model.model_version,
            custom_metadata_map={p.key: p.value for p in model.metadata_props},
        )

    def close(self) -> None:
        """Unloads the model. Also done when the session is garbage collected or used as a context manager."""
        if self._closed:
            return
        self._closed = True
        if not self._runtime.closed:
            self._model.unload()
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            with contextlib.suppress(Exception):  # the interpreter may be going down, and nobody listens to __del__
                self.close()


def _node_arg(value: ValueInfo) -> NodeArg:
    name = str(value.dtype)
    inner = f"tensor({_ONNX_NAMES.get(name, name)})"
    # What sequences, optionals and maps hold is not part of the signature.
    kind = {"tensor": inner, "sequence": "seq(tensor)", "optional": "optional(tensor)", "map": "map"}.get(value.kind, value.kind)
    return NodeArg(value.name, list(value.shape or ()), kind)


def get_available_providers() -> list[str]:
    """As onnxruntime's function of this name."""
    return [_PROVIDER]
