"""Tests of the onnx package over the server: each type and shape that the protocol has a word for, as bytes and as JSON."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import serving_tools as tools

from aspen_mp.bench import conformance
from aspen_mp.serving.protocol import datatypes, turns

_, TABLE = conformance.read_table(conformance.table_path())
CASES = [case for case in conformance.cases()[0] if TABLE.get(case.name) == "" and case.kind != "drawn"]
NAMELESS = "the Open Inference Protocol has no name"
CHUNK = 60
CHUNKS = [CASES[i : i + CHUNK] for i in range(0, len(CASES), CHUNK)] if os.environ.get("ASPEN_MP_TIER") == "long" else [CASES[::100]]
_numbers = itertools.count()


class Unspoken(Exception):
    """The protocol has no word for a type of a test."""


class Prepared:
    """A model in the server's repository, behind the interface that `conformance.judge` expects."""

    def __init__(self, client: tools.Client, folder: Path, model: onnx.ModelProto) -> None:
        constants = {tensor.name for tensor in model.graph.initializer}
        self._inputs = [value.name for value in model.graph.input if value.name not in constants]
        self._outputs = [value.name for value in model.graph.output]
        self._client = client
        self._name = f"m{next(_numbers)}"
        tools.save(folder, self._name, 1, model)
        status, _, said = client.ask(f"/v2/repository/models/{self._name}/load", {})
        if NAMELESS in str(said):
            raise Unspoken
        assert status == 200, said

    def run(self, inputs: list[Any]) -> list[Any]:
        feeds = dict(zip(self._inputs, inputs, strict=False))
        if not all(isinstance(value, np.ndarray) and datatypes.name_of(value.dtype) for value in feeds.values()):
            raise Unspoken
        results = self._asked(feeds, binary=True)
        if any(not np.isfinite(array.astype(np.float64)).all() for array in feeds.values() if array.dtype.kind in "fV"):
            return results  # JSON has no word for such numbers
        for got, want in zip(self._asked(feeds, binary=False), results, strict=True):
            assert got.shape == want.shape
            if want.dtype.hasobject:
                assert got.tolist() == want.tolist()
            else:
                there = np.isfinite(want.astype(np.float64))  # others are null
                np.testing.assert_array_equal(got[there], want[there])
        return results

    def _asked(self, feeds: dict[str, np.ndarray], *, binary: bool) -> list[np.ndarray]:
        tensors, pieces = [], b""
        for name, array in feeds.items():
            tensor: dict[str, Any] = {"name": name, "shape": array.shape, "datatype": datatypes.name_of(array.dtype)}
            if binary:
                piece = turns.at_once(datatypes.packed_strings(array)) if array.dtype.hasobject else array.tobytes()
                tensor["parameters"] = {"binary_data_size": len(piece)}
                pieces += piece
            else:
                tensor["data"] = (array.astype(np.float32) if array.dtype.kind == "V" else array).ravel().tolist()
            tensors.append(tensor)
        head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": binary}}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))} if binary else {}
        status, sent, data = self._client.ask(f"/v2/models/{self._name}/infer", head + pieces, headers)
        assert status == 200, data
        if isinstance(data, bytes):
            size = int(sent["inference-header-content-length"])
            data, rest = json.loads(data[:size]), memoryview(data)[size:]
        found = {}
        for output in data["outputs"]:
            dtype, shape = datatypes.NAMES[output["datatype"]], output["shape"]
            if "data" in output:
                values = [math.nan if value is None else value for value in output["data"]]
                found[output["name"]] = np.array(values, dtype).reshape(shape)
                continue
            n = output["parameters"]["binary_data_size"]
            piece, rest = rest[:n], rest[n:]
            strings = datatypes.unpacked_strings(piece, math.prod(shape), "")
            flat = turns.at_once(strings) if dtype.hasobject else np.frombuffer(piece, dtype)
            found[output["name"]] = flat.reshape(shape)
        return [found[name] for name in self._outputs]

    def close(self) -> None:
        self._client.ask(f"/v2/repository/models/{self._name}/unload", {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[tools.Server]:
    with tools.serving(folder, folder, "--allow-repository") as found:
        yield found


@pytest.fixture
def client(server: tools.Server) -> Iterator[tools.Client]:
    with tools.client(server.address) as found:
        yield found


@pytest.mark.parametrize("chunk", CHUNKS, ids=lambda chunk: chunk[0].name)
def test_a_server_computes_what_the_onnx_package_expects(client: tools.Client, folder: Path, chunk: list[conformance.Case]) -> None:
    verdicts = [conformance.judge(case, lambda model: Prepared(client, folder, model)) for case in chunk]
    failed = [each for each in verdicts if not each.passed and not each.error.startswith("Unspoken")]
    assert not failed, "\n".join(f"{each.name}: {each.error}" for each in failed)
    assert any(each.passed for each in verdicts)
