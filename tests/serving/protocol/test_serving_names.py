"""Names of models and tensors: whatever a folder can be called is served on every route, and a name never becomes a path."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import onnx
import pytest
import serving_tools as tools

from aspen_mp.serving.repository import disk

MODELS = 20
KNOWN = (
    "my model",
    " x ",
    "a+b",
    "50%",
    "%2e%2e",
    "模型",
    "cafe\u0301",
    "caf\u00e9",
    "infer",
    "versions",
    "ready",
    "a;b,c",
    'q"\\',
    "a\nb",
    "n" * 255,
    "模" * 85,
)
TENSORS = ("input:0", "x/y", "z//", "%20", "入力", "x?", "y&z=1", "x'\"", "y<>", " ", "../x", "a\nb", "\u0085")


def drawn_name(draw: random.Random) -> str:
    """Any characters, of any length that a folder's name may have."""
    most = draw.choice([1, 5, 30, 255])
    name = ""
    while True:
        point = draw.choice([draw.randrange(32, 127), draw.randrange(1, 0x250), draw.randrange(0x10FFFF)])
        if unicodedata.category(chr(point)) == "Cs" or chr(point) == "/" or (not name and chr(point) == ".") or not point:
            continue
        if len((name + chr(point)).encode()) > most:
            return name or "n"
        name += chr(point)


def adding(value: float, x: str, y: str) -> onnx.ModelProto:
    """y = x + value."""
    model = tools.constant(value)
    model.graph.input[0].name = model.graph.node[0].input[0] = x
    model.graph.output[0].name = model.graph.node[0].output[0] = y
    return model


@dataclass
class Named:
    name: str
    version: int
    value: float
    x: str
    y: str


@dataclass
class Town:
    server: tools.Server
    models: list[Named]
    seed: int


def save(root: Path, each: Named) -> None:
    folder = root / each.name / str(each.version)
    folder.mkdir(parents=True)
    onnx.save(adding(each.value, each.x, each.y), folder / "model.onnx")


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """A repository of models with known and drawn names, one with a name that cannot be served, and a model outside."""
    seed = random.randrange(sys.maxsize)
    draw = random.Random(seed)
    folder = tmp_path_factory.mktemp("names")
    root = folder / "models"
    names = dict.fromkeys((*KNOWN, *(drawn_name(draw) for _ in range(MODELS - len(KNOWN)))))
    models = []
    for k, name in enumerate(names):
        x, y = draw.choice([draw.sample(TENSORS, 2), [drawn_name(draw), "y"]])
        models.append(Named(name, draw.choice([1, k + 2, 10**17 + k]), float(k + 1), x, y if y != x else "another"))
        save(root, models[-1])
    os.makedirs(os.fsencode(root) + b"/bad\xff/1")
    save(root, Named(".draft", 1, 0.0, "x", "y"))
    save(folder, Named("outside", 1, 0.0, "x", "y"))
    with tools.serving(
        folder, root, "--grpc-port", "0", "--allow-repository", "--http-workers", "1", "--metrics-names", "triton"
    ) as server:
        with grpc_channel(server):
            pass  # its threads and descriptors stay with the process
        yield Town(server, models, seed)


@contextlib.contextmanager
def grpc_channel(server: tools.Server) -> Iterator[Any]:
    try:
        import grpc
    except ImportError:
        yield None
        return
    with grpc.insecure_channel(server.grpc_address) as channel:
        grpc.channel_ready_future(channel).result(tools.WATCHDOG_S)
        yield channel


def in_hexadecimal(name: str) -> str:
    return "".join(f"%{byte:02x}" for byte in name.encode())


SPELLINGS: tuple[Callable[[str], str], ...] = (lambda name: quote(name, safe=""), in_hexadecimal, lambda name: in_hexadecimal(name).upper())
TAILS = ("", "/", "?a=b", "/?a=b/c")


def infer_body(each: Named) -> dict[str, Any]:
    return {"inputs": [{"name": each.x, "shape": [1, 4], "datatype": "FP32", "data": [0, 1, 2, 3]}], "outputs": [{"name": each.y}]}


def test_every_route_over_http(town: Town) -> None:
    draw = random.Random(town.seed)
    with tools.client(town.server.address) as client:
        for each in town.models:

            def ask(tail: str, body: Any = None, base: str = "/v2/models", name: str = each.name) -> Any:
                path = f"{base}/{draw.choice(SPELLINGS)(name)}{tail}{draw.choice(TAILS)}"
                status, _, said = client.ask(path, body)
                assert status == 200, (town.seed, path, said)
                return said

            for version in ("", f"/versions/{each.version}"):
                said = ask(version)
                assert (said["name"], said["versions"], said["inputs"][0]["name"]) == (each.name, [str(each.version)], each.x), town.seed
                assert ask(f"{version}/ready") == {"name": each.name, "ready": True}
                assert ask(f"{version}/config")["output"][0]["name"] == each.y
                assert ask(f"{version}/stats")["model_stats"][0]["name"] == each.name
                answer = ask(f"{version}/infer", infer_body(each))
                assert (answer["model_name"], answer["outputs"][0]["name"]) == (each.name, each.y)
                assert answer["outputs"][0]["data"] == [each.value + k for k in range(4)], (town.seed, each)
            assert ask("", base="/v1/models")["id"] == each.name
            assert ask("/stats")["model_stats"][0]["inference_stats"]["success"]["count"] >= 2, "a name is too long to be counted"


