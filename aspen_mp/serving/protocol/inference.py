"""An inference request from its body to the arrays that a model takes, and from a model's results to the body of the answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
import simdjson

from aspen_mp.client.signature import ValueInfo
from aspen_mp.serving.buffers import NOWHERE, Rooms
from aspen_mp.serving.limits import Limits
from aspen_mp.serving.memory.regions import NONE, Place, Regions, place_of
from aspen_mp.serving.protocol import datatypes, large_json, turns
from aspen_mp.serving.protocol.body import Body
from aspen_mp.serving.protocol.messages import (
    MOST_DIMENSIONS,
    Answer,
    Input,
    Output,
    OutputParameters,
    Request,
    TensorParameters,
    encoder,
    request_decoder,
)
from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.serving.protocol.turns import Work
from aspen_mp.shm.errors import RequestError
from aspen_mp.shm.words import nearest

if TYPE_CHECKING:
    from aspen_mp.serving.arriving import Arrivals, Feed

HEADER_LENGTH: Final = b"inference-header-content-length"
CLASSES: Final = {0: None, 1: "high", 2: "normal"}
"""The protocol's numbers of priorities, 0 being the model's own; all others are "low"."""
LARGE_TENSOR: Final = 1 << 20
"""Bytes of a tensor whose shape is checked before they are read, and that is not handled at once."""
STRING: Final = 72
"""Bytes of memory of an element of a tensor of strings, besides its characters."""
_ITEMS: Final[dict[str, Any]] = {"b": list[bool], "i": list[int], "u": list[int], "f": list[float], "V": list[float], "O": list[str]}
_READ: Final = {"i": ("i", np.int64), "u": ("u", np.uint64), "f": ("d", np.float64), "V": ("d", np.float64)}
"""How numbers in JSON are read, by kind: simdjson's letter and numpy's type."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The place of a request in a sequence. `start`, `end`: whether it is the first and the last one."""

    id: int | str
    start: bool
    end: bool


@dataclass(slots=True)
class Call:
    """A request to a model.

    Attributes:
        id: The client's, echoed.
        feeds: {input: array}.
        outputs: Names of outputs, or None for all.
        binary: By output, whether it is answered in bytes; `binary_default` for those not in it.
        priority: A class of `Model.run`; None: the model's own.
        deadline_ms: Milliseconds from now; None: the model's own.
        places: By output, where in `regions` it goes instead of into the answer.
        frame: Its place in a sequence; None: it is by itself.
        client: The address of the client.
        feed: What may have run it while its body came.
    """

    id: str
    feeds: dict[str, npt.NDArray[Any]]
    outputs: list[str] | None
    binary: dict[str, bool]
    binary_default: bool
    priority: str | None
    deadline_ms: float | None
    places: dict[str, Place] = field(default_factory=dict)
    regions: Regions = NONE
    frame: Frame | None = None
    client: str = ""
    feed: Feed | None = None


