"""Messages between clients and a runtime's planner process, and their frames on a Unix stream socket.

A frame is ``<u32 payload bytes> <u16 descriptors> <u16 0x4d41>`` followed by a msgpack payload of at most 1 MiB. Descriptors travel by
SCM_RIGHTS with the first byte of their frame. Messages are msgspec structs written as arrays: there are no keys, so there can be no
unknown or duplicate ones, and surplus fields are refused. Nothing is ever pickled.

The first message of a client is `Hello`, answered by `Welcome` or `Failed` within `HANDSHAKE_S`; a frame once begun must also be complete
within `HANDSHAKE_S`. Every later request of a client carries an `id` of the client's choice; its answer carries the same, after any number
of `Progress` messages. Answers may come in any order. A request that is framed as it should be, but has wrong fields, is answered with
`Failed` like any other that cannot be met. Wrong fields have other types or are out of range. Whatever else breaks these rules ends the
connection.
"""

from __future__ import annotations

import array
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Generic, TypeVar, get_args

import msgspec

from aspen_mp.planner.job.options import Keeping, Objective
from aspen_mp.planner.job.request import PlanRequest
from aspen_mp.shm import errors
from aspen_mp.shm.errors import AspenError, ProtocolError, ResourceLimitError
from aspen_mp.system import descriptors, sockets

VERSION: Final = 15
MAX_FRAME: Final = 1 << 20
MAX_FDS: Final = 4
HANDSHAKE_S: Final = 5.0
AUTOMATIC: Final = -2
LEAST_SHARE: Final = 0.01
MOST_SHARE: Final = 100.0
_HEADER: Final = struct.Struct("<IHH")
_MARK: Final = 0x4D41
_FD_ROOM: Final = 64  # more than MAX_FDS, so that a sender of too many is seen and refused, not truncated
_FD_SPACE: Final = socket.CMSG_SPACE(_FD_ROOM * 4)

Name = Annotated[str, msgspec.Meta(max_length=4096)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 32)]
Bytes64 = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Dim = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Shape = Annotated[list[Dim], msgspec.Meta(max_length=64)]


