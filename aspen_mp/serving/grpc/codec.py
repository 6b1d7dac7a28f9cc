"""A ModelInferRequest as a call of a model, and results as a ModelInferResponse."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aspen_mp.client.signature import ValueInfo
from aspen_mp.serving.grpc.schema import ModelInferResponse
from aspen_mp.serving.limits import Limits
from aspen_mp.serving.memory.regions import Place, Regions, place_of
from aspen_mp.serving.protocol import datatypes, inference, turns
from aspen_mp.serving.protocol.inference import Call
from aspen_mp.serving.protocol.messages import MOST_DIMENSIONS, MOST_SEQUENCE_LETTERS, MOST_TENSORS
from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.serving.protocol.turns import Work
from aspen_mp.shm.errors import RequestError

_MOST_EXTENT: Final = 1 << 48
_MOST_LETTERS: Final = 4096
_RAW_FIELD: Final = 7
"""The number of raw_input_contents in a ModelInferRequest."""
_DELIMITED: Final = 2
_WIDTHS: Final = {1: 8, 5: 4}
"""Bytes of a field's value by its wire type; the rest are lengths or numbers."""
FIELDS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of InferTensorContents that holds the elements of a datatype. FP16 and BF16 have none."""


def check_sizes(message: memoryview, limits: Limits) -> None:
    """Refused (413), RequestError where a ModelInferRequest, not parsed yet, has too much besides its bytes of tensors. Parsed, that takes
    several times as much memory."""
    at = fields = besides = 0
    while at < len(message) and fields <= 4 * MOST_TENSORS:
        tag, at = _varint(message, at)
        size, at = _varint(message, at) if tag & 7 == _DELIMITED else (0, at + _WIDTHS.get(tag & 7, 1))
        at += size
        fields += 1
        besides += size if tag >> 3 != _RAW_FIELD else 0
    if at < len(message):
        raise RequestError(f"the request names more than {MOST_TENSORS} inputs or outputs")
    if besides > limits.json:
        raise Refused(
            413, f"the request has {besides} bytes besides raw_input_contents, and this server takes {limits.json}. Send tensors there"
        )


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number, and where the next field begins. An invalid number is found when the message is parsed."""
    value = shift = 0
    while at < len(message) and shift < 64:
        value |= (message[at] & 127) << shift
        at += 1
        if message[at - 1] < 128:
            break
        shift += 7
    return value, at


