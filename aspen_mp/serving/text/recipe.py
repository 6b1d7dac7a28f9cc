"""How a model makes an embedding of tokens: by its ``config.toml``, else by sentence-transformers' files beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from aspen_mp.client.signature import ValueInfo
from aspen_mp.serving.repository.disk import Embeddings, Pooling, unreadable
from aspen_mp.shm.errors import ConfigError
from aspen_mp.system import filesystem

INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
MOST_TOKENS: Final = 512
"""Most tokens of a text, where nothing beside the model says how many it was trained for."""
_POOLED: Final = "sentence_embedding"
_UNKNOWN: Final = 1 << 24
"""`model_max_length` of tokenizers that do not know theirs is larger."""
_MODULES: Final = {"Transformer", "Pooling", "Normalize"}


class Unsuitable(Exception):
    """The model makes no embeddings of texts; the text says why."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make embeddings.

    Attributes:
        inputs: Those of `INPUTS` that the model has.
        output: The name of the output.
        pooling: What becomes of an output [batch, tokens, hidden]; "none" for one that is [batch, hidden].
        normalize: Whether vectors are made as long as 1.
        max_tokens: Of a text, with those that the tokenizer adds.
        truncate: Whether longer texts lose their end; they are refused otherwise.
        prefix: What stands before each text.
        rows: Texts of a run, where the model fixes their number; None elsewhere.
        columns: Tokens of a run, where the model fixes their number; None elsewhere.
        hidden: Numbers of a vector; None where the model does not say.
    """

    inputs: tuple[str, ...]
    output: str
    pooling: Pooling
    normalize: bool
    max_tokens: int
    truncate: bool
    prefix: str
    rows: int | None
    columns: int | None
    hidden: int | None

    @property
    def pads(self) -> bool:
        """Whether texts of different lengths can be run together: the model is told which tokens are padding."""
        return "attention_mask" in self.inputs


def find(folder: Path, settings: Embeddings, inputs: Sequence[ValueInfo], outputs: Sequence[ValueInfo]) -> Recipe:
    """The recipe of the model in `folder`. Unsuitable; as `disk.unreadable` where a file beside it cannot be read."""
    rows, columns = _sizes(inputs)
    output = _output(settings, outputs)
    names = tuple(info.name for info in inputs if info.name in INPUTS)
    if columns is not None and "attention_mask" not in names:
        raise Unsuitable(f"it takes {columns} tokens always, and has no input attention_mask to tell padding by")
    modules = _modules(folder) if len(output.shape or ()) == 3 else None
    max_tokens = settings.max_tokens or _max_tokens(folder)
    return Recipe(
        inputs=names,
        output=output.name,
        pooling=_pooling(folder, settings, output),
        normalize=_normalize(settings, modules, output),
        max_tokens=min(max_tokens, columns or max_tokens),
        truncate=settings.truncate,
        prefix=_prefix(folder) if settings.prefix is None else settings.prefix,
        rows=rows,
        columns=columns,
        hidden=hidden if isinstance(hidden := (output.shape or (None,))[-1], int) else None,
    )


def _sizes(inputs: Sequence[ValueInfo]) -> tuple[int | None, int | None]:
    """The numbers of texts and tokens that a model takes; None where they are open."""
    needed = [info for info in inputs if not info.optional]
    ids = next((info for info in needed if info.name == "input_ids"), None)
    if ids is None:
        raise Unsuitable("it has no input input_ids")
    for info in needed:
        if info.name not in INPUTS:
            raise Unsuitable(f"no tokenizer makes its input {info.name!r}")
        if info.dtype not in (np.int64, np.int32) or len(info.shape or ()) != 2:
            raise Unsuitable(f"its input {info.name!r} is not int64 or int32 [batch, tokens]")
    rows, columns = (dim if isinstance(dim, int) else None for dim in ids.shape or ())
    return rows, columns


def _output(settings: Embeddings, outputs: Sequence[ValueInfo]) -> ValueInfo:
    """The output that vectors come from."""
    if settings.output is not None:
        found = next((info for info in outputs if info.name == settings.output), None)
        if found is None:
            raise Unsuitable(f"it has no output {settings.output!r} (embeddings.output), but {', '.join(info.name for info in outputs)}")
        if len(found.shape or ()) not in (2, 3):
            raise Unsuitable(f"its output {found.name!r} (embeddings.output) is neither [batch, tokens, hidden] nor [batch, hidden]")
        return found
    usable = [info for info in outputs if info.dtype in (np.float32, np.float16, np.float64)]
    pooled = [info for info in usable if len(info.shape or ()) == 2]
    states = [info for info in usable if len(info.shape or ()) == 3]
    for chosen in ([info for info in pooled if info.name == _POOLED], states, pooled):  # "pooler_output" stands behind the states
        if chosen:
            return chosen[0]
    raise Unsuitable("it has no output [batch, tokens, hidden] or [batch, hidden]")


def _pooling(folder: Path, settings: Embeddings, output: ValueInfo) -> Pooling:
    tokens = len(output.shape or ()) == 3
    chosen = settings.pooling
    if chosen is None:
        return _pooling_beside(folder) if tokens else "none"
    if tokens == (chosen == "none"):
        kind = "[batch, tokens, hidden], which needs one" if tokens else "[batch, hidden], which has been pooled"
        raise Unsuitable(f"embeddings.pooling is {chosen!r}, and output {output.name!r} is {kind}")
    return chosen


def _pooling_beside(folder: Path) -> Pooling:
    """As sentence-transformers has noted it: one key of each kind, or a name."""
    said = _read(folder / "1_Pooling" / "config.json")
    names: dict[str, Pooling] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
    keys = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}
    wanted = [name for name, key in keys.items() if said.get(f"pooling_mode_{key}")]
    others = [key for key in said if key.startswith("pooling_mode_") and said[key] and key[len("pooling_mode_") :] not in keys.values()]
    if "pooling_mode" in said:
        wanted = [said["pooling_mode"]] if isinstance(said["pooling_mode"], str) else list(said["pooling_mode"])
    if others or len(wanted) > 1 or any(name not in names for name in wanted):
        raise Unsuitable(f"1_Pooling/config.json asks for {[*wanted, *others]}. Pool within the model, or set embeddings.pooling")
    return names[wanted[0]] if wanted else "mean"


def _modules(folder: Path) -> list[str] | None:
    """The names of a sentence-transformers model's modules; None without them. Unsuitable where one is not computed here."""
    path = folder / "modules.json"
    if not filesystem.exists(path):
        return None
    said = _json(path)
    if not isinstance(said, list) or not all(isinstance(each, dict) and isinstance(each.get("type"), str) for each in said):
        raise ConfigError(f"{path} is not a list of modules")
    names = [each["type"].rpartition(".")[2] for each in said]
    if unknown := [name for name in names if name not in _MODULES]:
        raise Unsuitable(f"modules.json has {', '.join(unknown)}, which is not in the model. Export the whole of it to ONNX")
    return names


