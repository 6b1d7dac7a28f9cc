"""Options of sessions and of runs, and what onnxruntime has beside them: enumerations, descriptions of inputs, metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from aspen_mp.client import arguments
from aspen_mp.compat.onnxruntime.errors import UnknownKey, Unsupported

if TYPE_CHECKING:
    from aspen_mp.compat.onnxruntime.models.adapters import LoraAdapter


class GraphOptimizationLevel(IntEnum):
    """The levels of onnxruntime. Every graph is optimized here, and no level changes that; `optimized_model_filepath` heeds it."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """The modes of onnxruntime; operators always run beside each other here."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """The orders of onnxruntime; tiles are ordered by the plan here."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output. `shape`: ints, symbols, None where nobody named the dimension; empty where no shape is known. `type`: in
    onnxruntime's words ("tensor(float)", "seq(map(int64,tensor(float)))")."""

    name: str
    shape: list[int | str | None]
    type: str


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The metadata of the model file."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class SessionOptions:
    """Options of a session. Those that are not described here are onnxruntime's, are kept, and do nothing.

    The methods change the model before it is loaded.

    Attributes:
        intra_op_num_threads: Workers of the runtime, if this session is the one that starts it. 0: one for each core.
        enable_profiling: Whether a file is written of what workers do while the session is there; see
            `InferenceSession.end_profiling`.
        profile_file_prefix: How the name of that file begins.
        optimized_model_filepath: Where the model is written with its functions inlined and its constants folded. Empty: nowhere.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    execution_mode: int = ExecutionMode.ORT_SEQUENTIAL
    execution_order: int = ExecutionOrder.DEFAULT
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
    _dims_by_name: dict[str, int] = field(default_factory=dict)
    _dims_by_denotation: dict[str, int] = field(default_factory=dict)
    _initializers: dict[str, Any] = field(default_factory=dict)
    _external: dict[str, Any] = field(default_factory=dict)
    _files: dict[str, bytes] = field(default_factory=dict)
    _providers: bool = False

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set a configuration entry. Entries that have no meaning here are kept and do nothing."""
        self._entries[arguments.text("key", key)] = arguments.text("value", value)

    def get_session_config_entry(self, key: str) -> str:
        """UnknownKey, a RuntimeError, where it was not added."""
        if key not in self._entries:
            raise UnknownKey(f"SessionOptions does not have configuration with key: {key}")
        return self._entries[key]

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """The symbol `name` is `value` wherever the model has it."""
        self._dims_by_name[arguments.text("name", name)] = arguments.whole("value", value, 0)

    def add_free_dimension_override_by_denotation(self, denotation: str, value: int) -> None:
        """Dimensions of inputs with that denotation are `value`."""
        self._dims_by_denotation[arguments.text("denotation", denotation)] = arguments.whole("value", value, 0)

    def add_initializer(self, name: str, value: Any) -> None:
        """`value`: an OrtValue that stands in for the initializer `name`, where the model has one."""
        self._initializers[arguments.text("name", name)] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """OrtValues for initializers whose data lie outside the model. Each must be one of the model's when a session is made."""
        self._external.update(zip((arguments.text("name", n) for n in names), values, strict=True))

    def add_external_initializers_from_files_in_memory(self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]) -> None:
        """Contents of files that the model's external data lie in, by the files' names."""
        for name, buffer, length in zip(names, buffers, lengths, strict=True):
            self._files[arguments.text("name", name)] = bytes(memoryview(buffer).cast("B")[:length])

    def add_provider(self, name: str, options: dict[str, str]) -> None:
        """Taken for the CPU's; Unsupported for any other."""
        if name not in {"CPU", "CPUExecutionProvider"}:
            raise Unsupported(f"aspen-mp runs on the CPU and has no provider {name!r}. Use CPUExecutionProvider")
        self._providers = True

    def has_providers(self) -> bool:
        """Return whether `add_provider` was called."""
        return self._providers

    def add_provider_for_devices(self, devices: Sequence[Any], options: dict[str, str]) -> None:
        """Raises Unsupported: there are no devices to choose."""
        raise Unsupported("aspen-mp runs on the CPU, so there is no device to choose. Leave this call out")

    def set_provider_selection_policy(self, policy: int) -> None:
        """Does nothing: there is one provider."""

    def set_provider_selection_policy_delegate(self, delegate: Any) -> None:
        """Does nothing: there is one provider."""

    def register_custom_ops_library(self, path: str) -> None:
        """Raises Unsupported: write custom operators as functions of the model."""
        raise Unsupported(
            f"custom operators compiled for onnxruntime ({path!r}) cannot run here. Write them as functions of ONNX operators"
        )

    def set_load_cancellation_flag(self, value: bool) -> None:
        """Does nothing: Ctrl-C ends a load."""

    def set_ep_context_data_read_func(self, function: Any) -> None:
        """Raises Unsupported: there are no compiled models to read."""
        raise Unsupported("aspen-mp cannot read compiled models (EPContext). Load the ONNX model that they were made from")

    def clear_ep_context_data_read_func(self) -> None:
        """Does nothing: none was set."""


def changes_models(options: Any) -> bool:
    """Whether what was added to these options changes the model before it is loaded."""
    names = ("_dims_by_name", "_dims_by_denotation", "_initializers", "_external", "_files")
    return any(getattr(options, name, None) for name in names)


@dataclass(slots=True, eq=False)
class RunOptions:
    """`terminate`: True when a run begins fails it with RequestCancelled. The other options are onnxruntime's and do nothing."""

    terminate: bool = False
    only_execute_path_to_fetches: bool = False
    training_mode: bool = False
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    _entries: dict[str, str] = field(default_factory=dict)
    _adapters: list[LoraAdapter] = field(default_factory=list)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set a configuration entry. "aspen_mp.priority", "aspen_mp.deadline_ms" and "aspen_mp.on_late" are those arguments of `Model.run`;
        no other entry does anything."""
        self._entries[arguments.text("key", key)] = arguments.text("value", value)

    def get_run_config_entry(self, key: str) -> str:
        """UnknownKey, a RuntimeError, where it was not added."""
        if key not in self._entries:
            raise UnknownKey(f"RunOptions does not have configuration with key: {key}")
        return self._entries[key]

    def add_active_adapter(self, adapter: LoraAdapter) -> None:
        """An adapter's parameters replace the inputs of their names in the run; of several adapters the first that has a name counts."""
        from aspen_mp.compat.onnxruntime.models.adapters import LoraAdapter

        if not isinstance(adapter, LoraAdapter):
            raise TypeError(f"adapter must be a LoraAdapter, not {adapter!r} ({type(adapter).__name__})")
        self._adapters.append(adapter)


def run_terms(options: Any) -> dict[str, Any]:
    """The arguments of `Model.run` that run options ask for. ValueError where one is not a number."""
    entries = getattr(options, "_entries", {})
    terms: dict[str, Any] = {name: entries[f"aspen_mp.{name}"] for name in ("priority", "on_late") if f"aspen_mp.{name}" in entries}
    if "aspen_mp.deadline_ms" in entries:
        terms["deadline_ms"] = float(entries["aspen_mp.deadline_ms"])
    return terms


class OrtCompileApiFlags(IntEnum):
    """Flags of `ModelCompiler`."""

    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2


class ModelPackageWriteMode(IntEnum):
    """Modes of `ModelPackage`, which does not exist here."""

    PRESERVE = 0
    DENSE = 1
