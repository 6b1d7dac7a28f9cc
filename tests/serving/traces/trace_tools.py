"""Spans as dicts, and a receiver of OTLP that keeps them."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest

for _package in ("sdk.trace", "exporter.otlp.proto.http"):
    pytest.importorskip(f"opentelemetry.{_package}", reason="traces are an extra: pip install 'aspen-mp[otel]'")
collector = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
"""A caller's `traceparent`, sampled."""


class Receiver:
    """What exporters send, by name of span. `resources`: attributes of the processes that sent."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.resources: list[dict[str, Any]] = []
        self.endpoint = ""

    def take(self, data: bytes) -> None:
        for group in collector.ExportTraceServiceRequest.FromString(data).resource_spans:
            self.resources.append(_attributes(group.resource.attributes))
            for scope in group.scope_spans:
                self.spans += [_span(each) for each in scope.spans]

    def named(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["name"] == name]

    def one(self, name: str, **attributes: Any) -> dict[str, Any]:
        """The only span of this name with these attributes; dots in their names are written as `__`."""
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        (found,) = [span for span in self.named(name) if wanted.items() <= span["attributes"].items()]
        return found

    def under(self, span: dict[str, Any]) -> list[dict[str, Any]]:
        """Children of a span, the earliest first."""
        return sorted((each for each in self.spans if each["parent"] == span["span"]), key=lambda each: each["start"])


def _attributes(said: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in said}


def _span(said: Any) -> dict[str, Any]:
    return {
        "name": said.name,
        "trace": said.trace_id.hex(),
        "span": said.span_id.hex(),
        "parent": said.parent_span_id.hex(),
        "kind": said.kind,
        "start": said.start_time_unix_nano,
        "end": said.end_time_unix_nano,
        "attributes": _attributes(said.attributes),
        "code": said.status.code,
        "message": said.status.message,
    }


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver at a free port, over HTTP."""
    receiver = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            receiver.take(gzip.decompress(data) if self.headers.get("content-encoding") == "gzip" else data)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *said: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