async def read(
    request: Any,
    inputs: Sequence[ValueInfo],
    remaining_s: float | None,
    regions: Regions,
    limits: Limits,
    charge: Callable[[int], None],
) -> Call:
    """The call that a request asks for. RequestError if it fits neither protocol nor model.

    Args:
        request: A ModelInferRequest.
        inputs: The model's.
        remaining_s: Seconds that the call has by its own deadline. None: any time.
        regions: Of shared memory, that tensors may lie in.
        limits: What is accepted.
        charge: Told of memory that the request needs besides its message.
    """
    if max(len(request.inputs), len(request.outputs)) > MOST_TENSORS:
        raise RequestError(f"the request names more than {MOST_TENSORS} inputs or outputs")
    if max(len(request.id), *(len(each.name) for each in (*request.inputs, *request.outputs)), 0) > _MOST_LETTERS:
        raise RequestError(f"the id or a name has more than {_MOST_LETTERS} characters")
    raw = request.raw_input_contents
    places = {k: place for k, tensor in enumerate(request.inputs) if (place := _place(tensor, f"input {tensor.name!r}")) is not None}
    if raw and len(raw) != len(request.inputs) - len(places):
        besides = f" that are not in shared memory ({len(places)} are)" if places else ""
        raise RequestError(
            f"raw_input_contents has {len(raw)} entries for {len(request.inputs)} inputs{besides}. Give one for each, or none"
        )
    entries = iter(raw)
    known = {info.name: info for info in inputs}
    feeds: dict[str, npt.NDArray[Any]] = {}
    for k, tensor in enumerate(request.inputs):
        if tensor.name in feeds:
            raise RequestError(f"input {tensor.name!r} is given twice")
        _refuse_extensions(tensor, f"input {tensor.name!r}")
        info = known.get(tensor.name)
        if info is None:
            raise inference.unknown(tensor.name, known)
        dtype = inference.dtype_of(tensor.name, tensor.datatype, info)
        shape = _shape(tensor)
        inference.check_strings(dtype, math.prod(shape), f"input {tensor.name!r}", limits)
        if (raw or k in places) and tensor.HasField("contents"):
            raise RequestError(f"input {tensor.name!r} has contents, and bytes or shared memory as well. Give one of them")
        if k in places:
            array, piece = inference.copied(tensor.name, shape, dtype, places[k], regions)
            if dtype == np.bool_:
                await inference.to_bools(array)
            elif dtype.hasobject:
                array = await inference.strings_of(piece, shape, f"input {tensor.name!r}", charge)
            feeds[tensor.name] = array
            continue
        array = await _array(tensor, dtype, shape, info, next(entries) if raw else None, limits, charge)
        try:
            feeds[tensor.name] = array.reshape(shape)
        except ValueError as error:  # of no elements, and yet too large
            raise RequestError(f"input {tensor.name!r}: shape {shape}: {error}") from None
    stored: dict[str, Place] = {}
    for wanted in request.outputs:
        _refuse_extensions(wanted, f"output {wanted.name!r}")
        place = _place(wanted, f"output {wanted.name!r}")
        if place is not None:
            regions[place]  # before it runs
            stored[wanted.name] = place
    outputs = list(dict.fromkeys(wanted.name for wanted in request.outputs)) or None
    priority, deadline_ms = _urgency(request, remaining_s)
    in_bytes = bool(raw or places) or not request.inputs
    return Call(request.id, feeds, outputs, {}, in_bytes, priority, deadline_ms, stored, regions, frame_of(request))


async def _array(
    tensor: Any,
    dtype: np.dtype[Any],
    shape: Sequence[int],
    info: ValueInfo,
    data: bytes | None,
    limits: Limits,
    charge: Callable[[int], None],
) -> npt.NDArray[Any]:
    """The elements of a tensor from its bytes, or where it has none from its contents."""
    n = math.prod(shape)
    if data is not None and not dtype.hasobject:
        return _from_bytes(tensor, dtype, n, data)
    if n > turns.ITEMS:
        inference.check_shape(tensor.name, shape, info)
    if data is not None:
        if len(data) < 4 * n:
            raise RequestError(f"input {tensor.name!r}: {len(data)} bytes are too few for {n} strings")
        return await inference.strings_of(memoryview(data), [n], f"input {tensor.name!r}", charge)
    _check_contents(tensor, n)
    work = _from_contents(tensor, dtype, n)
    if n <= turns.ITEMS:
        return turns.at_once(work)
    charge(n * (dtype.itemsize if not dtype.hasobject else inference.STRING))
    return await turns.run(work)


def shared_bytes(request: Any, most: int) -> int:
    """Bytes of the inputs that lie in shared memory. Refused (413) where there are more than `most`; RequestError."""
    places = (_place(tensor, f"input {tensor.name!r}") for tensor in request.inputs)
    found = sum(place.size for place in places if place is not None)
    if found > most:
        raise Refused(413, f"the tensors in shared memory have more than the {most} bytes that this server takes")
    return found


def _place(tensor: Any, where: str) -> Place | None:
    """Where in shared memory a tensor lies; None if it does not. RequestError."""
    region, offset, size = (_value(tensor.parameters, f"shared_memory_{key}") for key in ("region", "offset", "byte_size"))
    if region is None or region == "":
        return None
    if not isinstance(region, str):
        raise RequestError(f"{where}: shared_memory_region must be a name, not {region}")
    for value in (offset, size):
        if value is not None and (type(value) is not int or not 0 <= value < _MOST_EXTENT):
            raise RequestError(f"{where}: shared_memory_offset and shared_memory_byte_size must be numbers of bytes, not {value}")
    return place_of(region, offset or 0, size, where)