def test_every_method_over_grpc(town: Town) -> None:
    pytest.importorskip("grpc", reason="gRPC is an extra: pip install 'aspen-mp[grpc]'")
    from test_serving_grpc import Caller, infer_request, outputs

    from aspen_mp.serving.grpc import schema

    with grpc_channel(town.server) as channel:
        call = Caller(channel)
        for each in town.models:
            for version in ("", str(each.version)):
                asked = {"name": each.name, "version": version}
                assert call("ModelReady", schema.message("ModelReadyRequest")(**asked)).ready, town.seed
                said = call("ModelMetadata", schema.message("ModelMetadataRequest")(**asked))
                assert (said.name, said.inputs[0].name) == (each.name, each.x), town.seed
                assert call("ModelConfig", schema.message("ModelConfigRequest")(**asked)).config.name == each.name
                found = call("ModelStatistics", schema.message("ModelStatisticsRequest")(**asked))
                assert found.model_stats[0].name == each.name
                feeds = {each.x: np.zeros((1, 4), np.float32)}
                answer = outputs(call("ModelInfer", infer_request(each.name, feeds, model_version=version)))
                assert answer[each.y].tolist() == [[each.value] * 4], (town.seed, each)
            assert not call("ModelReady", schema.message("ModelReadyRequest")(name=each.name, version="77")).ready
        assert not call("ModelReady", schema.message("ModelReadyRequest")(name="none")).ready
        listed = {(each.name, each.version) for each in call("RepositoryIndex").models if each.state == "READY"}
    assert listed == {(each.name, str(each.version)) for each in town.models}


def test_metrics_have_the_names(town: Town) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    with tools.client(town.server.address) as client:
        status, _, said = client.ask("/metrics")
    assert status == 200
    families = {family.name: family.samples for family in parser.text_string_to_metric_families(said.decode())}
    labels = {sample.labels["model"] for sample in families["nv_inference_request_success"]}
    assert labels == {each.name for each in town.models}


def test_models_come_and_go_by_their_names(town: Town) -> None:
    with tools.client(town.server.address) as client:
        for each in town.models[::4]:
            where, body = f"/v2/repository/models/{quote(each.name, safe='')}", {}
            assert client.ask(f"{where}/unload", body)[0] == 200, town.seed
            assert client.ask(f"/v2/models/{quote(each.name, safe='')}/infer", infer_body(each))[0] == 503
            assert client.ask(f"{where}/load", body)[0] == 200
            assert client.ask(f"/v2/models/{quote(each.name, safe='')}/infer", infer_body(each))[0] == 200


def test_names_that_cannot_be_served_are_told(town: Town) -> None:
    town.server.wait_for("model bad\\xff of")
    with tools.client(town.server.address) as client:
        assert client.ask("/v2/health/ready")[2]["unserved"] == [r"bad\xff: its name is not UTF-8. Rename it"]
        index = {each["name"]: each for each in client.ask("/v2/repository/index", {})[2]}
    assert index["bad\\xff"]["state"] == "UNAVAILABLE"
    assert ".draft" not in index


def test_names_never_become_paths(town: Town) -> None:
    """Nothing that is no name of the repository is found, whatever lies at the path that it spells."""
    names = [
        "..",
        ".",
        ".draft",
        "../outside",
        "../models/infer",
        "infer/1",
        "infer/../infer",
        "bad\\xff",
        "bad\ufffd",
        "",
        "\0",
        "infer\0",
    ]
    names += [
        str(Path(f"/proc/{town.server.process.pid}/cwd")),
        "~",
        "models",
        "INFER",
        "infer ",
        unicodedata.normalize("NFKC", "ｉnfer") + "x",
    ]
    draw = random.Random(town.seed)
    with tools.client(town.server.address) as client:
        for name in names:
            for tail, body in (("", None), ("/ready", None), ("/infer", infer_body(town.models[0]))):
                path = f"/v2/models/{draw.choice(SPELLINGS)(name)}{tail}"
                status, _, said = client.ask(path, body)
                assert status in {400, 404, 405} or (name == "bad\\xff" and status == 503), (path, status, said)
            status = client.ask(f"/v2/repository/models/{in_hexadecimal(name)}/load", {})[0]
            assert status in {400, 404}, name


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "a/b", "/", "\udcff", "a\udcffb"])
def test_names_of_no_model(name: str) -> None:
    assert disk.unfit(name)


def test_folders_of_file_systems_are_no_models(tmp_path: Path) -> None:
    tools.save(tmp_path, "a", 1, tools.constant(1.0))
    (tmp_path / "lost+found").mkdir(mode=0o000)
    found = disk.scan(tmp_path)
    assert (list(found.versions), found.broken, found.unread) == (["a"], {}, [])
