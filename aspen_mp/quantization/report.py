"""The report about a quantised model, as structs: `aspen_mp.quantize` returns them, and `aspen-mp quantize --json` prints them."""

from __future__ import annotations

from aspen_mp.control.wire.status import Document


class Sizes(Document):
    """Bytes of the models' files, with their external data."""

    before: int
    after: int


class OutputError(Document):
    """An output of the quantised model beside the model in float32, both run by aspen-mp. `error`: the largest difference of any sample,
    relative to the sample's largest magnitude, null where no number says it. `rms`: the root of the summed squares of differences, relative
    to that of the values. `top1`: the share of rows whose largest score stands at the same place, null where the output does not look like
    scores of classes."""

    name: str
    error: float | None
    rms: float | None
    top1: float | None


class LayerError(Document):
    """A layer that can be quantised. `error`: what quantising this layer alone adds to its output, as the `rms` of outputs; null where it
    was not measured. The layer has the inputs of the model in floats. `kept`: the layer is in floats in the written model."""

    name: str
    op: str
    error: float | None
    kept: bool


class Speed(Document):
    """Milliseconds of a request, medians of turns in one runtime. `ratio`: after by before; below 1 the quantised model is faster."""

    before_ms: float
    after_ms: float
    ratio: float
    workers: int


class Counts(Document):
    """Samples that the ranges were taken from, and those that errors were measured on. `apart`: no sample served for both."""

    calibrated: int
    judged: int
    apart: bool


class Choices(Document):
    """How the model was quantised. `keep`: layers and operator types that were to stay in floats. `within`: the bound of the error, null
    where nobody gave one."""

    per_channel: bool
    activations: str
    method: str
    prepared: bool
    keep: list[str]
    within: float | None


class Report(Document):
    """The report of `aspen_mp.quantize`. `error`: the largest of the outputs' errors. `met`: whether it is within the bound, null without
    one. `attempts`: how many models were quantised and measured. `layers`: the worst first. `advice`: what to do next, a sentence each."""

    model: str
    file: str
    files: list[str]
    choices: Choices
    samples: Counts
    bytes: Sizes
    error: float | None
    met: bool | None
    attempts: int
    outputs: list[OutputError]
    layers: list[LayerError]
    speed: Speed | None
    advice: list[str]
