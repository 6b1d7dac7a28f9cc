"""gRPC's own health service, `grpc.health.v1.Health`, which probes of Kubernetes, Envoy and load balancers ask."""

from __future__ import annotations

from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2

from aspen_mp.serving import documents
from aspen_mp.serving.access.tokens import Tokens
from aspen_mp.serving.grpc import schema
from aspen_mp.serving.grpc.service import Service, authorization
from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.serving.shelf import Shelf

_SERVER: Final = frozenset({"", schema.SERVICE})
"""Names of the whole server. Every other name is that of a model."""
_SERVING: Final[int] = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final[int] = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN: Final[int] = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """The methods Check and Watch. Names of models need a token where the server asks for one; the server's own need none."""

    def __init__(self, shelf: Shelf, tokens: Tokens) -> None:
        self._shelf = shelf
        self._tokens = tokens
        self._ended = False

    def handlers(self, service: Service) -> Any:
        """All methods, for `grpc.aio.Server.add_generic_rpc_handlers`. `service`: guards them as its own."""
        read, write = health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
        kinds = {
            "Check": (grpc.unary_unary_rpc_method_handler, self._check),
            "Watch": (grpc.unary_stream_rpc_method_handler, self._watch),
        }
        found = {
            name: kind(service.guarded(f"{health.SERVICE_NAME}/{name}", handler, probe=True), read, write)
            for name, (kind, handler) in kinds.items()
        }
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, found)

    def end(self) -> None:
        """End all watches, which would otherwise keep the server from ending."""
        self._ended = True
        self._shelf.tell()

    def _status(self, name: str, context: Any) -> int | None:
        """Return whether the model of this name serves; None where there is no such model."""
        ready = documents.readiness(self._shelf)["ready"]
        if name not in _SERVER:
            self._tokens.check(authorization(context))
            try:
                self._shelf.find(name)
            except Refused as refused:
                if refused.status == 404:
                    return None
                ready = False
        return _SERVING if ready else _NOT_SERVING

    async def _check(self, request: Any, context: Any) -> Any:
        status = self._status(request.service, context)
        if status is None:
            raise Refused(404, f"there is no service or model {request.service[:200]!r}")
        return health_pb2.HealthCheckResponse(status=status)

    async def _watch(self, request: Any, context: Any) -> None:
        """Answer at once, and at each change. A name that is unknown now may be known later."""
        last = None
        while True:
            change = self._shelf.change
            status = self._status(request.service, context)
            status = _UNKNOWN if status is None else status
            if status != last:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                last = status
            elif self._ended:
                return
            else:
                await change.wait()
