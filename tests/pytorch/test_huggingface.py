"""`optimize` with models of the transformers package: encoders, decoders and both, `generate` with caches of either kind, and what is built
around them: pipelines and sentence-transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")
transformers = pytest.importorskip("transformers", reason="the tests of transformers models need it: pip install transformers")

import aspen_mp  # noqa: E402

TEXTS = ["the cat sat on the mat", "a big red dog ran in the house", "dog"]
TOKENS = 18
MOST_PLANS = 6
"""Of one graph, for caches that grow by `TOKENS` tokens: one for each range of lengths."""


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with aspen_mp.Runtime(workers=2) as runtime:
        yield runtime


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(11)
    yield
    torch._dynamo.reset()


def bert() -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    return transformers.BertModel(transformers.BertConfig(vocab_size=90, **sizes)).eval()


def llama() -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=90, eos_token_id=None, **sizes)).eval()


def gpt2() -> Any:
    config = transformers.GPT2Config(vocab_size=90, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=None)
    return transformers.GPT2LMHeadModel(config).eval()


def t5() -> Any:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=90, decoder_start_token_id=0, eos_token_id=None, **sizes)
    ).eval()


def tokenizer() -> Any:
    """One that knows the words of `TEXTS`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    words = [*special.values(), *sorted({word for text in TEXTS for word in text.split()})]
    found = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(token, words.index(token)) for token in ("[CLS]", "[SEP]")]
    found.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=found, model_max_length=128, **special)


def test_an_encoder_at_any_batch_and_length(runtime: Any) -> None:
    module = bert()
    texts = [torch.randint(0, 90, shape) for shape in [(2, 8), (3, 13), (4, 30), (2, 17), (5, 21)]]
    with torch.no_grad():
        want = [module(input_ids=text, attention_mask=torch.ones_like(text)) for text in texts]
    aspen_mp.optimize(module, runtime=runtime)
    for text, expected in zip(texts, want, strict=True):
        got = module(input_ids=text, attention_mask=torch.ones_like(text))
        assert type(got) is type(expected)
        torch.testing.assert_close(got.last_hidden_state, expected.last_hidden_state, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(got.pooler_output, expected.pooler_output, rtol=1e-4, atol=1e-5)
    assert not torch._dynamo.utils.counters["graph_break"]
    models = [model for model in runtime.status()["models"] if model["name"] == "BertModel"]
    assert len(models) <= 2, "one for the first shape, one for all others"


@pytest.mark.parametrize("cache", [None, "static"], ids=["dynamic", "static"])
@pytest.mark.parametrize("make", [llama, gpt2, t5])
def test_generate_gives_the_same_tokens(make: Any, cache: str | None, runtime: Any) -> None:
    module = make()
    options = {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0, **({"cache_implementation": cache} if cache else {})}
    prompts = [torch.randint(3, 90, (1, 7)), torch.randint(3, 90, (1, 7))]
    want = [module.generate(prompt, **options) for prompt in prompts]
    aspen_mp.optimize(module, runtime=runtime)
    for prompt, expected in zip(prompts, want, strict=True):
        assert torch.equal(module.generate(prompt, **options), expected)
    assert not torch._dynamo.utils.counters["graph_break"]
    models = [model for model in runtime.status()["models"] if model["name"] == type(module).__name__]
    assert models
    for model in models:
        assert len(model["plans"]) <= MOST_PLANS


@pytest.mark.parametrize("batch", [1, 3])
def test_a_pipeline_of_features(batch: int, runtime: Any) -> None:
    module = bert()
    features = transformers.pipeline("feature-extraction", model=module, tokenizer=tokenizer(), device="cpu")
    want = features(TEXTS, batch_size=batch)
    aspen_mp.optimize(module, runtime=runtime)
    for got, expected in zip(features(TEXTS, batch_size=batch), want, strict=True):
        torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("part", ["all of it", "the transformer"])
def test_sentence_transformers(part: str, runtime: Any, tmp_path: Path) -> None:
    package = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers: pip install aspen-mp[nets]")
    models = pytest.importorskip("sentence_transformers.models")
    module = bert()
    module.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    parts = [models.Transformer(str(tmp_path)), models.Pooling(module.config.hidden_size)]
    encoder = package.SentenceTransformer(modules=parts, device="cpu")
    want = encoder.encode(TEXTS)
    aspen_mp.optimize(encoder if part == "all of it" else encoder[0].auto_model, runtime=runtime)
    np.testing.assert_allclose(encoder.encode(TEXTS), want, rtol=1e-4, atol=1e-5)
    assert runtime.status()["models"], "the runtime has run it"
