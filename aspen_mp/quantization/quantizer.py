"""onnxruntime's quantiser: preparing a model, taking ranges of values, and writing the model in 8 bits.

Nothing here computes scales. All of that is `onnxruntime.quantization`.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from aspen_mp.client.trials.samples import Feeds
from aspen_mp.shm.errors import AspenError, RequestError
from aspen_mp.shm.words import nearest

if TYPE_CHECKING:
    import onnx

Activations = Literal["u8", "s8"]
ACTIVATIONS: Final[tuple[Activations, ...]] = ("u8", "s8")
Method = Literal["minmax", "entropy", "percentile"]
METHODS: Final[tuple[Method, ...]] = ("minmax", "entropy", "percentile")
_METHODS: Final = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
MOST_IN_ONE_FILE: Final = 1 << 30
"""Bytes of a model from which its weights are written to a file of their own. A protobuf holds 2 GiB, and tools write copies of weights."""
_ARRANGING: Final = {"QuantizeLinear", "DequantizeLinear"}


@dataclass(frozen=True, slots=True)
class Options:
    """How to quantise. `per_channel`: a scale for each channel of the weights, which are of s8. `activations`: their type. `method`: how
    ranges follow from the values of samples."""

    per_channel: bool = True
    activations: Activations = "u8"
    method: Method = "minmax"


def tools() -> Any:
    """`onnxruntime.quantization`. AspenError where it is missing or too old for the installed onnx."""
    try:
        import onnxruntime.quantization as found
    except ImportError as error:
        raise AspenError(f"quantising needs onnxruntime's quantiser ({error}). Install it: pip install 'aspen-mp[quantize]'") from None
    return found


class Quantizer:
    """A model that can be quantised again and again with other layers left in floats.

    `path`: the model's file. `folder`: for files that are needed meanwhile. `prepare`: whether shapes are inferred, constants folded and
    BatchNormalizations merged first. `samples`: a call that gives the samples that ranges are taken from. AspenError says what the tools
    refuse.
    """

    def __init__(self, path: Path, folder: Path, options: Options, samples: Any, *, prepare: bool) -> None:
        self._tools = tools()
        self._options, self._samples = options, samples
        self._folder = folder
        self.large = size_of(path) >= MOST_IN_ONE_FILE
        self.prepared = folder / "prepared.onnx"
        if any(node.op_type in _ARRANGING for node in read(path).graph.node):
            raise RequestError(f"{path.name} is quantised already. Give the model in floats that it was made from")
        with _quiet():
            _prepare(path, self.prepared, large=self.large, whole=prepare)
        self.model = _named(self.prepared)
        self._cache = folder / "ranges.json"
        known = inspect.signature(self._tools.quantize_static).parameters
        self._cached = "calibration_cache_path" in known  # releases without it take the ranges anew each time

    def kept(self, wanted: Iterable[str]) -> list[str]:
        """The names of the nodes that names of nodes and operator types stand for. RequestError for what the model does not have."""
        nodes = [(node.name, node.op_type) for node in self.model.graph.node]
        names, types = {name for name, _ in nodes}, {op for _, op in nodes}
        found: list[str] = []
        for word in wanted:
            if word not in names and word not in types:
                close = nearest(word, sorted(names | types))
                hint = f"Did you mean {close!r}? " if close else ""
                raise RequestError(
                    f"the prepared model has neither a node nor an operator {word!r}. {hint}A report without that option lists its layers"
                )
            found += [word] if word in names else [name for name, op in nodes if op == word]
        return list(dict.fromkeys(found))

    def write(self, out: Path, kept: Sequence[str]) -> None:
        """The model in 8 bits, with the nodes `kept` in floats. Weights of a large model come to lie in `out`'s name with ``.data``."""
        options, tools = self._options, self._tools
        more: dict[str, Any] = {"calibration_cache_path": self._cache} if self._cached else {}
        for old in (out, data_of(out)):
            old.unlink(missing_ok=True)
        try:
            with _quiet():
                tools.quantize_static(
                    str(self.prepared),
                    str(out),
                    _reader(tools, self._samples()),
                    quant_format=tools.QuantFormat.QDQ,
                    per_channel=options.per_channel,
                    activation_type=tools.QuantType.QUInt8 if options.activations == "u8" else tools.QuantType.QInt8,
                    weight_type=tools.QuantType.QInt8,
                    nodes_to_exclude=list(kept),
                    use_external_data_format=self.large,
                    calibrate_method=getattr(tools.CalibrationMethod, _METHODS[options.method]),
                    **more,
                )
        except AspenError:
            raise
        except Exception as error:  # the tools raise whatever comes
            raise AspenError(
                f"onnxruntime's quantiser cannot quantise the model: {type(error).__name__}: {error}. "
                "Keep the layer that it names in floats, or try another calibration method"
            ) from error


