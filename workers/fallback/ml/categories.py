"""Operators that look things up: LabelEncoder, CategoryMapper, OneHotEncoder; and those on maps: DictVectorizer, CastMap, ZipMap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import Any, Final

import numpy as np

from aspen_mp.shm.values import Maps
from aspen_mp.workers.fallback.ml.attributes import Array, Attributes, strings, text

_KINDS: Final = ("strings", "int64s", "floats")


class Table:
    """Keys → values, with a value for all other keys. The first of equal keys counts, or the `last`. NaN may be a key where `nan`."""

    def __init__(self, keys: Array, values: Array, default: Any, *, last: bool = False, nan: bool = False) -> None:
        if len(keys) != len(values):
            raise ValueError(f"there are {len(keys)} keys for {len(values)} values")
        self._values = np.append(values, strings([default]) if values.dtype == object else np.array([default], values.dtype))
        self._words = keys.dtype == object
        order = range(len(keys)) if last else range(len(keys) - 1, -1, -1)
        if self._words:
            self._places = {text(keys[k]): k for k in order}
            return
        odd = np.isnan(keys) if keys.dtype.kind == "f" else np.zeros(len(keys), bool)
        self._nan = int(np.flatnonzero(odd)[-1 if last else 0]) if nan and odd.any() else -1
        kept = np.flatnonzero(~odd)
        turned = kept[::-1] if last else kept
        self._keys, first = np.unique(keys[turned], return_index=True)
        self._order = turned[first]

    def __call__(self, x: Array) -> Array:
        """The values of keys of any shape."""
        none = len(self._values) - 1
        if self._words:
            # One call of a dictionary for each word, without a step of the interpreter: numpy would have to sort the words.
            at = np.fromiter(map(self._places.get, x.reshape(-1).tolist(), repeat(none)), np.intp, x.size)
        elif not self._keys.size:
            at = np.full(x.size, none)
        else:
            flat = x.reshape(-1)
            place = np.minimum(np.searchsorted(self._keys, flat), len(self._keys) - 1)
            at = np.where(self._keys[place] == flat, self._order[place], none)
        if not self._words and self._nan >= 0:
            at = np.where(np.isnan(x.reshape(-1)), self._nan, at)
        return self._values[at].reshape(x.shape)


def _values(a: Attributes, what: str, kind: str) -> Array:
    if kind == "strings":
        return strings(a.strings(f"{what}_strings"))
    return a.ints(f"{what}_int64s") if kind == "int64s" else a.floats(f"{what}_floats")


def _list(a: Attributes, what: str, kinds: Iterable[str] = _KINDS) -> Array:
    """Keys or values: a list of one type, or a tensor."""
    tensor = a.tensor(f"{what}_tensor")
    given = [kind for kind in kinds if f"{what}_{kind}" in a]
    if len(given) + (tensor is not None) != 1:
        raise ValueError(f"{what} must be given once, as a list of strings, integers or floats, or as a tensor")
    return _values(a, what, given[0]) if tensor is None else tensor


def label_encoder(a: Attributes, version: int) -> Callable[[Array], Array]:
    """LabelEncoder of all versions: each element by a table."""
    if version < 2:
        return _numbered(strings(a.strings("classes_strings")), None, a)
    keys, values = _list(a, "keys"), _list(a, "values")
    default = a.tensor("default_tensor") if version >= 4 else None
    other: Any
    if default is not None and default.size:
        other = default[0]
    elif values.dtype == object:
        other = a.string("default_string", "_Unused")
    elif values.dtype == np.float32:
        other = a.number("default_float", -0.0)
    elif values.dtype == np.int64:
        other = a.integer("default_int64", -1)
    else:  # onnxruntime reads no attribute for types that have none of their own
        other = -0.0 if values.dtype.kind == "f" else -1
    table = Table(keys, values, other, nan=version >= 4)

    def run(x: Array) -> Array:
        if (x.dtype == object) != (keys.dtype == object):
            raise TypeError(f"keys are {_kind(keys)}, the input is {_kind(x)}")
        return table(x)

    return run


def category_mapper(a: Attributes) -> Callable[[Array], Array]:
    """CategoryMapper: strings to integers, or back."""
    return _numbered(strings(a.strings("cats_strings")), a.ints("cats_int64s"), a)


def _numbered(words: Array, numbers: Array | None, a: Attributes) -> Callable[[Array], Array]:
    """Strings to numbers and numbers to strings, by the type of the input. `numbers`: by default, 0, 1, 2 …"""
    numbers = np.arange(len(words)) if numbers is None else numbers
    of_words = Table(words, numbers, a.integer("default_int64", -1), last=True)
    of_numbers = Table(numbers, words, a.string("default_string", "_Unused"), last=True)
    return lambda x: of_words(x) if x.dtype == object else of_numbers(x)


def _kind(x: Array) -> str:
    return "strings" if x.dtype == object else str(x.dtype)


def one_hot_encoder(a: Attributes) -> Callable[[Array], Array]:
    """OneHotEncoder: a new last axis with a 1 at each element's category, float32. Floats are cut off to integers first."""
    numbers, words, zeros = a.ints("cats_int64s"), a.strings("cats_strings"), bool(a.integer("zeros", 1))
    if bool(numbers.size) == bool(words):
        raise ValueError("one of cats_int64s and cats_strings must be given")
    keys = strings(words) if words else numbers
    table = Table(keys, np.arange(len(keys)), -1, last=True)

    def run(x: Array) -> Array:
        if (x.dtype == object) != (keys.dtype == object):
            raise TypeError(f"categories are {_kind(keys)}, the input is {_kind(x)}")
        which = table(x if x.dtype == object else x.astype(np.int64))
        if not zeros and (which < 0).any():
            raise ValueError("the input holds an element of no category, which zeros = 0 does not allow")
        hot: Array = which[..., None] == np.arange(len(keys))
        return hot.astype(np.float32)

    return run


