"""Networks of Hugging Face's transformers, by their configurations: encoders, decoders, both, and networks on images and sound."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from aspen_mp.bench.torch.networks.network import Draw, Inputs, Size, TorchNetwork, image, tokens

PACKAGE = "transformers"

_ENCODER = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 97}
_DECODER = {**_ENCODER, "max_position_embeddings": 64}
_GROUPED = {**_DECODER, "num_key_value_heads": 2}
_IMAGE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 32, "patch_size": 8}
_SIDES = {"d_model": 64, "vocab_size": 97, "encoder_layers": 2, "decoder_layers": 2}
_SIDES |= {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")} | {f"{side}_ffn_dim": 128 for side in ("encoder", "decoder")}
_SPOKEN = {**_ENCODER, "conv_dim": (32, 32, 32), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3), "num_feat_extract_layers": 3,
           "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}  # fmt: skip


def _config(name: str, options: Mapping[str, Any]) -> Any:
    transformers = importlib.import_module("transformers")
    return getattr(transformers, name)(**{key: _config(*value) if isinstance(value, tuple) and value and isinstance(value[0], str)
                                          and value[0].endswith("Config") else value for key, value in options.items()})  # fmt: skip


def _make(kind: str, config: str, small: Mapping[str, Any], full: Mapping[str, Any], size: Size) -> torch.nn.Module:
    """Build the class `kind` from its configuration; attention stays one operator, and there is no cache."""
    transformers = importlib.import_module("transformers")
    known = _config(config, small if size == "small" else full)
    known.use_cache = False
    built: torch.nn.Module = getattr(transformers, kind)(known)
    return built


def _both(small: int = 12, full: int = 128) -> Draw:
    """Draw a text to read and the beginning of one to write."""

    def draw(size: Size) -> Inputs:
        length = small if size == "small" else full
        return {
            "input_ids": torch.randint(3, 96, (1, length)),
            "attention_mask": torch.ones(1, length, dtype=torch.int64),
            "decoder_input_ids": torch.randint(3, 96, (1, max(length // 4, 1))),
        }

    return draw


def _sound(small: int = 1600, full: int = 16000) -> Draw:
    def draw(size: Size) -> Inputs:
        return {"input_values": torch.randn(1, small if size == "small" else full)}

    return draw


def _whisper(size: Size) -> Inputs:
    frames = 60 if size == "small" else 3000
    return {"input_features": torch.randn(1, 80, frames), "decoder_input_ids": torch.randint(3, 96, (1, 4))}


def _pixels(small: int, full: int = 224) -> Draw:
    def draw(size: Size) -> Inputs:
        given = image(small, full)(size)
        assert not isinstance(given, Mapping)
        return {"pixel_values": given[0]}

    return draw


def _clip(size: Size) -> Inputs:
    side = 32 if size == "small" else 224
    return {
        "input_ids": torch.randint(3, 95, (2, 8)),
        "attention_mask": torch.ones(2, 8, dtype=torch.int64),
        "pixel_values": torch.randn(1, 3, side, side),
    }


_LISTED: list[tuple[str, str, str, Mapping[str, Any], Mapping[str, Any], Draw]] = [
    ("bert-base", "BertModel", "BertConfig", _ENCODER, {}, tokens()),
    ("bert-masked-lm", "BertForMaskedLM", "BertConfig", _ENCODER, {}, tokens()),
    ("bert-classification", "BertForSequenceClassification", "BertConfig", _ENCODER, {}, tokens()),
    ("roberta-base", "RobertaModel", "RobertaConfig", _ENCODER, {"vocab_size": 50265, "max_position_embeddings": 514}, tokens()),
    ("distilbert-base", "DistilBertModel", "DistilBertConfig",
     {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 97}, {}, tokens()),
    ("albert-base", "AlbertModel", "AlbertConfig", {**_ENCODER, "embedding_size": 32},
     {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}, tokens()),
    ("electra-small", "ElectraModel", "ElectraConfig", {**_ENCODER, "embedding_size": 32}, {}, tokens()),
    ("mpnet-base", "MPNetModel", "MPNetConfig", _ENCODER, {}, tokens()),
    ("deberta-base", "DebertaModel", "DebertaConfig",
     {**_ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 16},
     {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, tokens()),
    ("deberta-v3-base", "DebertaV2Model", "DebertaV2Config",
     {**_ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8, "share_att_key": True},
     {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
      "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 256, "share_att_key": True}, tokens()),
    ("modernbert-base", "ModernBertModel", "ModernBertConfig",
     {**_ENCODER, "global_attn_every_n_layers": 2, "local_attention": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
      "cls_token_id": 1, "sep_token_id": 2}, {}, tokens()),
    ("xlnet", "XLNetModel", "XLNetConfig", {"d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128, "vocab_size": 97}, {}, tokens()),
    ("funnel", "FunnelModel", "FunnelConfig",
     {"d_model": 64, "block_sizes": [1, 1], "n_head": 4, "d_head": 16, "d_inner": 128, "vocab_size": 97}, {}, tokens()),
    ("squeezebert", "SqueezeBertModel", "SqueezeBertConfig", {**_ENCODER, "embedding_size": 64}, {}, tokens()),
    ("longformer", "LongformerModel", "LongformerConfig", {**_ENCODER, "attention_window": 4, "max_position_embeddings": 64}, {}, tokens()),
    ("fnet", "FNetModel", "FNetConfig", _ENCODER, {}, tokens(mask=False)),
    ("gpt2", "GPT2LMHeadModel", "GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 97, "n_positions": 64}, {}, tokens()),
    ("gpt-neo", "GPTNeoForCausalLM", "GPTNeoConfig",
     {"hidden_size": 64, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "num_heads": 4, "vocab_size": 97,
      "window_size": 8},
     {"hidden_size": 768, "num_layers": 12, "attention_types": [[["global", "local"], 6]], "num_heads": 12}, tokens()),
    ("gpt-neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", _DECODER,
     {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048}, tokens()),
    ("gptj", "GPTJForCausalLM", "GPTJConfig",
     {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "vocab_size": 97, "n_positions": 64},
     {"n_embd": 768, "n_layer": 12, "n_head": 12}, tokens()),
    ("llama", "LlamaForCausalLM", "LlamaConfig", _GROUPED,
     {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
      "vocab_size": 49152}, tokens()),
    ("mistral", "MistralForCausalLM", "MistralConfig", {**_GROUPED, "sliding_window": 8},
     {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 1792}, tokens()),
    ("mixtral", "MixtralForCausalLM", "MixtralConfig", {**_GROUPED, "num_local_experts": 4, "experts_implementation": "batched_mm"},
     {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 896,
      "experts_implementation": "batched_mm"}, tokens()),
    ("qwen2", "Qwen2ForCausalLM", "Qwen2Config", _GROUPED,
     {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864},
      tokens()),
    ("qwen3", "Qwen3ForCausalLM", "Qwen3Config", {**_GROUPED, "head_dim": 16},
     {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 3072},
      tokens()),
    ("gemma", "GemmaForCausalLM", "GemmaConfig", {**_GROUPED, "head_dim": 16},
     {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 1, "intermediate_size": 2048,
      "head_dim": 64, "vocab_size": 32000}, tokens()),
    ("gemma2", "Gemma2ForCausalLM", "Gemma2Config", {**_GROUPED, "head_dim": 16, "sliding_window": 8},
     {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 1, "intermediate_size": 2048,
      "head_dim": 64, "vocab_size": 32000}, tokens()),
    ("phi", "PhiForCausalLM", "PhiConfig", _DECODER,
     {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048}, tokens()),
    ("phi3", "Phi3ForCausalLM", "Phi3Config", {**_GROUPED, "pad_token_id": 0},
     {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 2048}, tokens()),
    ("opt", "OPTForCausalLM", "OPTConfig",
     {"hidden_size": 64, "word_embed_proj_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128, "vocab_size": 97,
      "max_position_embeddings": 64}, {}, tokens()),
    ("bloom", "BloomForCausalLM", "BloomConfig", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 97},
     {"hidden_size": 512, "n_layer": 8, "n_head": 8, "vocab_size": 50304}, tokens()),
    ("falcon", "FalconForCausalLM", "FalconConfig", {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 97},
     {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8}, tokens()),
    ("mpt", "MptForCausalLM", "MptConfig", {"d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 97, "max_seq_len": 64},
     {"d_model": 512, "n_layers": 6, "n_heads": 8}, tokens()),
    ("stablelm", "StableLmForCausalLM", "StableLmConfig", _GROUPED,
     {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 1408}, tokens()),
    ("olmo2", "Olmo2ForCausalLM", "Olmo2Config", _GROUPED,
     {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 1408}, tokens()),
    ("granite", "GraniteForCausalLM", "GraniteConfig", _GROUPED,
     {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 1408}, tokens()),
    ("mamba", "MambaForCausalLM", "MambaConfig", {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "vocab_size": 97},
     {"hidden_size": 256, "num_hidden_layers": 4}, tokens(full=32, mask=False)),
    ("t5-small", "T5ForConditionalGeneration", "T5Config",
     {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 97}, {}, _both()),
    ("bart-base", "BartForConditionalGeneration", "BartConfig", _SIDES,
     {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12, "decoder_attention_heads": 12,
      "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}, _both()),
    ("marian", "MarianMTModel", "MarianConfig", {**_SIDES, "pad_token_id": 0, "decoder_start_token_id": 0},
     {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8, "decoder_attention_heads": 8,
      "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}, _both()),
    ("pegasus", "PegasusForConditionalGeneration", "PegasusConfig", _SIDES,
     {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8, "decoder_attention_heads": 8,
      "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}, _both()),
    ("whisper-tiny", "WhisperForConditionalGeneration", "WhisperConfig",
     {**_SIDES, "max_source_positions": 30, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}, {},
     _whisper),
    ("wav2vec2-base", "Wav2Vec2Model", "Wav2Vec2Config", _SPOKEN, {}, _sound()),
    ("hubert-base", "HubertModel", "HubertConfig", _SPOKEN, {}, _sound()),
    ("vit-base", "ViTModel", "ViTConfig", _IMAGE, {}, _pixels(32)),
    ("deit-base", "DeiTModel", "DeiTConfig", _IMAGE, {}, _pixels(32)),
    ("dinov2-base", "Dinov2Model", "Dinov2Config", {**_IMAGE, "mlp_ratio": 2}, {}, _pixels(32)),
    ("swin-tiny", "SwinModel", "SwinConfig", {"image_size": 32, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
     {}, _pixels(32)),
    ("segformer-b0", "SegformerForSemanticSegmentation", "SegformerConfig",
     {"hidden_sizes": [16, 32], "depths": [1, 1], "num_encoder_blocks": 2, "num_attention_heads": [1, 2], "decoder_hidden_size": 32,
      "sr_ratios": [4, 2], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]}, {}, _pixels(64)),
    ("mobilevit-small", "MobileViTModel", "MobileViTConfig",
     {"image_size": 64, "hidden_sizes": [24, 32, 40], "neck_hidden_sizes": [8, 16, 24, 32, 40, 48, 64]}, {}, _pixels(64, 256)),
    ("convnextv2-tiny", "ConvNextV2Model", "ConvNextV2Config", {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}, {}, _pixels(64)),
    ("detr-like-yolos", "YolosModel", "YolosConfig", {**_IMAGE, "image_size": [32, 32], "num_detection_tokens": 5},
     {"image_size": [224, 224]}, _pixels(32)),
    ("clip", "CLIPModel", "CLIPConfig",
     {"text_config": {**_DECODER, "eos_token_id": 96}, "vision_config": _IMAGE, "projection_dim": 32}, {}, _clip),
    ("siglip-vision", "SiglipVisionModel", "SiglipVisionConfig", _IMAGE, {}, _pixels(32)),
]  # fmt: skip
"""Name, class, its configuration, options of the small one and of the one of full size, inputs."""


def _family(name: str) -> str:
    return name.partition("-")[0].rstrip("0123456789")


NETWORKS = [
    TorchNetwork(f"transformers/{name}", _family(name), PACKAGE, partial(_make, kind, config, small, full), draw)
    for name, kind, config, small, full, draw in _LISTED
]
"""All of them."""
