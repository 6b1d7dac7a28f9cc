"""Servers of other projects that `bench serve` measures: how they are asked, and what is said where they fail."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import serving_tools as tools
import small_models

from aspen_mp.bench.serve.peer_servers import PEERS, PeerServer, installed
from aspen_mp.bench.serve.requests import packed, unpacked
from aspen_mp.errors import AspenError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "model.onnx"
    file.write_bytes(small_models.mlp("n").SerializeToString())
    return file


def test_arrays_are_unpacked_as_they_were_packed() -> None:
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array(7), np.zeros((0, 2), np.int64), np.array([True])]
    found = unpacked(packed(arrays))
    assert [(each.shape, each.dtype) for each in found] == [(each.shape, each.dtype) for each in arrays]
    assert all(np.array_equal(*pair) for pair in zip(found, arrays, strict=True))


def test_only_servers_with_a_wanted_transport_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert [each.name for each in installed(["http"])] == ["BentoML", "MLServer"]
    assert [each.name for each in installed(["unix", "grpc"])] == ["MLServer"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not installed(["http"])


def saying(code: str) -> type[PeerServer]:
    class Peer(PeerServer):
        name, package, transports, ready = "Peer", "peer", ("http",), b"ready"

        def _prepared(self, *_: object) -> tuple[list[str], dict[str, str], dict[str, str]]:
            return [sys.executable, "-c", code], {}, {"http": "127.0.0.1:9"}

    return Peer


def test_a_server_that_ends_is_named_with_its_log(tmp_path: Path, model: Path) -> None:
    with pytest.raises(AspenError, match=r"(?s)Peer with onnxruntime, 2 workers did not start: .* status 3\..*--no-peers.*no such thing"):
        saying("print('no such thing'); raise SystemExit(3)")(tmp_path / "peer", model, [0], 2)


def test_a_server_that_does_not_answer_is_named(tmp_path: Path, model: Path) -> None:
    peer = saying("import signal; print('ready', flush=True); signal.pause()")
    feeds = {"x": np.ones((3, 16), np.float32)}
    with peer(tmp_path / "peer", model, [0], 1) as server:
        request = server.request("http", feeds, {})
        with pytest.raises(AspenError, match="1 worker did not answer a request over http"):
            server.check("http", request, {})


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.package)
def test_an_installed_server_answers_as_onnxruntime_does(
    peer: type[PeerServer], tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec(peer.package) is None:
        pytest.skip(f"needs {peer.name}: pip install {peer.package}")
    feeds = tools.mlp_feeds()
    expected = {"y": tools.mlp_wants(feeds).astype(np.float32)}
    wrong = {name: array + 1 for name, array in expected.items()}
    transports = [each for each in peer.transports if each != "grpc" or importlib.util.find_spec("grpc")]
    with peer(tmp_path / "peer", model, sorted(os.sched_getaffinity(0))[:1], 1) as server:
        for transport in transports:
            request = server.request(transport, feeds, expected)
            server.check(transport, request, expected)
            with pytest.raises(AspenError, match="gave another answer than aspen-mp"):
                server.check(transport, request, wrong)
        refused = server.request("http", {"x": np.ones((3, 5), np.float32)}, expected)
        with pytest.raises(AspenError, match=r"did not answer a request over http: status [45]\d\d"):
            server.check("http", refused, expected)