def _shape(tensor: Any) -> list[int]:
    shape = list(tensor.shape)
    if len(shape) > MOST_DIMENSIONS:
        raise RequestError(f"input {tensor.name!r} has more than {MOST_DIMENSIONS} dimensions")
    if any(not 0 <= extent < _MOST_EXTENT for extent in shape):
        raise RequestError(f"input {tensor.name!r}: shape {shape} has an extent below 0 or beyond {_MOST_EXTENT}")
    return shape


def _refuse_extensions(tensor: Any, where: str) -> None:
    """An extension that would change the meaning of a request and is missing here is refused, not ignored."""
    if tensor.parameters and _value(tensor.parameters, "classification"):
        raise RequestError(f"{where}: this server has no extension for classification. Ask for the whole output")


def _value(parameters: Any, key: str) -> Any:
    """The content of a parameter, of whatever type; None where it is missing or empty."""
    if key not in parameters:
        return None
    kind = parameters[key].WhichOneof("parameter_choice")
    return None if kind is None else getattr(parameters[key], kind)


def frame_of(request: Any) -> inference.Frame | None:
    """The place of a request in a sequence, if it has one. RequestError."""
    number, start, end = (_value(request.parameters, f"sequence_{key}") for key in ("id", "start", "end"))
    if number is not None and (type(number) not in (int, str) or (isinstance(number, int) and number < 0)):
        raise RequestError(f"parameter sequence_id must be a text or a number from 0 on, not {number}")
    if isinstance(number, str) and len(number) > MOST_SEQUENCE_LETTERS:
        raise RequestError(f"sequence_id has more than {MOST_SEQUENCE_LETTERS} characters")
    for key, flag in (("start", start), ("end", end)):
        if flag is not None and not isinstance(flag, bool):
            raise RequestError(f"parameter sequence_{key} must be true or false, not {flag}")
    return inference.frame_of(number, start, end)


def _urgency(request: Any, remaining_s: float | None) -> tuple[str | None, float | None]:
    """Class and deadline: the nearer one of the parameter `timeout`, in microseconds, and the call's own."""
    said = request.parameters
    priority, timeout = _value(said, "priority"), _value(said, "timeout")
    if not (priority is None or isinstance(priority, str | int)) or (isinstance(priority, int) and priority < 0):
        raise RequestError(f"parameter priority must be a word or a number from 0 on, not {priority}")
    if timeout is not None and (not isinstance(timeout, int) or timeout < 0):
        raise RequestError(f"parameter timeout must be a number of microseconds from 0 on, not {timeout}")
    limits = [*([timeout / 1000] if timeout else []), *([] if remaining_s is None else [max(remaining_s * 1000, 1e-3)])]
    return inference.class_of(priority), min(limits, default=None)


def _from_bytes(tensor: Any, dtype: np.dtype[Any], n: int, data: bytes) -> npt.NDArray[Any]:
    """The elements of a tensor from its bytes, without a copy where they need no check."""
    where = f"input {tensor.name!r}"
    if len(data) != n * dtype.itemsize:
        raise RequestError(
            f"{where}: shape {list(tensor.shape)} of {tensor.datatype} needs {n * dtype.itemsize} bytes, "
            f"its entry of raw_input_contents has {len(data)}"
        )
    if dtype == np.bool_:
        return np.frombuffer(data, np.uint8).astype(np.bool_)  # kernels know of 0 and 1 only
    return np.frombuffer(data, dtype)


