"""The runtimes that are compared, each as a function that loads a model and returns a way to run it.

Every engine gets the same ONNX file, the same inputs, the same number of threads and the same cores. Settings are those its documentation
recommends for the lowest latency of one request; what differs from the defaults is in `settings`, which the report prints.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from aspen_mp.bench.records import environment

from .streams import Streams

if TYPE_CHECKING:
    from aspen_mp.planner.job.options import Precision

Array = NDArray[Any]


@dataclass(slots=True)
class Loaded:
    """An engine with a model. `run` computes all outputs of the inputs it was given, in the model's order. `serve` does so for other
    inputs, of any shapes that the model takes. The results of `serve` can be given to the next call, and are not to be looked at after
    that."""

    run: Callable[[], list[Array]]
    settings: str
    serve: Callable[[Mapping[str, Array]], list[Array]] | None = None
    close: Callable[[], None] = lambda: None
    counters: Callable[[], dict[str, float]] = dict  # totals so far of whatever the engine counts


REQUESTS = "requests"
"""A counter: where a run is not one request."""

Load = Callable[..., Loaded]  # model file, inputs, cores; aspen-mp takes options


def load_aspen(
    path: str,
    feeds: Mapping[str, Array],
    cores: list[int],
    planning: Mapping[str, Any] | None = None,
    order: str = "fifo",
    replan: bool = False,
    apart: bool = False,
    ongoing: bool = False,
    cache: str | None = None,
    precision: Precision = "f32",
    defaults: bool = False,
) -> Loaded:
    """`planning`: fields of `planner.job.options.Experiment`. `order`: of the queues, as in `config.Experiment`. `replan`: whether plans
    are made again for cores that have changed, which would go on while others are measured. `apart`: a runtime a core, and a run is one
    request on each of them at the same time. `ongoing`: cores that have ended theirs go on with further ones (`Streams`).
    `cache`: a folder for plans, instead of the user's; `precision`: as of `Runtime.load`.
    `defaults`: nothing is set but the cores, and the precision if it is not f32."""
    if cache is not None:
        os.environ["ASPEN_MP_CACHE"] = cache
    if apart:
        return _apart(path, feeds, cores, ongoing)
    import aspen_mp
    from aspen_mp import config
    from aspen_mp.planner.job.options import Experiment

    profile = None if defaults else config.Experiment(order=order, models=config.Models(replan=replan))  # type: ignore[arg-type]
    runtime = aspen_mp.Runtime(workers=len(cores), cores=cores, profile=profile)
    try:
        model = runtime.load(path, precision=precision, planning=Experiment(**planning or {}))
        names = [output.name for output in model.outputs]

        def serve(inputs: Mapping[str, Array]) -> list[Array]:
            found = model.run(dict(inputs))
            return [found[name] for name in names]

        def counters() -> dict[str, float]:
            workers = runtime.workers
            return {name: sum(worker[name] for worker in workers) for name in ("tiles", "steals", "kernel_ns", "schedule_ns", "search_ns")}

        plan = "defaults" if defaults else "the plan follows the cores' speeds" if replan else "one plan, for cores of nominal speed"
        rounded = "" if precision == "f32" else f", factors of products in {precision}"
        return Loaded(lambda: serve(feeds), f"one worker a core, pinned, {plan}{rounded}", serve, runtime.close, counters)
    except BaseException:
        runtime.close()
        raise


def _apart(path: str, feeds: Mapping[str, Array], cores: list[int], ongoing: bool) -> Loaded:
    """As many runtimes as cores, which share nothing but the machine."""
    import aspen_mp

    with ExitStack() as stack:
        models = [stack.enter_context(aspen_mp.Runtime(cores=[core])).load(path) for core in cores]
        close = stack.pop_all().close
    names = [output.name for output in models[0].outputs]
    if ongoing:
        streams = Streams([partial(model.submit, dict(feeds)) for model in models])

        def serve() -> list[Array]:
            found = streams.run()
            return [found[name] for name in names]

        return Loaded(serve, "a runtime a core, requests one at a time on each", close=close, counters=lambda: {REQUESTS: streams.served()})

    def run() -> list[Array]:
        futures = [model.submit(dict(feeds)) for model in models]
        found = [future.result() for future in futures]
        return [found[0][name] for name in names]

    return Loaded(run, "a runtime a core, one request on each", close=close)


def load_onnxruntime(path: str, feeds: Mapping[str, Array], cores: list[int], spinning: bool = True, defaults: bool = False) -> Loaded:
    """All graph optimisations, sequential execution, spinning as by default (the other engines wait until it has ended), threads pinned.
    `defaults`: nothing is set but the number of threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if defaults:
        options.intra_op_num_threads = len(cores)
        plain = onnxruntime.InferenceSession(path, options)
        return _session(plain, feeds, "defaults")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = len(cores)
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if len(cores) > 1:  # the calling thread is one of them; its own core is set below
        options.add_session_config_entry("session.intra_op_thread_affinities", ";".join(str(core + 1) for core in cores[1:]))
    if not spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    os.sched_setaffinity(0, cores[:1])
    return _session(session, feeds, f"all optimisations, sequential, spinning {'on' if spinning else 'off'}, threads pinned")


def _session(session: Any, feeds: Mapping[str, Array], settings: str) -> Loaded:
    """A session of onnxruntime."""

    def serve(inputs: Mapping[str, Array]) -> list[Array]:
        return [np.asarray(y) for y in session.run(None, dict(inputs))]

    return Loaded(lambda: serve(feeds), settings, serve)


MEMORY_BYTES = 512 << 20
"""Bytes that are read for each core in a run of `MEMORY`, …"""
MEMORY_PIECE = 16 << 20
"""… and in one piece by whichever core is free: those that are slower read less of it."""

