"""`InferenceSession` with onnxruntime's habits, for programs that were written for it:

import aspen_mp as ort
session = ort.InferenceSession("model.onnx")
(y,) = session.run(None, {"x": x})

What onnxruntime has and this has not is an error that says what to use instead; what has no meaning here and changes no result is taken and
does nothing.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from aspen_mp import arguments
from aspen_mp.errors import RequestCancelled, RequestError, UnsupportedModelError

if TYPE_CHECKING:
    import onnx

    from aspen_mp import Runtime
    from aspen_mp.signature import ValueInfo

_PROVIDER = "CPUExecutionProvider"
_ELSEWHERE = {
    "io_binding": "Model.input_buffers has inputs that are not copied, and large outputs never are",
    "run_with_iobinding": "Model.input_buffers has inputs that are not copied, and large outputs never are",
    "run_with_ort_values": "run takes and gives numpy arrays",
    "end_profiling": "Runtime.trace records what workers do",
    "get_profiling_start_time_ns": "Runtime.trace records what workers do",
    "get_tuning_results": "tiles are searched when a model is loaded",
    "set_tuning_results": "tiles are searched when a model is loaded",
}
"""Methods of onnxruntime's sessions that there are not, and what there is."""


class GraphOptimizationLevel(IntEnum):
    """As onnxruntime's; every graph is optimized here, and no level changes that."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """As onnxruntime's; operators always run beside each other here."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output: `name`, `shape` (ints, symbols, None where nothing is known), `type` in onnxruntime's words ("tensor(float)")."""

    name: str
    shape: list[int | str | None]
    type: str


@dataclass(slots=True)
class SessionOptions:
    """`intra_op_num_threads`: workers of the runtime, if this session is the one that starts it; 0: one for each core.

    The other options are onnxruntime's and do nothing. What would be missed is refused when a session is made with it: `enable_profiling`
    and `optimized_model_filepath`, which would write files.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    execution_mode: int = ExecutionMode.ORT_SEQUENTIAL
    execution_order: int = 0
    graph_optimization_level: int = GraphOptimizationLevel.ORT_ENABLE_ALL
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    profile_file_prefix: str = "onnxruntime_profile_"
    optimized_model_filepath: str = ""
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    _entries: dict[str, str] = field(default_factory=dict)

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._entries[arguments.text("key", key)] = arguments.text("value", value)

    def get_session_config_entry(self, key: str) -> str:
        return self._entries[key]


