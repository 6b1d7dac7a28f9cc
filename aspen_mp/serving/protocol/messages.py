"""The JSON documents of an inference request and of its answer, as types. Unknown keys are ignored, as the protocol asks."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

MOST_TENSORS: Final = 256
MOST_DIMENSIONS: Final = 32
MOST_SEQUENCE_LETTERS: Final = 128

Whole = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Dimension = Annotated[int, Meta(ge=0, lt=1 << 48)]
Name = Annotated[str, Meta(min_length=1, max_length=4096)]


class TensorParameters(msgspec.Struct, kw_only=True):
    """Optional parameters of a tensor of a request. `shared_memory_offset`, `shared_memory_byte_size`: bytes in the region. Classification
    is read to be refused."""

    binary_data_size: Annotated[int, Meta(ge=0, lt=1 << 48)] | None = None
    binary_data: bool | None = None
    shared_memory_region: Annotated[str, Meta(max_length=4096)] | None = None
    shared_memory_offset: Annotated[int, Meta(ge=0, lt=1 << 48)] = 0
    shared_memory_byte_size: Annotated[int, Meta(ge=0, lt=1 << 48)] | None = None
    classification: Any = None


class Input(msgspec.Struct, kw_only=True):
    """A tensor of a request. `data`: its numbers, flat or nested, undecoded; absent where they follow as bytes."""

    name: Name
    shape: Annotated[list[Dimension], Meta(max_length=MOST_DIMENSIONS)]
    datatype: str
    parameters: TensorParameters = msgspec.field(default_factory=TensorParameters)
    data: msgspec.Raw | UnsetType = UNSET


class Wanted(msgspec.Struct, kw_only=True):
    """An output that is asked for."""

    name: Name
    parameters: TensorParameters = msgspec.field(default_factory=TensorParameters)


class Parameters(msgspec.Struct, kw_only=True):
    """Optional parameters of a request. `timeout`: microseconds; `priority`: 0 as the model says, 1 high, 2 normal, 3 and more low.
    `sequence_id`: of the stream whose next frame it is; 0 and "" are none."""

    timeout: Whole | None = None
    priority: Whole | str | None = None
    binary_data_output: bool = False
    sequence_id: Annotated[int, Meta(ge=0)] | Annotated[str, Meta(max_length=MOST_SEQUENCE_LETTERS)] | None = None
    sequence_start: bool | None = None
    sequence_end: bool | None = None


class Request(msgspec.Struct, kw_only=True):
    """An inference request."""

    id: Annotated[str, Meta(max_length=4096)] = ""
    parameters: Parameters = msgspec.field(default_factory=Parameters)
    inputs: Annotated[list[Input], Meta(max_length=MOST_TENSORS)]
    outputs: Annotated[list[Wanted], Meta(max_length=MOST_TENSORS)] = msgspec.field(default_factory=list)


class OutputParameters(msgspec.Struct, kw_only=True):
    """Where a tensor of an answer is: it follows as bytes, or it lies in shared memory, from this byte of the region on."""

    binary_data_size: int | UnsetType = UNSET
    shared_memory_region: str | UnsetType = UNSET
    shared_memory_offset: int | UnsetType = UNSET
    shared_memory_byte_size: int | UnsetType = UNSET


class Output(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A tensor of an answer."""

    name: str
    datatype: str
    shape: list[int]
    parameters: OutputParameters | None = None
    data: list[Any] | UnsetType = UNSET  # or these as JSON, which msgspec has no type for


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The answer to an inference request."""

    model_name: str
    model_version: str
    id: str = ""
    outputs: list[Output]


request_decoder: Final = msgspec.json.Decoder(Request)
encoder: Final = msgspec.json.Encoder()
