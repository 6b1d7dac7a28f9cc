"""Model repositories: versions, configuration, changes while the server runs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import serving_tools as tools
import small_models

from aspen_mp.errors import ConfigError
from aspen_mp.serving.repository import disk

ONES = {"x": np.ones((2, 4), np.float32)}
SWITCHES = 100 if os.environ.get("ASPEN_MP_TIER") == "long" else 6


def value(client: tools.Client, model: str = "c") -> float:
    return float(client.infer(model, ONES)["y"][0, 0]) - 1


def test_scan_finds_models_and_nothing_else(tmp_path: Path) -> None:
    tools.save(tmp_path, "a", 2, tools.constant(2))
    tools.save(tmp_path, "a", 10, tools.constant(10))
    tools.save(tmp_path, "b", 1, tools.constant(1), "instances = 'two'")
    for name in ("a/notes", "a/03", ".hidden/1", "with space/1", "empty", "none/1"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").touch()
    found = disk.scan(tmp_path)
    assert {name: [each.version for each in versions] for name, versions in found.versions.items()} == {"a": [10, 2]}
    assert list(found.broken) == ["b"]
    assert "config.toml" in found.broken["b"]
    assert "instances" in found.broken["b"]


def test_models_in_the_wrong_place_are_named(tmp_path: Path) -> None:
    root = tmp_path / "models"
    tools.save(root, "fine", 1, tools.constant(1))
    for wrong in ("net.onnx", "flat/model.onnx", "named/v1/model.onnx", "other/1/net.onnx", ".draft/1/model.onnx", "fine/old/model.onnx"):
        (root / wrong).parent.mkdir(parents=True, exist_ok=True)
        (root / wrong).touch()
    (root / "fine" / "config.pbtxt").touch()
    found = disk.scan(root)
    assert (list(found.versions), found.broken) == (["fine"], {})
    to = {"net.onnx": "net", "flat/model.onnx": "flat", "named/v1/model.onnx": "named", "other/1/net.onnx": "other"}
    for wrong, name in to.items():
        assert any(said.startswith(f"{root / wrong} ") and f"{root / name}/1/model.onnx" in said for said in found.unread), wrong
    assert any(str(root / "fine" / "config.pbtxt") in said for said in found.unread)
    assert len(found.unread) == 5
    with tools.serving(tmp_path, root) as server:
        server.wait_for(str(root / "flat" / "model.onnx"))
        with tools.client(server.address) as client:
            assert value(client, "fine") == 1


def test_stamps_tell_contents_apart(tmp_path: Path) -> None:
    tools.save(tmp_path, "a", 1, tools.constant(2))

    def found() -> disk.Found:
        return disk.scan(tmp_path).versions["a"][0]

    before = found()
    assert found() == before
    (tmp_path / "a" / "config.toml").write_text("instances = 3")
    assert found() != before
    before = found()
    (tmp_path / "a" / "1" / "weights.bin").write_bytes(b"x")
    assert found() != before


@pytest.mark.parametrize("text", ["a = 1", "instances = 0", "priority = 'soon'", "share = -1.0", "= 3", "batching = {max_batch = 1}"])
def test_configurations_that_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.toml"):
        disk.read_config(tmp_path / "config.toml")


def test_the_newest_version_is_served_unless_more_are_wanted(tmp_path: Path) -> None:
    for name, config in (("c", ""), ("d", "versions = 2\ninstances = 1\npriority = 'high'\ndeadline_ms = 60000.0\nshare = 2.0")):
        for version in (1, 2, 3):
            tools.save(tmp_path, name, version, tools.constant(version), config)
    with tools.serving(tmp_path, tmp_path) as server, tools.client(server.address) as client:
        assert server.said["models"] == ["c", "d"]
        assert value(client) == 3
        assert client.ask("/v2/models/c/versions/2")[0] == 404
        assert client.ask("/v2/models/d")[2]["versions"] == ["2", "3"]
        assert [value(client, f"d/versions/{version}") for version in (2, 3)] == [2, 3]


def test_a_bad_version_leaves_the_one_before_in_service(tmp_path: Path) -> None:
    tools.save(tmp_path, "c", 1, tools.constant(1))
    (tmp_path / "c" / "2").mkdir()
    (tmp_path / "c" / "2" / "model.onnx").write_bytes(b"no model")
    with tools.serving(tmp_path, tmp_path, "--watch") as server, tools.client(server.address) as client:
        assert value(client) == 1
        status, _, said = client.ask("/v2/health/ready")
        assert status == 200
        assert said["unserved"][0].startswith("c/2: ")
        assert any("version 2 of model 'c' is not served" in line for line in server.log)
        tools.onnx.save(tools.constant(2), tmp_path / "c" / "draft")
        os.rename(tmp_path / "c" / "draft", tmp_path / "c" / "2" / "model.onnx")  # mended
        server.wait_for("version 2 of model 'c' is loaded")
        reach(client, 2)
        assert client.ask("/v2/health/ready")[2] == {"ready": True}
        (tmp_path / "c" / "config.toml").write_text("instances = 'many'")
        until_unserved(client)
        assert value(client) == 2
        (tmp_path / "c" / "config.toml").unlink()
        shutil.rmtree(tmp_path / "c" / "2")
        reach(client, 1)
        shutil.rmtree(tmp_path / "c")
        while client.ask("/v2/models/c/ready")[0] != 404:
            pass


def reach(client: tools.Client, wanted: float) -> None:
    """Until this version answers: a watchdog is the time-out of the test."""
    while value(client) != wanted:
        pass


def until_unserved(client: tools.Client) -> None:
    while "unserved" not in client.ask("/v2/health/ready")[2]:
        pass


def test_contents_that_change_in_place(tmp_path: Path) -> None:
    tools.save(tmp_path, "c", 1, tools.constant(1))
    with tools.serving(tmp_path, tmp_path, "--watch") as server, tools.client(server.address) as client:
        assert value(client) == 1
        tools.onnx.save(tools.constant(5), tmp_path / "c" / "draft")
        os.rename(tmp_path / "c" / "draft", tmp_path / "c" / "1" / "model.onnx")
        reach(client, 5)
        (tmp_path / "c" / "draft").write_bytes(b"no model")
        os.rename(tmp_path / "c" / "draft", tmp_path / "c" / "1" / "model.onnx")
        until_unserved(client)
        assert value(client) == 5


def test_versions_switch_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    tools.save(tmp_path, "c", 1, tools.constant(1))
    with tools.serving(tmp_path, tmp_path, "--watch", "--http-workers", "2") as server:
        clients = [tools.Client(server.address) for _ in range(4)]
        seen: list[set[float]] = [set() for _ in clients]
        try:
            with tools.load(len(clients), lambda k: seen[k].add(value(clients[k]))), tools.client(server.address) as own:
                for version in range(2, SWITCHES + 2):
                    tools.save(tmp_path, "c", version, tools.constant(version))
                    reach(own, version)
            assert set().union(*seen) <= {float(version) for version in range(1, SWITCHES + 2)}
        finally:
            for each in clients:
                each.close()
        with tools.client(server.address) as client:
            reach(client, SWITCHES + 1)
            while len(client.ask("/v2/models/stats")[2]["model_stats"]) != 1:
                pass


def test_clients_load_and_unload_where_they_may(tmp_path: Path) -> None:
    tools.save(tmp_path, "c", 1, tools.constant(1))
    with tools.serving(tmp_path, tmp_path, "--allow-repository", "--http-workers", "2") as server:
        with tools.client(server.address) as client:
            tools.save(tmp_path, "d", 1, tools.constant(4))
            assert client.ask("/v2/models/d")[0] == 404
            assert client.ask("/v2/repository/models/d/load", {})[0] == 200
        for _ in range(6):  # whichever front end answers
            with tools.client(server.address) as client:
                assert value(client, "d") == 4
        with tools.client(server.address) as client:
            for name in ("..", "%2e%2e%2fc", "none", "/etc"):
                assert client.ask(f"/v2/repository/models/{name}/load", {})[0] == 404
                assert client.ask(f"/v2/repository/models/{name}/unload", {})[0] == 404
            (tmp_path / "e" / "1").mkdir(parents=True)
            (tmp_path / "e" / "1" / "model.onnx").write_bytes(b"no model")
            status, _, said = client.ask("/v2/repository/models/e/load", {})
            assert status == 400
            assert "'e' was not loaded" in said["error"]
            assert client.ask("/v2/repository/models/c/unload", {})[0] == 200
            states = {each["name"]: each["state"] for each in client.ask("/v2/repository/index", {})[2]}
            assert states == {"c": "UNAVAILABLE", "d": "READY", "e": "UNAVAILABLE"}
        for _ in range(6):
            with tools.client(server.address) as client:
                assert client.ask("/v2/models/c/ready")[0] == 503


def test_a_file_by_itself_must_load(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(AssertionError, match="'bad' cannot be served"):
        tools.Server(tmp_path / "bad.onnx", folder=tmp_path)
    tools.onnx.save(small_models.mlp("n"), tmp_path / "good.onnx")
    with tools.serving(tmp_path, tmp_path / "good.onnx") as server, tools.client(server.address) as client:
        assert client.infer("good", tools.mlp_feeds())["y"].shape == (3, 8)


def test_types_that_the_protocol_lacks(tmp_path: Path) -> None:
    helper = tools.onnx.helper
    infos = [helper.make_tensor_value_info(name, tools.onnx.TensorProto.INT4, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "small", infos[:1], infos[1:])
    tools.onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "small.onnx")
    with pytest.raises(AssertionError) as raised:
        tools.Server(tmp_path / "small.onnx", folder=tmp_path)
    assert "has no name" in json.dumps(str(raised.value))
