"""`InferenceSession` with onnxruntime's habits, for programs that were written for it:

import aspen_mp as ort
session = ort.InferenceSession("model.onnx")
(y,) = session.run(None, {"x": x})

An argument that has no meaning here and changes no result is taken and does nothing. One that cannot be followed raises and says what to do
instead.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aspen_mp.client import arguments
from aspen_mp.compat.onnxruntime import providers, seeds
from aspen_mp.compat.onnxruntime.errors import Fail, InvalidArgument, MissingInputs, Terminated, Unsupported, of_loading, of_running
from aspen_mp.compat.onnxruntime.models import described
from aspen_mp.compat.onnxruntime.options import ModelMetadata, NodeArg, SessionOptions, changes_models, run_terms
from aspen_mp.compat.onnxruntime.values.binding import IOBinding
from aspen_mp.compat.onnxruntime.values.devices import CPU_MEMORY, OrtMemoryInfo
from aspen_mp.compat.onnxruntime.values.ort_value import OrtValue, OrtValueVector, plain
from aspen_mp.compat.onnxruntime.values.sparse import SparseTensor
from aspen_mp.errors import AspenError, RequestError

_ASSIGNMENT: Final = "session.record_ep_graph_assignment_info"

if TYPE_CHECKING:
    import onnx

    from aspen_mp import Runtime
    from aspen_mp.compat.onnxruntime.profiling import SessionProfile


class InferenceSession:
    """A loaded model, with onnxruntime's methods.

    Args:
        path_or_bytes: A file, serialised bytes or a ModelProto.
        sess_options: `SessionOptions`. Those of onnxruntime will do, but what their methods have added, such as initializers, cannot be
            read.
        providers: Names, or pairs of a name and options. Everything runs on the CPU; each other name gives a warning.
        provider_options: Options for each of `providers`; they do nothing.
        disabled_optimizers: Does nothing.
        enable_fallback: Does nothing.
        read_config_from_model: 1: options come from the model's metadata (``ort_config``). None: the environment variable
            ORT_LOAD_CONFIG_FROM_MODEL decides.
        runtime: A `Runtime`, or the name of a running one. None: all sessions of the process share one private runtime, which the first
            session starts.
        load_options: Other arguments of `Runtime.load`, such as `precision`.

    Raises:
        AspenError: What `Runtime.load` raises, as subclasses with onnxruntime's names.
        TypeError, ValueError: An argument is one that onnxruntime does not take either.
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
        read_config_from_model: int | None = None,
        runtime: Runtime | str | None = None,
        **load_options: Any,
    ) -> None:
        self._provider_options = _checked(providers, provider_options)
        self._source = path_or_bytes
        self._options = SessionOptions() if sess_options is None else sess_options
        _check_options(self._options)
        self._own: Runtime | None = None
        self._profile: SessionProfile | None = None
        try:
            self._read_config(read_config_from_model)
            self._write_optimized()
            self._model = self._load(runtime, load_options)
        except (AspenError, FileNotFoundError) as error:
            self._close_own()
            instead = of_loading(error)
            if instead is error:
                raise
            raise instead from error
        except BaseException:
            self._close_own()
            raise
        self._inputs_meta = [described.node_arg(i) for i in self._model.inputs if not i.optional]
        self._outputs_meta = [described.node_arg(o) for o in self._model.outputs]
        self._initializers_meta = [described.node_arg(i) for i in self._model.inputs if i.optional]
        self._outputs = [o.name for o in self._model.outputs]
        self._sparse = {o.name for o in self._model.outputs if o.type.startswith("sparse_")}
        self._texts = {i.name for i in self._model.inputs if i.kind == "string"}
        self._may_lack = {i.name for i in self._inputs_meta if i.type.startswith("optional")}
        self._closed = False

    # ---- loading

    def _read_config(self, asked: int | None) -> None:
        if (os.environ.get("ORT_LOAD_CONFIG_FROM_MODEL") == "1") if asked is None else int(asked) == 1:
            self._options = described.configured(self._options, self.get_modelmeta())

    def _write_optimized(self) -> None:
        """Writes the optimized model where the options say so, and makes the changes that they ask for."""
        self._changed: Any = self._source
        seed = seeds.current()
        if seed is not None or changes_models(self._options):
            from aspen_mp.compat.onnxruntime.models import edits

            self._changed = edits.edited(self._source, self._options, seed)
        if self._options.optimized_model_filepath:
            from aspen_mp.compat.onnxruntime.models import folding

            folding.write(self._changed, self._options, self._options.optimized_model_filepath)

    def _load(self, runtime: Runtime | str | None, load_options: dict[str, Any]) -> Any:
        workers = arguments.whole("intra_op_num_threads", self._options.intra_op_num_threads, 0, arguments.MOST_WORKERS)
        if runtime is None:
            from aspen_mp.compat import default_runtime
            from aspen_mp.compat.onnxruntime import environment

            shared = environment.global_workers(self._options)
            runtime = default_runtime.runtime(workers or shared or None)
        elif isinstance(runtime, str):
            import aspen_mp

            runtime = self._own = aspen_mp.connect(runtime)
        self._runtime = runtime
        changed = self._changed
        del self._changed
        model = runtime.load(changed, **load_options)
        if self._options.enable_profiling:
            from aspen_mp.compat.onnxruntime.profiling import SessionProfile

            self._profile = SessionProfile(runtime, self._options.profile_file_prefix)
            weakref.finalize(self, self._profile.forgotten)
        return model

    # ---- running

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None) -> list[Any]:
        """Run the model once.

        Args:
            output_names: Names of the outputs to return. None, or none: all, in the model's order.
            input_feed: {input name: value}. A value is an array of the input's dtype and shape, what numpy makes one of, or an OrtValue.
            run_options: `RunOptions`; onnxruntime's will do.

        Returns:
            The outputs in the order of `output_names`.

        Raises:
            RequestError: A name, dtype or shape does not fit the model, or an operator failed.
        """
        names = self._outputs if output_names is None else self._asked(output_names)
        return self._run(self._feeds(input_feed), names, run_options)

    def _run(self, feeds: Mapping[str, Any], names: list[str], options: Any) -> list[Any]:
        terms = _check_run(options) if options is not None else {}
        feeds = _adapted(feeds, options)
        try:
            results = self._model.run(feeds, None if names is self._outputs else names, **terms)
        except AspenError as error:
            instead = self._named(error, feeds)
            if instead is error:
                raise
            raise instead from error
        if not self._sparse.isdisjoint(names):
            return [SparseTensor._of_dense(results[name]) if name in self._sparse else _viewed(results[name]) for name in names]
        return [_viewed(results[name]) for name in names]

    def _named(self, error: AspenError, feeds: Mapping[str, Any]) -> BaseException:
        """The error as onnxruntime's class: of a request that does not fit the model, or of one that failed while it ran."""
        if type(error) is not RequestError:
            return of_loading(error)
        there = {arg.name for arg in (*self._inputs_meta, *self._initializers_meta)}
        missing = [arg.name for arg in self._inputs_meta if arg.name not in feeds]
        if missing:
            return MissingInputs(f"Required inputs ({missing}) are missing from input feed ({list(feeds)}).")
        if not there.issuperset(feeds):
            return InvalidArgument(*error.args)
        try:
            self._model._check(feeds)
        except RequestError:
            return InvalidArgument(*error.args)
        return of_running(error)

    def _feeds(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """The feeds for the model's `run`: values of OrtValues, texts as str, None for optional inputs that are not given."""
        if feeds.__class__ is not dict and not isinstance(feeds, Mapping):
            raise TypeError(f"input_feed must be a dict {{name: value}}, not {feeds!r} ({type(feeds).__name__})")
        if not self._texts:
            for value in feeds.values():
                if value.__class__ is not np.ndarray:
                    break
            else:
                return feeds if not self._may_lack else {**dict.fromkeys(self._may_lack), **feeds}
        made: dict[str, Any] = dict.fromkeys(self._may_lack)
        for name, value in feeds.items():
            given = plain(value)
            if isinstance(given, SparseTensor):
                given = given._dense()
            made[name] = described.text(given) if name in self._texts else given
        return made

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
        terms = _check_run(run_options) if run_options is not None else {}
        if not callable(callback):
            raise TypeError(f"callback must be a function (results, user_data, error), not {callback!r} ({type(callback).__name__})")
        feeds = _adapted(self._feeds(input_feed), run_options)
        kept = [input_feed]  # until the callback has come, as in onnxruntime

        def done(future: Any) -> None:
            error = future.exception()
            results = [] if error is not None else [future.result()[name] for name in names]
            try:
                callback(results, user_data, "" if error is None else str(error) or type(error).__name__)
            finally:
                kept.clear()

        try:
            self._model.submit(feeds, names, **terms).add_done_callback(done)
        except AspenError as error:
            instead = self._named(error, feeds)
            if instead is error:
                raise
            raise instead from error

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, OrtValue], run_options: Any = None
    ) -> Sequence[OrtValue]:
        """`run` with OrtValues: nothing is copied but inputs that lie in no shared memory."""
        if isinstance(output_names, Mapping) and not isinstance(
            input_dict_ort_values, Mapping
        ):  # the order of onnxruntime's lower layer, which gives a vector
            names = self._asked(input_dict_ort_values)
            return OrtValueVector(self.run_with_ort_values(names, output_names, run_options))
        names = self._asked(output_names)
        results = self.run(names, input_dict_ort_values, run_options)
        return [OrtValue(result, self._type_of(name)) for name, result in zip(names, results, strict=True)]

    def run_with_ortvaluevector(
        self, run_options: Any, feed_names: Sequence[str], feeds: Any, fetch_names: Sequence[str], fetches: Any, fetch_devices: Any
    ) -> None:
        """The same with lists; results are appended to `fetches`."""
        results = self.run_with_ort_values(fetch_names, dict(zip(feed_names, feeds, strict=True)), run_options)
        for result in results:
            fetches.push_back(result) if hasattr(fetches, "push_back") else fetches.append(result)

    def io_binding(self) -> IOBinding:
        """Inputs and outputs that are named once and used by many runs."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """A run of what is bound. ValueError for a binding of another session."""
        if iobinding._session is not self:
            raise ValueError("the binding was made by another session. Use io_binding() of this one")
        iobinding._run(run_options)

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: Any = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Return an OrtValue of zeros. `element_type`: a numpy type, or a number of TensorProto.DataType."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, vendor_id)

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
            raise InvalidArgument(f"the model has no output {', '.join(map(repr, unknown))}. It has {', '.join(self._outputs)}")
        return list(output_names) or self._outputs

    # ---- what the session says of itself

    def get_inputs(self) -> list[NodeArg]:
        """Return name, type and shape of each input that a run needs, in the model's order."""
        return list(self._inputs_meta)

    def get_outputs(self) -> list[NodeArg]:
        """Return name, type and shape of each output, in the model's order."""
        return list(self._outputs_meta)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return name, type and shape of each input that has a default value in the model."""
        return list(self._initializers_meta)

    def _type_of(self, name: str) -> str:
        return next(arg.type for arg in self._outputs_meta if arg.name == name)

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return the CPU's memory for each input."""
        return [CPU_MEMORY] * len(self._inputs_meta)

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return the CPU's memory for each output."""
        return [CPU_MEMORY] * len(self._outputs_meta)

    def get_input_epdevices(self) -> list[None]:
        """None for each input: the CPU is not a device of a plug-in."""
        return [None] * len(self._inputs_meta)

    def get_providers(self) -> list[str]:
        """Return the only provider: `CPUExecutionProvider`."""
        return [providers.CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options that were given for it, by its name."""
        return {providers.CPU: dict(self._provider_options)}

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Checks them as the constructor does; everything goes on on the CPU. RuntimeError for a name that nobody knows."""
        self._provider_options = _checked(providers, provider_options, known=True)

    def enable_fallback(self) -> None:
        """Does nothing: there is one provider."""

    def disable_fallback(self) -> None:
        """Does nothing: there is one provider."""

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Does nothing: the CPU has none."""

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Does nothing: graphs are not captured."""

    def get_tuning_results(self) -> list[Any]:
        """None: tiles are searched when a model is loaded, and kept in the plan cache."""
        return []

    def set_tuning_results(self, results: Sequence[Any], *, error_on_invalid: bool = False) -> None:
        """Does nothing: see `get_tuning_results`."""

    def get_provider_graph_assignment_info(self) -> list[described.OrtEpAssignedSubgraph]:
        """The model's nodes, each on the CPU. Fail without the option's configuration entry, as in onnxruntime."""
        try:
            if self._options.get_session_config_entry(_ASSIGNMENT) == "1":
                return described.assigned(self._source)
        except (KeyError, RuntimeError):
            pass
        raise Fail(f"Session configuration entry '{_ASSIGNMENT}' must be set to \"1\" for that. `aspen-mp plan MODEL --explain` tells more")

    def get_session_options(self) -> Any:
        """Return the options that the session was made with."""
        return self._options

    def get_modelmeta(self) -> ModelMetadata:
        """Return what the model says of itself: producer, versions, description and its own entries."""
        return described.metadata(self._source)

    # ---- profiling

    def end_profiling(self) -> str:
        """Ends the trace that `SessionOptions.enable_profiling` began, and returns the name of the file; "" where there was none.

        The file is a list of events in Chrome's format, for ui.perfetto.dev. It has the work of every worker of the runtime, tile by tile,
        for this session and all others. Its name is the option `profile_file_prefix` and the time.
        """
        return "" if self._profile is None else self._profile.end()

    def get_profiling_start_time_ns(self) -> int:
        """The time by `time.monotonic_ns`; 0 where nothing is profiled."""
        return 0 if self._profile is None else self._profile.start_ns

    # ---- the end

    def close(self) -> None:
        """Unloads the model; also at the end of a ``with`` block. One that is forgotten is given back as `Model.unload` says."""
        if self._closed:
            return
        self._closed = True
        if self._profile is not None:
            self._profile.forgotten()
        if not self._runtime.closed:
            self._model.unload()
        self._close_own()

    def _close_own(self) -> None:
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """A profile is its session's alone."""
        return {**self.__dict__, "_profile": None}

    @property
    def _sess(self) -> InferenceSession:
        """Programs that reach into onnxruntime's lower layer find the same methods."""
        return self


def _checked(names: Any, options: Any, known: bool = False) -> dict[str, str]:
    """The CPU's options. Arguments that onnxruntime would not take raise; those that it would run elsewhere give a warning."""
    if isinstance(names, str):
        names = [names]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, entries = providers.check_and_normalize_provider_args(names, options, [providers.CPU])
    for warning in caught:
        warnings.warn(str(warning.message), stacklevel=3)
    if known:
        providers.known(found)
    return dict(zip(found, entries, strict=True)).get(providers.CPU, {})


def _viewed(value: Any) -> Any:
    """The result of a run with a `base`, as arrays of numbers have in onnxruntime: programs ask by it who owns the memory."""
    if value.__class__ is np.ndarray and value.base is None and not value.dtype.hasobject:
        return value.view()
    return value


def _adapted(feeds: Mapping[str, Any], options: Any) -> Mapping[str, Any]:
    """The inputs of a run with those of the adapters that its options name."""
    active = getattr(options, "_adapters", None)
    if not active:
        return feeds
    from aspen_mp.compat.onnxruntime.models import adapters

    return adapters.applied(feeds, active)


def _check_options(options: Any) -> None:
    if not hasattr(options, "intra_op_num_threads"):
        raise TypeError(f"sess_options must be SessionOptions, not {options!r} ({type(options).__name__})")
    arguments.whole("intra_op_num_threads", options.intra_op_num_threads, 0, arguments.MOST_WORKERS)


def _check_run(options: Any) -> dict[str, Any]:
    """Refuses options that cannot be met; the arguments of `Model.run` that they ask for."""
    if not hasattr(options, "terminate"):
        raise TypeError(f"run_options must be RunOptions, not {options!r} ({type(options).__name__})")
    if options.terminate:
        raise Terminated("the request was not started, because its options say terminate")
    if getattr(options, "training_mode", False):
        raise Unsupported("aspen-mp has no training mode. Export the model for inference")
    return run_terms(options)
