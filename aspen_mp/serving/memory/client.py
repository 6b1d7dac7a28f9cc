"""A client for servers on the same machine: tensors lie in memory that both share, and a request names where.

    from aspen_mp.serving.memory.client import Client, Memory

    with Memory(1 << 20) as memory, Client("/run/models.sock", memory) as client:
        x = memory.array((1, 3, 224, 224), np.float32)
        y = memory.array((1, 1000), np.float32)
        x[...] = image
        client.infer("resnet50", {"input": x}, {"output": y})  # fills y

It needs numpy and the standard library alone.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from aspen_mp.shm.errors import AspenError, RequestError

ALIGN: Final = 64
"""Bytes at whose multiples arrays begin."""
REGION: Final = "memory"
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_LENGTH: Final = struct.Struct("<I")
_MOST_LINE: Final = 1 << 16
_NAMES: Final = {
    np.dtype(kind): name
    for name, kind in {
        **{f"INT{bits}": f"i{bits // 8}" for bits in (8, 16, 32, 64)},
        **{f"UINT{bits}": f"u{bits // 8}" for bits in (8, 16, 32, 64)},
        **{f"FP{bits}": f"f{bits // 8}" for bits in (16, 32, 64)},
        "BOOL": "?",
    }.items()
}


class Memory:
    """Memory for arrays that a server reads and writes: a sealed memfd, which has no name and ends with its last user.

    Attributes:
        fd: The descriptor that servers get.
        nbytes: Its size in bytes.
    """

    def __init__(self, nbytes: int) -> None:
        """`nbytes`: for all arrays, which begin at multiples of `ALIGN`. OSError where there is not enough memory."""
        self.nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.fd = os.memfd_create("aspen-mp-client", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, self.nbytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self._bytes = np.frombuffer(mmap.mmap(self.fd, self.nbytes), np.uint8)
        except BaseException:
            os.close(self.fd)
            raise
        self._taken = 0

    def array(self, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A new array of zeros in this memory. MemoryError where it is full; `clear` makes room.

        Args:
            shape: Its extents. For an output whose shape is not known before, the largest that it may have.
            dtype: One that the protocol has a name for; no strings.
        """
        found = np.dtype(dtype)
        if found not in _NAMES:
            raise TypeError(f"{found} cannot lie in shared memory. Use one of {', '.join(str(each) for each in _NAMES)}")
        begin, size = self._taken, math.prod(shape) * found.itemsize
        if begin + size > self.nbytes:
            raise MemoryError(f"an array of {size} bytes does not fit: {begin} of {self.nbytes} bytes are taken. Make a larger Memory")
        self._taken = -(-(begin + size) // ALIGN) * ALIGN
        return self._bytes[begin : begin + size].view(found).reshape(shape)

    def clear(self) -> None:
        """Gives all arrays' room to new ones. The old arrays keep their addresses, and will share them."""
        self._taken = 0

    def offset_of(self, array: npt.NDArray[Any], where: str) -> int:
        """Where an array begins, in bytes. RequestError if it does not lie here in one piece. `where`: which tensor it is."""
        offset = array.ctypes.data - self._bytes.ctypes.data
        if not array.flags.c_contiguous or not 0 <= offset <= self.nbytes - array.nbytes:
            raise RequestError(f"{where} does not lie in this client's memory in one piece. Make its array with Memory.array")
        return offset

    def close(self) -> None:
        """Closes the descriptor. Arrays stay valid: the memory ends with the last of them."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


class _Connection:
    """HTTP after memory was shared. A request goes out in one piece, so that the server wakes up once for it."""

    def __init__(self, path: str, memory: Memory, timeout_s: float) -> None:
        self._path = path
        self._memory = memory
        self._timeout_s = timeout_s
        self._sock: socket.socket | None = None
        self._file: Any = None

    @property
    def is_open(self) -> bool:
        return self._sock is not None

    def ask(self, head: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer. `head`: request line and headers, without the length. OSError, and the connection is closed."""
        try:
            if self._sock is None:
                self._connect()
            assert self._sock is not None
            self._sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            return self._answer()
        except BaseException:
            self.close()  # an answer may still come, to nobody
            raise

    def _connect(self) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(self._timeout_s)
        self._sock.connect(self._path)
        self._file = self._sock.makefile("rb")
        text = json.dumps({"regions": [REGION]}).encode()
        socket.send_fds(self._sock, [_LENGTH.pack(len(text)) + text], [self._memory.fd])
        said = json.loads(self._exactly(_LENGTH.unpack(self._exactly(_LENGTH.size))[0]))
        if said.get("error"):
            raise RequestError(f"{self._path}: {said['error']}")

    def _answer(self) -> tuple[int, bytes]:
        status = int(self._line().split()[1])
        headers = {}
        while line := self._line():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        data = self._exactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            self.close()
        return status, data

    def _line(self) -> str:
        line: bytes = self._file.readline(_MOST_LINE)
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the server has closed the connection")
        return line.decode("latin-1").rstrip("\r\n")

    def _exactly(self, n: int) -> bytes:
        data: bytes = self._file.read(n)
        if len(data) < n:
            raise ConnectionResetError("the server has closed the connection")
        return data

    def close(self) -> None:
        for each in (self._file, self._sock):
            if each is not None:
                each.close()
        self._file = self._sock = None


class Client:
    """A connection to ``aspen-mp serve --unix-socket PATH``. One thread at a time uses it."""

    def __init__(self, path: str | os.PathLike[str], memory: Memory, *, token: str = "", timeout_s: float = 60.0) -> None:
        """Connects with the first request.

        Args:
            path: That of the server, PATH.
            memory: Where inputs and outputs lie.
            token: The bearer token, if the server wants one.
            timeout_s: For an answer, in seconds; TimeoutError after it.
        """
        self._memory = memory
        self._headers = "Host: localhost\r\nContent-Type: application/json\r\n" + (
            f"Authorization: Bearer {token.strip()}\r\n" if token else ""
        )
        self._connection = _Connection(f"{os.fspath(path)}.memory", memory, timeout_s)

    def infer(
        self, model: str, inputs: Mapping[str, npt.NDArray[Any]], outputs: Mapping[str, npt.NDArray[Any]], *, version: int | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Runs a model on `inputs`, and fills `outputs`.

        Args:
            model: Its name.
            inputs: {name: array}, each in the client's memory, with the model's shape and dtype.
            outputs: {name: array}, each in the client's memory, and at least as large as the result.
            version: The model's; None: the newest.

        Returns:
            {name: view of the array in `outputs`}, with the shape that the result has.

        Raises:
            RequestError: An array does not lie in the client's memory, or the server refuses the request (status 400, 404, 413).
            AspenError: The server cannot answer now, or has failed.
            OSError: There is no server.
        """
        request = {
            "inputs": [
                {"name": name, "shape": array.shape, "datatype": _NAMES[array.dtype], "parameters": self._place(array, f"input {name!r}")}
                for name, array in inputs.items()
            ],
            "outputs": [{"name": name, "parameters": self._place(array, f"output {name!r}")} for name, array in outputs.items()],
        }
        answer = self._ask(f"/v2/models/{model}{'' if version is None else f'/versions/{version}'}/infer", json.dumps(request).encode())
        found = {}
        for output in answer["outputs"]:
            array, n = outputs[output["name"]], output["parameters"]["shared_memory_byte_size"]
            if _NAMES[array.dtype] != output["datatype"]:
                raise RequestError(f"output {output['name']!r} is {output['datatype']}, and its array is {array.dtype}")
            found[output["name"]] = array.reshape(-1)[: n // array.itemsize].reshape(output["shape"])
        return found

    def _place(self, array: npt.NDArray[Any], where: str) -> dict[str, object]:
        offset = self._memory.offset_of(array, where)
        return {"shared_memory_region": REGION, "shared_memory_offset": offset, "shared_memory_byte_size": array.nbytes}

    def _ask(self, path: str, body: bytes) -> Any:
        """The answer's JSON. A connection that was idle may have ended with its process: then the request is sent once more."""
        head = f"POST {quote(path)} HTTP/1.1\r\n{self._headers}"
        was_open = self._connection.is_open
        try:
            status, data = self._connection.ask(head, body)
        except ConnectionError:
            if not was_open:
                raise
            status, data = self._connection.ask(head, body)
        said = json.loads(data)
        if status != 200:
            kind = RequestError if status in {400, 404, 413} else AspenError
            raise kind(f"status {status}: {said['error']}")
        return said

    def close(self) -> None:
        """Ends the connection; the server forgets the memory."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
