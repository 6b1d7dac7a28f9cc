"""Traces for OpenTelemetry: spans of requests and of their steps, what continues a caller's trace, and what a collector gets."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import serving_tools as tools
import small_models
import text_models
import trace_tools
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode

from aspen_mp.serving.access.tokens import Tokens
from aspen_mp.serving.http import Around, failure
from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.serving.telemetry import steps
from aspen_mp.serving.telemetry.traces import Telemetry, exporter_names, exporters
from aspen_mp.shm.errors import ConfigError, DeadlineMissed, RequestError

ERROR = 2
SERVER = 2
INFER = "POST /v2/models/{model}/infer"


class Shelf:
    closing = False


class Recorded:
    """A `Telemetry` whose spans stay in memory."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(**options)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.telemetry = Telemetry(provider)

    @property
    def spans(self) -> list[Any]:
        """Those that have ended, in that order."""
        return list(self._exporter.get_finished_spans())


def asked(recorded: Recorded, app: Any, path: str = "/v2", method: str = "GET", **headers: str) -> list[int]:
    """The statuses of an answer of `app`, which is asked once."""
    statuses: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "method": method, "headers": sent, "client": ("::1", 7), "server": ("a", 8000), "state": {}}
    around = Around(app, Shelf(), Tokens([]), None, recorded.telemetry)  # type: ignore[arg-type]
    asyncio.run(around(scope, None, send))  # type: ignore[arg-type]
    return statuses


