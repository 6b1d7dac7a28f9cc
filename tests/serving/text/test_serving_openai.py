"""`openai` as its users have it: blocking, and for asyncio."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import serving_tools as tools
import text_models

openai = pytest.importorskip("openai", reason="needs the package openai")
ENCODER = text_models.encoder()
TOKEN = "0123456789abcdef0123"
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tools.Server]:
    folder = tmp_path_factory.mktemp("models")
    text_models.save(folder, "encoder", ENCODER)
    tokens = folder.parent / f"{folder.name}-tokens"
    Path(tokens).write_text(TOKEN + "\n")
    with tools.serving(folder, folder, "--token-file", tokens) as found:
        yield found


def options(server: tools.Server) -> dict[str, str | int]:
    return {"base_url": f"http://{server.address}/v1", "api_key": TOKEN, "max_retries": 0}


@pytest.mark.parametrize("form", [openai.NOT_GIVEN, "float", "base64"])
def test_blocking(server: tools.Server, form: str) -> None:
    texts = text_models.texts(12)
    with openai.OpenAI(**options(server)) as client:
        found = client.embeddings.create(model="encoder", input=texts, encoding_format=form)
        assert found.model == "encoder"
        assert found.usage.total_tokens == sum(len(text.split()) + 2 for text in texts)
        for text, each in zip(texts, found.data, strict=True):
            vector = np.frombuffer(base64.b64decode(each.embedding), "<f4") if form == "base64" else each.embedding
            np.testing.assert_allclose(vector, text_models.mean(ENCODER, text), **CLOSE)
        short = client.embeddings.create(model="encoder", input=texts[0], dimensions=8, extra_body={"priority": "high"})
        assert len(short.data[0].embedding) == 8


def test_asyncio(server: tools.Server) -> None:
    texts = text_models.texts(32, seed=1)

    async def work() -> None:
        async with openai.AsyncOpenAI(**options(server)) as client:
            found = await asyncio.gather(*(client.embeddings.create(model="encoder", input=text) for text in texts))
            for text, each in zip(texts, found, strict=True):
                np.testing.assert_allclose(each.data[0].embedding, text_models.mean(ENCODER, text), **CLOSE)
            assert [model.id async for model in client.models.list()] == ["encoder"]

    asyncio.run(work())


def test_models(server: tools.Server) -> None:
    with openai.OpenAI(**options(server)) as client:
        assert [model.id for model in client.models.list()] == ["encoder"]
        assert client.models.retrieve("encoder").owned_by == "aspen-mp"


def test_errors_are_its_own(server: tools.Server) -> None:
    with openai.OpenAI(**options(server)) as client:
        with pytest.raises(openai.NotFoundError, match="no model 'none'") as raised:
            client.embeddings.create(model="none", input="w1")
        assert raised.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError, match="input 0 is empty") as wrong:
            client.embeddings.create(model="encoder", input="")
        assert wrong.value.param == "input"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("none")
        stranger = client.with_options(api_key="wrong-key-0123456789")
        with pytest.raises(openai.AuthenticationError, match="wants a token"):
            stranger.models.list()
