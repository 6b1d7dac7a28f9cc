"""Operators of onnxruntime's own domain that have no rule here, and what to do about each. A test compares the table with onnxruntime's
own registry: every operator there has a rule, or its reason here."""

from __future__ import annotations

from typing import Final

_SEARCH: Final = "runs a decoder that it holds until a text ends: load the decoder alone, and choose the tokens outside the model"
_TOKENS: Final = "compares tokens that have been chosen: do that outside the model"
_SPARSE: Final = "has no implementation here: load the model with attention to all tokens, or without onnxruntime's operators"
_EXPERTS: Final = "has no implementation here: export the mixture of experts in ONNX's operators"
_HELD: Final = "has no implementation here: load the decoder with MultiHeadAttention or GroupQueryAttention in its place"
_PRIVATE: Final = "keeps weights in a format of onnxruntime's library alone: quantise with MatMulNBits, or keep the weights as they were"
_BUILT: Final = "has no implementation here: build or export the model with ONNX's operators"
_INTERNAL: Final = "is meant for onnxruntime's internal use: load the model as it was before, with MaxPool"
_BOXES: Final = "has no implementation here: use RoiAlign, or compute it outside the model"
_TRAINING: Final = "belongs to training: export the model for inference"
_NO_CPU: Final = "is not implemented for CPUs, even in onnxruntime: load the model as it was before it was optimized for another device"
_ELSEWHERE: Final = "has no implementation here: compute it outside the model"

_REASONS: Final[dict[str, tuple[str, ...]]] = {
    _SEARCH: ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"),
    _TOKENS: ("BifurcationDetector", "NGramRepeatBlock"),
    _SPARSE: ("SparseAttention",),
    _EXPERTS: ("MoEGroupRouter",),
    _HELD: ("DecoderMaskedMultiHeadAttention",),
    _PRIVATE: ("MatMulFpQ4", "GatherPacked"),
    _BUILT: (
        *("AttnLSTM", "BranchwiseRMSNorm", "EngramGate", "GatedDeltaNet", "HyperConnectionPostMix", "HyperConnectionPreMix"),
        *("MRotaryEmbedding", "NGramHashMapping", "VarlenCausalConvWithState", "VarlenNGramHashMapping", "WordConvEmbedding"),
    ),
    _BOXES: ("CropAndResize",),
    _INTERNAL: ("MaxpoolWithMask",),
    _ELSEWHERE: ("DynamicTimeWarping", "Inverse"),
    _TRAINING: ("BiasDropout", "BitmaskBiasDropout", "BitmaskDropout"),
    _NO_CPU: (
        *("BiasSoftmax", "ComplexMul", "ComplexMulConj", "ConvStateReplay", "DecoderAttention", "DecoderMaskedSelfAttention"),
        *("DequantizeBFP", "DequantizeWithOrder", "DynamicSparseAttention", "EPContext", "FusedMatMulActivation"),
        *("GatedDeltaNetStateReplay", "GatedRelativePositionBias", "GemmFastGelu", "GemmFloat8", "GemmaRotaryEmbedding"),
        *("HyperConnectionLowRankMix", "Irfft", "IsAllFinite", "LongformerAttention", "Mamba2Verify", "MatMulBlockQuantizedFp4Weight"),
        *("MatMulBlockQuantizedFp8Weight", "MatMulNBitsMlp", "MatMulNBitsQLoRA", "MatMulNBitsQkv", "MatMulPacked", "MoEPacked"),
        *("MulInteger", "NhwcConv", "NhwcFusedConv", "PackedAttention", "PackedMultiHeadAttention", "PackedSparseAttentionIndexer"),
        *("PackedSparseAttentionIndexerMerge", "PagedAttention", "QOrderedAttention", "QOrderedGelu", "QOrderedLayerNormalization"),
        *("QOrderedLongformerAttention", "QOrderedMatMul", "QuantizeBFP", "QuantizeWithOrder", "RMSNormRotary", "ReduceSumInteger"),
        *("RelativePositionBias", "RemovePadding", "RestorePadding", "Rfft", "RouterGateUpProj", "Snpe", "SparseAttentionIndexer"),
        *("SparsePagedAttention", "SpeculativePrefixCommit", "SwiGLU", "TorchEmbedding"),
    ),
}
ABSENT: Final[dict[str, str]] = {op: reason for reason, ops in _REASONS.items() for op in ops}
"""Operator → what to do, behind "that"."""
NO_CPU: Final = frozenset(_REASONS[_NO_CPU])
"""Those that onnxruntime has no implementation of for CPUs either."""


def why_absent(op: str) -> str:
    """The end of a message about a node of the domain that has no rule, behind its name."""
    reason = ABSENT.get(op)
    if reason is None:
        return "is not a known onnxruntime operator: load the model as it was before another tool wrote it"
    return f"is an operator of onnxruntime's own that {reason}"
