"""Operators on strings: Tokenizer and MurmurHash3 of onnxruntime's, StringNormalizer and TfIdfVectorizer of ONNX's own domain."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from aspen_mp.workers.fallback.ml.attributes import Array, Attributes, strings

_BEGIN, _END = "\x02", "\x03"
_BLOCK: Final = 1 << 21
"""Places of a text that are looked at at once."""


def word(value: Any) -> str:
    """A string; ValueError for bytes that are not UTF-8."""
    if not isinstance(value, str):
        raise ValueError("the input holds bytes that are not UTF-8")
    return value


# ---- Tokenizer


class _Expression:
    """A regular expression as onnxruntime's library RE2 understands it: of ASCII classes, and of several matches at a place the longest."""

    _CHOICE: Final = re.compile(r"\||[*+?}]\?")

    def __init__(self, source: str) -> None:
        try:
            self._pattern = re.compile(source, re.ASCII)
        except re.error as error:
            raise ValueError(f"the expression {source!r} is not known here: {error}") from None
        self._chooses = self._CHOICE.search(source) is not None

    def match(self, text: str, at: int) -> tuple[int, int] | None:
        """The first match at or after a place."""
        found = self._pattern.search(text, at)
        if found is None:
            return None
        begin, end = found.span()
        if self._chooses:
            end = next((k for k in range(len(text), end, -1) if self._pattern.fullmatch(text, begin, k)), end)
        return begin, end


def tokenizer(a: Attributes) -> Callable[[Array], Array]:
    """Tokenizer: a new last axis with the parts of each string, filled up with `pad_value`; between marks if `mark` is set."""
    mark, pad, least = bool(a.integer("mark", 0)), a.string("pad_value", ""), a.integer("mincharnum", 1)
    if least <= 0:
        raise ValueError(f"mincharnum is {least}; a positive number is expected")
    split = _splitter(a, least)

    def run(x: Array) -> Array:
        if x.ndim not in {1, 2}:
            raise ValueError(f"the input has shape {list(x.shape)}; one or two axes are expected")
        if not x.size:
            return np.empty((*x.shape[:-1], 0), object)
        parts = [split(word(s)) for s in x.reshape(-1).tolist()]
        longest = max(map(len, parts))
        width = longest + 2 * mark if longest else 0
        out = np.full((len(parts), width), pad, object)
        if width:
            for row, tokens in zip(out, parts, strict=True):
                whole = [_BEGIN, *tokens, _END] if mark else tokens
                row[: len(whole)] = whole
        return out.reshape(*x.shape, width)

    return run


def _splitter(a: Attributes, least: int) -> Callable[[str], list[str]]:
    separators = [word(s) for s in a.strings("separators")]
    if "separators" in a:
        if not separators:
            raise ValueError("separators is empty")
        every = separators == [""]
    else:
        source = word(a.string("tokenexp", ""))
        if not source:
            raise ValueError("one of separators and tokenexp must be given")
        every = source == "."
    if every:
        if least > 1:
            raise ValueError(f"mincharnum is {least}, but tokens are single characters")
        return list
    if separators:
        expressions = [_Expression(s) for s in separators]
        return lambda text: _between(text, expressions, least)
    expression = _Expression(source)
    return lambda text: list(_matches(text, expression, least))


def _between(text: str, separators: list[_Expression], least: int) -> list[str]:
    """The pieces between separators; each separator cuts the pieces that those before it have left."""
    parts = [text]
    for separator in separators:
        parts = [piece for part in parts for piece in _pieces(part, separator) if len(piece) >= least]
        if not parts:
            break
    return parts


def _pieces(text: str, separator: _Expression) -> Iterator[str]:
    at = 0
    while at <= len(text):
        found = separator.match(text, at)
        if found is None:
            break
        begin, end = found
        yield text[at:begin]
        at = end if end > begin else begin + 1
    yield text[at:]


def _matches(text: str, expression: _Expression, least: int) -> Iterator[str]:
    """Matches that are long enough; after one that is not, the search goes on one character further."""
    at = 0
    while len(text) >= least and at <= len(text):
        found = expression.match(text, at)
        if found is None:
            return
        begin, end = found
        if end - begin >= least:
            yield text[begin:end]
            at = end
        else:
            at = begin + 1


# ---- MurmurHash3


