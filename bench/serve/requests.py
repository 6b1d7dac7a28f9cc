"""Requests of the Open Inference Protocol as bytes, made once before anything is measured."""

from __future__ import annotations

import importlib.util
import io
import json
import mmap
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aspen_mp.bench.serve.client import REGION, Request

TRANSPORTS: Final = ("http", "unix", "memory", "json", "grpc")
"""HTTP with tensors as bytes; the same over a Unix socket; a Unix socket, and tensors in memory that both ends share. Then HTTP with
tensors as JSON, and gRPC with raw contents."""
MODEL: Final = "model"
INFER: Final = f"/v2/models/{MODEL}/infer"
JSON: Final = "Content-Type: application/json"
SETTINGS: Final = "ASPEN_MP_BENCH_SERVE"
"""The environment variable with the settings of `bentoml_service.py`."""


def request(transport: str, feeds: Mapping[str, npt.NDArray[Any]], results: Mapping[str, npt.NDArray[Any]]) -> Request:
    """A client's request: of HTTP with its headers, or the message of a call of gRPC. `results`: arrays like those it gets."""
    if transport == "grpc":
        return Request(_message(feeds))
    if transport == "memory":
        return _sharing(feeds, results)
    return Request(_post(feeds, binary=transport != "json"))


def _post(feeds: Mapping[str, npt.NDArray[Any]], *, binary: bool) -> bytes:
    from aspen_mp.serving.protocol.datatypes import name_of

    tensors: list[dict[str, Any]] = []
    for name, array in feeds.items():
        tensor: dict[str, Any] = {"name": name, "shape": array.shape, "datatype": name_of(array.dtype)}
        tensor |= {"parameters": {"binary_data_size": array.nbytes}} if binary else {"data": array.ravel().tolist()}
        tensors.append(tensor)
    head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": binary}}).encode()
    body = head + (b"".join(np.ascontiguousarray(array).tobytes() for array in feeds.values()) if binary else b"")
    return post(INFER, f"Inference-Header-Content-Length: {len(head)}" if binary else JSON, body)


def post(path: str, header: str, body: bytes) -> bytes:
    """A request of HTTP. `header`: a line that it has beside those of every request."""
    return "\r\n".join((f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", header, "", "")).encode() + body


def _sharing(feeds: Mapping[str, npt.NDArray[Any]], results: Mapping[str, npt.NDArray[Any]]) -> Request:
    """Inputs from the beginning of the shared memory on, and room for outputs behind them, on pages of their own."""
    from aspen_mp.serving.protocol.datatypes import name_of

    inputs, outputs, shared, at = [], [], b"", 0

    def place(array: npt.NDArray[Any]) -> dict[str, Any]:
        nonlocal at
        found = {"shared_memory_region": REGION, "shared_memory_offset": at, "shared_memory_byte_size": array.nbytes}
        at += -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        return found

    for name, array in feeds.items():
        inputs.append({"name": name, "shape": array.shape, "datatype": name_of(array.dtype), "parameters": place(array)})
        shared += np.ascontiguousarray(array).tobytes()
        shared += bytes(at - len(shared))
    for name, array in results.items():
        outputs.append({"name": name, "parameters": place(array)})
    body = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    return Request(post(INFER, JSON, body), shared, at)


def _message(feeds: Mapping[str, npt.NDArray[Any]]) -> bytes:
    from aspen_mp.serving.grpc import schema
    from aspen_mp.serving.protocol.datatypes import name_of

    message = schema.message("ModelInferRequest")(model_name=MODEL)
    for name, array in feeds.items():
        message.inputs.add(name=name, datatype=name_of(array.dtype), shape=array.shape)
        message.raw_input_contents.append(np.ascontiguousarray(array).tobytes())
    found: bytes = message.SerializeToString()
    return found


def packed(arrays: Iterable[npt.NDArray[Any]]) -> bytes:
    """Arrays as files of numpy (.npy), one behind the other."""
    file = io.BytesIO()
    for array in arrays:
        np.save(file, array, allow_pickle=False)
    return file.getvalue()


def unpacked(data: bytes) -> list[npt.NDArray[Any]]:
    """The arrays that `packed` has packed."""
    file, found = io.BytesIO(data), []
    while file.tell() < len(data):
        found.append(np.load(file, allow_pickle=False))
    return found


def lacking(transports: tuple[str, ...]) -> list[str]:
    """The packages that servers and clients of these transports need, and that are not installed."""
    needed = ["starlette", "uvicorn", "httptools", "uvloop", "simdjson", "orjson"]
    needed += ["grpc", "google.protobuf"] if "grpc" in transports else []
    return [name for name in needed if not _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a package within one that is missing
        return False