async def read(
    body: Body,
    header_length: int | None,
    inputs: Sequence[ValueInfo],
    regions: Regions = NONE,
    rooms: Rooms = NOWHERE,
    arrivals: Arrivals | None = None,
) -> Call:
    """A request from its body. `header_length`: of the JSON part, if bytes follow. `regions`: of shared memory, that tensors may lie in.
    `rooms`: where inputs are read into. `arrivals`: may run it while the body comes. Refused or RequestError if it is wrong; no array is
    made for an input that does not fit the model."""
    if header_length is not None and body.length is not None and header_length > body.length:
        raise Refused(400, f"the JSON part is said to have {header_length} bytes, and the body has {body.length}")
    text = await body.read_text(header_length)
    runs: large_json.Runs | None = None
    if len(text) < large_json.LARGE:
        request = decoded(text)
    else:
        request, runs = await turns.run(_decoded_large(memoryview(text), body.limits.marks))
    known = {info.name: info for info in inputs}
    dtypes = _checked(request, known, body, header_length, LARGE_TENSOR if runs is None else 0)
    rooms.open(request)
    feeds: dict[str, npt.NDArray[Any]] = {}
    binary: dict[str, memoryview] = {}
    feed: Feed | None = None
    strings: dict[str, tuple[Input, memoryview]] = {}
    for tensor, dtype in zip(request.inputs, dtypes, strict=True):
        name, size = tensor.name, tensor.parameters.binary_data_size
        place = _place(tensor.parameters, f"input {name!r}")
        if place is not None:
            feeds[name], piece = _shared(tensor, dtype, place, regions, body, rooms)
        elif size is None:
            feeds[name] = from_json(tensor, dtype) if runs is None else await _from_large(tensor, dtype, runs, body)
            continue
        else:
            feeds[name], piece = _room(name, tensor.shape, dtype, size, "binary_data_size", rooms)
            binary[name] = piece
        if dtype.hasobject:
            strings[name] = tensor, piece
    if header_length is not None:
        if arrivals is not None and not request.parameters.sequence_id:
            terms = _wanted(request), class_of(request.parameters.priority)
            feed = arrivals.feed(feeds, binary, *terms, body.seen - header_length)
        if feed is not None:
            body.watch(feed, header_length)
        await body.read_into(binary.values())
    for array in feeds.values():
        if array.dtype == np.bool_:
            await to_bools(array)
    for name, (tensor, piece) in strings.items():
        feeds[name] = await strings_of(piece, tensor.shape, f"input {name!r}", body.charge)
    call = _call(request, feeds, regions)
    call.feed = feed
    return call


def _wanted(request: Request) -> list[str] | None:
    """Names of the outputs that are asked for; None: all."""
    return list(dict.fromkeys(wanted.name for wanted in request.outputs)) or None


def _checked(request: Request, known: Mapping[str, ValueInfo], body: Body, header_length: int | None, large: int) -> list[np.dtype[Any]]:
    """The dtypes of a request's inputs. RequestError, Refused unless these are inputs of the model, and the body can have that number of
    bytes.
    `large`: bytes of a tensor from which on its shape is checked now."""
    dtypes: list[np.dtype[Any]] = []
    names: set[str] = set()
    total = 0
    for tensor in request.inputs:
        if tensor.name in names:
            raise RequestError(f"input {tensor.name!r} is given twice")
        names.add(tensor.name)
        _refuse_extensions(tensor.parameters, f"input {tensor.name!r}")
        info = known.get(tensor.name)
        if info is None:
            raise unknown(tensor.name, known)
        dtype = dtype_of(tensor.name, tensor.datatype, info)
        dtypes.append(dtype)
        if dtype.hasobject:
            check_strings(dtype, math.prod(tensor.shape), f"input {tensor.name!r}", body.limits)
        size = tensor.parameters.binary_data_size
        if size is not None and header_length is None and tensor.parameters.shared_memory_region is None:
            raise RequestError(f"input {tensor.name!r} has binary_data_size, and the header Inference-Header-Content-Length is missing")
        total += size or 0
        if (size or tensor.parameters.shared_memory_byte_size or 0) >= large:
            check_shape(tensor.name, tensor.shape, info)
    if total and header_length is not None:
        follow = (body.limits.body if body.length is None else body.length) - header_length
        if total > follow:
            status = 413 if body.length is None else 400
            raise Refused(status, f"binary_data_size of the inputs is {total} bytes together, and {max(follow, 0)} bytes follow at most")
    return dtypes


def unknown(name: str, known: Iterable[str]) -> RequestError:
    """The error for an input that the model does not have."""
    meant = nearest(name, known)
    hint = f" (is {meant!r} meant?)" if meant else ""
    return RequestError(f"the model has no input {name[:200]!r}{hint}. It has {', '.join(known)}")


def check_shape(name: str, shape: Sequence[int], info: ValueInfo) -> None:
    """RequestError where the model's input has another shape. The model says so, too, but only after everything has been read."""
    if info.shape is None or (not info.shape and math.prod(shape) == 1):
        return
    if len(shape) != len(info.shape) or any(isinstance(want, int) and want != have for want, have in zip(info.shape, shape, strict=True)):
        wanted = ", ".join("?" if dim is None else str(dim) for dim in info.shape)
        raise RequestError(f"input {name!r} must have shape [{wanted}], not {list(shape)}")


