"""Requests of the Open Inference Protocol as bytes, made once before anything is measured."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

TRANSPORTS: Final = ("http", "unix", "json", "grpc")
"""HTTP with tensors as bytes; the same over a Unix socket; HTTP with tensors as JSON; gRPC with raw contents."""
MODEL: Final = "model"
METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"


def request(transport: str, feeds: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """What a client sends: a request of HTTP with its headers, or the message of a call of gRPC."""
    if transport == "grpc":
        return _message(feeds)
    from aspen_mp.serving.protocol.datatypes import name_of

    tensors: list[dict[str, Any]] = []
    binary = transport != "json"
    for name, array in feeds.items():
        tensor: dict[str, Any] = {"name": name, "shape": array.shape, "datatype": name_of(array.dtype)}
        tensor |= {"parameters": {"binary_data_size": array.nbytes}} if binary else {"data": array.ravel().tolist()}
        tensors.append(tensor)
    head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": binary}}).encode()
    body = head + (b"".join(np.ascontiguousarray(array).tobytes() for array in feeds.values()) if binary else b"")
    lines = [f"POST /v2/models/{MODEL}/infer HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"Inference-Header-Content-Length: {len(head)}"] if binary else ["Content-Type: application/json"]
    return "\r\n".join((*lines, "", "")).encode() + body


def _message(feeds: Mapping[str, npt.NDArray[Any]]) -> bytes:
    from aspen_mp.serving.grpc import schema
    from aspen_mp.serving.protocol.datatypes import name_of

    message = schema.message("ModelInferRequest")(model_name=MODEL)
    for name, array in feeds.items():
        message.inputs.add(name=name, datatype=name_of(array.dtype), shape=array.shape)
        message.raw_input_contents.append(np.ascontiguousarray(array).tobytes())
    found: bytes = message.SerializeToString()
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
