"""gRPC's own health service: what it says of the server and of models, at once and at each change."""

from __future__ import annotations

import contextlib
import queue
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import serving_tools as tools

grpc = pytest.importorskip("grpc", reason="gRPC is an extra: pip install 'aspen-mp[grpc]'")
health_pb2 = pytest.importorskip("grpc_health.v1.health_pb2", reason="gRPC is an extra: pip install 'aspen-mp[grpc]'")
from grpc_health.v1 import health_pb2_grpc  # noqa: E402

SERVING, NOT_SERVING, UNKNOWN = (getattr(health_pb2.HealthCheckResponse, name) for name in ("SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"))


class Probe:
    """An unmodified client. `check` of a name that is not known says UNKNOWN, as `watch` does."""

    def __init__(self, channel: Any, token: str = "") -> None:
        self._stub = health_pb2_grpc.HealthStub(channel)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()

    def check(self, name: str) -> int:
        request = health_pb2.HealthCheckRequest(service=name)
        try:
            return self._stub.Check(request, timeout=tools.WATCHDOG_S, metadata=self._metadata).status
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.NOT_FOUND:
                raise
            return UNKNOWN

    @contextlib.contextmanager
    def watch(self, name: str) -> Iterator[queue.Queue[int | None]]:
        """The statuses that come; None at the end of the stream."""
        heard: queue.Queue[int | None] = queue.Queue()
        stream = self._stub.Watch(health_pb2.HealthCheckRequest(service=name), metadata=self._metadata)

        def hear() -> None:
            with contextlib.suppress(grpc.RpcError):
                for each in stream:
                    heard.put(each.status)
            heard.put(None)

        thread = threading.Thread(target=hear)
        thread.start()
        try:
            yield heard
        finally:
            stream.cancel()
            thread.join()


@contextlib.contextmanager
def probing(server: tools.Server, token: str = "") -> Iterator[Probe]:
    with grpc.insecure_channel(server.grpc_address) as channel:
        yield Probe(channel, token)


@pytest.mark.parametrize("seed", range(2))
def test_models_come_and_go(tmp_path: Path, seed: int) -> None:
    """Clients load and unload models in a drawn order. A status is that of the last change, and a watch has heard of each."""
    draw = random.Random(seed)
    for name in ("a", "b"):
        tools.save(tmp_path, name, 1, tools.constant(1.0))
    tools.save(tmp_path, "broken", 1, tools.constant(1.0), "instances = 0")
    wants = {"": SERVING, "inference.GRPCInferenceService": SERVING, "a": SERVING, "b": SERVING, "broken": NOT_SERVING, "none": UNKNOWN}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(tools.serving(tmp_path, tmp_path, "--grpc-port", "0", "--allow-repository", "--http-workers", "1"))
        probe = stack.enter_context(probing(server))
        client = stack.enter_context(contextlib.closing(tools.Client(server.address)))
        heard = {name: stack.enter_context(probe.watch(name)) for name in wants}
        for name, status in wants.items():
            assert heard[name].get(timeout=tools.WATCHDOG_S) == status, name
        for step in range(12):
            name = draw.choice(["a", "b"])
            load = wants[name] == NOT_SERVING or draw.random() < 0.2
            status, _, said = client.ask(f"/v2/repository/models/{name}/{'load' if load else 'unload'}", {})
            assert status == 200, said
            before, wants[name] = wants[name], SERVING if load else NOT_SERVING
            if wants[name] != before:
                assert heard[name].get(timeout=tools.WATCHDOG_S) == wants[name], (seed, step, name)
            assert {each: probe.check(each) for each in wants} == wants, (seed, step)
        assert all(each.empty() for each in heard.values()), "a watch has heard what has not changed"


def test_a_server_that_drains(tmp_path: Path) -> None:
    """It says so before it stops accepting, and watches do not keep it from ending."""
    tools.save(tmp_path, "a", 1, tools.constant(1.0))
    arguments = (tmp_path, "--grpc-port", "0", "--drain", "2", "--grace", "3600")
    with tools.serving(tmp_path, *arguments) as server, probing(server) as probe, probe.watch("") as whole, probe.watch("a") as model:
        assert (probe.check(""), probe.check("a")) == (SERVING, SERVING)
        server.process.send_signal(signal.SIGTERM)
        for heard in (whole, model):
            assert [heard.get(timeout=tools.WATCHDOG_S) for _ in range(3)] == [SERVING, NOT_SERVING, None]
        assert server.process.wait(tools.WATCHDOG_S) == 0


def test_names_of_models_need_a_token(tmp_path: Path) -> None:
    tools.save(tmp_path, "a", 1, tools.constant(1.0))
    (tmp_path / "tokens").write_text("s3cret-of-some-length-0123456789\n")
    with tools.serving(tmp_path, tmp_path, "--grpc-port", "0", "--token-file", tmp_path / "tokens") as server:
        with probing(server) as probe:
            assert probe.check("") == SERVING
            for name in ("a", "none"):
                with pytest.raises(grpc.RpcError) as raised:
                    probe.check(name)
                assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
        with probing(server, "s3cret-of-some-length-0123456789") as probe:
            assert (probe.check("a"), probe.check("none")) == (SERVING, UNKNOWN)