def _normalize(settings: Embeddings, modules: list[str] | None, output: ValueInfo) -> bool:
    if settings.normalize is not None:
        return settings.normalize
    return len(output.shape or ()) == 3 and (modules is None or "Normalize" in modules)


def _max_tokens(folder: Path) -> int:
    truncation = _read(folder / "tokenizer.json").get("truncation")
    for found in (
        _read(folder / "sentence_bert_config.json").get("max_seq_length"),
        _read(folder / "tokenizer_config.json").get("model_max_length"),
        truncation.get("max_length") if isinstance(truncation, dict) else None,
    ):
        if isinstance(found, int) and 0 < found < _UNKNOWN:
            return found
    return MOST_TOKENS


def _prefix(folder: Path) -> str:
    """The prompt that sentence-transformers puts before each text unless it is told otherwise."""
    said = _read(folder / "config_sentence_transformers.json")
    prompts, name = said.get("prompts"), said.get("default_prompt_name")
    found = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    return found if isinstance(found, str) else ""


def _read(path: Path) -> dict[str, Any]:
    """The object of a file of JSON; an empty one where there is no file."""
    if not filesystem.exists(path):
        return {}
    found = _json(path)
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return found


def _json(path: Path) -> Any:
    try:
        with filesystem.open(path, encoding="utf-8") as file:
            return json.loads(file.read())
    except (OSError, MemoryError, ValueError, RecursionError) as error:
        raise unreadable(path, error) from None