def _check_contents(tensor: Any, n: int) -> None:
    """RequestError unless a tensor has `n` elements, in the field of its datatype."""
    where = f"input {tensor.name!r}"
    field = FIELDS.get(tensor.datatype)
    if field is None:
        raise RequestError(f"{where}: {tensor.datatype} has no field of contents. Send it in raw_input_contents")
    others = [each.name for each, _ in tensor.contents.ListFields() if each.name != field]
    if others:
        raise RequestError(f"{where}: elements of {tensor.datatype} belong into {field}, not into {others[0]}")
    items = getattr(tensor.contents, field)
    if len(items) != n:
        raise RequestError(f"{where}: shape {list(tensor.shape)} has {n} elements, and {field} has {len(items)}")


def _from_contents(tensor: Any, dtype: np.dtype[Any], n: int) -> Work[npt.NDArray[Any]]:
    """The elements of a tensor from the field of its datatype, which `_check_contents` has found good."""
    where, items = f"input {tensor.name!r}", getattr(tensor.contents, FIELDS[tensor.datatype])
    if dtype.hasobject:
        found = np.empty(n, object)
        for k, item in enumerate(items):
            if k % turns.STRINGS == turns.STRINGS - 1:
                yield
            try:
                found[k] = str(item, "utf-8")
            except UnicodeDecodeError:
                raise RequestError(f"{where}: string {k} is not UTF-8, which strings of ONNX models are") from None
        return found
    array: npt.NDArray[Any] = np.empty(n, np.int64 if dtype.kind in "iu" and dtype.itemsize < 8 else dtype)
    for k in range(0, n, turns.ITEMS):
        if k:
            yield
        array[k : k + turns.ITEMS] = items[k : k + turns.ITEMS]
    if array.dtype != dtype:
        limits = np.iinfo(dtype)
        if array.size and not (limits.min <= array.min() and array.max() <= limits.max):
            raise RequestError(f"{where}: an element is beyond what {tensor.datatype} holds")
        array = array.astype(dtype)
    return array


def is_large(call: Call, results: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Whether to make the answer takes long: many elements have to be spelled out."""
    return sum(result.size for result in results.values() if result.dtype.hasobject or not call.binary_default) > turns.ITEMS


def answer(call: Call, name: str, version: str, results: Mapping[str, npt.NDArray[Any]]) -> Work[Any]:
    """The ModelInferResponse: bytes where the request had bytes, or where an output has no field of contents; otherwise elements."""
    response = ModelInferResponse(model_name=name, model_version=version, id=call.id)
    named: list[tuple[Any, str, npt.NDArray[Any]]] = []
    for output, result in results.items():
        datatype = datatypes.name_of(result.dtype)
        if datatype is None:
            raise RequestError(f"output {output!r} is {result.dtype}, for which the protocol has no name. Ask for other outputs")
        tensor = response.outputs.add(name=output, datatype=datatype, shape=result.shape)
        place = call.places.get(output)
        if place is not None:
            n = inference.stored(result, place, call.regions, f"output {output!r}")
            tensor.parameters["shared_memory_region"].string_param = place.region
            tensor.parameters["shared_memory_offset"].int64_param = place.offset
            tensor.parameters["shared_memory_byte_size"].int64_param = n
            continue
        named.append((tensor, datatype, result))
    raw = call.binary_default or any(datatype not in FIELDS for _, datatype, _ in named)
    for tensor, datatype, result in named:
        if raw:
            piece = (yield from datatypes.packed_strings(result)) if result.dtype.hasobject else result.tobytes()
            response.raw_output_contents.append(piece)
        elif result.dtype.hasobject:
            tensor.contents.bytes_contents.extend(item if isinstance(item, bytes) else str(item).encode() for item in result.ravel())
        else:
            flat, field = result.ravel(), getattr(tensor.contents, FIELDS[datatype])
            for k in range(0, flat.size, turns.ITEMS):
                if k:
                    yield
                field.extend(flat[k : k + turns.ITEMS].tolist())
    return response
