"""`bench/examples/cluster.py`: texts and images through Ray, from Parquet to Parquet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray.data", reason="needs Ray: pip install 'ray[data,serve]'")


def _run(*arguments: str) -> dict:
    command = [sys.executable, "-m", "aspen_mp.bench.examples.cluster", "--json", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_texts_become_embeddings(tmp_path: Path) -> None:
    from pyarrow import parquet

    report = _run("texts", "--rows", "96", "--target", str(tmp_path / "out"))
    assert (report["rows"], report["columns"]) == (96, ["text", "embedding"])
    table = parquet.read_table(tmp_path / "out")
    vectors = np.array(table["embedding"].to_pylist())
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    same: dict[str, np.ndarray] = {}
    for text, vector in zip(table["text"].to_pylist(), vectors, strict=True):
        np.testing.assert_allclose(same.setdefault(text, vector), vector, atol=1e-4)


def test_images_become_classes(tmp_path: Path) -> None:
    from pyarrow import parquet

    report = _run("images", "--rows", "50", "--nodes", "1", "--actors", "1", "--target", str(tmp_path / "out"))
    assert (report["rows"], report["columns"]) == (50, ["name", "class"])
    table = parquet.read_table(tmp_path / "out")
    assert sorted(table["name"].to_pylist()) == sorted(f"{k}.png" for k in range(50))
    assert set(table["class"].to_pylist()) <= set(range(1000))
