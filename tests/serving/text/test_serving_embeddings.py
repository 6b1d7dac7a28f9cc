"""`/v1/embeddings` and `/v1/models`: forms of input and answer, pooling, limits, errors in OpenAI's form."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving_tools as tools
import small_models
import text_models

ENCODER = text_models.encoder()
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
SENTENCE_BERT = {
    "modules.json": [{"type": "sentence_transformers.models.Transformer"}, {"type": "sentence_transformers.models.Pooling"}],
    "1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
    "sentence_bert_config.json": {"max_seq_length": 20},
    "config_sentence_transformers.json": {"prompts": {"query": "query: "}, "default_prompt_name": "query"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tools.Server]:
    folder = tmp_path_factory.mktemp("models")
    text_models.save(folder, "mean", ENCODER)
    text_models.save(folder, "noted", ENCODER, beside=SENTENCE_BERT)
    text_models.save(folder, "last", ENCODER, config="[embeddings]\npooling = 'last'\nnormalize = false\ntruncate = true\nmax_tokens = 9\n")
    text_models.save(folder, "given", ENCODER, config="[embeddings]\noutput = 'pooler_output'\nprefix = 'query : '\n")
    text_models.save(folder, "fixed", text_models.encoder(3, 32))
    text_models.save(folder, "blind", text_models.encoder(masked=False))
    text_models.save(folder, "batched", ENCODER, config="batching = { max_batch = 8, max_delay_ms = 1.0 }\n")
    text_models.save(folder, "small", text_models.encoder(dtype=6))  # int32
    text_models.save(folder, "mlp", small_models.mlp("n"))
    tools.save(folder, "plain", 1, small_models.mlp("n"))
    with tools.serving(folder, folder) as found:
        yield found


@pytest.fixture
def client(server: tools.Server) -> Iterator[tools.Client]:
    with tools.client(server.address) as found:
        yield found


def embed(client: tools.Client, model: str, given: Any, **more: Any) -> list[np.ndarray]:
    status, _, said = client.ask("/v1/embeddings", {"model": model, "input": given, **more})
    assert status == 200, said
    assert [each["index"] for each in said["data"]] == list(range(len(said["data"])))
    assert {each["object"] for each in said["data"]} == {"embedding"}
    assert (said["object"], said["model"]) == ("list", model)
    return [np.array(each["embedding"], np.float32) for each in said["data"]]


@pytest.mark.parametrize("model", ["mean", "batched", "small"])
def test_texts_of_a_request_are_as_one_by_one(client: tools.Client, model: str) -> None:
    texts = text_models.texts(40)
    together = embed(client, model, texts)
    for text, found in zip(texts, together, strict=True):
        np.testing.assert_allclose(found, text_models.mean(ENCODER, text), **CLOSE)
    for text, found in zip(texts[:5], together, strict=False):
        np.testing.assert_allclose(embed(client, model, text)[0], found, **CLOSE)


def test_forms_of_input(client: tools.Client) -> None:
    rows = [text_models.tokenizer().encode(text).ids for text in ("w1 w2 w3", "w4")]
    wanted = [text_models.mean(ENCODER, text) for text in ("w1 w2 w3", "w4")]
    for given in ("w1 w2 w3", ["w1 w2 w3"], rows[0], [rows[0]], ["w1 w2 w3", "w4"], rows):
        for found, want in zip(embed(client, "mean", given), wanted, strict=False):
            np.testing.assert_allclose(found, want, **CLOSE)


def test_usage_counts_tokens(client: tools.Client) -> None:
    _, _, said = client.ask("/v1/embeddings", {"model": "mean", "input": ["w1 w2 w3", "w4"]})
    assert said["usage"] == {"prompt_tokens": 8, "total_tokens": 8}


def test_base64_is_float32(client: tools.Client) -> None:
    (wanted,) = embed(client, "mean", "w5 w6")
    _, _, said = client.ask("/v1/embeddings", {"model": "mean", "input": "w5 w6", "encoding_format": "base64"})
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(said["data"][0]["embedding"]), "<f4"), wanted)


def test_dimensions_are_cut_and_normalised(client: tools.Client) -> None:
    (whole,) = embed(client, "mean", "w5 w6")
    (cut,) = embed(client, "mean", "w5 w6", dimensions=7)
    np.testing.assert_allclose(cut, whole[:7] / np.linalg.norm(whole[:7]), **CLOSE)
    (raw,) = embed(client, "last", "w5 w6", dimensions=7)
    np.testing.assert_array_equal(raw, embed(client, "last", "w5 w6")[0][:7])


def test_notes_of_sentence_transformers(client: tools.Client) -> None:
    """The first token's vector, not normalised, behind a prompt, of 20 tokens at most."""
    np.testing.assert_allclose(embed(client, "noted", "w1 w2")[0], text_models.states(ENCODER, "query: w1 w2")[0], **CLOSE)
    status, _, said = client.ask("/v1/embeddings", {"model": "noted", "input": ["w1", "w1 " * 20]})
    assert status == 400
    assert "input 1 has 24 tokens, and the model takes 20" in said["error"]["message"]


def test_configuration(client: tools.Client) -> None:
    """The last token's vector of 9 tokens; an output that the model has pooled, with a prefix."""
    for text in ("w1 w2", "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10"):
        cut = " ".join(text.split()[:7])
        np.testing.assert_allclose(embed(client, "last", text)[0], text_models.states(ENCODER, cut)[-1], **CLOSE)
    np.testing.assert_allclose(embed(client, "given", "w1")[0], text_models.states(ENCODER, "query : w1")[0], **CLOSE)


