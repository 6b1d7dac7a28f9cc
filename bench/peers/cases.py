"""A case: a network of the zoo with its sizes, written `resnet50`, `resnet50@batch=8`, `bert_base@seq=480,norm=decomposed`, and its
precision, `resnet50@precision=bf16`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, fields
from typing import Any

from aspen_mp.bench import models
from aspen_mp.bench.models.text import TextOptions
from aspen_mp.bench.models.zoo import entry_of
from aspen_mp.planner.job.options import PRECISIONS, Precision


@dataclass(frozen=True, slots=True)
class Case:
    """A network of the zoo with its sizes; `options` are those of `models.build`. `precision`: what engines that can may compute in."""

    network: str
    batch: int = 1
    seq: int = 128
    options: dict[str, Any] = field(default_factory=dict)
    precision: Precision = "f32"

    @property
    def label(self) -> str:
        """The case as `parse` reads it. Tokens are always named, a batch of one is not."""
        sizes = [f"batch={self.batch}"] if self.batch != 1 else []
        if entry_of(self.network).options is TextOptions:
            sizes.append(f"seq={self.seq}")
        sizes += [f"{key}={_text(value)}" for key, value in self.options.items()]
        sizes += [f"precision={self.precision}"] if self.precision != "f32" else []
        return f"{self.network}@{','.join(sizes)}" if sizes else self.network


def parse(text: str, batch: int = 1, seq: int = 128) -> Case:
    """A case from its spelling; `batch` and `seq` are the sizes of those that name none. ValueError says what is wrong."""
    network, _, rest = text.partition("@")
    if network not in models.names(extra=True):
        raise ValueError(f"the zoo has no {network!r}. It has {', '.join(models.names(extra=True))}")
    options: dict[str, Any] = {"batch": batch, "seq": seq}
    precision: Precision = "f32"
    known = [*_options(network), "precision"]
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if not equals or key not in known:
            raise ValueError(f"{text!r}: {part!r} is unknown. Give some of {', '.join(f'{name}=…' for name in known)}")
        if key == "precision":
            precision = _precision(text, value)
        else:
            options[key] = _value(value)
    for key in ("batch", "seq"):
        if type(options[key]) is not int or options[key] < 1:
            raise ValueError(f"{text!r}: {key} must be a number from 1 on, not {options[key]!r}")
    return Case(network, options.pop("batch"), options.pop("seq"), options, precision)


def _precision(text: str, value: str) -> Precision:
    for known in PRECISIONS:
        if value == known:
            return known
    raise ValueError(f"{text!r}: precision must be one of {', '.join(PRECISIONS)}, not {value!r}")


def _options(network: str) -> list[str]:
    """Keys that a network takes: sizes, how it is written, and its builder's own."""
    entry = entry_of(network)
    own = [name for name, p in inspect.signature(entry.make).parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    return list(dict.fromkeys(["batch", "seq", "dtype", *(f.name for f in fields(entry.options)), *own]))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if "x" in text and all(part.isdigit() for part in text.split("x")):
        return tuple(int(part) for part in text.split("x"))
    return text
