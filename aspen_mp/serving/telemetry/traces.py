"""Traces for OpenTelemetry: a span for each request that continues the caller's trace, and one for each step of it.

Imported only where traces are wanted. The environment decides on exporter, endpoint, sampler, propagators and the name of the service, by
the variables ``OTEL_*`` that are the same in all languages. Names of attributes are those of OpenTelemetry's semantic conventions.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any, Final

from opentelemetry import propagate
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, format_span_id, format_trace_id, set_span_in_context

import aspen_mp
from aspen_mp.serving.protocol import statuses
from aspen_mp.serving.telemetry.steps import StepTrace
from aspen_mp.shm.errors import AspenError, ConfigError
from aspen_mp.system import randomness, threads

SERVICE: Final = "aspen-mp"
PROTOCOLS: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""The names under which exporters of OTLP are registered, by protocol."""
LAST_S: Final = 3.0
"""How long the last spans may take at the end of a process."""
_GROUP: Final = "opentelemetry_traces_exporter"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
_NAMED: Final = {"models": "{model}", "versions": "{version}", "region": "{region}"}
"""The part of a path behind these is a name."""
_FAULTS: Final = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
"""Codes of gRPC that are the server's errors. The others are the client's."""


# ---- what the environment says


def exporter_names() -> list[str]:
    """The exporters that the environment asks for, as they are registered. ConfigError where a protocol is unknown."""
    found = []
    for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
        said = name.strip() or "otlp"
        if said == "otlp":
            variables = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
            protocol = next((value for each in variables if (value := os.environ.get(each, "").strip())), "http/protobuf")
            if protocol not in PROTOCOLS:
                raise ConfigError(f"OTLP has no protocol {protocol!r}. Set OTEL_EXPORTER_OTLP_PROTOCOL to {' or '.join(PROTOCOLS)}")
            said = PROTOCOLS[protocol]
        if said != "none":
            found.append(said)
    return found


def exporters() -> list[Any]:
    """The classes of these exporters. ConfigError names one that is not installed."""
    found = []
    for name in exporter_names():
        entries = list(metadata.entry_points(group=_GROUP, name=name))
        if not entries:
            package = f"opentelemetry-exporter-{name.replace('_', '-')}"
            raise ConfigError(f"there is no exporter of traces {name!r}. Install {package}, or set OTEL_TRACES_EXPORTER to another one")
        found.append(entries[0].load())
    return found


def provider() -> TracerProvider:
    """Return the provider of spans, which exports them. ConfigError."""
    said = OTELResourceDetector().detect().attributes
    defaults = {
        "service.name": SERVICE,
        "service.version": aspen_mp.__version__,
        "service.instance.id": str(uuid.UUID(bytes=randomness.urandom(16), version=4)),
    }
    made = TracerProvider(resource=Resource.create({**defaults, **said}), shutdown_on_exit=False)
    for exporter in exporters():
        made.add_span_processor(BatchSpanProcessor(exporter()))
    return made


# ---- requests


class Telemetry:
    """A front end's reports about its requests to OpenTelemetry."""

    def __init__(self, made: TracerProvider) -> None:
        self._provider = made
        self._tracer = made.get_tracer("aspen_mp.serving", aspen_mp.__version__)

    def http(self, scope: Mapping[str, Any]) -> HttpTrace:
        """A request over HTTP, from its ASGI scope."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        said = {
            "http.request.method": method,
            "url.path": scope["path"],
            "url.scheme": scope.get("scheme", "http"),
            "network.protocol.version": scope.get("http_version", "1.1"),
            **_address("client", scope.get("client")),
            **_address("server", scope.get("server")),
        }
        if scope.get("query_string"):
            said["url.query"] = scope["query_string"].decode("latin-1")
        if "user-agent" in headers:
            said["user_agent.original"] = headers["user-agent"]
        if method == "_OTHER":
            said["http.request.method_original"] = scope["method"][:40]
        name = "HTTP" if method == "_OTHER" else method
        return HttpTrace(self._tracer, self._span(name, headers, said))

    def rpc(self, method: str, metadata: Iterable[tuple[str, str | bytes]], peer: str) -> RpcTrace:
        """A call over gRPC. `method`: SERVICE/METHOD; `metadata`: as sent; `peer`: who calls, in gRPC's spelling."""
        headers = {name: value for name, value in metadata if isinstance(value, str)}
        said = {"rpc.system.name": "grpc", "rpc.method": method, "client.address": peer}
        return RpcTrace(self._tracer, self._span(method, headers, said))

    def _span(self, name: str, headers: Mapping[str, str], attributes: Mapping[str, Any]) -> Span:
        return self._tracer.start_span(name, propagate.extract(headers), SpanKind.SERVER, attributes)

    def close(self) -> None:
        """Exports the remaining spans, unless nobody receives them within `LAST_S`."""
        last = threads.Thread(target=self._provider.shutdown, name="aspen-mp traces", daemon=True)
        last.start()
        last.join(LAST_S)