_LONG_NAMES = {"f32": "float32", "bf16": "bfloat16"}


def load_openvino(path: str, feeds: Mapping[str, Array], cores: list[int], precision: Precision = "f32", defaults: bool = False) -> Loaded:
    """Latency hint and float32 arithmetic, or bfloat16, its default where the processor has it. `defaults`: nothing is set but the number
    of threads, and the settings name the precision that it chose."""
    import openvino

    config: dict[str, Any] = {"INFERENCE_NUM_THREADS": len(cores)}
    if not defaults:
        config |= {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precision,
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": True,
        }
    compiled = openvino.Core().compile_model(path, "CPU", config)
    request = compiled.create_infer_request()
    both = itertools.cycle([request, compiled.create_infer_request()])  # outputs are not copies: those of one are inputs of the other
    count = len(compiled.outputs)

    def infer(request: Any, inputs: Mapping[str, Array]) -> list[Array]:
        request.infer(dict(inputs), share_inputs=True)
        return [np.asarray(request.get_output_tensor(i).data) for i in range(count)]

    settings = f"latency hint, {_LONG_NAMES[precision]}, threads pinned"
    if defaults:
        settings = f"defaults, which give {compiled.get_property('INFERENCE_PRECISION_HINT').to_string()}"
    return Loaded(lambda: infer(request, feeds), settings, lambda inputs: infer(next(both), inputs))


def load_torch(path: str, feeds: Mapping[str, Array], cores: list[int]) -> Loaded:
    """The graph as PyTorch operators, called one after the other."""
    _pin_openmp(cores)
    return _torch(path, feeds, cores, lambda module: module, "eager")


def load_torch_compile(path: str, feeds: Mapping[str, Array], cores: list[int]) -> Loaded:
    """The same graph through torch.compile: inductor, weights frozen, so that it may fold, pack and lay them out as it likes."""
    _pin_openmp(cores)
    import torch._inductor.config as inductor
    from torch import compile as compiled

    inductor.freezing = True
    inductor.compile_threads = 1  # no pool of compiler processes that is still there while others are measured
    return _torch(path, feeds, cores, lambda module: compiled(module, fullgraph=True), "torch.compile, inductor with freezing")


def _pin_openmp(cores: list[int]) -> None:
    """One thread a core; read when PyTorch's OpenMP library is loaded, so before PyTorch is imported."""
    os.environ["OMP_PROC_BIND"] = "true"
    os.environ["OMP_PLACES"] = ",".join(f"{{{core}}}" for core in cores)


def _torch(path: str, feeds: Mapping[str, Array], cores: list[int], prepare: Callable[[Any], Any], way: str) -> Loaded:
    import onnx
    import torch

    from .torch_graph import convert

    torch.set_num_threads(len(cores))
    model = onnx.load(path)
    given = {value.name for value in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in given]
    arguments = [torch.from_numpy(feeds[name]) for name in names]
    module = prepare(convert(model))
    del model

    def run(values: list[Any]) -> list[Array]:
        with torch.inference_mode():
            return [y.numpy() for y in module(*values)]

    settings = f"{way}, float32, inference mode, threads pinned"
    return Loaded(lambda: run(arguments), settings, lambda inputs: run([torch.from_numpy(inputs[name]) for name in names]))


def load_memory(path: str, feeds: Mapping[str, Array], cores: list[int]) -> Loaded:
    """No runtime and no network. In a run all cores read at the same time, each from a buffer of its own, `MEMORY_BYTES` for each core in
    all. All buffers together are at least as large, which no cache holds; few cores have larger ones and read them less often."""
    from aspen_mp.tools import core_limits
    from aspen_mp.workers import _kernels

    isa = _kernels.selected()
    times = min(1 << (len(cores).bit_length() - 1), MEMORY_BYTES // core_limits.SIZES[-1])  # a power of two, so that it divides
    buffers: dict[int, Array] = {}
    pieces = MEMORY_BYTES // times // MEMORY_PIECE  # of a buffer

    def make(core: int) -> None:  # written where it is read, so that it lies in that core's memory
        buffers[core] = np.ones((pieces, MEMORY_PIECE // 4), np.float32)

    def run() -> list[Array]:
        left = iter(range(len(cores) * MEMORY_BYTES // MEMORY_PIECE))

        def read(core: int) -> None:
            for k, _ in enumerate(left):
                _kernels.read_rate(buffers[core][k % pieces], 1, isa)

        core_limits.on_each(cores, read)
        return []

    core_limits.on_each(cores, make)
    return Loaded(run, f"reads {MEMORY_BYTES >> 20} MiB a core")


@dataclass(frozen=True, slots=True)
class Engine:
    """`module`: what must be importable; `package`: whose version is reported; `rounds`: it takes a precision, where others compute in
    float32. `settable`: it can be loaded with its defaults, where others have nothing else."""

    name: str
    module: str
    package: str
    load: Load
    rounds: bool = False
    settable: bool = False

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None

    @property
    def version(self) -> str:
        return environment.version_of(self.package)


ENGINES = {
    engine.name: engine
    for engine in (
        Engine("aspen-mp", "aspen_mp", "aspen-mp", load_aspen, rounds=True, settable=True),
        Engine("onnxruntime", "onnxruntime", "onnxruntime", load_onnxruntime, settable=True),
        Engine("openvino", "openvino", "openvino", load_openvino, rounds=True, settable=True),
        Engine("torch", "torch", "torch", load_torch),
        Engine("torch.compile", "torch", "torch", load_torch_compile),
    )
}

MEMORY = Engine("memory", "aspen_mp", "aspen-mp", load_memory)
"""Figures measure this beside the runtimes where memory may be their limit."""
LOADERS = {**ENGINES, MEMORY.name: MEMORY}