class Message(msgspec.Struct, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages; the tag is the class name."""


class Hello(Message):
    """First message of a client. `layout` is the hash of shm/protocol/layout.h that the client was built with. `challenge`: see
    `identity.proof`; empty where the client knows no secret yet."""

    version: int
    layout: Annotated[str, msgspec.Meta(max_length=32)]
    package: Name
    challenge: Annotated[str, msgspec.Meta(max_length=64)] = ""


class Load(Message):
    """Read a model. `path` is absolute; where it is empty the frame carries one descriptor of a memfd that holds the model's bytes."""

    id: Count
    path: Name
    name: Name
    request: PlanRequest = PlanRequest()
    share: Annotated[float, msgspec.Meta(ge=LEAST_SHARE, le=MOST_SHARE)] = 1.0


class Bind(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The facts about a value that a stage may read. `value` (row-major little-endian bytes) is set where its values decide shapes. For
    dtype "object", `shape` is the capacity of its buffer in bytes."""

    name: Name
    dtype: Name
    shape: Shape
    value: bytes | None


class Capacity(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Bytes to reserve for a result whose size only running tells."""

    name: Name
    nbytes: Bytes64


class MakePlan(Message):
    """Plan stage ``len(stages) - 1`` of a model, given what is known of the values that each stage up to it can read. `ahead`: of requests;
    else one waits for it. `often`: the plan for a shape bucket that serves these shapes has served them again and again. `beside`:
    many lengths are met, of which these shapes have one, so those of the buckets beside may be, too. `stream`: the plan keeps activations
    in the request's region, and runs what changed inputs reach. `stream_bytes`: most memory of that region, 0 for any."""

    id: Count
    model: Count
    stages: Annotated[list[list[Bind]], msgspec.Meta(min_length=1, max_length=10000)]
    capacities: list[Capacity]
    ahead: bool = False
    often: bool = False
    beside: bool = False
    stream: Keeping = ""
    stream_bytes: Bytes64 = 0


class Adopt(Message):
    """Use a model that another client has loaded; answered by `Loaded`."""

    id: Count
    model: Count


class Lend(Message):
    """Ask for the sealed file in memory that a model was loaded from, for reading; answered by `Done`, with its descriptor."""

    id: Count
    model: Count


class Unload(Message):
    id: Count
    model: Count


class Data(Message):
    """Ask for a data segment of at least `nbytes` for inputs and outputs of requests."""

    id: Count
    nbytes: Bytes64


class Piece(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`nbytes` of a file from `offset` on, in place of the bytes from `at` on of a data segment; all multiples of a page."""

    at: Bytes64
    offset: Bytes64
    nbytes: Bytes64


class Borrow(Message):
    """Ask for a data segment of `nbytes`, parts of which are pages of the client's own files in memory. The frame carries a descriptor for
    each piece, in the order of their places. Answered as `Data`."""

    id: Count
    nbytes: Bytes64
    pieces: Annotated[list[Piece], msgspec.Meta(min_length=1, max_length=MAX_FDS)]


class DropData(Message):
    id: Count
    index: Count


class Explain(Message):
    """Why did this op of this plan fail?"""

    id: Count
    plan: Count
    generation: Count
    op: Count


class Resize(Message):
    """Change the number of workers by `add` or `remove`, or to `total`. −1 leaves it; `AUTOMATIC` makes it what the machine is good for,
    now and whenever that changes. `cores` says where added ones run."""

    id: Count
    add: Count = 0
    remove: Count = 0
    total: Annotated[int, msgspec.Meta(ge=AUTOMATIC, le=256)] = -1
    cores: Annotated[list[int], msgspec.Meta(max_length=256)] = []


class RunTogether(Message):
    """These models of the client run together from now on, and may be scheduled together; answered by `Done`, with a number."""

    id: Count
    models: Annotated[list[Count], msgspec.Meta(min_length=1, max_length=64)]
    objective: Objective = "latency"


class RunApart(Message):
    """The models of this `RunTogether` do no longer; answered by `Done`."""

    id: Count
    number: Count


class Status(Message):
    id: Count


class TraceBegin(Message):
    """Record what every worker does, in rings of `records` records (0: a default); answered by `TraceReady`. One trace at a time."""

    id: Count
    records: Count = 0


class TraceEnd(Message):
    """Stop recording; answered by `TraceEnded`. The trace's facts about plans are kept until `TraceDrop`."""

    id: Count


class TracePlan(Message):
    """Ask for a plan that was there while the trace ran, by its number among them; answered by `TracedPlan`."""

    id: Count
    index: Count


class TraceDrop(Message):
    """End the trace for good; answered by `Done`."""

    id: Count


class Stop(Message):
    """End the runtime: at once, or, with `drain`, when what is in flight has ended, after `grace_s` seconds at the latest."""

    id: Count
    drain: bool = False
    grace_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0


class Quiet(Message):
    """After `Stopping`: nothing of this client is in flight any more."""

    id: Count


class Welcome(Message):
    """Answer to `Hello`, with the descriptors of the client's own segment, of the doorbell page and of its tally. `address`: of
    `identity.Address`. `proof`: the answer to the challenge, empty where there was none. `max_queued`: requests of a client that may wait;
    0: as many as there is memory for."""

    name: str
    address: str
    pid: int
    client: int
    package: str
    proof: str = ""
    max_queued: int = 0


class Stopping(Message):
    """Unasked: the runtime takes no new requests and ends when every client has said `Quiet`, or after `grace_s` seconds."""

    grace_s: float


class Failed(Message):
    """Answer to any request (id 0: the connection itself is refused). `error` is the name of a class of `aspen_mp.errors`."""

    id: int
    error: str
    text: str


class Progress(Message):
    id: int
    step: str
    done: int
    total: int


class Done(Message):
    """Answer to requests that have no result of their own."""

    id: int
    value: int = 0
    text: str = ""


class ValueInfo(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An input or output of a model. Dims are ints, symbols, or empty where nothing is known; `kind` is tensor, string, sequence, …; `type`
    is ONNX's spelling of the whole type. `keys`: of an output that is a sequence of maps; where a plan gives a tensor for it, the rows of
    that are their values. For strings they are the words whose places plans take and give; any other string has the place behind the
    last."""

    name: str
    dtype: str
    shape: list[int | str] | None
    kind: str = "tensor"
    optional: bool = False
    type: str = ""
    keys: list[int | str] = []


class Loaded(Message):
    id: int
    model: int
    name: str
    inputs: list[ValueInfo]
    outputs: list[ValueInfo]
    instances: int


class Slot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where an input or output of a stage lies in a request's region. For dtype "object", `nbytes` is the capacity."""

    name: str
    dtype: str
    shape: list[int]
    offset: int
    nbytes: int


class Follows(msgspec.Struct, frozen=True, array_like=True):
    """An axis of an input or output that is `per` longer for each step of a value."""

    axis: int
    value: int
    per: int


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """The lengths that a plan serves, from `least` to `most` steps of `unit` each. `axes`: the number of the length that each axis of each
    bind grows with, from 1 on; 0: it is always the same. Binds of one stage follow those of another. `chosen`: the lengths, from 0 on,
    that are the plan's extents. `values`: what follows from the extents, as `aspen_mp.shm.extents` has it. `inputs`, `outputs`: their
    axes that follow from values."""

    least: tuple[int, ...]
    most: tuple[int, ...]
    unit: int
    axes: tuple[tuple[int, ...], ...]
    values: list[tuple[int, int, int, int, int, int]]
    inputs: list[list[Follows]]
    outputs: list[list[Follows]]
    chosen: tuple[int, ...]


class Planned(Message):
    """A stage ready to run, or, if `needs_values` is not empty, the inputs whose values have to be bound first. `bucket`: the other
    requests that such a plan serves, with `inputs` and `outputs` where they are largest. `extent`: the word of the extents of these
    shapes (0: of a plan that leaves no dimension open). `often`: after how many of them it is worth being replaced by one of their own
    (`MakePlan.often`)."""

    id: int
    plan: int
    generation: int
    region: int
    inputs: list[Slot]
    outputs: list[Slot]
    needs_values: list[str]
    last: bool
    dynamic: bool
    instances: int
    extent: int = 0
    often: int = 0
    bucket: Bucket | None = None


class DataReady(Message):
    """A data segment; its descriptor comes along."""

    id: int
    index: int
    nbytes: int


class TraceReady(Message):
    """The trace's segment, which workers write from now on; its descriptor comes along."""

    id: int
    nbytes: int


class TraceEnded(Message):
    """How many plans there are to ask for; a descriptor of a description (JSON, see `traces.Traces.end`) comes along."""

    id: int
    plans: int


class TracedPlan(Message):
    """A copy of a plan segment; its descriptor comes along."""

    id: int


class StatusReply(Message):
    id: int
    json: bytes


ToServer = (
    Hello
    | Load
    | Adopt
    | Lend
    | MakePlan
    | Unload
    | Data
    | Borrow
    | DropData
    | Explain
    | Resize
    | RunTogether
    | RunApart
    | Status
    | TraceBegin
    | TraceEnd
    | TracePlan
    | TraceDrop
    | Stop
    | Quiet
)
ToClient = Welcome | Stopping | Failed | Progress | Done | Loaded | Planned | DataReady | StatusReply | TraceReady | TraceEnded | TracedPlan
"""Every request of a client has an `id`; `Hello` alone has none. Among the messages to a client, `Welcome` and `Stopping` have none."""

_encoder = msgspec.msgpack.Encoder()
_to_server = msgspec.msgpack.Decoder(ToServer)
_to_client = msgspec.msgpack.Decoder(ToClient)


def encode(message: Message, n_fds: int = 0, limit: int = MAX_FRAME) -> bytes:
    """A message as a frame. Raises ProtocolError if it is over `limit` bytes or has over `MAX_FDS` descriptors."""
    payload = _encoder.encode(message)
    if len(payload) > limit:
        raise ProtocolError(f"{type(message).__name__} message of {len(payload)} bytes is over the limit of {limit}")
    if n_fds > MAX_FDS:
        raise ProtocolError(f"{type(message).__name__} message with {n_fds} descriptors is over the limit of {MAX_FDS}")
    return _HEADER.pack(len(payload), n_fds, _MARK) + payload


T = TypeVar("T")


class Undelivered(ResourceLimitError):
    """A `message` whose descriptors did not fit into this process's table: they are gone, the connection is as good as before."""

    def __init__(self, message: object) -> None:
        super().__init__("this process has no room for more descriptors (ulimit -n): close some, or raise the limit")
        self.message = message


class Invalid(ProtocolError):
    """A request whose fields are not what they should be. `id`: what its answer has to carry."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.id = number


_requests = frozenset(kind.__name__ for kind in get_args(ToServer)) - {"Hello"}
_short_arrays = frozenset(bytes([0x90 + n]) for n in range(2, 16))
_parts = msgspec.msgpack.Decoder(list[msgspec.Raw])
_tag = msgspec.msgpack.Decoder(str)
_number = msgspec.msgpack.Decoder(Annotated[int, msgspec.Meta(ge=1, le=1 << 32)])


def _request_number(payload: bytes) -> int:
    """The id of a request that does not decode as a whole; 0 where it is not known, or it is none."""
    if payload[:1] not in _short_arrays:
        return 0  # no message has this number of fields, and a million of them would take memory
    try:
        tag, number, *_ = _parts.decode(payload)
        return _number.decode(number) if _tag.decode(tag) in _requests else 0
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError):
        return 0


class Receiver(Generic[T]):
    """Cuts a byte stream with descriptors into messages. Owns every descriptor received and not yet handed out; `close` closes those."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T], limit: int = MAX_FRAME) -> None:
        self._decoder = decoder
        self._limit = limit
        self._bytes = bytearray()
        self._fds: deque[int] = deque()
        self._lacking = False  # descriptors came that this process had no room for

    @property
    def partial(self) -> bool:
        """Whether the beginning of a frame is waiting for its end."""
        return bool(self._bytes or self._fds)

    def read(self, sock: sockets.socket) -> bool:
        """One recvmsg. False at the end of the stream; ProtocolError if that end comes in mid-frame or descriptors were cut off."""
        try:
            data, ancillary, flags, _ = sock.recvmsg(1 << 16, _FD_SPACE, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            data, ancillary, flags = b"", [], 0
        came = len(self._fds)
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self._fds.extend(fds)
        if flags & socket.MSG_CTRUNC:
            if len(self._fds) - came >= _FD_ROOM:
                raise ProtocolError("too many descriptors in one message")
            self._lacking = True
        if not data:
            if self._bytes:
                raise ProtocolError("the peer closed the connection in mid-frame")
            return False
        self._bytes += data
        return True

    def messages(self) -> Iterator[tuple[T, list[int]]]:
        """Complete messages, each with the descriptors that came along; the caller owns those.

        ProtocolError for anything else. `Undelivered` for one whose descriptors there was no room for, and `Invalid` for a request with
        wrong fields. Call again after both, since others may follow. Descriptors come with the first byte of the frame that announces them.
        So the only ones that may be left are those of a frame that has begun. Whoever sends more, or sends them with nothing, fills no
        table of ours.
        """
        while len(self._bytes) >= _HEADER.size:
            size, n_fds, mark = _HEADER.unpack_from(self._bytes)
            if mark != _MARK:
                raise ProtocolError("not an aspen-mp frame")
            if size > self._limit:
                raise ProtocolError(f"frame of {size} bytes is over the limit of {self._limit}")
            if n_fds > MAX_FDS:
                raise ProtocolError(f"frame with {n_fds} descriptors is over the limit of {MAX_FDS}")
            end = _HEADER.size + size
            if len(self._bytes) < end:
                break
            payload = bytes(memoryview(self._bytes)[_HEADER.size : end])
            del self._bytes[:end]
            lacking = self._lacking and n_fds > 0
            if lacking:
                self._lacking = False
                close_all(self._fds)
                self._fds.clear()
            elif len(self._fds) < n_fds:
                raise ProtocolError(f"frame announces {n_fds} descriptors, {len(self._fds)} came")
            fds = [self._fds.popleft() for _ in range(0 if lacking else n_fds)]
            try:
                message = self._decoder.decode(payload)
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
                close_all(fds)
                number = _request_number(payload) if isinstance(error, msgspec.ValidationError) else 0
                text = f"malformed message: {error}"
                raise (Invalid(text, number) if number else ProtocolError(text)) from None
            if lacking:
                raise Undelivered(message)
            yield message, fds
        if len(self._fds) > (MAX_FDS if self._bytes else 0):
            raise ProtocolError(f"{len(self._fds)} descriptors that no frame announces")

    def close(self) -> None:
        close_all(self._fds)
        self._fds.clear()
        self._bytes.clear()


def client_receiver() -> Receiver[ToClient]:
    return Receiver(_to_client)


def server_receiver() -> Receiver[ToServer]:
    return Receiver(_to_server)


def close_all(fds: Sequence[int] | deque[int]) -> None:
    for fd in fds:
        descriptors.close(fd)


def send_part(sock: sockets.socket, data: memoryview, fds: Sequence[int]) -> int:
    """One sendmsg of a frame's remaining bytes; descriptors go with the frame's first byte. Returns how many bytes went."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    return sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)


def make_error(name: str, text: str) -> AspenError:
    """The error of `aspen_mp.errors` with this name; an AspenError where there is none."""
    kind = getattr(errors, name, AspenError)
    return kind(text) if isinstance(kind, type) and issubclass(kind, AspenError) else AspenError(text)