def dict_vectorizer(a: Attributes, dtype: np.dtype[Any] | None) -> Callable[[Mapping[Any, Any]], Array]:
    """DictVectorizer: the values of a map in the order of a vocabulary, [1, words]; 0 or "" for what the map has not. `dtype`: of the
    values, as the model declares them."""
    words: list[Any] = list(a.strings("string_vocabulary")) or a.ints("int64_vocabulary").tolist()
    if not words:
        raise ValueError("one of string_vocabulary and int64_vocabulary must be given")

    def run(given: Mapping[Any, Any]) -> Array:
        values = [_scalar(v) for v in _map(given).values()]
        of_words = dtype == np.dtype(object) or (dtype is None and any(isinstance(v, (str, bytes)) for v in values))
        found = list(map(dict(zip(given, values, strict=True)).get, words, repeat("" if of_words else 0)))
        return (strings(found) if of_words else np.array(found, dtype or np.float32)).reshape(1, -1)

    return run


def _map(given: Any, kind: type | tuple[type, ...] = (int, str, bytes)) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping) or not all(isinstance(key, kind) for key in given):
        raise TypeError(f"a map is expected, with {'integers' if kind is int else 'integers or strings'} for keys, not {given!r:.100}")
    return given


def _scalar(value: Any) -> Any:
    """The number or string itself: maps hold them as arrays of no axes, or of one element."""
    return value.reshape(-1)[0] if isinstance(value, np.ndarray) and value.size == 1 else value


def cast_map(a: Attributes) -> Callable[[Mapping[int, Any]], Array]:
    """CastMap: the values of a map in the order of its keys [1, n], or each at its key's place [1, max_map] with 0 between them."""
    to, form, size = a.word("cast_to", "TO_FLOAT"), a.word("map_form", "DENSE"), a.integer("max_map", 1)
    if to not in {"TO_FLOAT", "TO_INT64", "TO_STRING"} or form not in {"DENSE", "SPARSE"} or (form == "SPARSE" and size <= 0):
        raise ValueError(f"cast_to {to!r}, map_form {form!r} or max_map {size} is not known")

    def cast(value: Any) -> Any:
        if to == "TO_STRING":
            return value if isinstance(value, (str, bytes)) else f"{value:.6f}"
        number = float(value)
        return int(number) if to == "TO_INT64" else number

    def run(given: Mapping[int, Any]) -> Array:
        values = {key: cast(_scalar(given[key])) for key in sorted(_map(given, int))}
        if form == "SPARSE":
            if any(key < 0 for key in values):
                raise ValueError(f"the map has the negative key {min(values)}")
            places = [values.get(k, "0.f" if to == "TO_STRING" else 0) for k in range(size)]
        else:
            places = list(values.values())
        dtype = np.float32 if to == "TO_FLOAT" else np.int64
        return (strings(places) if to == "TO_STRING" else np.array(places, dtype)).reshape(1, -1)

    return run


def zip_map(a: Attributes) -> Callable[[Array], Maps]:
    """ZipMap: a sequence of one map a row, from class to score, in the order of classes, which is that of onnxruntime's maps."""
    words, numbers = a.strings("classlabels_strings"), a.ints("classlabels_int64s")
    if bool(words) == bool(numbers.size):
        raise ValueError("one of classlabels_strings and classlabels_int64s must be given")
    keys: list[Any] = list(words) if words else numbers.tolist()
    places = {key: k for k, key in enumerate(keys)}
    ordered = sorted(places, key=lambda key: key.encode() if isinstance(key, str) else key)
    columns = [places[key] for key in ordered]

    def run(x: Array) -> Maps:
        if x.ndim not in {1, 2} or x.shape[-1] != len(keys):
            raise ValueError(f"there are {len(keys)} class labels for scores of shape {list(x.shape)}")
        return Maps(ordered, x.reshape(-1, len(keys))[:, columns])

    return run
