"""`quantize`: a model in 8 bits, and what that costs and gives."""

from __future__ import annotations

import functools
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aspen_mp.client import arguments
from aspen_mp.client.model_source import where
from aspen_mp.client.runtime import Runtime
from aspen_mp.client.trials import difference, turns
from aspen_mp.client.trials.samples import Feeds, Given, Samples
from aspen_mp.quantization import keeping, layers, quantizer
from aspen_mp.quantization.quantizer import ACTIVATIONS, METHODS, Activations, Method, Options, Quantizer
from aspen_mp.quantization.report import Choices, Counts, LayerError, OutputError, Report, Sizes, Speed
from aspen_mp.shm.errors import RequestError
from aspen_mp.shm.words import count

if TYPE_CHECKING:
    import onnx

    from aspen_mp.client.model import Model

Progress = Callable[[str, int, int], None]
AUTO: Final = "auto"
MOST_FOR_LAYERS: Final = 4
"""Samples on which errors of layers are measured."""
MOST_JUDGED: Final = 64
"""Samples on which errors of outputs are measured, of those held out."""
MOST_ADVISED: Final = 6
"""Layers that the advice names."""
_STEPS: Final = 5


def quantize(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    samples: Given,
    out: str | os.PathLike[str],
    *,
    per_channel: bool = True,
    activations: Activations = "u8",
    method: Method = "minmax",
    keep: str | Iterable[str] = (),
    within: float | None = None,
    held_out: int | None = None,
    prepare: bool = True,
    measure_layers: bool = True,
    measure_times: bool = True,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Quantise a model to 8 bits by onnxruntime's quantiser, and measure what that costs and gives.

    The written model has values between QuantizeLinear and DequantizeLinear, and loads without an option. It needs the packages of
    ``pip install 'aspen-mp[quantize]'``.

    Args:
        model: The path of an ONNX file in floats, its bytes, an `onnx.ModelProto`, or "zoo:NAME".
        samples: Typical inputs: a folder, a file, or an iterable of {input: array}. A folder holds an .npz file for each sample with an
            array for each input, or folders with NAME.npy files. A model of one input also takes .npy and .pb files. A lone file may hold
            many samples along the first dimension.
        out: The file to write. Models of more than 1 GiB get their weights in a file beside it, with ``.data`` behind the name.
        per_channel: Whether weights have a scale for each output channel, or one for all.
        activations: Type of the values between layers: "u8" or "s8", with the same errors and times here. Weights are always s8.
        method: How the ranges of values follow from the samples: "minmax", "entropy" or "percentile".
        keep: Names of nodes, or operator types, that stay in floats. "auto", alone or among them: those layers that bring the error
            within `within`, as few as possible.
        within: The bound of the error of every output: the largest difference from the model in float32, relative to the largest
            magnitude. Without "auto" it only says whether the bound is met.
        held_out: How many of the samples, the last ones, are not used for ranges but for measuring errors. None: every fifth. A lone
            sample, or all of them with 0, serve for both.
        prepare: Whether shapes are inferred, constants folded and BatchNormalizations merged first.
        measure_layers: Whether each layer's own error is measured.
        measure_times: Whether times of a request are measured before and after.
        workers: Workers of the runtime that measures. None: one for each core.
        progress: Called as ``progress(step, done, total)``.

    Returns:
        Sizes, errors, times and advice.

    Raises:
        AspenError: onnxruntime's quantiser is missing, or refuses the model.
        FileNotFoundError: There is no such model or folder.
        RequestError: There are no samples, or one does not fit the model; `keep` names what the model does not have.
        UnsupportedModelError, ModelInvalidError, ModelParseError: As of `Runtime.load`.
        TypeError, ValueError: An argument has a type or a value that is not allowed.
    """
    quantizer.tools()
    options = Options(
        arguments.flag("per_channel", per_channel),
        arguments.one_of("activations", activations, ACTIVATIONS),
        arguments.one_of("method", method, METHODS),
    )
    wanted = (keep,) if isinstance(keep, str) else tuple(keep)
    if AUTO in wanted and within is None:
        raise ValueError("keep='auto' needs a bound. Give within=, such as within=0.02")
    within = None if within is None else arguments.bound("within", within)
    target = Path(out)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent} for the quantised model. Make it first")
    job = _Job(
        options,
        wanted,
        within,
        None if held_out is None else arguments.whole("held_out", held_out, 0),
        arguments.flag("prepare", prepare),
        arguments.flag("measure_layers", measure_layers) or AUTO in wanted,
        arguments.flag("measure_times", measure_times),
        progress or (lambda step, done, total: None),
    )
    beside = tempfile.TemporaryDirectory(prefix=".quantize-", dir=target.parent)  # so that what is written can be moved
    with _file(model) as (source, label), beside as folder, Runtime(workers) as runtime:
        if target.exists() and target.samefile(source):
            raise ValueError(f"{target} is the model itself. Write the quantised one to another file")
        job.say("loading", 0)
        before = runtime.load(str(source), name="float32", precision="f32")
        return _quantized(job, source, label, Samples(samples, before.inputs), before, runtime, Path(folder), target)


@dataclass(frozen=True, slots=True)
class _Job:
    """The arguments of `quantize`, checked."""

    options: Options
    keep: tuple[str, ...]
    within: float | None
    held_out: int | None
    prepare: bool
    layers: bool
    times: bool
    progress: Progress

    def say(self, step: str, done: int) -> None:
        self.progress(step, done, _STEPS)

    @property
    def choices(self) -> Choices:
        o = self.options
        return Choices(
            per_channel=o.per_channel,
            activations=o.activations,
            method=o.method,
            prepared=self.prepare,
            keep=list(self.keep),
            within=self.within,
        )


def _quantized(
    job: _Job, source: Path, label: str, samples: Samples, before: Model, runtime: Runtime, folder: Path, target: Path
) -> Report:
    """Write the quantised model of the file `source`. `before`: that model in float32. `folder`: for files that are needed meanwhile."""
    chosen, judged = samples.split(job.held_out)
    job.say("preparing", 1)
    whole = Quantizer(source, folder, job.options, lambda: (samples[k] for k in chosen), prepare=job.prepare)
    run = _Run(runtime, before, whole, folder / "quantised.onnx", [samples[k] for k in judged[:MOST_JUDGED]])
    fixed = whole.kept(word for word in job.keep if word != AUTO)
    job.say("quantising", 2)
    run.attempt(fixed)
    job.say("measuring layers", 3)
    own = run.layers() if job.layers else []
    if AUTO in job.keep and job.within is not None:
        _keep_enough(run, fixed, own, job)
    job.say("measuring times", 4)
    speed = run.speed() if job.times else None
    files = run.move(target)
    run.written = target
    apart = not set(chosen) & set(judged)
    return Report(
        model=label,
        file=str(target),
        files=[str(file) for file in files],
        choices=job.choices,
        samples=Counts(calibrated=len(chosen), judged=len(run.judged), apart=apart),
        bytes=Sizes(before=quantizer.size_of(source), after=sum(file.stat().st_size for file in files)),
        error=_number(run.error),
        met=None if job.within is None else run.error <= job.within,
        attempts=run.attempts,
        outputs=[OutputError(name=n, error=_number(d.error), rms=_number(d.rms), top1=d.top1) for n, d in run.found.items()],
        layers=_listed(whole, own, set(run.kept)),
        speed=speed,
        advice=_advice(run, own, job, speed, apart=apart),
    )


@dataclass(slots=True)
class _Run:
    """A quantisation in the making: the last model that was tried, with the layers `kept` in floats and errors `found`. `written`: where
    it has been moved to."""

    runtime: Runtime
    before: Model
    quantizer: Quantizer
    file: Path
    judged: list[Feeds]
    kept: tuple[str, ...] = ()
    found: dict[str, difference.Difference] = field(default_factory=dict)
    attempts: int = 0
    after: Model | None = None
    written: Path = Path()
    _wanted: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def error(self) -> float:
        return difference.worst(self.found)

    def attempt(self, kept: Sequence[str]) -> float:
        """Quantise with these layers in floats. Return the error."""
        if not self._wanted:
            self._wanted = [self.before.run(feeds) for feeds in self.judged]
        if self.after is not None:
            self.after.unload()
        self.quantizer.write(self.file, kept)
        self.after = self.runtime.load(str(self.file), name="int8", precision="f32")
        self.kept, self.found = tuple(kept), {}
        for feeds, want in zip(self.judged, self._wanted, strict=True):
            difference.add_all(self.found, self.after.run(feeds), want)
        self.attempts += 1
        return self.error

    def layers(self) -> list[layers.Layer]:
        return layers.errors(self.quantizer.prepared, self.file, self.judged[:MOST_FOR_LAYERS])

    def speed(self) -> Speed:
        feeds = self.judged[0]
        for model in (self.before, self.after):
            assert model is not None
            model.prepare({name: value.shape for name, value in feeds.items()})
        old, new = turns.medians([functools.partial(model.run, feeds) for model in (self.before, self.after) if model is not None])
        return Speed(before_ms=old, after_ms=new, ratio=new / old, workers=len(self.runtime.workers))

    def move(self, target: Path) -> list[Path]:
        """Give the last model its place. Return its files."""
        if self.after is not None:
            self.after.unload()
            self.after = None
        quantizer.move(self.file, target)
        return quantizer.files_of(target)


def _keep_enough(run: _Run, fixed: Sequence[str], own: Sequence[layers.Layer], job: _Job) -> None:
    """Leaves the model with as few layers in floats as the bound allows."""

    def error_with(names: tuple[str, ...]) -> float:
        job.say(f"quantising with {count(len(names), 'layer')} in floats", 3)
        kept = (*fixed, *(name for name in names if name not in fixed))
        return run.error if kept == run.kept else run.attempt(kept)

    names = keeping.least(keeping.order(own), error_with, job.within or 0.0)
    error_with(names)


def _listed(whole: Quantizer, own: Sequence[layers.Layer], kept: set[str]) -> list[LayerError]:
    """The measured layers, the worst first, and those kept from the start, which have not been measured."""
    ops = {node.name: node.op_type for node in whole.model.graph.node}
    found = [LayerError(name=layer.name, op=layer.op, error=_number(layer.error), kept=layer.name in kept) for layer in own]
    there = {layer.name for layer in own}
    return [*found, *(LayerError(name=name, op=ops[name], error=None, kept=True) for name in sorted(kept - there))]


def _advice(run: _Run, own: Sequence[layers.Layer], job: _Job, speed: Speed | None, *, apart: bool) -> list[str]:
    """Sentences that say how to go on."""
    said = []
    within, auto = job.within, AUTO in job.keep
    if within is not None and run.error > within:
        said.append(
            "All layers are in floats now, and the bound is not met. Allow a larger one."
            if auto
            else f"The error {run.error:.2g} is above the bound {within:g}. Keep layers in floats: --keep auto --within {within:g}."
        )
    bad = [name for name in keeping.conspicuous(own) if name not in run.kept]
    if bad and not auto:
        options = " ".join(f"--keep '{name}'" for name in bad[:MOST_ADVISED])
        more = f" and {len(bad) - MOST_ADVISED} more" if len(bad) > MOST_ADVISED else ""
        said.append(f"The errors of some layers stand out. Keep them in floats: {options}{more}, or --keep auto --within BOUND.")
    if not quantizer.layers_of(quantizer.read(run.written)):
        said.append("No layer is in 8 bits: the quantiser knows none of the model's operators, or all are kept in floats.")
    if not apart:
        said.append("Ranges and errors are of the same samples. Give more of them, so that some can be held out.")
    if speed is not None and speed.ratio >= 1:
        said.append("The quantised model is not faster on this machine. Keep the one in floats, unless its size matters.")
    return said


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


@contextmanager
def _file(model: Any) -> Iterator[tuple[Path, str]]:
    """The model as a file, and what it is called."""
    path, data, name = where(model)
    if path:
        if path.endswith(".networks"):
            raise RequestError(f"{path} joins networks. Quantise each of them by itself")
        yield Path(path), Path(path).name
        return
    with tempfile.TemporaryDirectory(prefix="aspen-mp-quantize-") as folder:
        file = Path(folder) / "model.onnx"
        file.write_bytes(data if isinstance(data, bytes) else b"")
        yield file, name