def answering(error: Exception | None = None, params: dict[str, str] | None = None) -> Callable[..., Any]:
    """An application that answers, with an error if it is given one."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if params is not None:
            scope["path_params"] = params
        trace = steps.CURRENT.get()
        assert trace is not None
        trace.enter(steps.READ)
        trace.enter(steps.RUN, **steps.of_batch(3))
        if error is not None:
            trace.failed(error)
            await failure(error, scope["path"])(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"abc"})

    return app


def test_a_request_is_a_span_of_its_callers_trace() -> None:
    recorded = Recorded()
    app = answering(params={"model": "m", "version": "3"})
    path = "/v2/models/m/versions/3/infer"
    assert asked(recorded, app, path, "POST", traceparent=trace_tools.PARENT, **{"user-agent": "curl", "content-length": "7"}) == [200]
    read, run, request = recorded.spans
    assert (read.name, run.name, request.name) == ("read request", "run", "POST /v2/models/{model}/versions/{version}/infer")
    assert {f"{span.context.trace_id:032x}" for span in recorded.spans} == {trace_tools.TRACE}
    assert f"{request.parent.span_id:016x}" == trace_tools.SPAN
    assert read.parent.span_id == run.parent.span_id == request.context.span_id
    assert request.start_time <= read.start_time <= read.end_time <= run.start_time <= run.end_time <= request.end_time
    assert (request.kind, run.kind) == (SpanKind.SERVER, SpanKind.INTERNAL)
    assert run.attributes == {"aspen_mp.batch.size": 3, "aspen_mp.batch.requests": 1}
    assert request.status.status_code is StatusCode.UNSET
    assert request.attributes == {
        "http.request.method": "POST",
        "url.path": path,
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "client.address": "::1",
        "client.port": 7,
        "server.address": "a",
        "server.port": 8000,
        "user_agent.original": "curl",
        "http.route": "/v2/models/{model}/versions/{version}/infer",
        "http.request.body.size": 7,
        "http.response.body.size": 3,
        "http.response.status_code": 200,
    }


@pytest.mark.parametrize(
    ("error", "status", "fault"),
    [
        (RequestError("no"), 400, False),
        (Refused(429, "later"), 429, False),
        (DeadlineMissed("late"), 504, True),
        (ZeroDivisionError("a secret"), 500, True),
    ],
)
def test_errors_of_the_server_mark_its_spans(error: Exception, status: int, fault: bool) -> None:
    recorded = Recorded()
    assert asked(recorded, answering(error)) == [status]
    run, request = recorded.spans[-2:]
    assert request.attributes["http.response.status_code"] == status
    assert (request.attributes.get("error.type") == type(error).__qualname__) == fault
    assert run.attributes["error.type"] == type(error).__qualname__
    for span in (run, request):
        assert (span.status.status_code is StatusCode.ERROR) == fault
        assert span.status.description == (str(error) if fault and isinstance(error, DeadlineMissed) else None)


def test_a_client_that_goes_is_told_from_one_that_is_answered() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        pass

    recorded = Recorded()
    assert asked(recorded, app) == []
    (span,) = recorded.spans
    assert span.attributes["error.type"] == "disconnected"
    assert "http.response.status_code" not in span.attributes
    assert span.status.status_code is StatusCode.ERROR


def test_names_of_spans_are_few() -> None:
    recorded = Recorded()
    asked(recorded, answering(), "/nothing/here", "BREW")
    asked(recorded, answering(params={"name": "secret"}), "/v2/systemsharedmemory/region/secret/status")
    asked(recorded, answering(params={}), "/v2/models/stats")
    asked(recorded, answering(params={"model": "models"}), "/v2/models/models/stats")
    requests = [span for span in recorded.spans if span.kind is SpanKind.SERVER]
    assert [span.name for span in requests] == [
        "HTTP",
        "GET /v2/systemsharedmemory/region/{region}/status",
        "GET /v2/models/stats",
        "GET /v2/models/{model}/stats",
    ]
    assert requests[0].attributes["http.request.method"] == "_OTHER"
    assert requests[0].attributes["http.request.method_original"] == "BREW"


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/metrics"])
def test_probes_are_not_traced(path: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert steps.CURRENT.get() is None

    recorded = Recorded()
    context = contextvars.copy_context()  # of a request before, on the same connection
    context.run(steps.CURRENT.set, recorded.telemetry.rpc("a/b", [], ""))
    context.run(asked, recorded, app, path)
    assert recorded.spans == []


@pytest.mark.parametrize("header", ["", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "ff-" + "a" * 5000, "\r"])
def test_a_wrong_parent_begins_a_trace(header: str) -> None:
    recorded = Recorded()
    asked(recorded, answering(), traceparent=header)
    assert recorded.spans[-1].parent is None


def test_what_is_not_sampled_makes_no_spans() -> None:
    recorded = Recorded(sampler=ParentBased(ALWAYS_OFF))
    asked(recorded, answering(RequestError("no")))
    assert recorded.spans == []
    asked(recorded, answering(), traceparent=trace_tools.PARENT)  # its caller has sampled it
    assert len(recorded.spans) == 3


@pytest.mark.parametrize(
    ("code", "fault"), [("OK", False), ("INVALID_ARGUMENT", False), ("CANCELLED", False), ("UNAVAILABLE", True), ("INTERNAL", True)]
)
def test_codes_of_grpc(code: str, fault: bool) -> None:
    recorded = Recorded()
    metadata = [("traceparent", trace_tools.PARENT), ("x-bin", b"\xff")]
    trace = recorded.telemetry.rpc("inference.GRPCInferenceService/ModelInfer", metadata, "ipv4:127.0.0.1:7")
    trace.answered(code)
    (span,) = recorded.spans
    assert span.name == "inference.GRPCInferenceService/ModelInfer"
    assert f"{span.parent.span_id:016x}" == trace_tools.SPAN
    assert span.attributes["rpc.response.status_code"] == code
    assert (span.status.status_code is StatusCode.ERROR) == fault == ("error.type" in span.attributes)


def test_a_trace_that_has_ended_is_told_nothing() -> None:
    """A request whose client has gone may still wait in a batch, which goes later."""
    recorded = Recorded()
    trace = recorded.telemetry.rpc("a/b", [], "")
    trace.enter(steps.QUEUE)
    trace.answered("CANCELLED")
    trace.enter(steps.RUN)
    assert [span.name for span in recorded.spans] == ["queue", "a/b"]


def test_the_environment_chooses_exporters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exporter_names() == ["otlp_proto_http"]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert exporter_names() == ["otlp_proto_grpc"]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    assert exporter_names() == ["otlp_proto_http"]
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console, otlp")
    assert exporter_names() == ["console", "otlp_proto_http"]
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert exporters() == []
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "smoke")
    with pytest.raises(ConfigError, match="Install opentelemetry-exporter-smoke"):
        exporters()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "pigeon")
    with pytest.raises(ConfigError, match="OTLP has no protocol 'pigeon'"):
        exporter_names()


# ---- a server and its collector


def test_a_collector_gets_what_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text_models.save(tmp_path, "encoder", text_models.encoder())
    tools.save(tmp_path, "mlp", 1, small_models.mlp("n"))
    tools.save(tmp_path, "joined", 2, small_models.mlp("n"), "batching = { max_batch = 8, max_delay_ms = 1000 }")
    feeds = tools.mlp_feeds(4)
    body = {"inputs": [{"name": "x", "shape": feeds["x"].shape, "datatype": "FP32", "data": feeds["x"].ravel().tolist()}]}
    headers = {"traceparent": trace_tools.PARENT}
    with trace_tools.receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=shop,deployment.environment.name=test")
        with tools.serving(tmp_path, tmp_path, "--otel", "--access-log") as server:
            with tools.client(server.address) as client:
                assert client.ask("/v2/models/mlp/infer", body, headers)[0] == 200
                assert client.ask("/v2/models/mlp/infer", {"inputs": []}, headers)[0] == 400
                assert client.ask("/v2/models/none/infer", body, headers)[0] == 404
                assert client.ask("/v1/embeddings", {"model": "encoder", "input": ["one two", "three"]}, headers)[0] == 200
            join_two(server, body, headers)
            assert server.stop() == 0  # what is left is sent before the end
    assert {each["service.name"] for each in receiver.resources} == {"shop"}
    assert receiver.resources[0]["deployment.environment.name"] == "test"
    assert {span["trace"] for span in receiver.spans} == {trace_tools.TRACE}

    request = receiver.one(INFER, aspen_mp__model__name="mlp", http__response__status_code=200)
    assert (request["parent"], request["kind"]) == (trace_tools.SPAN, SERVER)
    assert [span["name"] for span in receiver.under(request)] == ["read request", "run", "encode answer"]
    assert receiver.under(request)[1]["attributes"]["aspen_mp.batch.size"] == 4
    told = [json.loads(line) for line in server.log if line.startswith("{")]
    assert {"trace": trace_tools.TRACE, "span": request["span"]}.items() <= told[0].items()

    assert receiver.one(INFER, http__response__status_code=400)["code"] != ERROR
    assert receiver.under(receiver.one(INFER, http__response__status_code=404)) == []

    joined = [span for span in receiver.named(INFER) if span["attributes"].get("aspen_mp.model.name") == "joined"]
    assert len(joined) == 2
    for span in joined:
        read, queue, run, encode = receiver.under(span)
        assert [each["name"] for each in (read, queue, run, encode)] == ["read request", "queue", "run", "encode answer"]
        assert {"aspen_mp.batch.size": 8, "aspen_mp.batch.requests": 2}.items() <= run["attributes"].items()

    embedding = receiver.one("POST /v1/embeddings")
    said = {"gen_ai.operation.name": "embeddings", "gen_ai.request.model": "encoder", "aspen_mp.texts": 2}
    assert said.items() <= embedding["attributes"].items()
    assert [span["name"] for span in receiver.under(embedding)] == ["read request", "tokenize", "embed", "encode answer"]
    for texts in receiver.under(receiver.one("embed")):
        assert [span["name"] for span in receiver.under(texts)] == ["run", "pool"]


def join_two(server: tools.Server, body: Any, headers: dict[str, str]) -> None:
    """Two requests of half a batch, which wait for each other."""

    def once() -> None:
        with tools.client(server.address) as client:
            assert client.ask("/v2/models/joined/infer", body, headers)[0] == 200

    threads = [threading.Thread(target=once) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_grpc_continues_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grpc = pytest.importorskip("grpc")
    from aspen_mp.serving.grpc import schema

    tools.save(tmp_path, "mlp", 1, small_models.mlp("n"))
    x = tools.mlp_feeds(2)["x"]
    tensor = {"name": "x", "datatype": "FP32", "shape": x.shape}
    request = schema.message("ModelInferRequest")(model_name="mlp", inputs=[tensor], raw_input_contents=[x.tobytes()])
    wrong = schema.message("ModelInferRequest")(model_name="nothing")
    with trace_tools.receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{receiver.endpoint}/v1/traces")
        with tools.serving(tmp_path, tmp_path, "--otel", "--grpc-port", "0") as server:
            with grpc.insecure_channel(server.grpc_address) as channel:
                path = f"/{schema.SERVICE}"
                metadata = [("traceparent", trace_tools.PARENT)]
                serialize = type(request).SerializeToString
                channel.unary_unary(f"{path}/ModelInfer", serialize, schema.ModelInferResponse.FromString)(request, metadata=metadata)
                stream = channel.stream_stream(f"{path}/ModelStreamInfer", serialize, schema.ModelStreamInferResponse.FromString)
                assert len(list(stream(iter([request, wrong, request]), metadata=metadata))) == 3
                with pytest.raises(grpc.RpcError):
                    channel.unary_unary(f"{path}/ModelInfer", serialize, schema.ModelInferResponse.FromString)(wrong, metadata=metadata)
            assert server.stop() == 0
    assert {each["service.name"] for each in receiver.resources} == {"aspen-mp"}
    assert {span["trace"] for span in receiver.spans} == {trace_tools.TRACE}
    call = receiver.one(f"{schema.SERVICE}/ModelInfer", rpc__response__status_code="OK")
    assert (call["parent"], call["kind"]) == (trace_tools.SPAN, SERVER)
    assert {"rpc.system.name": "grpc", "aspen_mp.model.name": "mlp", "aspen_mp.model.version": "1"}.items() <= call["attributes"].items()
    assert [span["name"] for span in receiver.under(call)] == ["read request", "run", "encode answer"]
    assert receiver.one(f"{schema.SERVICE}/ModelInfer", rpc__response__status_code="NOT_FOUND")["code"] != ERROR
    parts = receiver.under(receiver.one(f"{schema.SERVICE}/ModelStreamInfer"))
    assert [(span["name"], len(receiver.under(span))) for span in parts] in ([("request", n) for n in order] for order in ((3, 0, 3),))


def test_a_collector_that_is_away_costs_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools.save(tmp_path, "mlp", 1, small_models.mlp("n"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    with tools.serving(tmp_path, tmp_path, "--otel") as server:
        with tools.client(server.address) as client:
            for _ in range(20):
                client.infer("mlp", tools.mlp_feeds())
        assert server.stop() == 0


def test_an_exporter_that_is_missing_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools.save(tmp_path, "mlp", 1, small_models.mlp("n"))
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "smoke")
    with pytest.raises(AssertionError, match="opentelemetry-exporter-smoke"):
        tools.Server(tmp_path, "--otel", folder=tmp_path)
