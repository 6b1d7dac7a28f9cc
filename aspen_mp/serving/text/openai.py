"""OpenAI's interface: the documents of `/v1/models` and `/v1/embeddings`, and its form of errors."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from aspen_mp.serving.protocol import turns
from aspen_mp.serving.protocol.inference import class_of, listed_floats
from aspen_mp.serving.protocol.messages import Whole, encoder
from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.serving.protocol.turns import Work
from aspen_mp.serving.shelf import Shelf, Shelved
from aspen_mp.serving.telemetry import steps
from aspen_mp.serving.text.embedder import Vectors, normalized
from aspen_mp.shm.errors import RequestError
from aspen_mp.system import filesystem

PREFIX: Final = "/v1/"
OWNER: Final = "aspen-mp"
MOST_TEXTS: Final = 2048
_TEXT: Final[dict[str, Any]] = {"type": "string", "minLength": 1}
_TOKENS: Final[dict[str, Any]] = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}


def _many(kind: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "maxItems": MOST_TEXTS, "items": kind}


_INPUT: Final = {"anyOf": [_TEXT, _many(_TEXT), _TOKENS, _many(_TOKENS)]}
"""JSON Schema of what is embedded: msgspec has no union of lists."""


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """A request for embeddings. `timeout` in microseconds and `priority` are those of the Open Inference Protocol, and not OpenAI's."""

    model: Annotated[str, Meta(min_length=1, max_length=4096)]
    input: Annotated[Any, Meta(extra_json_schema=_INPUT)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, lt=1 << 31)] | None = None
    user: str | None = None
    timeout: Whole | None = None
    priority: Whole | Literal["high", "normal", "low"] | None = None


class Embedding(msgspec.Struct, kw_only=True):
    """The vector of a text: numbers, or float32 in little-endian order as base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(msgspec.Struct, kw_only=True):
    """Tokens of a request."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(msgspec.Struct, kw_only=True):
    """The answer to a request for embeddings."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class ModelCard(msgspec.Struct, kw_only=True):
    """A model. `created`: seconds since 1970."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = OWNER


class ModelList(msgspec.Struct, kw_only=True):
    """The models that are served."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class ErrorDetail(msgspec.Struct, kw_only=True):
    """An error. `param`: the key of the request that is wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct, kw_only=True):
    """The answer to a request that failed."""

    error: ErrorDetail


_decoder: Final = msgspec.json.Decoder(EmbeddingsRequest)
_CODES: Final = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded", 504: "deadline_exceeded"}


def error(status: int, message: str) -> ErrorAnswer:
    """An error in OpenAI's form."""
    kind = "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    param = next((name for name in ("input", "model", "dimensions") if status == 400 and message.startswith(name)), None)
    return ErrorAnswer(error=ErrorDetail(message=message, type=kind, param=param, code=_CODES.get(status)))


def decoded(text: bytes | bytearray | memoryview) -> EmbeddingsRequest:
    """A request. RequestError where it is none."""
    try:
        return _decoder.decode(text)
    except msgspec.ValidationError as wrong:
        raise RequestError(f"the request does not fit: {wrong}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise RequestError(f"the request is not JSON: {wrong}") from None


def texts_of(given: Any) -> list[str] | list[list[int]]:
    """The input of a request, as texts or as tokens. RequestError where it is neither."""
    if isinstance(given, str) or (isinstance(given, list) and given and _are(given, int)):
        given = [given]
    if not isinstance(given, list) or not given:
        raise RequestError("input must be a string, a list of strings, a list of tokens, or a list of lists of tokens, and not empty")
    if len(given) > MOST_TEXTS:
        raise RequestError(f"input has {len(given)} texts, and {MOST_TEXTS} are taken at most. Send them in several requests")
    if _are(given, str):
        if not all(given):
            raise RequestError(f"input {given.index('')} is empty")
        return given
    if all(isinstance(each, list) and _are(each, int) for each in given):
        return given
    raise RequestError("input mixes kinds: its items must all be strings, or all be tokens, or all be lists of tokens")


def _are(items: Sequence[Any], kind: type) -> bool:
    return all(type(item) is kind for item in items)  # True is not a token


async def embeddings(shelved: Shelved, request: EmbeddingsRequest) -> bytes:
    """The answer to a request, an EmbeddingsAnswer in JSON. Errors are RequestError, Refused, and those of `Model.run_async`."""
    embedder = shelved.embedder
    if isinstance(embedder, str):
        raise Refused(400, f"model {shelved.served.name!r} makes no embeddings: {embedder}")
    deadline_ms = request.timeout / 1000 if request.timeout else shelved.served.config.deadline_ms
    _refuse_dimensions(request.dimensions, embedder.recipe.hidden)
    trace = steps.CURRENT.get()
    if trace is not None:
        trace.enter(steps.TOKENIZE)
    texts = await embedder.tokens(texts_of(request.input))
    if trace is not None:
        tokens = sum(len(text.ids) for text in texts)
        said = {"operation.name": "embeddings", "request.model": request.model, "usage.input_tokens": tokens}
        trace.note(**{f"gen_ai.{key}": value for key, value in said.items()}, **{"aspen_mp.texts": len(texts)})
        trace.enter(steps.EMBED)
    vectors = await embedder.embed(texts, shelved, priority=class_of(request.priority), deadline_ms=deadline_ms)
    if trace is not None:
        trace.enter(steps.ENCODE)
    total = sum(len(text.ids) for text in texts)
    work = _answer(vectors, request, total, embedder.recipe.normalize)
    return await turns.run(work) if vectors.size > turns.ITEMS else turns.at_once(work)


def _answer(vectors: Vectors, request: EmbeddingsRequest, tokens: int, normalize: bool) -> Work[bytes]:
    cut = _cut(vectors, request.dimensions, normalize)
    data, numbers = [], 0
    for k, vector in enumerate(cut):
        data.append(Embedding(index=k, embedding=_spelled(vector, request.encoding_format)))
        numbers += vector.size
        if numbers >= turns.ITEMS:
            numbers = 0
            yield
    return encoder.encode(EmbeddingsAnswer(data=data, model=request.model, usage=Usage(prompt_tokens=tokens, total_tokens=tokens)))


def _refuse_dimensions(dimensions: int | None, there: int | None) -> None:
    """RequestError where a vector has less. `there`: None where that is not known before the model has run."""
    if dimensions is not None and there is not None and dimensions > there:
        raise RequestError(f"dimensions is {dimensions}, and the model's embeddings have {there}")


def _cut(vectors: Vectors, dimensions: int | None, normalize: bool) -> Vectors:
    """The first dimensions of vectors, as long as 1 again if they were before."""
    _refuse_dimensions(dimensions, vectors.shape[1])
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    return normalized(vectors[:, :dimensions]) if normalize else vectors[:, :dimensions]


def _spelled(vector: Vectors, form: str | None) -> Any:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return listed_floats(vector)


def models(shelf: Shelf) -> ModelList:
    """`GET /v1/models`."""
    names = sorted({shelved.served.name for shelved in shelf.all})
    return ModelList(data=[card(shelf.find(name)) for name in names])


def card(shelved: Shelved) -> ModelCard:
    """`GET /v1/models/{model}`."""
    try:
        created = int(filesystem.stat(shelved.served.path).st_mtime)
    except OSError:  # deleted since; its version is still served
        created = 0
    return ModelCard(id=shelved.served.name, created=created)