def layers_of(model: onnx.ModelProto) -> dict[str, str]:
    """The quantised layers of a model in 8 bits: nodes that read values between QuantizeLinear and DequantizeLinear. Name → operator."""
    restored = {node.output[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    return {
        node.name: node.op_type
        for node in model.graph.node
        if node.op_type not in _ARRANGING and node.name and any(name in restored for name in node.input)
    }


def read(path: Path) -> onnx.ModelProto:
    """The graph, with external weights left where they are."""
    import onnx

    return onnx.load(str(path), load_external_data=False)


def data_of(path: Path) -> Path:
    """Where a large model's weights lie."""
    return path.with_name(path.name + ".data")


def files_of(path: Path) -> list[Path]:
    """The model's file and those of its external data."""
    from onnx import external_data_helper

    names = {
        entry.value
        for tensor in external_data_helper._get_all_tensors(read(path))
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return [path, *(path.parent / name for name in sorted(names))]


def move(path: Path, to: Path) -> None:
    """Give a written model another place in the same file system, its external data too."""
    import onnx
    from onnx import external_data_helper

    old, new = data_of(path), data_of(to)
    if not old.exists():
        new.unlink(missing_ok=True)
        os.replace(path, to)
        return
    model = read(path)
    for tensor in external_data_helper._get_all_tensors(model):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = new.name
    onnx.save(model, str(path))
    os.replace(old, new)
    os.replace(path, to)


def size_of(path: Path) -> int:
    """Bytes of a model's files."""
    return sum(file.stat().st_size for file in files_of(path) if file.exists())


def _prepare(path: Path, to: Path, *, large: bool, whole: bool) -> None:
    """The tools' own preparation. onnx alone infers shapes where sympy is missing, or where it fails."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    how: dict[str, Any] = {"skip_optimization": not whole}
    if large:
        how |= {"save_as_external_data": True, "all_tensors_to_one_file": True, "external_data_location": data_of(to).name}
    try:
        quant_pre_process(str(path), str(to), skip_symbolic_shape=not whole, **how)
    except Exception:  # of symbolic shape inference, which knows fewer operators than onnx
        try:
            quant_pre_process(str(path), str(to), skip_symbolic_shape=True, **how)
        except Exception as error:
            raise AspenError(
                f"onnxruntime's tools cannot prepare the model: {type(error).__name__}: {error}. Try without preparation (--no-prepare)"
            ) from error


def _named(path: Path) -> onnx.ModelProto:
    """The model, after each of its nodes has got a name of its own, by which it can be kept."""
    import onnx

    model = read(path)
    taken: set[str] = set()
    for node in model.graph.node:
        if not node.name or node.name in taken:
            node.name = next(name for name in _spellings(node.op_type, node.output) if name not in taken)
        taken.add(node.name)
    onnx.save(model, str(path))
    return model


def _spellings(op: str, outputs: Sequence[str]) -> Iterator[str]:
    stem = f"{op} {outputs[0]}" if outputs and outputs[0] else op
    yield stem
    k = 2
    while True:
        yield f"{stem} {k}"
        k += 1


def _reader(tools: Any, samples: Iterable[Feeds]) -> Any:
    """The samples as the tools ask for them."""

    class Reader(tools.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(samples)

        def get_next(self) -> Feeds | None:
            return next(self.left, None)

    return Reader()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the tools' progress out of standard output, which is the report's, and their advice out of the log: `_prepare` follows it."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
