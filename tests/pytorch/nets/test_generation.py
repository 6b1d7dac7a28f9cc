"""Texts that transformers writes with a compiled network are those that PyTorch writes, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
pytest.importorskip("transformers", reason="needs transformers: pip install aspen-mp[nets]")

import torch_checks  # noqa: E402

from aspen_mp.bench.torch.networks.all import NETWORKS  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with torch_checks.fresh():
        yield


def written(network: Any, inputs: dict[str, Any], **options: Any) -> Any:
    with torch.no_grad():
        return network.generate(
            **inputs, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0, decoder_start_token_id=1, **options
        )


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "gemma2", "t5-small", "bart-base"])
def test_generate(name: str, cache: str) -> None:
    network = NETWORKS[f"transformers/{name}"].module()
    network.config.use_cache = network.generation_config.use_cache = True
    ids = torch.randint(3, 90, (2, 7), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    options = {"cache_implementation": "static"} if cache == "static" else {}
    expected = written(network, inputs, **options)
    network.forward = torch_checks.compiled(network.forward)
    assert torch.equal(written(network, inputs, **options), expected)


def test_whisper_writes() -> None:
    network = NETWORKS["transformers/whisper-tiny"].module()
    network.config.use_cache = network.generation_config.use_cache = True
    features = torch.randn(1, 80, 60, generator=torch.Generator().manual_seed(1))
    ids = torch.tensor([[1, 5]])
    inputs = {"input_features": features, "decoder_input_ids": ids}
    expected = written(network, inputs)
    network.forward = torch_checks.compiled(network.forward)
    assert torch.equal(written(network, inputs), expected)
