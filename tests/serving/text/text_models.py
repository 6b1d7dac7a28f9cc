"""A small embedder, with its tokenizer, as a folder of files that a server finds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

tokenizers = pytest.importorskip("tokenizers", reason="embeddings are an extra: pip install 'aspen-mp[text]'")

WORDS: Final = [*("[PAD]", "[CLS]", "[SEP]", "[UNK]", "query", ":"), *(f"w{k}" for k in range(90))]
HIDDEN: Final = 24


def tokenizer(**truncation: int) -> tokenizers.Tokenizer:
    """[CLS] words [SEP]. `max_length` as a note of the file."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: k for k, word in enumerate(WORDS)}, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    if truncation:
        made.enable_truncation(**truncation)
    return made


def encoder(rows: int | str = "batch", columns: int | str = "tokens", *, masked: bool = True, dtype: int = TensorProto.INT64) -> Any:
    """One layer of attention: last_hidden_state depends on all tokens of a text, and on its padding if not `masked`."""
    rng = np.random.default_rng(49)
    weights = {
        "words": rng.standard_normal((len(WORDS), HIDDEN)).astype(np.float32),
        "kinds": rng.standard_normal((2, HIDDEN)).astype(np.float32),
        "places": rng.standard_normal((128, HIDDEN)).astype(np.float32),
        "scale": np.array(HIDDEN**-0.5, np.float32),
        "far": np.array(-1e4, np.float32),
        "one": np.array(1, np.float32),
        "axis": np.array([1], np.int64),
        "zero": np.array(0, np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["w"]),
        helper.make_node("Gather", ["kinds", "token_type_ids"], ["k"]),
        helper.make_node("Gather", ["places", "position_ids"], ["p"]),
        helper.make_node("Add", ["w", "k"], ["wk"]),
        helper.make_node("Add", ["wk", "p"], ["x"]),
        helper.make_node("Transpose", ["x"], ["xt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "xt"], ["raw"]),
        helper.make_node("Mul", ["raw", "scale"], ["scores"]),
    ]
    if masked:
        nodes += [
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Sub", ["one", "mask"], ["absent"]),
            helper.make_node("Mul", ["absent", "far"], ["bias"]),
            helper.make_node("Unsqueeze", ["bias", "axis"], ["wide"]),
            helper.make_node("Add", ["scores", "wide"], ["kept"]),
        ]
    nodes += [
        helper.make_node("Softmax", ["kept" if masked else "scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "x"], ["context"]),
        helper.make_node("Tanh", ["context"], ["last_hidden_state"]),
        helper.make_node("Gather", ["last_hidden_state", "zero"], ["pooler_output"], axis=1),
    ]
    names = ["input_ids", *(["attention_mask"] if masked else []), "token_type_ids", "position_ids"]
    inputs = [helper.make_tensor_value_info(name, dtype, [rows, columns]) for name in names]
    outputs = [
        helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [rows, columns, HIDDEN]),
        helper.make_tensor_value_info("pooler_output", TensorProto.FLOAT, [rows, HIDDEN]),
    ]
    graph = helper.make_graph(nodes, "encoder", inputs, outputs, [numpy_helper.from_array(each, name) for name, each in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def save(root: Path, name: str, model: onnx.ModelProto, *, config: str = "", beside: dict[str, Any] | None = None) -> None:
    """Version 1 of a model, with its tokenizer. `beside`: {name: document} of further files; they may replace the tokenizer."""
    draft = root / f".{name}"
    draft.mkdir(parents=True)
    onnx.save(model, draft / "model.onnx")
    tokenizer().save(str(draft / "tokenizer.json"))
    for path, document in (beside or {}).items():
        (draft / path).parent.mkdir(exist_ok=True)
        (draft / path).write_text(document if isinstance(document, str) else json.dumps(document))
    (root / name).mkdir(exist_ok=True)
    if config:
        (root / name / "config.toml").write_text(config)
    os.rename(draft, root / name / "1")


def texts(n: int, seed: int = 0, most: int = 60) -> list[str]:
    """Texts of 1 to `most` words."""
    rng = np.random.default_rng(seed)
    return [" ".join(f"w{k}" for k in rng.integers(0, 90, rng.integers(1, most + 1))) for _ in range(n)]


def states(model: onnx.ModelProto, text: str, *, ids: list[int] | None = None) -> np.ndarray:
    """last_hidden_state [tokens, hidden] of one text, by onnx's reference."""
    from onnx.reference import ReferenceEvaluator

    row = np.array([ids or tokenizer().encode(text).ids], np.int64)
    known = {
        "input_ids": row,
        "attention_mask": np.ones_like(row),
        "token_type_ids": np.zeros_like(row),
        "position_ids": np.arange(row.shape[1])[None],
    }
    feeds = {info.name: known[info.name] for info in model.graph.input}
    return ReferenceEvaluator(model).run(["last_hidden_state"], feeds)[0][0]  # type: ignore[no-any-return, index]


def mean(model: onnx.ModelProto, text: str) -> np.ndarray:
    """The embedding as it is made without any notes: the mean, of length 1."""
    found = states(model, text).mean(0)
    return found / np.linalg.norm(found)  # type: ignore[no-any-return]