def _decoded_large(text: memoryview, most_marks: int) -> Work[tuple[Request, large_json.Runs]]:
    rest, runs = yield from large_json.split(text, most_marks)
    return decoded(rest), runs


async def _from_large(tensor: Input, dtype: np.dtype[Any], runs: large_json.Runs, body: Body) -> npt.NDArray[Any]:
    """As `from_json`, of a request whose long lists were taken out. The array counts in the budget."""
    data = tensor.data
    run = runs.get(bytes(data)) if isinstance(data, msgspec.Raw) and len(memoryview(data)) < 64 else None
    n = math.prod(tensor.shape)
    if run is None or dtype.hasobject:
        return await turns.call(from_json, tensor, dtype)
    if 2 * n - 1 > len(run):
        raise RequestError(f"input {tensor.name!r}: shape {tensor.shape} has {n} elements, and data has fewer")
    body.charge(n * dtype.itemsize)

    def decode(text: bytes, k: int) -> npt.NDArray[Any]:
        return from_json(Input(name=tensor.name, shape=[k], datatype=tensor.datatype, data=msgspec.Raw(text)), dtype)

    return await turns.run(large_json.array(run, tensor.shape, dtype, f"input {tensor.name!r}", decode))


async def to_bools(array: npt.NDArray[Any]) -> None:
    """Makes every byte 0 or 1: kernels take no other."""
    numbers = array.reshape(-1).view(np.uint8)
    for k in range(0, len(numbers), LARGE_TENSOR):
        if k:
            await asyncio.sleep(0)
        part = numbers[k : k + LARGE_TENSOR]
        np.not_equal(part, 0, out=part.view(np.bool_))


async def strings_of(data: memoryview, shape: Sequence[int], where: str, charge: Callable[[int], None]) -> npt.NDArray[Any]:
    """The tensor of strings from its bytes. They are charged where they are many. RequestError, Refused."""
    n = math.prod(shape)
    work = datatypes.unpacked_strings(data, n, where)
    if n <= turns.STRINGS and len(data) < LARGE_TENSOR:
        return turns.at_once(work).reshape(shape)
    wide = 4 if np.frombuffer(data, np.uint8).max(initial=0) > 127 else 1  # bytes of a character in memory, at most
    charge(STRING * n + wide * len(data))
    return (await turns.run(work)).reshape(shape)


def check_strings(dtype: np.dtype[Any], n: int, where: str, limits: Limits) -> None:
    """Refused (413) where a tensor has too many strings."""
    if dtype.hasobject and n > limits.strings:
        raise Refused(413, f"{where} has {n} strings, and this server takes {limits.strings}. Send them in several requests")


def _call(request: Request, feeds: dict[str, npt.NDArray[Any]], regions: Regions) -> Call:
    """The request with its arrays; its other fields are checked."""
    said = request.parameters
    frame = frame_of(said.sequence_id, said.sequence_start, said.sequence_end)
    binary: dict[str, bool] = {}
    places: dict[str, Place] = {}
    for wanted in request.outputs:
        _refuse_extensions(wanted.parameters, f"output {wanted.name!r}")
        place = _place(wanted.parameters, f"output {wanted.name!r}")
        if place is not None:
            regions[place]  # before it runs
            places[wanted.name] = place
        if wanted.parameters.binary_data is not None:
            binary[wanted.name] = wanted.parameters.binary_data
    deadline_ms = said.timeout / 1000 if said.timeout else None
    names = _wanted(request)
    return Call(request.id, feeds, names, binary, said.binary_data_output, class_of(said.priority), deadline_ms, places, regions, frame)


def class_of(priority: int | str | None) -> str | None:
    """The class of `Model.run` that a request's priority means; None: the model's own."""
    return priority if isinstance(priority, str) else CLASSES.get(priority or 0, "low")


def frame_of(number: int | str | None, start: bool | None, end: bool | None) -> Frame | None:
    """The place in a sequence that parameters mean; None: in none. RequestError for a start or an end of none."""
    if isinstance(number, int) and number >> 64:
        raise RequestError("sequence_id is a number of 64 bits at most, or a text")
    if number:
        return Frame(number, bool(start), bool(end))
    if start or end:
        raise RequestError("sequence_start and sequence_end need a sequence_id: a number from 1 on, or a text")
    return None