def _address(who: str, said: Any) -> dict[str, Any]:
    """Attributes of an address; none of a Unix socket's other end, which has no name."""
    if not said or not said[0]:
        return {}
    return {f"{who}.address": said[0], **({} if said[1] is None else {f"{who}.port": said[1]})}


class SpanTrace:
    """A `steps.StepTrace` of a span. A trace that is not sampled costs no more than its one span."""

    __slots__ = ("_error", "_span", "_step", "_tracer")

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._step: Span | None = None
        self._error: BaseException | None = None

    @property
    def parent(self) -> bytes:
        """The span as a header ``traceparent``."""
        context = self._span.get_span_context()
        return f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-{context.trace_flags:02x}".encode()

    def enter(self, step: str, **attributes: Any) -> None:
        """Implements `steps.StepTrace`."""
        self._leave()
        if self._span.is_recording():
            self._step = self._tracer.start_span(step, set_span_in_context(self._span), attributes=attributes)

    def _leave(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.end()

    def note(self, **attributes: Any) -> None:
        """Implements `steps.StepTrace`."""
        self._span.set_attributes(attributes)

    def part(self, name: str, **attributes: Any) -> StepTrace:
        """Implements `steps.StepTrace`."""
        span = self._tracer.start_span(name, set_span_in_context(self._step or self._span), attributes=attributes)
        return SpanTrace(self._tracer, span)

    def failed(self, error: BaseException) -> None:
        """Implements `steps.StepTrace`."""
        self._error = error
        if self._step is not None:
            _mark(self._step, error, fault=_is_fault(error))

    def end(self) -> None:
        """Implements `steps.StepTrace`."""
        self._leave()
        if self._error is not None:
            _mark(self._span, self._error, fault=_is_fault(self._error))
        self._span.end()

    def _finish(self, code: str, *, fault: bool) -> None:
        """Ends a span of a server, whose answer has this code."""
        self._leave()
        if fault and self._error is not None:
            _mark(self._span, self._error, fault=True)
        elif fault:
            self._span.set_attribute("error.type", code)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


def _is_fault(error: BaseException) -> bool:
    """Whether an error is the server's. A task that is cancelled is none."""
    return isinstance(error, Exception) and statuses.of(error).status >= 500


def _mark(span: Span, error: BaseException, *, fault: bool) -> None:
    """The span failed with an error. `fault`: whether that is the server's."""
    span.set_attribute("error.type", type(error).__qualname__)
    if fault:
        told = str(error) if isinstance(error, AspenError) else ""
        span.set_status(Status(StatusCode.ERROR, told or None))


class HttpTrace(SpanTrace):
    """A request over HTTP."""

    __slots__ = ()

    def answered(self, scope: Mapping[str, Any], status: int, received: int, sent: int) -> None:
        """Ends it. `status`: 0 where the client went before the answer; `received`, `sent`: bytes of bodies."""
        span = self._span
        if span.is_recording():
            route = _route(scope)
            if route:
                span.set_attribute("http.route", route)
                span.update_name(f"{scope['method']} {route}")
            span.set_attributes({"http.request.body.size": received, "http.response.body.size": sent})
            if status:
                span.set_attribute("http.response.status_code", status)
        self._finish(str(status) if status else "disconnected", fault=not status or status >= 500)


def _route(scope: Mapping[str, Any]) -> str:
    """The route of a request, with {…} for names; "" where there is none."""
    names = scope.get("path_params")
    if names is None and "endpoint" not in scope:
        return ""
    parts = scope["path"].split("/")
    for k in range(len(parts) - 1 if names else 0):
        if parts[k] in _NAMED:
            parts[k + 1] = _NAMED[parts[k]]
    return "/".join(parts)


class RpcTrace(SpanTrace):
    """A call over gRPC."""

    __slots__ = ()

    def answered(self, code: str) -> None:
        """Ends it. `code`: the name of gRPC's."""
        self._span.set_attribute("rpc.response.status_code", code)
        self._finish(code, fault=code in _FAULTS)
