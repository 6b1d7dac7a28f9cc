"""The routes of the Open Inference Protocol, as an ASGI application, with errors and the access log around them."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aspen_mp.serving import documents
from aspen_mp.serving.access.access_log import AccessLog
from aspen_mp.serving.access.connections import EXCHANGE, Exchange, Headers
from aspen_mp.serving.access.tokens import Tokens
from aspen_mp.serving.limits import Limits
from aspen_mp.serving.memory.regions import NONE
from aspen_mp.serving.memory.routes import NamedRoutes
from aspen_mp.serving.openapi import document
from aspen_mp.serving.protocol import inference, large_json, statuses, turns
from aspen_mp.serving.protocol.body import DOCUMENT, Body, Budget, Disconnected, length_of
from aspen_mp.serving.protocol.messages import encoder
from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.serving.shelf import Shelf, Supervised
from aspen_mp.serving.telemetry import server_metrics, steps, triton_metrics
from aspen_mp.serving.text import openai
from aspen_mp.system import clock

if TYPE_CHECKING:
    from aspen_mp.serving.telemetry.traces import HttpTrace, Telemetry

OPEN: Final = {"/v2/health/live", "/v2/health/ready"}
"""Routes that need no token: probes have none."""
UNTRACED: Final = {*OPEN, "/metrics"}
"""Routes of probes, which would bury the others in traces."""
_JSON: Final[Headers] = [(b"content-type", b"application/json")]


# ---- answers


def _json(document: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encoder.encode(document), status, headers, "application/json")


def failure(error: BaseException, path: str) -> Response:
    """The answer to an error, in the form of the interface that `path` belongs to."""
    answered = statuses.of(error)
    headers = {} if answered.retry_s is None else {"retry-after": str(answered.retry_s)}
    if answered.status == 401:
        headers["www-authenticate"] = "Bearer"
    return _json(_error(path, answered.status, statuses.told(error)), answered.status, headers)


def _error(path: str, status: int, message: str) -> object:
    return openai.error(status, message) if path.startswith(openai.PREFIX) else {"error": message}


def _guarded(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:
            if (trace := steps.CURRENT.get()) is not None:
                trace.failed(error)
            return failure(error, request.url.path)

    return guarded


def _answering(document: Callable[[Request], Awaitable[object]]) -> Callable[[Request], Awaitable[Response]]:
    """A handler from a function that gives its document."""

    async def handler(request: Request) -> Response:
        return _json(await document(request))

    return handler


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    texts = {404: f"there is nothing at {request.url.path[:200]!r}", 405: f"{request.method} is not allowed here"}
    said = _error(request.url.path, error.status_code, texts.get(error.status_code, str(error.detail)))
    return _json(said, error.status_code, dict(error.headers or {}))


# ---- inference


class Infer:
    """`POST /v2/models/{model}[/versions/{version}]/infer`, as an application of its own: it reads bytes as they come. It answers on
    connections of `access.connections` only."""

    def __init__(self, shelf: Shelf, limits: Limits, budget: Budget, named: NamedRoutes | None) -> None:
        self._shelf = shelf
        self._regions = NONE if named is None else named.memory.regions
        self._limits = limits
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope["extensions"][EXCHANGE]
        try:
            headers, pieces = await self._answer(scope, receive, exchange)
        except Disconnected:
            return
        except Exception as error:
            if (trace := steps.CURRENT.get()) is not None:
                trace.failed(error)
            await failure(error, scope["path"])(scope, receive, send)
            return
        await exchange.answer(headers, pieces, close=self._shelf.closing)

    async def _answer(self, scope: Scope, receive: Receive, exchange: Exchange) -> tuple[Headers, list[Any]]:
        shelf, where = self._shelf, scope["path_params"]
        shelf.refuse_if_absent()
        header_length = length_of(exchange.headers, inference.HEADER_LENGTH, self._limits.body)
        shelved = shelf.find(where["model"], where.get("version"))
        trace = steps.CURRENT.get()
        if trace is not None:
            trace.note(**steps.of_model(shelved.served.name, shelved.served.version))
            trace.enter(steps.READ)
        with (
            shelved.lease(),
            shelved.counts.begins() as counted,
            shelved.rooms() as rooms,
            Body(receive, exchange.headers, self._limits, self._budget, exchange) as body,
        ):
            call = await inference.read(body, header_length, shelved.model.inputs, self._regions, rooms, shelved.arrivals)
            call.client = (scope.get("client") or ("",))[0]
            counted.has_read()
            results = await _unless_gone(shelved.run(call), exchange)
            counted.has_run()
            if trace is not None:
                trace.enter(steps.ENCODE)
            made = await inference.spelled(call, results) if _is_large(results) else None
            answer = inference.answer(call, shelved.served.name, str(shelved.served.version), results, made)
            counted.has_written()
            return answer


class Embed(Infer):
    """`POST /v1/embeddings`."""

    async def _answer(self, scope: Scope, receive: Receive, exchange: Exchange) -> tuple[Headers, list[Any]]:
        self._shelf.refuse_if_absent()
        trace = steps.CURRENT.get()
        if trace is not None:
            trace.enter(steps.READ)
        with Body(receive, exchange.headers, self._limits, self._budget, exchange) as body:
            text = await body.read_text(None, self._limits.texts)
            request = openai.decoded(text) if len(text) < large_json.LARGE else await turns.call(openai.decoded, text)
            with self._shelf.find(request.model).lease() as shelved, shelved.counts.begins():
                if trace is not None:
                    trace.note(**steps.of_model(shelved.served.name, shelved.served.version))
                answer = await _unless_gone(openai.embeddings(shelved, request), exchange)
        return [*_JSON], [answer]


def _is_large(results: Mapping[str, Any]) -> bool:
    return any(result.size > turns.ITEMS for result in results.values())


async def _unless_gone(work: Awaitable[Any], exchange: Exchange) -> Any:
    """The result, unless the client goes before it is there: then the request is cancelled, and Disconnected raised."""
    task = asyncio.current_task()
    assert task is not None
    has_gone = False

    def gone() -> None:
        nonlocal has_gone
        has_gone = True
        task.cancel()

    exchange.watch(gone)
    try:
        return await work
    except asyncio.CancelledError:
        if has_gone and not task.uncancel():
            raise Disconnected from None
        raise
    finally:
        exchange.watch(None)


class InferFirst:
    """Requests for inference go straight to `infer`, all others to `app`: to route them would take as long as to read their JSON.

    A slash at the end of a path changes nothing."""

    def __init__(self, infer: Infer, app: ASGIApp) -> None:
        self._infer = infer
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app, path = self._app, scope["path"]
        if path[-1:] == "/" and path != "/":
            path = scope["path"] = path[:-1]
        if scope["method"] == "POST" and path.startswith("/v2/models/") and path.endswith("/infer"):
            names = path.split("/")[3:-1]
            if all(names) and (len(names) == 1 or (len(names) == 3 and names[1] == "versions")):
                scope["path_params"] = dict(zip(("model", "version"), names[::2], strict=False))
                app = self._infer
        await app(scope, receive, send)


# ---- everything else


class Routes:
    """The handlers, with the parts that they speak of."""

    def __init__(
        self,
        shelf: Shelf,
        tokens: Tokens,
        limits: Limits,
        budget: Budget,
        supervised: Supervised | None,
        *,
        named: bool,
        triton_names: bool,
    ) -> None:
        self._shelf = shelf
        self._tokens = tokens
        self._limits = limits
        self._budget = budget
        self._supervised = supervised
        self._named = named
        self._triton_names = triton_names

    async def server(self, request: Request) -> Response:
        return _json(documents.server(repository=self._supervised is not None, named=self._named))

    async def live(self, request: Request) -> Response:
        return _json({"live": True})

    async def ready(self, request: Request) -> Response:
        # Probes have no token. Reasons hold names of models and of files.
        known = self._tokens.knows(request.headers.get("authorization", ""))
        document = documents.readiness(self._shelf, in_full=known)
        return _json(document, 200 if document["ready"] else 503, None if document["ready"] else {"retry-after": "1"})

    async def model(self, request: Request) -> Response:
        return _json(documents.model(self._shelf, self._find(request)))

    async def model_ready(self, request: Request) -> Response:
        shelved = self._find(request)
        self._shelf.refuse_if_absent()
        return _json({"name": shelved.served.name, "ready": True})

    async def config(self, request: Request) -> Response:
        return _json(documents.config(self._find(request)))

    async def stats(self, request: Request) -> Response:
        found = [self._find(request)] if "model" in request.path_params else self._shelf.all
        return _json(documents.statistics(self._shelf, found, await asyncio.to_thread(self._shelf.runtime.status)))

    async def cards(self, request: Request) -> Response:
        return _json(openai.models(self._shelf))

    async def card(self, request: Request) -> Response:
        return _json(openai.card(self._find(request)))

    async def index(self, request: Request) -> Response:
        return _json(documents.index(self._shelf))

    async def load(self, request: Request) -> Response:
        assert self._supervised is not None
        with Body(request.receive, dict(request.scope["headers"]), self._limits, self._budget) as body:
            documents.refuse_other_models(documents.parameters_of(await body.read_text(None, DOCUMENT)))
        await self._supervised.change(request.path_params["model"], load=True)
        return _json({})

    async def unload(self, request: Request) -> Response:
        assert self._supervised is not None
        await self._supervised.change(request.path_params["model"], load=False)
        return _json({})

    async def metrics(self, request: Request) -> Response:
        if importlib.util.find_spec("prometheus_client") is None:
            raise Refused(501, "metrics need the package prometheus-client. Install it beside the server: pip install prometheus-client")
        from aspen_mp.tools.metrics import text

        status = await asyncio.to_thread(self._shelf.runtime.status)
        more = triton_metrics.text(self._shelf, status) if self._triton_names else ""
        return Response(text(status) + server_metrics.text(self._shelf) + more, media_type="text/plain; version=0.0.4")

    def _find(self, request: Request) -> Any:
        return self._shelf.find(request.path_params["model"], request.path_params.get("version"))


def _described(said: dict[str, Any]) -> Callable[[Request], Awaitable[Response]]:
    async def described(request: Request) -> Response:
        return _json(said)

    return described


def application(
    shelf: Shelf,
    limits: Limits,
    budget: Budget,
    tokens: Tokens,
    supervised: Supervised | None = None,
    named: NamedRoutes | None = None,
    log: AccessLog | None = None,
    *,
    telemetry: Telemetry | None = None,
    triton_names: bool = False,
) -> ASGIApp:
    """The application of a front end. `supervised`: who changes the repository, `named`: who shares memory by name; None where clients may
    not. `telemetry`: who is told of requests. `triton_names`: whether metrics have Triton's names, too."""
    routes = Routes(shelf, tokens, limits, budget, supervised, named=named is not None, triton_names=triton_names)
    infer = Infer(shelf, limits, budget, named)
    found: list[Route] = []

    def add(path: str, handler: Any, method: str = "GET", *, versioned: bool = False) -> None:
        endpoint = handler if isinstance(handler, Infer) else _guarded(handler)
        places = [path, path.replace("{model}", "{model}/versions/{version}")] if versioned else [path]
        found.extend(Route(place, endpoint, methods=[method]) for place in places)

    add("/v2/models/{model}/infer", infer, "POST", versioned=True)
    add("/v2", routes.server)
    add("/v2/health/live", routes.live)
    add("/v2/health/ready", routes.ready)
    add("/v2/models/stats", routes.stats)
    add("/v2/models/{model}", routes.model, versioned=True)
    add("/v2/models/{model}/ready", routes.model_ready, versioned=True)
    add("/v2/models/{model}/config", routes.config, versioned=True)
    add("/v2/models/{model}/stats", routes.stats, versioned=True)
    add("/v1/models", routes.cards)
    add("/v1/models/{model}", routes.card)
    add("/v1/embeddings", Embed(shelf, limits, budget, named), "POST")
    add("/metrics", routes.metrics)
    said = document.document(repository=supervised is not None, named=named is not None, tokens=tokens.asked)
    add(document.PATH, _described(said))
    if supervised is not None:
        add("/v2/repository/index", routes.index, "POST")
        add("/v2/repository/models/{model}/load", routes.load, "POST")
        add("/v2/repository/models/{model}/unload", routes.unload, "POST")
    if named is not None:
        place = "/v2/systemsharedmemory"
        for prefix in (place, f"{place}/region/{{name}}"):
            add(f"{prefix}/status", _answering(named.answer_status))
            add(f"{prefix}/unregister", _answering(named.answer_unregister), "POST")
        add(f"{place}/region/{{name}}/register", _answering(named.answer_register), "POST")
    router = Starlette(routes=found, exception_handlers={HTTPException: _http_error})
    router.router.redirect_slashes = False
    app = InferFirst(infer, router)
    return Around(app, shelf, tokens, log, telemetry)