def test_models_of_fixed_size_and_without_mask(client: tools.Client) -> None:
    texts = text_models.texts(7, most=30)
    for text, fixed, blind in zip(texts, embed(client, "fixed", texts), embed(client, "blind", texts), strict=True):
        np.testing.assert_allclose(fixed, text_models.mean(ENCODER, text), **CLOSE)
        np.testing.assert_allclose(blind, text_models.mean(text_models.encoder(masked=False), text), **CLOSE)


@pytest.mark.parametrize(
    ("request_", "status", "param", "message"),
    [
        ({"input": "w1"}, 400, None, "missing required field `model`"),
        ({"model": "mean"}, 400, None, "missing required field `input`"),
        ({"model": "none", "input": "w1"}, 404, None, "no model 'none'"),
        ({"model": "plain", "input": "w1"}, 400, "model", "there is no tokenizer.json beside it"),
        ({"model": "mlp", "input": "w1"}, 400, "model", "it has no input input_ids"),
        ({"model": "mean", "input": []}, 400, "input", "not empty"),
        ({"model": "mean", "input": ["w1", ""]}, 400, "input", "input 1 is empty"),
        ({"model": "mean", "input": [[1], []]}, 400, "input", "input 1 is empty"),
        ({"model": "mean", "input": ["w1", 2]}, 400, "input", "mixes kinds"),
        ({"model": "mean", "input": [True]}, 400, "input", "mixes kinds"),
        ({"model": "mean", "input": {"a": 1}}, 400, "input", "must be a string"),
        ({"model": "mean", "input": [1, 96]}, 400, "input", "96 is not a token"),
        ({"model": "mean", "input": [-1]}, 400, "input", "-1 is not a token"),
        ({"model": "mean", "input": ["w1"] * 2049}, 400, "input", "2048 are taken at most"),
        ({"model": "mean", "input": "w1", "dimensions": 25}, 400, "dimensions", "the model's embeddings have 24"),
        ({"model": "mean", "input": "w1", "dimensions": 0}, 400, None, "dimensions"),
        ({"model": "mean", "input": "w1", "encoding_format": "hex"}, 400, None, "encoding_format"),
        ({"model": "mean", "input": "w1", "priority": "urgent"}, 400, None, "priority"),
        ({"model": "mean", "input": "w1 " * 600}, 400, "input", "input 0 has 602 tokens"),
    ],
)
def test_errors_have_openais_form(client: tools.Client, request_: Any, status: int, param: str | None, message: str) -> None:
    found, _, said = client.ask("/v1/embeddings", request_)
    assert found == status
    assert said["error"].keys() == {"message", "type", "param", "code"}
    assert (said["error"]["type"], said["error"]["param"]) == ("invalid_request_error", param)
    assert message in said["error"]["message"]


def test_other_errors_have_openais_form(client: tools.Client) -> None:
    for path, method, status in (("/v1/nothing", "GET", 404), ("/v1/embeddings", "GET", 405), ("/v1/models/none", "GET", 404)):
        found, _, said = client.ask(path, method=method)
        assert (found, said["error"]["type"]) == (status, "invalid_request_error")
    assert client.ask("/v1/embeddings", b"{", method="POST")[2]["error"]["message"].startswith("the request is not JSON")
    found, _, said = client.ask("/v1/embeddings", b'{"model": "mean", "input": "\\ud800"}')
    assert (found, said["error"]["type"]) == (400, "invalid_request_error"), said
    found, _, said = client.ask("/v1/embeddings", {"model": "mean", "input": text_models.texts(300), "timeout": 1})
    assert (found, said["error"]["type"], said["error"]["code"]) == (504, "server_error", "deadline_exceeded")


def test_models_are_listed(client: tools.Client) -> None:
    _, _, said = client.ask("/v1/models")
    assert [each["id"] for each in said["data"]] == sorted(
        ["mean", "noted", "last", "given", "fixed", "blind", "batched", "small", "mlp", "plain"]
    )
    status, _, card = client.ask("/v1/models/mean")
    assert (status, card["object"], card["owned_by"]) == (200, "model", "aspen-mp")
    assert card in said["data"]
    assert card["created"] > 0


@pytest.mark.parametrize(
    ("config", "beside", "reason"),
    [
        ("[embeddings]\npooling = 'none'\n", {}, "embeddings.pooling is 'none'"),
        ("[embeddings]\noutput = 'y'\n", {}, "it has no output 'y'"),
        ("[embeddings]\noutput = 'pooler_output'\npooling = 'mean'\n", {}, "has been pooled"),
        ("[embeddings]\npooling = 'max'\n", {}, "pooling"),
        ("", {"tokenizer.json": "no tokenizer"}, "tokenizer.json cannot be read"),
        ("", {"tokenizer.json": "{}"}, "tokenizer.json cannot be read"),
        ("", {"sentence_bert_config.json": "["}, "sentence_bert_config.json cannot be read"),
        ("[embeddings]\n", {"modules.json": [{"type": "sentence_transformers.models.Dense"}]}, "Dense"),
        ("[embeddings]\n", {"1_Pooling/config.json": {"pooling_mode_max_tokens": True}}, "max_tokens"),
    ],
)
def test_bad_versions_leave_the_one_before_in_service(tmp_path: Path, config: str, beside: dict[str, Any], reason: str) -> None:
    text_models.save(tmp_path, "other", ENCODER)
    text_models.save(tmp_path, "m", ENCODER, config=config, beside=beside)
    with tools.serving(tmp_path, tmp_path) as server, tools.client(server.address) as client:
        _, _, said = client.ask("/v2/health/ready")
        assert reason in said["unserved"][0]
        assert client.ask("/v1/embeddings", {"model": "m", "input": "w1"})[0] == 503
        assert client.ask("/v1/embeddings", {"model": "other", "input": "w1"})[0] == 200
