"""A front end's models where one of several versions cannot be loaded, and what clients are told of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest
import serving_tools as tools

from aspen_mp.errors import ModelInvalidError
from aspen_mp.serving import shelf
from aspen_mp.serving.channel import Catalogue, Served
from aspen_mp.serving.repository.disk import Config
from aspen_mp.serving.telemetry.ledger import Ledger


class Model:
    """A loaded version that counts."""

    loaded: ClassVar[set[str]] = set()

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs = self.outputs = ()
        self.loaded.add(name)

    def unload(self) -> None:
        self.loaded.remove(self.name)


def catalogue(number: int, *versions: int) -> Catalogue:
    served = [Served(name="m", version=version, path="", stamp="", config=Config()) for version in versions]
    return Catalogue(number=number, served=served, unserved=[])


def test_versions_before_one_that_fails_are_unloaded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def load(runtime: Any, name: str, version: int, path: str, config: Config) -> Any:
        if version == 4:
            raise ModelInvalidError("version 4 is no model")
        return Model(f"{name}/{version}")

    async def work() -> None:
        found = shelf.Shelf(None, Ledger())  # type: ignore[arg-type]
        assert await found.apply(catalogue(1, 1, 2)) == {}
        assert Model.loaded == {"m/1", "m/2"}
        assert await found.apply(catalogue(2, 2, 3, 4)) == {"m": "version 4 is no model"}
        await asyncio.get_running_loop().shutdown_default_executor()  # which unloads
        assert Model.loaded == {"m/1", "m/2"}
        assert found.versions("m") == ["1", "2"]

    monkeypatch.setattr(shelf, "load", load)
    asyncio.run(work())
    assert "version 4 is no model" in capsys.readouterr().err


BROKEN = """
import sys

if "aspen_mp.serving.front_end" in sys.orig_argv:
    from aspen_mp.serving import shelf

    load = shelf.load

    def broken(runtime, name, *rest):
        if name == "late":
            raise ValueError("this front end cannot load it")
        return load(runtime, name, *rest)

    shelf.load = broken
"""


def test_clients_hear_of_front_ends_that_fail_to_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=":")
    models = tmp_path / "models"
    models.mkdir()
    tools.save(models, "c", 1, tools.constant(1))
    with tools.serving(tmp_path, models, "--allow-repository", "--http-workers", "2") as server, tools.client(server.address) as client:
        tools.save(models, "late", 1, tools.constant(2))
        status, _, said = client.ask("/v2/repository/models/late/load", {})
        assert (status, said) == (400, {"error": "model 'late' was not loaded: this front end cannot load it"})
        server.wait_for("model 'late' was not loaded by a front end", 2)
        assert client.ask("/v2/models/c/ready")[0] == 200
