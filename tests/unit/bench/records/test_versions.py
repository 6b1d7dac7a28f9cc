"""Records name the version that ran, whatever pip has noted of the package."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator

import folders
import pytest

import aspen_mp
from aspen_mp.bench.peers.engines import LOADERS
from aspen_mp.bench.records import environment

RECORDS = sorted((folders.ROOT / "bench/results").glob("*/*.json"))


def engines(found: object) -> Iterator[tuple[str, str]]:
    """Every engine of a record with the version that stands beside it."""
    if isinstance(found, dict):
        if isinstance(found.get("engine"), str) and isinstance(found.get("version"), str):
            yield found["engine"], found["version"]
        for value in found.values():
            yield from engines(value)
    elif isinstance(found, list):
        for value in found:
            yield from engines(value)


def test_our_version_is_that_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "of long ago")
    assert {name: engine.version for name, engine in LOADERS.items() if engine.package == "aspen-mp"} == {
        "aspen-mp": aspen_mp.__version__,
        "memory": aspen_mp.__version__,
    }
    assert environment.version_of("onnxruntime") == "of long ago"


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_record_names_one_version_of_ours(path) -> None:
    record = json.loads(path.read_text())
    assert {version for engine, version in engines(record) if engine == "aspen-mp"} <= {record["version"]}


def test_nobody_asks_pip_for_our_version() -> None:
    asking = [
        path.relative_to(folders.ROOT).as_posix()
        for top in ("aspen_mp", "bench", "docs")
        for path in (folders.ROOT / top).rglob("*.py")
        if "metadata.version(" in path.read_text()
    ]
    others = [
        "aspen_mp/compat/onnxruntime/environment.py",
        "aspen_mp/tools/doctor.py",
        "bench/records/environment.py",
        "bench/torch/engines.py",
    ]
    assert sorted(asking) == others, "ask for a version by `version_of`, or `aspen_mp.__version__`"
