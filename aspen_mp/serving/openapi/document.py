"""The document of OpenAPI 3.1 that describes the routes. Schemas are those of the types that requests are decoded with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

import aspen_mp
from aspen_mp.serving.memory.named import Named
from aspen_mp.serving.openapi import answers
from aspen_mp.serving.protocol import messages
from aspen_mp.serving.text import openai

PATH: Final = "/openapi.json"
VERSIONED: Final = "/versions/{version}"
_REFERENCE: Final = "#/components/schemas/{name}"
_READS: Final = (404, 503)
_RUNS: Final = (400, 404, 408, 413, 415, 429, 500, 503, 504)
_EVERYWHERE: Final = (401, 431)
_TEXTS: Final = {
    400: "The request does not fit the protocol or the model.",
    401: "The token is missing or not known.",
    404: "There is no such model, version or region.",
    408: "The body was too slow.",
    413: "The body is too large.",
    415: "The body is compressed.",
    429: "Too many requests wait, or hold too many bytes.",
    431: "The headers are too large.",
    500: "An error inside the server.",
    501: "The server lacks a package for this.",
    503: "Requests are not served now, or the model failed to load.",
    504: "The deadline was missed, or cannot be met.",
}
_PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "model": {"type": "string", "pattern": "^[^./][^/]{0,254}$"},
    "name": {"type": "string", "minLength": 1},
    "version": {"type": "string", "pattern": "^[1-9][0-9]{0,17}$"},
}
_BYTES: Final = "JSON of as many bytes as the header Inference-Header-Content-Length says, then those of tensors."


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A method of a path.

    Attributes:
        statuses: Of errors, beside those that every route has.
        answer: The type of its answer; None for text.
        request: The type of the body; None without one.
        failure: The type of its errors.
        versioned: Whether a version may follow the model in the path.
        binary: Whether bodies may be bytes, too.
        sick: The type of the answer 503, where that is not an error.
    """

    path: str
    summary: str
    answer: Any
    method: str = "get"
    statuses: Sequence[int] = ()
    request: Any = None
    failure: Any = answers.Failure
    versioned: bool = False
    binary: bool = False
    sick: Any = None


def _openai(path: str, summary: str, answer: Any, statuses: Sequence[int], **more: Any) -> Operation:
    return Operation(path=path, summary=summary, answer=answer, statuses=statuses, failure=openai.ErrorAnswer, **more)


OPERATIONS: Final = [
    Operation(path="/v2", summary="Name, version and extensions of the server", answer=answers.ServerMetadata),
    Operation(path="/v2/health/live", summary="Whether the server lives", answer=answers.Live),
    Operation(path="/v2/health/ready", summary="Whether requests are served", answer=answers.Ready, sick=answers.Ready),
    Operation(path="/v2/models/stats", summary="Counts of all models", answer=answers.Statistics, statuses=(503,)),
    Operation(
        path="/v2/models/{model}", summary="Inputs and outputs of a model", answer=answers.ModelMetadata, statuses=_READS, versioned=True
    ),
    Operation(
        path="/v2/models/{model}/ready", summary="Whether a model is ready", answer=answers.ModelReady, statuses=_READS, versioned=True
    ),
    Operation(
        path="/v2/models/{model}/config", summary="A model's configuration", answer=answers.ModelConfig, statuses=_READS, versioned=True
    ),
    Operation(path="/v2/models/{model}/stats", summary="Counts of a model", answer=answers.Statistics, statuses=_READS, versioned=True),
    Operation(
        path="/v2/models/{model}/infer",
        method="post",
        summary="Run a model",
        request=messages.Request,
        answer=messages.Answer,
        statuses=_RUNS,
        versioned=True,
        binary=True,
    ),
    _openai("/v1/models", "The models that are served", openai.ModelList, ()),
    _openai("/v1/models/{model}", "A model", openai.ModelCard, _READS),
    _openai("/v1/embeddings", "Embeddings of texts", openai.EmbeddingsAnswer, _RUNS, method="post", request=openai.EmbeddingsRequest),
    Operation(path="/metrics", summary="Metrics for Prometheus", answer=None, statuses=(501, 503)),
    Operation(path=PATH, summary="This document", answer=dict[str, Any]),
]
REPOSITORY: Final = [
    Operation(path="/v2/repository/index", method="post", summary="All versions of the repository", answer=list[answers.IndexEntry]),
    *(
        Operation(
            path=f"/v2/repository/models/{{model}}/{verb}",
            method="post",
            summary=f"{verb.capitalize()} a model of the repository",
            answer=answers.Changed,
            statuses=(400, 404, 503),
        )
        for verb in ("load", "unload")
    ),
]
NAMED: Final = [
    operation
    for place, which in (("/v2/systemsharedmemory", "all regions"), ("/v2/systemsharedmemory/region/{name}", "a region"))
    for operation in (
        Operation(path=f"{place}/status", summary=f"Describe {which}", answer=list[Named], statuses=(404,)),
        Operation(path=f"{place}/unregister", method="post", summary=f"Forget {which}", answer=answers.Changed, statuses=(503,)),
    )
] + [
    Operation(
        path="/v2/systemsharedmemory/region/{name}/register",
        method="post",
        summary="Name a region of shared memory",
        request=answers.Registration,
        answer=answers.Changed,
        statuses=(400, 404, 408, 413, 415, 429, 503),
    )
]


def document(*, repository: bool, named: bool, tokens: bool) -> dict[str, Any]:
    """The document. `repository`: clients may load and unload models; `named`: they may name shared memory; `tokens`: they need a token."""
    operations = [*OPERATIONS, *(REPOSITORY if repository else []), *(NAMED if named else [])]
    types = [kind for each in operations for kind in (each.answer, each.request, each.failure, each.sick) if kind is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    known = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        for path in _paths(each):
            paths.setdefault(path, {})[each.method] = _operation(each, path, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "aspen-mp", "version": aspen_mp.__version__},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        **({"security": [{"token": []}]} if tokens else {}),
    }


def _paths(operation: Operation) -> Iterator[str]:
    yield operation.path
    if operation.versioned:
        yield operation.path.replace("{model}", "{model}" + VERSIONED)


def _operation(each: Operation, path: str, known: dict[str, Any]) -> dict[str, Any]:
    answers_: dict[str, Any] = {"200": {"description": "OK", "content": _content(each, each.answer, known)}}
    for status in sorted({*each.statuses, *_EVERYWHERE}):
        answers_[str(status)] = {"description": _TEXTS[status], "content": _json(known[repr(each.failure)])}
    if each.sick is not None:
        answers_["503"] = {"description": "Requests are not served now.", "content": _json(known[repr(each.sick)])}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": schema} for name, schema in _PARAMETERS.items() if f"{{{name}}}" in path
    ]
    made: dict[str, Any] = {"summary": each.summary, "parameters": parameters, "responses": answers_}
    if each.path.startswith("/v2/health/"):
        made["security"] = []
    if each.request is not None:
        made["requestBody"] = {"required": True, "content": _content(each, each.request, known)}
    return made


def _content(each: Operation, kind: Any, known: dict[str, Any]) -> dict[str, Any]:
    if kind is None:
        return {"text/plain": {"schema": {"type": "string"}}}
    content = _json(known[repr(kind)])
    if each.binary:
        content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary", "description": _BYTES}}
    return content


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