def decoded(text: bytes | bytearray | memoryview) -> Request:
    """The JSON part of a request. RequestError where it is not one."""
    try:
        return request_decoder.decode(text)
    except msgspec.ValidationError as error:
        raise RequestError(f"the request does not fit the protocol: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the request is not JSON: {error}") from None
    except RecursionError:
        raise RequestError("the request is JSON that is nested too deeply") from None


def _refuse_extensions(parameters: Any, where: str) -> None:
    """An extension that would change the meaning of a request and is missing here is refused, not ignored."""
    if parameters.classification:
        raise RequestError(f"{where}: this server has no extension for classification. Ask for the whole output")


def _place(parameters: TensorParameters, where: str) -> Place | None:
    """Where in shared memory a tensor lies; None if it does not."""
    return place_of(parameters.shared_memory_region, parameters.shared_memory_offset, parameters.shared_memory_byte_size, where)


def _shared(
    tensor: Input, dtype: np.dtype[Any], place: Place, regions: Regions, body: Body, rooms: Rooms
) -> tuple[npt.NDArray[Any], memoryview]:
    """A copy of a tensor that lies in shared memory, and its bytes. RequestError, Refused."""
    where = f"input {tensor.name!r}"
    if tensor.parameters.binary_data_size is not None or isinstance(tensor.data, msgspec.Raw):
        raise RequestError(f"{where} lies in shared memory, and has data or binary_data_size as well. Give one of them")
    body.hold(place.size)
    return copied(tensor.name, tensor.shape, dtype, place, regions, rooms)


def copied(
    name: str, shape: Sequence[int], dtype: np.dtype[Any], place: Place, regions: Regions, rooms: Rooms = NOWHERE
) -> tuple[npt.NDArray[Any], memoryview]:
    """An array for the tensor at a place, for input `name`, and a copy of its bytes. The bytes are the array's own, except that strings
    have still to be made of them. RequestError where it does not fit shape and dtype."""
    regions[place]  # before there is room for it
    array, piece = _room(name, shape, dtype, place.size, "shared_memory_byte_size", rooms)
    regions.read(place, piece, f"input {name!r}")
    return array, piece


def dtype_of(name: str, datatype: str, info: ValueInfo | None) -> np.dtype[Any]:
    """The dtype of input `name`, by the protocol's word for it. RequestError where the protocol or the model has another."""
    dtype = datatypes.NAMES.get(datatype)
    if dtype is None:
        raise RequestError(f"input {name!r}: {datatype!r} is not a datatype. The protocol has {', '.join(datatypes.NAMES)}")
    if info is not None and dtype != info.dtype:
        raise RequestError(f"input {name!r} must be {datatypes.name_of(info.dtype) or info.dtype}, not {datatype}")
    return dtype


def _room(name: str, shape: Sequence[int], dtype: np.dtype[Any], size: int, said: str, rooms: Rooms) -> tuple[npt.NDArray[Any], memoryview]:
    """An array for a tensor of `size` bytes, and those bytes. RequestError where their number, as `said`, is not that of the shape."""
    n = math.prod(shape)
    if dtype.hasobject:
        if size < 4 * n:
            raise RequestError(f"input {name!r}: {size} bytes are too few for {n} strings")
        return np.empty(0, object), np.empty(size, np.uint8).data
    if n * dtype.itemsize != size:
        needs = f"shape {list(shape)} of {datatypes.name_of(dtype)} needs {n * dtype.itemsize} bytes"
        raise RequestError(f"input {name!r}: {needs}, {said} is {size}")
    array = rooms.of(name, dtype)
    if array is None:
        try:
            array = np.empty(shape, dtype)
        except ValueError as error:  # of no elements, and yet too large
            raise RequestError(f"input {name!r}: shape {list(shape)}: {error}") from None
    return array, array.reshape(-1).view(np.uint8).data


