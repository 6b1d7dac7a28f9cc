"""The documents that are not read from a request, and those that `documents.py` makes, as types. They are written here to be described."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
Version = Annotated[str, Meta(pattern="^[0-9]*$")]


class Failure(msgspec.Struct, kw_only=True):
    """The answer to a request that failed."""

    error: str


class ServerMetadata(msgspec.Struct, kw_only=True):
    """The server."""

    name: str
    version: str
    extensions: list[str]


class Live(msgspec.Struct, kw_only=True):
    """Whether the server lives."""

    live: Literal[True]


class Ready(msgspec.Struct, kw_only=True):
    """Whether requests are served, the reason if they are not, and versions that are not although they should be."""

    ready: bool
    reason: str = ""
    unserved: list[str] = []


class ModelReady(msgspec.Struct, kw_only=True):
    """A model that is ready; others are answered with an error."""

    name: str
    ready: Literal[True]


class TensorMetadata(msgspec.Struct, kw_only=True):
    """An input or output. Dimensions that are open are -1."""

    name: str
    datatype: str
    shape: list[Annotated[int, Meta(ge=-1)]]


class ModelMetadata(msgspec.Struct, kw_only=True):
    """A model: its versions that are served, inputs and outputs."""

    name: str
    versions: list[Version]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelConfig(msgspec.Struct, kw_only=True):
    """A model's configuration, in Triton's words."""

    name: str
    platform: str
    backend: str
    max_batch_size: Count


class Duration(msgspec.Struct, kw_only=True):
    """How often, and nanoseconds of all together."""

    count: Count
    ns: Count


class InferenceStatistics(msgspec.Struct, kw_only=True):
    """Durations by phase."""

    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class BatchStatistics(msgspec.Struct, kw_only=True):
    """Executions of `batch_size` rows."""

    batch_size: Annotated[int, Meta(ge=1)]
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class ModelStatistics(msgspec.Struct, kw_only=True):
    """Counts of a version."""

    name: str
    version: Version
    last_inference: Count
    inference_count: Count
    execution_count: Count
    inference_stats: InferenceStatistics
    batch_stats: list[BatchStatistics]


class Statistics(msgspec.Struct, kw_only=True):
    """Counts of versions."""

    model_stats: list[ModelStatistics]


class IndexEntry(msgspec.Struct, kw_only=True):
    """A version of the repository, and why it is not served."""

    name: str
    version: Version
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


class Changed(msgspec.Struct, kw_only=True):
    """A model was loaded or unloaded."""


class Registration(msgspec.Struct, kw_only=True):
    """The shared memory that a region is to be, and the part of it."""

    key: str
    byte_size: Annotated[int, Meta(ge=1)]
    offset: Count = 0
