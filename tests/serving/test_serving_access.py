"""Bearer tokens and TLS, over HTTP and gRPC."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
from pathlib import Path

import pytest
import serving_tools as tools
import small_models

from aspen_mp.serving.access import strangers, tokens
from aspen_mp.shm.errors import ConfigError

TOKEN = "0123456789abcdef0123"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    tools.save(folder, "mlp", 1, small_models.mlp("n"))
    (tmp_path / "tokens").write_text(f"# of the tests\n{TOKEN}\nanother-token-0123456789\n")
    return folder


def test_files_of_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    for text, why in (("# none\n\n", "has no token"), ("short\n", "could be guessed"), ("ä" * 20, "ASCII")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=why):
            tokens.digests(path)


def test_tokens_are_asked_for(models: Path) -> None:
    with tools.serving(models, models, "--token-file", models.parent / "tokens") as server, tools.client(server.address) as client:
        assert client.ask("/v2/health/live")[0] == client.ask("/v2/health/ready")[0] == 200
        for sent in ({}, {"Authorization": "Bearer wrong-token-0123456789"}, {"Authorization": f"Basic {TOKEN}"}):
            for path in ("/v2", "/v2/models/mlp", "/metrics", "/nothing"):
                status, headers, said = client.ask(path, headers=sent)
                assert (status, headers["www-authenticate"]) == (401, "Bearer")
                assert "wants a token" in said["error"]
        assert client.ask("/v2/models/mlp", headers={"Authorization": f"Bearer {TOKEN}"})[0] == 200
        assert client.ask("/v2", headers={"Authorization": "bearer another-token-0123456789"})[0] == 200


def test_readiness_hides_reasons_from_those_without_a_token(models: Path) -> None:
    """What strangers are told of a model that cannot be served: nothing of its name, its file, or why."""
    tools.save(models, "secret-model", 1, small_models.mlp("n"))
    (models / "secret-model" / "1" / "model.onnx").write_bytes(b"no model")
    known = {"Authorization": f"Bearer {TOKEN}"}
    for options in ([], ["--token-file", models.parent / "tokens"]):
        with tools.serving(models, models, *options) as server, tools.client(server.address) as client:
            for sent in ({}, {"Authorization": "Bearer wrong-token-0123456789"}, {"Authorization": "Basic"}, {"Authorization": ""}):
                status, _, said = client.ask("/v2/health/ready", headers=sent)
                assert status == 200
                assert (said == {"ready": True}) == bool(options)
            assert "secret-model" in client.ask("/v2/health/ready", headers=known)[2]["unserved"][0]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "192.0.2.7", "fe80::1%lo"])
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("mode", [None, 0o600, 0o400, 0o640, 0o604, 0o700])
def test_warnings_at_the_start(address: str, mode: int | None, tls: bool, tmp_path: Path) -> None:
    """One for each thing that is open, and none besides."""
    file = None
    if mode is not None:
        file = tmp_path / "tokens"
        file.touch()
        file.chmod(mode)
    near = address.startswith("127.") or address == "::1"
    expected = {
        "everybody who reaches": not near and file is None,
        "unencrypted": not near and file is not None and not tls,
        "others may read": mode in {0o640, 0o604},
    }
    found = strangers.warnings(address, file, tls=tls)
    assert sorted(said for said in expected if any(said in each for each in found)) == sorted(k for k, there in expected.items() if there)
    assert len(found) == sum(expected.values())


def test_warnings_are_said_once(models: Path) -> None:
    (models.parent / "tokens").chmod(0o644)
    for options, said in ((["--host", "0.0.0.0"], "everybody"), (["--token-file", models.parent / "tokens"], "chmod 600"), ([], "")):
        with tools.serving(models, models, "--http-workers", "2", *options) as server:
            assert server.stop() == 0
        server.close()
        warned = [line for line in server.log if "warning" in line]
        assert len(warned) == bool(said)
        assert all(said in line for line in warned)


def test_tls_and_tokens_over_grpc(models: Path) -> None:
    grpc = pytest.importorskip("grpc", reason="gRPC is an extra: pip install 'aspen-mp[grpc]'")
    from test_serving_grpc import Caller

    key, certificate = models.parent / "key.pem", models.parent / "certificate.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", certificate, *names]
    subprocess.run(command, check=True, capture_output=True)
    options = ["--certificate", certificate, "--key", key, "--token-file", models.parent / "tokens", "--grpc-port", "0"]
    with tools.serving(models, models, *options) as server:
        connection = http.client.HTTPSConnection(server.address, context=ssl.create_default_context(cafile=certificate))
        connection.request("GET", "/v2/health/ready")
        assert connection.getresponse().read() == b'{"ready":true}'
        connection.close()
        with grpc.secure_channel(server.grpc_address, grpc.ssl_channel_credentials(certificate.read_bytes())) as channel:
            call = Caller(channel)
            assert call("ServerReady").ready
            with pytest.raises(grpc.RpcError) as raised:
                call("ServerMetadata")
            assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
            assert call("ServerMetadata", metadata=[("authorization", f"Bearer {TOKEN}")]).name == "aspen-mp"


def test_a_certificate_needs_its_key(models: Path) -> None:
    with pytest.raises(AssertionError, match="Give both"):
        tools.Server(models, "--certificate", models.parent / "tokens", folder=models)
    with pytest.raises(AssertionError, match="not a certificate in PEM"):
        tools.Server(models, "--certificate", models.parent / "tokens", "--key", models.parent / "tokens", folder=models)


def test_the_access_log_names_the_trace(models: Path) -> None:
    """Of W3C Trace Context, where it is well-formed."""
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    with tools.serving(models, models, "--access-log") as server, tools.client(server.address) as client:
        client.ask("/v2", headers={"traceparent": f"00-{trace}-{span}-01"})
        client.ask("/v2/health/live", headers={"traceparent": f"00-{'0' * 32}-{span}-01"})
        server.wait_for("/v2/health/live")
    first, second = (json.loads(line) for line in server.log if line.startswith("{"))
    assert (first["trace"], first["span"]) == (trace, span)
    assert "trace" not in second
