"""The methods of the service, with errors, tokens and the access log around them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf import message

from aspen_mp.serving import documents
from aspen_mp.serving.access.access_log import AccessLog
from aspen_mp.serving.access.tokens import Tokens
from aspen_mp.serving.grpc import codec, schema
from aspen_mp.serving.limits import Limits
from aspen_mp.serving.memory.regions import NONE
from aspen_mp.serving.memory.routes import NamedRoutes
from aspen_mp.serving.protocol import large_json, statuses, turns
from aspen_mp.serving.protocol.body import Budget
from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.serving.shelf import Shelf, Supervised
from aspen_mp.serving.telemetry import steps
from aspen_mp.shm.errors import RequestError
from aspen_mp.system import clock

if TYPE_CHECKING:
    from aspen_mp.serving.telemetry.traces import Telemetry

Handler = Callable[[Any, Any], Awaitable[Any]]

MOST_IN_STREAM: Final = 32
"""Requests of a stream that are computed at the same time. More wait in the client, by the stream's flow control."""
MOST_DETAILS: Final = 2000
"""Characters of an error's text: it travels in trailing metadata, of which clients accept 8 KiB."""
OPEN: Final = {"ServerLive", "ServerReady"}
"""Methods that need no token: probes have none."""
CODES: Final = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""The code for a status of `statuses.py`. Every other one is INTERNAL."""


class Service:
    """The methods. `supervised`: who changes the repository, `named`: who shares memory by name; None where clients may not."""

    def __init__(
        self,
        shelf: Shelf,
        limits: Limits,
        budget: Budget,
        tokens: Tokens,
        supervised: Supervised | None,
        named: NamedRoutes | None,
        log: AccessLog | None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._shelf = shelf
        self._limits = limits
        self._budget = budget
        self._tokens = tokens
        self._supervised = supervised
        self._named = named
        self._regions = NONE if named is None else named.memory.regions
        self._log = log
        self._telemetry = telemetry
        self._unread = Budget(limits.unsent)

    def handlers(self) -> Any:
        """All methods, for `grpc.aio.Server.add_generic_rpc_handlers`."""
        methods: dict[str, Handler] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server,
            "ModelMetadata": self._model,
            "ModelInfer": self._infer,
            "ModelStreamInfer": self._infer_stream,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            "ModelConfig": self._config,
            "ModelStatistics": self._statistics,
            "SystemSharedMemoryStatus": self._memory_status,
            "SystemSharedMemoryRegister": self._register_memory,
            "SystemSharedMemoryUnregister": self._unregister_memory,
        }
        found = {}
        for each in schema.methods():
            kind = grpc.stream_stream_rpc_method_handler if each.client_streaming else grpc.stream_unary_rpc_method_handler
            read, write = _reader(schema.class_of(each.input_type), self._limits), schema.class_of(each.output_type).SerializeToString
            guarded = self.guarded(f"{schema.SERVICE}/{each.name}", methods[each.name], probe=each.name in OPEN)
            found[each.name] = kind(guarded if each.client_streaming else self._one(guarded), read, write)
        return grpc.method_handlers_generic_handler(schema.SERVICE, found)

    def _one(self, handler: Handler) -> Handler:
        """The method with the one message of a call, for which it waits `Limits.body_s`. grpcio itself would wait for any time, so that it
        is told to expect a stream."""

        async def one(requests: Any, context: Any) -> Any:
            try:
                async with asyncio.timeout(self._limits.body_s):
                    request = await context.read()
            except TimeoutError:
                late = f"the message was not there within {self._limits.body_s:g} s"
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, late)
            if request is grpc.aio.EOF:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")
            return await handler(request, context)

        return one

    def guarded(self, path: str, handler: Handler, *, probe: bool = False) -> Handler:
        """Return the method with its errors as statuses of gRPC, a line in the access log (if any), and a span (if there are traces).

        Args:
            path: SERVICE/METHOD.
            handler: The method.
            probe: Whether it is asked for health. Then it checks tokens itself, and has no span.
        """

        async def guarded(request: Any, context: Any) -> Any:
            began = clock.perf_counter()
            status, response, trace = "CANCELLED", None, None
            if self._telemetry is not None and not probe:
                metadata = context.invocation_metadata() or ()
                trace = self._telemetry.rpc(path, metadata, context.peer())
                steps.CURRENT.set(trace)
            try:
                if not probe:
                    self._tokens.check(authorization(context))
                if isinstance(request, partial):
                    request = await turns.call(request)
                response = await handler(request, context)
                status = "OK"
                return response
            except Exception as error:
                code, details, trailing = failure(error)
                status = code.name
                if trace is not None:
                    trace.failed(error)
                await context.abort(code, details, trailing)
            finally:
                if trace is not None:
                    trace.answered(status)
                if self._log is not None:
                    told = b"" if trace is None else trace.parent
                    self._write(path, status, request, response, context, clock.perf_counter() - began, told)

        return guarded

    def _write(self, path: str, status: str, request: Any, response: Any, context: Any, seconds: float, trace: bytes) -> None:
        assert self._log is not None
        received, sent = (each.ByteSize() if hasattr(each, "ByteSize") else 0 for each in (request, response))
        self._log.write(
            client=context.peer(),
            method="POST",
            path=f"/{path}",
            status=status,
            received=received,
            sent=sent,
            seconds=seconds,
            trace=trace,
        )

    # ---- inference

    async def _infer(self, request: Any, context: Any, *, stream: bool = False) -> Any:
        """ModelInfer. A cancelled call cancels the task that this runs in, and with it the request."""
        shelf = self._shelf
        shelf.refuse_if_absent()
        held = 0

        def charge(nbytes: int) -> None:
            nonlocal held
            self._budget.take(nbytes, held)
            held += nbytes

        try:
            charge(request.ByteSize() + codec.shared_bytes(request, self._limits.body))
            with shelf.find(request.model_name, request.model_version or None).lease() as shelved, shelved.counts.begins() as counted:
                trace = steps.CURRENT.get()
                if trace is not None:
                    trace.note(**steps.of_model(shelved.served.name, shelved.served.version))
                    trace.enter(steps.READ)
                call = await codec.read(request, shelved.model.inputs, context.time_remaining(), self._regions, self._limits, charge)
                call.client = address(context.peer())
                counted.has_read()
                results = await shelved.run(call)
                counted.has_run()
                if trace is not None:
                    trace.enter(steps.ENCODE)
                work = codec.answer(call, shelved.served.name, str(shelved.served.version), results)
                response = await turns.run(work) if codec.is_large(call, results) else turns.at_once(work)
                counted.has_written()
                if not stream:
                    self._count_until_sent(response)
                return response
        finally:
            self._budget.give(held)

    def _count_until_sent(self, response: Any) -> None:
        """A large answer counts with those that other clients have not read. Refused (429) where these are too many."""
        nbytes, task = response.ByteSize(), asyncio.current_task()
        if nbytes > large_json.LARGE and task is not None:
            self._unread.take(nbytes)
            task.add_done_callback(lambda task: self._unread.give(nbytes))

    async def _infer_stream(self, requests: Any, context: Any) -> None:
        """ModelStreamInfer: answers in the order of requests, of which several are computed at a time, but one of each sequence. Errors of
        one do not end others."""
        running: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue(MOST_IN_STREAM)
        tasks: set[asyncio.Task[Any]] = set()
        latest: dict[Any, asyncio.Task[Any]] = {}  # by sequence: its request that came last

        async def read() -> None:
            try:
                async for request in requests:
                    found = await _or_error(request) if isinstance(request, partial) else request
                    sequence = _sequence(found)
                    task = asyncio.create_task(self._streamed(found, context, latest.get(sequence)))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    if sequence is not None:
                        latest[sequence] = task
                        task.add_done_callback(partial(_forget, latest, sequence))
                    await running.put(task)
            except Exception as error:  # the client has gone, or its message is too large
                print(f"aspen-mp serve: a stream from {context.peer()} ended: {error}", file=sys.stderr, flush=True)
            await running.put(None)

        reader = asyncio.create_task(read())
        try:
            while (task := await running.get()) is not None:
                await context.write(await task)
        finally:
            for each in (reader, *tasks):
                each.cancel()

    async def _streamed(self, request: Any, context: Any, before: asyncio.Task[Any] | None) -> Any:
        """The answer to one request of a stream, or to an error instead of one. `before`: a request that has to end first. In a trace, it
        is a part of the call."""
        if before is not None:
            await asyncio.wait({before})
        try:
            if isinstance(request, Exception):
                raise request
            with steps.part_of(steps.CURRENT.get(), steps.REQUEST):
                response = await self._infer(request, context, stream=True)
        except Exception as error:
            of = {} if isinstance(request, Exception) else {"id": request.id, "model_name": request.model_name}
            return schema.ModelStreamInferResponse(error_message=statuses.told(error), infer_response=schema.ModelInferResponse(**of))
        response.parameters["triton_final_response"].bool_param = True
        return schema.ModelStreamInferResponse(infer_response=response)

    # ---- everything else

    async def _live(self, request: Any, context: Any) -> Any:
        return schema.ServerLiveResponse(live=True)

    async def _ready(self, request: Any, context: Any) -> Any:
        return schema.ServerReadyResponse(ready=documents.readiness(self._shelf)["ready"])

    async def _model_ready(self, request: Any, context: Any) -> Any:
        try:
            self._shelf.find(request.name, request.version or None)
        except Refused:
            return schema.ModelReadyResponse(ready=False)
        return schema.ModelReadyResponse(ready=not self._shelf.absent)

    async def _server(self, request: Any, context: Any) -> Any:
        return schema.ServerMetadataResponse(**documents.server(repository=self._supervised is not None, named=self._named is not None))

    async def _model(self, request: Any, context: Any) -> Any:
        shelved = self._shelf.find(request.name, request.version or None)
        return schema.ModelMetadataResponse(**documents.model(self._shelf, shelved))

    async def _index(self, request: Any, context: Any) -> Any:
        self._repository()
        found = [each for each in documents.index(self._shelf) if each["state"] == "READY" or not request.ready]
        return schema.RepositoryIndexResponse(models=found)

    async def _load(self, request: Any, context: Any) -> Any:
        repository = self._repository()
        documents.refuse_other_models(request.parameters)
        await repository.change(request.model_name, load=True)
        return schema.RepositoryModelLoadResponse()

    async def _unload(self, request: Any, context: Any) -> Any:
        await self._repository().change(request.model_name, load=False)
        return schema.RepositoryModelUnloadResponse()

    async def _config(self, request: Any, context: Any) -> Any:
        return schema.ModelConfigResponse(config=documents.config(self._shelf.find(request.name, request.version or None)))

    async def _statistics(self, request: Any, context: Any) -> Any:
        found = [self._shelf.find(request.name, request.version or None)] if request.name else self._shelf.all
        return schema.ModelStatisticsResponse(
            **documents.statistics(self._shelf, found, await asyncio.to_thread(self._shelf.runtime.status))
        )

    async def _memory_status(self, request: Any, context: Any) -> Any:
        return schema.SystemSharedMemoryStatusResponse(regions={each["name"]: each for each in self._memory().status(request.name)})

    async def _register_memory(self, request: Any, context: Any) -> Any:
        document = {"key": request.key, "offset": request.offset, "byte_size": request.byte_size}
        await self._memory().register(request.name, document)
        return schema.SystemSharedMemoryRegisterResponse()

    async def _unregister_memory(self, request: Any, context: Any) -> Any:
        await self._memory().unregister(request.name)
        return schema.SystemSharedMemoryUnregisterResponse()

    def _memory(self) -> NamedRoutes:
        if self._named is None:
            raise Refused(501, "this server does not share memory by name. It was started without --allow-named-shm")
        return self._named

    def _repository(self) -> Supervised:
        if self._supervised is None:
            raise Refused(501, "this server does not let clients change its models. It was started without --allow-repository")
        return self._supervised


def _reader(kind: Any, limits: Limits) -> Callable[[bytes], Any]:
    """Return a function that reads messages. One that is large or no message is left to `_parsed`, which whoever gets it calls at a turn of
    its own."""

    def read(data: bytes) -> Any:
        if len(data) < large_json.LARGE:
            with contextlib.suppress(message.DecodeError):
                return kind.FromString(data)
        return partial(_parsed, kind, data, limits)

    return read


async def _or_error(read: Callable[[], Any]) -> Any:
    """A message that is read at a turn of its own, or the error that reading it has raised."""
    try:
        return await turns.call(read)
    except Exception as error:
        return error


def _sequence(request: Any) -> Any:
    """A key of a request's sequence. None: the request has no sequence, or is an error."""
    try:
        frame = None if isinstance(request, Exception) else codec.frame_of(request)
    except RequestError:  # which its answer says
        return None
    return None if frame is None else (request.model_name, request.model_version, frame.id)


