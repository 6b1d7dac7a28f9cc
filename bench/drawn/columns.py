"""Drawn models of operators that change columns or look elements up (`ai.onnx.ml`), and of those on strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper

from aspen_mp.bench.drawn.case import ELEMENTS, I64, NUMBERS, Case, D, F, Rng, S, floats, table

KINDS: Final[dict[str, tuple[Any, int]]] = {"strings": (object, S), "int64s": (np.int64, I64), "floats": (np.float32, F)}
TEXTS: Final = (
    "a",
    "dog",
    "the",
    "The",
    "Straße",
    "ΟΔΟΣ",
    "ﬁn",
    "cats and dogs",
    "",
    "x-y_z",
    "a1 b2",
    "  two  ",
    "日本 text",
    "émile",
    "a,b;c",
)
MICROSOFT: Final = "com.microsoft"


def texts(rng: Rng, shape: tuple[int, ...]) -> Any:
    return words([str(w) for w in rng.choice(TEXTS, int(np.prod(shape)))]).reshape(shape)


def words(values: list[str]) -> Any:
    out = np.empty(len(values), object)
    out[:] = values
    return out


# ---- columns


def scaler(rng: Rng) -> Case:
    columns = int(rng.integers(1, 5))
    x = table(rng, columns, str(rng.choice(NUMBERS)))
    if x.ndim == 2 and rng.random() < 0.2:
        x = np.stack([x, x + 1], -1)
    count = 1 if rng.random() < 0.3 else columns
    return Case("Scaler", {"x": x}, [F], {name: floats(rng.standard_normal(count)) for name in ("offset", "scale")}, 1)


def normalizer(rng: Rng) -> Case:
    x = table(rng, int(rng.integers(1, 5)), str(rng.choice(NUMBERS)))
    return Case("Normalizer", {"x": x * 0 if rng.random() < 0.2 else x}, [F], {"norm": str(rng.choice(["MAX", "L1", "L2"]))}, 1)


def imputer(rng: Rng) -> Case:
    columns, whole = int(rng.integers(1, 5)), bool(rng.integers(2))
    count = 1 if rng.random() < 0.4 else columns
    x = np.round(table(rng, columns, "int64" if whole else "float32"))
    if whole:
        a: dict[str, Any] = {"imputed_value_int64s": rng.integers(-9, 9, count).tolist(), "replaced_value_int64": int(rng.integers(-1, 2))}
    else:
        x[rng.random(x.shape) < 0.2] = np.nan
        a = {"imputed_value_floats": floats(rng.standard_normal(count)), "replaced_value_float": float(rng.choice([0, 1, np.nan]))}
    return Case("Imputer", {"x": x}, [ELEMENTS[x.dtype]], a, 1)


def binarizer(rng: Rng) -> Case:
    a = {"threshold": float(np.float32(rng.standard_normal()))}
    return Case("Binarizer", {"x": table(rng, int(rng.integers(1, 5)), "float32")}, [F], a, 1)


def feature_vectorizer(rng: Rng) -> Case:
    rows, dtype = int(rng.integers(1, 5)), str(rng.choice(NUMBERS))
    tables = [table(rng, int(rng.integers(1, 4)), dtype, rows) for _ in range(int(rng.integers(1, 4)))]
    widths = [max(1, x.shape[1] + int(rng.integers(-1, 2))) for x in tables]
    return Case("FeatureVectorizer", {f"x{k}": x for k, x in enumerate(tables)}, [F], {"inputdimensions": widths}, 1)


def array_feature_extractor(rng: Rng) -> Case:
    columns = int(rng.integers(1, 5))
    x = table(rng, columns, str(rng.choice(NUMBERS)))
    if rng.random() < 0.2:
        x = texts(rng, (3, columns))
    elif rng.random() < 0.2:
        x = np.stack([x, x])
    return Case("ArrayFeatureExtractor", {"x": x, "i": rng.integers(0, columns, int(rng.integers(1, 4)))}, [ELEMENTS[x.dtype]], {}, 1)


# ---- tables


def one_hot_encoder(rng: Rng) -> Case:
    count, columns = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    if rng.random() < 0.5:
        x = words([f"c{k}" for k in rng.integers(0, 5, 3 * columns)]).reshape(3, columns)
        return Case("OneHotEncoder", {"x": x}, [F], {"cats_strings": [f"c{k}" for k in rng.integers(0, 5, count)]}, 1)
    x = table(rng, columns, str(rng.choice(NUMBERS[:3])))
    return Case("OneHotEncoder", {"x": x}, [F], {"cats_int64s": rng.integers(-2, 4, count).tolist()}, 1)


def _drawn(rng: Rng, kind: str, count: int) -> list[Any]:
    if kind == "strings":
        return [f"k{k}" for k in rng.integers(0, 6, count)]
    if kind == "int64s":
        return [int(k) for k in rng.integers(-3, 4, count)]
    return floats(np.where(rng.random(count) < 0.2, np.nan, rng.integers(-2, 3, count) / 2))


def _asked(rng: Rng, kind: str) -> Any:
    values = np.empty(6, KINDS[kind][0])
    values[:] = _drawn(rng, kind, 6)
    return values.reshape(2, 3)


def label_encoder(rng: Rng) -> Case:
    """A LabelEncoder of versions 2 and 4, with lists."""
    keys, values = (str(rng.choice(list(KINDS))) for _ in range(2))
    count = int(rng.integers(1, 6))
    a: dict[str, Any] = {f"keys_{keys}": _drawn(rng, keys, count), f"values_{values}": _drawn(rng, values, count)}
    if rng.random() < 0.5:
        a |= {"default_string": "none", "default_int64": 99, "default_float": 9.5}
    return Case("LabelEncoder", {"x": _asked(rng, keys)}, [KINDS[values][1]], a, int(rng.choice([2, 4])))


def _tensor(name: str, elements: int, values: list[Any]) -> onnx.TensorProto:
    stored: Any = [v.encode() if isinstance(v, str) else v for v in values]
    return helper.make_tensor(name, elements, [len(values)], stored)


def label_encoder_of_tensors(rng: Rng) -> Case:
    """A LabelEncoder of version 4, where doubles are possible, too."""
    keys, values = (str(rng.choice(list(KINDS))) for _ in range(2))
    count, wide = int(rng.integers(1, 6)), bool(rng.integers(2))
    types = [D if kind == "floats" and wide else KINDS[kind][1] for kind in (keys, values)]
    a: dict[str, Any] = {}
    for name, kind, elements in (("keys_tensor", keys, types[0]), ("values_tensor", values, types[1])):
        drawn = _drawn(rng, kind, count)
        a[name] = _tensor(name, elements, drawn)
    if rng.random() < 0.5:
        a["default_tensor"] = _tensor("d", types[1], ["none"] if values == "strings" else [3])
    x = _asked(rng, keys)
    return Case("LabelEncoder", {"x": x.astype(np.float64) if types[0] == D else x}, [types[1]], a, 4)


def numbered(rng: Rng) -> Case:
    """CategoryMapper, and LabelEncoder as it was first: strings to integers, or back."""
    to_words = bool(rng.integers(2))
    a: dict[str, Any] = {"default_string": "none", "default_int64": -7}
    first = rng.random() < 0.5
    if first:
        a["classes_strings"] = [f"k{k}" for k in rng.permutation(6)[:4]]
    else:
        a |= {"cats_strings": _drawn(rng, "strings", 4), "cats_int64s": _drawn(rng, "int64s", 4)}
    x = _asked(rng, "int64s" if to_words else "strings")
    return Case("LabelEncoder" if first else "CategoryMapper", {"x": x}, [S if to_words else I64], a, 1)


def zip_map(rng: Rng) -> Case:
    columns, strings = int(rng.integers(1, 5)), bool(rng.integers(2))
    a = {"classlabels_strings": [f"c{k}" for k in range(columns)]} if strings else {"classlabels_int64s": list(range(columns))}
    kind = helper.make_map_type_proto(S if strings else I64, helper.make_tensor_type_proto(F, []))
    return Case("ZipMap", {"x": table(rng, columns, "float32")}, [helper.make_sequence_type_proto(kind)], a, 1)


# ---- strings


def tokenizer(rng: Rng) -> Case:
    a: dict[str, Any] = {"mark": int(rng.integers(2)), "mincharnum": int(rng.integers(1, 3)), "pad_value": str(rng.choice(["#", "", " "]))}
    which = int(rng.integers(5))
    if which < 2:
        separators = [" ", ",", "[ ]+", "[^a-zA-Z]", "-", "_", "and|a", "s"]
        a["separators"] = [str(s) for s in rng.choice(separators, int(rng.integers(1, 4)), replace=False)]
    elif which < 4:
        tokens = ["[a-zA-Z]+", "\\w+", "[a-z]", "cat|cats", "\\b\\w\\w+\\b", "[^ ]+", "a*", "(a|do)g?"]
        a["tokenexp"] = str(rng.choice(tokens))
    else:
        a |= {"mincharnum": 1} | ({"separators": [""]} if rng.random() < 0.5 else {"tokenexp": "."})
    shape = tuple(int(n) for n in rng.integers(1, 5, int(rng.integers(1, 3))))
    return Case("Tokenizer", {"x": texts(rng, shape)}, [S], a, domain=MICROSOFT)


def murmur_hash(rng: Rng) -> Case:
    positive, shape = int(rng.integers(2)), (int(rng.integers(1, 4)), int(rng.integers(1, 6)))
    x = texts(rng, shape) if rng.random() < 0.6 else rng.integers(0, 2**31, shape).astype(rng.choice(["int32", "uint32"]))
    kind = TensorProto.UINT32 if positive else TensorProto.INT32
    return Case("MurmurHash3", {"x": x}, [kind], {"seed": int(rng.integers(0, 100)), "positive": positive}, domain=MICROSOFT)


def string_normalizer(rng: Rng) -> Case:
    a: dict[str, Any] = {"locale": "C.UTF-8", "is_case_sensitive": int(rng.integers(2))}
    a["case_change_action"] = str(rng.choice(["LOWER", "UPPER", "NONE"]))
    if rng.random() < 0.6:
        a["stopwords"] = [str(s) for s in rng.choice(["the", "DOG", "a", "straße"], int(rng.integers(1, 4)), replace=False)]
    count = int(rng.integers(1, 6))
    return Case("StringNormalizer", {"x": texts(rng, (1, count) if rng.random() < 0.5 else (count,))}, [S], a, domain="")


def tf_idf_vectorizer(rng: Rng) -> Case:
    most, pool, counts, grams = int(rng.integers(1, 4)), [0], [0], 1
    for n in range(1, most + 1):
        if n > 1:
            counts.append(len(pool))
        for gram in {tuple(rng.integers(0, 5, n).tolist()) for _ in range(int(rng.integers(0, 5)))} - {(0,)}:
            pool += gram
            grams += 1
    a: dict[str, Any] = {"ngram_counts": counts, "ngram_indexes": rng.permutation(grams).tolist(), "max_gram_length": most}
    a |= {"min_gram_length": int(rng.integers(1, most + 1)), "max_skip_count": int(rng.integers(0, 4))}
    a["mode"] = str(rng.choice(["TF", "IDF", "TFIDF"]))
    if rng.random() < 0.6:
        a["weights"] = floats(rng.random(grams) + 0.1)
    x = rng.integers(0, 6, (int(rng.integers(1, 4)), int(rng.integers(1, 16)))).astype(rng.choice(["int64", "int32"]))
    if rng.random() < 0.5:
        a["pool_strings"] = [f"w{token}" for token in pool]
        x = words([f"w{token}" for token in x.reshape(-1)]).reshape(x.shape)
    else:
        a["pool_int64s"] = pool
    return Case("TfIdfVectorizer", {"x": x[0] if rng.random() < 0.3 else x}, [F], a, domain="")


DRAWS: Final[dict[str, Callable[[Rng], Case]]] = {
    "Scaler": scaler,
    "Normalizer": normalizer,
    "Imputer": imputer,
    "Binarizer": binarizer,
    "FeatureVectorizer": feature_vectorizer,
    "ArrayFeatureExtractor": array_feature_extractor,
    "OneHotEncoder": one_hot_encoder,
    "LabelEncoder": label_encoder,
    "LabelEncoder of tensors": label_encoder_of_tensors,
    "CategoryMapper": numbered,
    "ZipMap": zip_map,
    "Tokenizer": tokenizer,
    "MurmurHash3": murmur_hash,
    "StringNormalizer": string_normalizer,
    "TfIdfVectorizer": tf_idf_vectorizer,
}