def from_json(tensor: Input, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The array of a tensor whose numbers stand in the JSON, flat or nested. RequestError where they are not of its type or shape."""
    where = f"input {tensor.name!r}"
    if not isinstance(tensor.data, msgspec.Raw):
        raise RequestError(f"{where} has neither data nor binary_data_size")
    if (plain := _plain(tensor, dtype)) is not None:
        return plain
    try:
        try:
            items = msgspec.json.decode(tensor.data, type=_ITEMS[dtype.kind])
        except msgspec.ValidationError:
            items = _flat(msgspec.json.decode(tensor.data), _ITEMS[dtype.kind], where)
    except (msgspec.DecodeError, RecursionError) as error:  # a number beyond all floats, too
        raise RequestError(f"{where}: {error}") from None
    if len(items) != math.prod(tensor.shape):
        raise RequestError(f"{where}: shape {tensor.shape} has {math.prod(tensor.shape)} elements, and data has {len(items)}")
    try:
        with np.errstate(over="ignore"):
            array = np.array(items, dtype).reshape(tensor.shape)
    except (OverflowError, ValueError) as error:
        raise RequestError(f"{where}: {error}") from None
    _refuse_overflow(array, where)
    return array


def _refuse_overflow(array: npt.NDArray[Any], where: str) -> None:
    """RequestError where a number has become infinite: none is in JSON."""
    if array.dtype.kind in "fV" and not np.isfinite(array).all():
        raise RequestError(f"{where}: a number is beyond what {datatypes.name_of(array.dtype)} holds. Send infinities as binary data")


def _plain(tensor: Input, dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """The array of a tensor, where its data are numbers, flat or nested as its shape is. No object is made for each. None says nothing."""
    assert isinstance(tensor.data, msgspec.Raw)
    text = memoryview(tensor.data)
    if dtype.kind not in _READ or not _is_even(text, tensor.shape):
        return None
    letter, read_as = _READ[dtype.kind]
    try:
        numbers = simdjson.Parser().parse(text)
        array = np.frombuffer(numbers.as_buffer(of_type=letter), read_as)
    except (AttributeError, TypeError, ValueError, RuntimeError):  # no list, or not of such numbers alone: whoever reads next says so
        return None
    if not array.size or array.size != math.prod(tensor.shape):
        return None
    if dtype.kind in "iu" and not np.iinfo(dtype).min <= array.min() <= array.max() <= np.iinfo(dtype).max:
        return None
    with np.errstate(over="ignore"):
        found = array.astype(dtype).reshape(tensor.shape)
    _refuse_overflow(found, f"input {tensor.name!r}")
    return found


def _is_even(text: memoryview, shape: Sequence[int]) -> bool:
    """Whether lists are flat, or nested as the shape is, and none has lists beside numbers."""
    opening = np.count_nonzero(np.frombuffer(text, np.uint8) == ord("["))
    if opening == 1:
        return True
    dense = bytes(text).translate(None, b" \t\n\r")
    nested = sum(math.prod(shape[:k]) for k in range(len(shape)))
    return opening == nested and dense.count(b",[") == dense.count(b"],[") == dense.count(b"],")


def _flat(data: Any, kind: Any, where: str) -> list[Any]:
    """Nested lists as one."""
    depth = 0
    while isinstance(data, list) and data and all(isinstance(each, list) for each in data):
        depth += 1
        if depth > MOST_DIMENSIONS:
            raise RequestError(f"{where}: data is nested deeper than {MOST_DIMENSIONS} lists")
        data = [item for each in data for item in each]
    try:
        return msgspec.convert(data, kind)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        raise RequestError(f"{where}: its data does not fit its datatype: {error}") from None


Spelled = dict[str, list[bytes]]
"""Outputs as they are answered: pieces of a list in JSON, or bytes."""


async def spelled(call: Call, results: Mapping[str, npt.NDArray[Any]]) -> Spelled:
    """The large ones among the outputs that have to be spelled out."""
    large = {output: result for output, result in results.items() if result.size > turns.ITEMS and output not in call.places}
    found: Spelled = {}
    for output, result in large.items():
        binary = call.binary.get(output, call.binary_default)
        if not binary and datatypes.name_of(result.dtype) is not None:
            found[output] = await turns.run(_listed_in_pieces(result))
        elif result.dtype.hasobject:
            found[output] = [await turns.run(datatypes.packed_strings(result))]
    return found


def _listed_in_pieces(array: npt.NDArray[Any]) -> Work[list[bytes]]:
    """A list in JSON as `encoder` writes that of `_listed`, in pieces."""
    flat, pieces = array.reshape(-1), [b"["]
    for k in range(0, flat.size, turns.ITEMS):
        pieces += [encoder.encode(_listed(flat[k : k + turns.ITEMS]))[1:-1], b","]
        yield
    return [*pieces[:-1], b"]"]


def answer(
    call: Call, name: str, version: str, results: Mapping[str, npt.NDArray[Any]], made: Spelled | None = None
) -> tuple[list[tuple[bytes, bytes]], list[Any]]:
    """Headers and the pieces of the body. Arrays that are answered in bytes are pieces themselves, not copied. `made`: of `spelled`."""
    outputs: list[Output] = []
    pieces: list[Any] = []
    listed: dict[int, list[bytes]] = {}
    for output, result in results.items():
        datatype = datatypes.name_of(result.dtype)
        if datatype is None:
            raise RequestError(f"output {output!r} is {result.dtype}, for which the protocol has no name. Ask for other outputs")
        shape, there = list(result.shape), made and made.get(output)
        if (place := call.places.get(output)) is not None:
            n = stored(result, place, call.regions, f"output {output!r}")
            said = OutputParameters(shared_memory_region=place.region, shared_memory_offset=place.offset, shared_memory_byte_size=n)
            outputs.append(Output(name=output, datatype=datatype, shape=shape, parameters=said))
        elif call.binary.get(output, call.binary_default):
            piece = there[0] if there else turns.at_once(datatypes.packed_strings(result)) if result.dtype.hasobject else _bytes_of(result)
            pieces.append(piece)
            outputs.append(Output(name=output, datatype=datatype, shape=shape, parameters=OutputParameters(binary_data_size=len(piece))))
        elif there:
            listed[len(outputs)] = there
            outputs.append(Output(name=output, datatype=datatype, shape=shape))
        else:
            outputs.append(Output(name=output, datatype=datatype, shape=shape, data=_listed(result)))
    document = Answer(model_name=name, model_version=version, id=call.id, outputs=outputs)
    texts = _in_pieces(document, listed) if listed else [encoder.encode(document)]
    if not pieces:
        return [(b"content-type", b"application/json")], texts
    return [(b"content-type", b"application/octet-stream"), (HEADER_LENGTH, str(sum(map(len, texts))).encode())], [*texts, *pieces]


def _in_pieces(document: Answer, listed: Mapping[int, list[bytes]]) -> list[bytes]:
    """A document whose outputs have these lists as their data. It is not joined: that would take long."""
    outputs, document.outputs = document.outputs, []
    pieces = [encoder.encode(document)[:-2]]  # without the end, ]}
    for k, output in enumerate(outputs):
        text = encoder.encode(output)
        pieces += [text[:-1], b',"data":', *listed[k], b"}"] if k in listed else [text]
        pieces.append(b"," if k + 1 < len(outputs) else b"]}")
    return pieces


def stored(result: npt.NDArray[Any], place: Place, regions: Regions, where: str) -> int:
    """Puts an output into shared memory. Returns its number of bytes. RequestError where it does not fit."""
    data = turns.at_once(datatypes.packed_strings(result)) if result.dtype.hasobject else _bytes_of(result)
    regions.write(place, data, where)
    return len(data)


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """The elements of an array as they lie in memory."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _listed(array: npt.NDArray[Any]) -> Any:
    """The elements of an array for JSON. Infinities and NaN become null there. Floats of 32 bits and less have only the digits that tell
    them from their neighbours."""
    if array.dtype.hasobject:
        return [item.decode(errors="replace") if isinstance(item, bytes) else str(item) for item in array.ravel()]
    if array.dtype.kind in "fV" and array.dtype.itemsize <= 4:
        return listed_floats(array.ravel())
    return array.ravel().tolist()


def listed_floats(array: npt.NDArray[Any]) -> Any:
    """The numbers of a one-dimensional array, as float32, for JSON."""
    return msgspec.Raw(orjson.dumps(np.ascontiguousarray(array, np.float32), option=orjson.OPT_SERIALIZE_NUMPY))