def _forget(latest: dict[Any, asyncio.Task[Any]], sequence: Any, task: asyncio.Task[Any]) -> None:
    if latest.get(sequence) is task:
        del latest[sequence]


def _parsed(kind: Any, data: bytes, limits: Limits) -> Any:
    """A message. RequestError where it is none; Refused (413)."""
    if kind is schema.ModelInferRequest:
        codec.check_sizes(memoryview(data), limits)
    try:
        return kind.FromString(data)
    except message.DecodeError:
        raise RequestError(f"the message is not a {kind.DESCRIPTOR.name}. Check that the client was made from the same protocol") from None


def failure(error: BaseException) -> tuple[Any, str, tuple[tuple[str, str], ...]]:
    """Code, details and trailing metadata for an error. The latter tell clients that retry by themselves when to do so."""
    answered = statuses.of(error)
    code = CODES.get(answered.status, grpc.StatusCode.INTERNAL)
    retry = () if answered.retry_s is None else (("grpc-retry-pushback-ms", str(answered.retry_s * 1000)),)
    return code, statuses.told(error)[:MOST_DETAILS], retry


def address(peer: str) -> str:
    """Return the address of gRPC's name of a client: without its port."""
    return peer.rpartition(":")[0] if peer.startswith("ipv") else peer


def authorization(context: Any) -> str:
    """Return the call's header of this name; empty without it."""
    found = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    return found[0] if found and isinstance(found[0], str) else ""