@dataclass(slots=True)
class RunOptions:
    """`terminate`: True when a run begins fails it with RequestCancelled. The other options are onnxruntime's and do nothing."""

    terminate: bool = False
    only_execute_path_to_fetches: bool = False
    training_mode: bool = False
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    _entries: dict[str, str] = field(default_factory=dict)

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._entries[arguments.text("key", key)] = arguments.text("value", value)

    def get_run_config_entry(self, key: str) -> str:
        return self._entries[key]


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

    `path_or_bytes`: file, serialised bytes or ModelProto. `sess_options`: `SessionOptions`, onnxruntime's too. `providers`: names, or pairs
    of a name and options; everything runs on the CPU, and each other name is warned of. `disabled_optimizers` and `enable_fallback` do
    nothing. `runtime`: a `Runtime`, or the name of a running one; without it all sessions of the process share one private runtime, which
    the first session starts. `load_options`: others of `Runtime.load`, such as `precision`. Raises what that raises, and TypeError or
    ValueError for what onnxruntime does not take either.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | onnx.ModelProto,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        disabled_optimizers: Sequence[str] | None = None,
        enable_fallback: bool = True,
        runtime: Runtime | str | None = None,
        **load_options: Any,
    ) -> None:
        _check_providers(providers, provider_options, stacklevel=3)
        self._source = path_or_bytes
        self._options = SessionOptions() if sess_options is None else sess_options
        threads = _threads(self._options)
        self._own: Runtime | None = None
        if runtime is None:
            from aspen_mp import shared

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
        """Outputs in the order of `output_names` (None or none: all, in the model's order). `RequestError` for what does not fit the
        model. `run_options`: `RunOptions`, onnxruntime's too."""
        names = self._asked(output_names)
        _check_run(run_options)
        results = self._model.run(input_feed, names)
        return [results[name] for name in names]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], object],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """`run` in the background; ``callback(results, user_data, error)`` comes from a thread, `error` empty where nothing went wrong."""
        names = self._asked(output_names)
        _check_run(run_options)
        if not callable(callback):
            raise TypeError(f"callback must be a function (results, user_data, error), not {callback!r} ({type(callback).__name__})")

        def done(future: Any) -> None:
            error = future.exception()
            results = [] if error is not None else [future.result()[name] for name in names]
            callback(results, user_data, "" if error is None else str(error) or type(error).__name__)

        self._model.submit(input_feed, names).add_done_callback(done)

    def _asked(self, output_names: Sequence[str] | None) -> list[str]:
        """The names of the outputs to return, checked."""
        if output_names is None:
            return self._outputs
        if isinstance(output_names, str):
            output_names = [output_names]
        if not isinstance(output_names, Sequence):
            raise TypeError(f"output_names must be a list of names or None, not {output_names!r} ({type(output_names).__name__})")
        unknown = [name for name in output_names if name not in self._outputs]
        if unknown:
            raise RequestError(f"the model has no output {', '.join(map(repr, unknown))}; it has {', '.join(self._outputs)}")
        return list(output_names) or self._outputs

    def get_inputs(self) -> list[NodeArg]:
        return [_node_arg(i) for i in self._model.inputs if not i.optional]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(o) for o in self._model.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        return [_node_arg(i) for i in self._model.inputs if i.optional]

    def get_providers(self) -> list[str]:
        return [_PROVIDER]

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Checks them as the constructor does; everything goes on on the CPU."""
        _check_providers(providers, provider_options, stacklevel=3)

    def enable_fallback(self) -> None:
        """Does nothing: there is one provider."""

    def disable_fallback(self) -> None:
        """Does nothing: there is one provider."""

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
        """Unloads the model; also at the end of a ``with`` block. One that is forgotten is given back as `Model.unload` says."""
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

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            instead = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"aspen-mp's InferenceSession has no {name!r}{instead}", name=name, obj=self)


def _check_providers(providers: Any, options: Any, stacklevel: int) -> None:
    """What onnxruntime would not take raises; what it would run elsewhere is warned of."""
    if isinstance(providers, str):
        providers = [providers]
    wanted = []
    for provider in providers or ():
        name = provider[0] if isinstance(provider, tuple) and len(provider) == 2 and isinstance(provider[1], Mapping) else provider
        if not isinstance(name, str):
            raise ValueError(f"providers must be names or (name, options) pairs, not {provider!r} ({type(provider).__name__})")
        wanted.append(name)
    if options is not None and len(options) != len(wanted):
        raise ValueError(f"provider_options must be as many as providers, {len(wanted)}, not {len(options)}")
    others = [name for name in wanted if name != _PROVIDER]
    if others:
        warnings.warn(f"aspen-mp runs on the CPU ({_PROVIDER}); it has no {', '.join(map(repr, others))}", stacklevel=stacklevel)


def _threads(options: Any) -> int:
    """How many workers session options ask for; raises for options that would be missed."""
    if not hasattr(options, "intra_op_num_threads"):
        raise TypeError(f"sess_options must be SessionOptions, not {options!r} ({type(options).__name__})")
    for name in ("enable_profiling", "optimized_model_filepath"):
        if getattr(options, name, None):
            raise UnsupportedModelError(f"session option {name}: aspen-mp writes no such file; Runtime.trace and `aspen-mp plan` tell more")
    return arguments.whole("intra_op_num_threads", options.intra_op_num_threads, 0, arguments.MOST_WORKERS)


def _check_run(options: Any) -> None:
    if options is None:
        return
    if not hasattr(options, "terminate"):
        raise TypeError(f"run_options must be RunOptions, not {options!r} ({type(options).__name__})")
    if options.terminate:
        raise RequestCancelled("the request was not begun: its options say terminate")
    if getattr(options, "training_mode", False):
        raise RequestError("aspen-mp has no training mode")


def _node_arg(value: ValueInfo) -> NodeArg:
    return NodeArg(value.name, list(value.shape or ()), value.type)


def get_available_providers() -> list[str]:
    """As onnxruntime's function of this name."""
    return [_PROVIDER]


def get_device() -> str:
    """As onnxruntime's function of this name."""
    return "CPU"