class Around:
    """Surrounds every answer: a token is asked for, connections end after it once the server stops, a line in the log, and a span."""

    def __init__(self, app: ASGIApp, shelf: Shelf, tokens: Tokens, log: AccessLog | None, telemetry: Telemetry | None) -> None:
        self._app = app
        self._shelf = shelf
        self._tokens = tokens
        self._log = log
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began = clock.perf_counter()
        status = sent = 0
        trace = None
        if self._telemetry is not None:
            trace = None if scope["path"] in UNTRACED else self._telemetry.http(scope)
            steps.CURRENT.set(trace)  # also None: a pipelined request begins in the context of the one before

        exchange: Exchange | None = scope.get("extensions", {}).get(EXCHANGE)

        async def noted(message: Message) -> None:
            nonlocal status, sent
            if exchange is not None and exchange.has_ended():
                return
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._shelf.closing:
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            if self._tokens.asked and scope["path"] not in OPEN:
                self._tokens.check(dict(scope["headers"]).get(b"authorization", b"").decode("latin-1"))
            await self._app(scope, receive, noted)
        except Refused as refused:
            if trace is not None:
                trace.failed(refused)
            await failure(refused, scope["path"])(scope, receive, noted)
        except asyncio.CancelledError:
            if not self._shelf.closing or status:
                raise
            late = Refused(503, "the server stopped before this request had ended", 1)  # the grace period is over
            await failure(late, scope["path"])(scope, receive, noted)
        finally:
            if trace is not None or self._log is not None:
                if not status and exchange is not None:
                    status, sent = exchange.answered
                self._tell(scope, status, sent, clock.perf_counter() - began, trace)

    def _tell(self, scope: Scope, status: int, sent: int, seconds: float, trace: HttpTrace | None) -> None:
        """Ends the request's span, and writes its line in the log."""
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        received = int(length) if length.isdigit() else 0
        if trace is not None:
            trace.answered(scope, status, received, sent)
        if self._log is not None:
            self._log.write(
                client=(scope.get("client") or ("",))[0],
                method=scope["method"],
                path=scope["path"],
                status=status,
                received=received,
                sent=sent,
                seconds=seconds,
                trace=headers.get(b"traceparent", b"") if trace is None else trace.parent,
            )