def _mixed(k: Array) -> Array:
    k = k * np.uint32(0xCC9E2D51)
    k = (k << np.uint32(15)) | (k >> np.uint32(17))
    return k * np.uint32(0x1B873593)


def murmur3(words: Array, lengths: Array, seed: int) -> Array:
    """The 32-bit MurmurHash3 of byte strings, uint32: `words` [strings, most words] holds each one's bytes, filled up with zeros, and
    `lengths` says how many bytes it has."""
    h = np.full(len(words), seed & 0xFFFFFFFF, np.uint32)
    whole = lengths // 4
    for k in range(words.shape[1]):
        mixed = h ^ _mixed(words[:, k])
        turned = (mixed << np.uint32(13)) | (mixed >> np.uint32(19))
        full = turned * np.uint32(5) + np.uint32(0xE6546B64)
        h = np.where(k < whole, full, np.where((k == whole) & (lengths % 4 > 0), mixed, h))
    h ^= lengths.astype(np.uint32)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def murmur_hash3(a: Attributes) -> Callable[[Array], Array]:
    """MurmurHash3: of each element's bytes; uint32, or int32 where `positive` is 0."""
    seed, positive = a.integer("seed", 0), bool(a.integer("positive", 1))

    def run(x: Array) -> Array:
        if x.dtype == object:
            bytes_ = [s.encode() if isinstance(s, str) else s for s in x.reshape(-1).tolist()]
            lengths = np.array([len(s) for s in bytes_], np.int64)
            most = -(-int(lengths.max(initial=0)) // 4)
            words = np.array(bytes_, f"S{max(4 * most, 4)}").view("<u4").reshape(len(bytes_), -1)[:, :most]
        else:
            words = np.ascontiguousarray(x).reshape(-1).view("<u4").reshape(x.size, -1)
            lengths = np.full(x.size, x.dtype.itemsize)
        found = murmur3(words, lengths, seed)
        return (found if positive else found.view(np.int32)).reshape(x.shape)

    return run


# ---- StringNormalizer


class _Letters(dict[int, int]):
    """A change of case, letter by letter: letters that would become several stay as they are, as in C's library."""

    def __init__(self, change: Callable[[str], str]) -> None:
        super().__init__()
        self._change = change

    def __missing__(self, code: int) -> int:
        changed = self._change(chr(code))
        self[code] = ord(changed) if len(changed) == 1 else code
        return self[code]


def _change(name: str) -> Callable[[str], str]:
    if name == "NONE":
        return str
    if name not in {"LOWER", "UPPER"}:
        raise ValueError(f"no case_change_action is called {name!r}; there are LOWER, UPPER, NONE")
    whole = str.lower if name == "LOWER" else str.upper
    letters = _Letters(whole)
    return lambda s: whole(s) if s.isascii() else s.translate(letters)


def string_normalizer(a: Attributes) -> Callable[[Array], Array]:
    """StringNormalizer: words without those to drop, in another case; one empty word where none is left."""
    action, sensitive = a.word("case_change_action", "NONE"), bool(a.integer("is_case_sensitive", 0))
    change = _change(action)
    alike = str if sensitive else _change("UPPER" if action == "UPPER" else "LOWER")
    stops = {alike(word(s)) for s in a.strings("stopwords")}

    def run(x: Array) -> Array:
        if x.ndim not in {1, 2} or (x.ndim == 2 and x.shape[0] != 1):
            raise ValueError(f"the input has shape {list(x.shape)}; [words] or [1, words] is expected")
        words = list(map(word, x.reshape(-1).tolist()))
        kept = [w for w in words if alike(w) not in stops] if stops else words
        out = strings(list(map(change, kept)) or [""])
        return out.reshape(1, -1) if x.ndim == 2 else out

    return run


# ---- TfIdfVectorizer


class _Grams:
    """The n-grams of a pool as a tree: from a place in it and the next token to the next place. Tokens are counted from 0."""

    def __init__(self, pool: list[Any], counts: list[int], indexes: list[int]) -> None:
        self.tokens = {token: k for k, token in enumerate(dict.fromkeys(pool))}
        ways: dict[tuple[int, int], int] = {}
        self.ends: dict[int, int] = {}
        number = 0
        for n, (begin, end) in enumerate(zip(counts, [*counts[1:], len(pool)], strict=True), 1):
            if (end - begin) % n:
                raise ValueError(f"the pool has {end - begin} tokens in {n}-grams")
            for at in range(begin, end, n):
                place = 0
                for token in pool[at : at + n]:
                    place = ways.setdefault((place, self.tokens[token]), len(ways) + 1)
                if number >= len(indexes):
                    raise ValueError(f"there are more n-grams than ngram_indexes, {len(indexes)}")
                self.ends[place] = indexes[number]
                number += 1
        self._wide = len(self.tokens) + 1
        keys = np.array([place * self._wide + token for place, token in ways] or [-1], np.int64)
        order = np.argsort(keys)
        self._keys, self._to = keys[order], np.array(list(ways.values()) or [-1], np.int64)[order]
        self._ends = np.full(len(ways) + 1, -1, np.int64)
        self._ends[list(self.ends)] = list(self.ends.values())

    def numbers(self, x: Array) -> Array:
        """Tokens as numbers; what is in no n-gram has the number that no way has."""
        none = len(self.tokens)
        found = [self.tokens.get(token, none) for token in x.reshape(-1).tolist()]
        return np.array(found, np.int64).reshape(x.shape)

    def step(self, places: Array, tokens: Array) -> Array:
        """Where each place leads to; -1 for nowhere."""
        key = np.where(places < 0, -2, places * self._wide + tokens)
        at = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        return np.where(self._keys[at] == key, self._to[at], -1)

    def found(self, places: Array) -> Array:
        """The output for which the n-gram that ends at each place counts; -1 for none."""
        return np.where(places < 0, -1, self._ends[places])


def tf_idf_vectorizer(a: Attributes) -> Callable[[Array], Array]:
    """TfIdfVectorizer: how often each n-gram of the pool stands in each row, with up to `max_skip_count` tokens between its own."""
    mode = a.word("mode", "TF")
    if mode not in {"TF", "IDF", "TFIDF"}:
        raise ValueError(f"no mode is called {mode!r}; there are TF, IDF, TFIDF")
    least, most, skips = a.integer("min_gram_length", 1), a.integer("max_gram_length", 1), a.integer("max_skip_count", 0)
    words, indexes = a.strings("pool_strings"), a.ints("ngram_indexes").tolist()
    grams = _Grams(list(words) or a.ints("pool_int64s").tolist(), a.ints("ngram_counts").tolist(), indexes)
    size = max(indexes, default=-1) + 1
    weights = np.ones(size, np.float32)
    given = a.floats("weights")
    if given.size:
        if given.size != len(indexes):
            raise ValueError(f"there are {given.size} weights for {len(indexes)} n-grams")
        weights[indexes] = given

    def run(x: Array) -> Array:
        if x.ndim not in {1, 2}:
            raise ValueError(f"the input has shape {list(x.shape)}; one or two axes are expected")
        if (x.dtype == object) != bool(words) and x.size:
            raise TypeError(f"the pool holds {'strings' if words else 'integers'}, the input other values")
        table = grams.numbers(x.reshape(1, -1) if x.ndim == 1 else x)
        out = np.zeros((len(table), size), np.float32)
        step = max(1, _BLOCK // max(table.shape[1], 1))
        for at in range(0, len(table), step):
            _count(grams, table[at : at + step], out[at : at + step], (least, most, skips))
        if mode == "IDF":
            out = np.where(out > 0, weights, np.float32(0))
        elif mode == "TFIDF":
            out *= weights
        return out[0] if x.ndim == 1 else out

    return run


def _count(grams: _Grams, table: Array, out: Array, sizes: tuple[int, int, int]) -> None:
    least, most, skips = sizes
    rows, length = table.shape
    row = np.repeat(np.arange(rows), length)
    for apart in range(1, skips + 2):
        # Tokens alone have nothing between them: they are counted once.
        smallest = least if apart == 1 or least > 1 else 2
        if smallest > most:
            break
        places = np.zeros((rows, length), np.int64)
        for n in range(most):
            shift = n * apart
            if shift >= length:
                break
            places[:, : length - shift] = grams.step(places[:, : length - shift], table[:, shift:])
            places[:, length - shift :] = -1
            if n + 1 < smallest:
                continue
            which = grams.found(places).reshape(-1)
            hit = which >= 0
            np.add.at(out, (row[hit], which[hit]), np.float32(1))
