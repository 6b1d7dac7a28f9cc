"""Models and inputs as a command line names them: files, `zoo:NAME`, NAME=FILE, NAME=1x3x224x224, random values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import typer

from aspen_mp.client import named_models

if TYPE_CHECKING:
    import onnx

    from aspen_mp.client.named_models import Collection
    from aspen_mp.planner.job.options import Accuracy, Objective, Planning, Precision

AUTO: Final = "auto"
Word = TypeVar("Word", bound=str)

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="An .onnx file, a .networks file, or zoo:NAME for a network of the built-in zoo.")
]
BatchOption = Annotated[int | None, typer.Option("--batch", min=1, help="Value of symbolic batch dimensions.")]
SeqOption = Annotated[int | None, typer.Option("--seq", min=1, help="Value of symbolic sequence dimensions.")]
WinogradOption = Annotated[
    bool | None,
    typer.Option(
        "--winograd/--no-winograd", help="Allow Winograd's and Strassen's algorithms, or neither. Default: what the profile says."
    ),
]
AccuracyOption = Annotated[
    str | None,
    typer.Option(
        "--accuracy",
        metavar="strict|default|fast",
        help="How much rounding error these algorithms may add. strict: up to 1.5 times that of direct sums; default: up to 4 times; "
        "fast: any. If not given: what the profile says.",
    ),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="f32|bf16",
        help="With bf16, products with constant weights round both factors to bf16, if the processor has instructions for it. "
        "Default: what the profile says.",
    ),
]
AutoPrecisionOption = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="f32|bf16|auto",
        help="With bf16, products with constant weights round both factors to bf16, if the processor has instructions for it. auto: the "
        "fastest of these whose error on --samples is at most --within. Default: what the profile says.",
    ),
]
SamplesOption = Annotated[
    Path | None, typer.Option("--samples", metavar="DIR", help="Samples for --precision auto, in the forms that `quantize` takes.")
]
WithinOption = Annotated[
    float,
    typer.Option(
        "--within", metavar="BOUND", min=0.0, help="Largest error for --precision auto, relative to the output's largest magnitude."
    ),
]
StacksOption = Annotated[
    bool,
    typer.Option("--stacks/--no-stacks", help="Run layers that do not mix channels depth first where that is faster, or each by itself."),
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="latency|throughput",
        help="The aim of the tiles: that one request ends soon, or that many are done in a time. Default: what the profile says.",
    ),
]
SearchOption = Annotated[
    str,
    typer.Option("--search", help="How long to search for better tiles: none, quick (seconds at most) or thorough.", metavar="EFFORT"),
]
ShapeOption = Annotated[
    list[str] | None, typer.Option("--shape", metavar="NAME=1x3x224x224", help="Shape of an input. May be given several times.")
]


def planning(search: str) -> Planning:
    """What --search says."""
    from aspen_mp.planner.job.options import EFFORTS, Planning

    for effort in EFFORTS:
        if effort == search:
            return Planning(search=effort)
    raise typer.BadParameter(f"{search!r} is not one of {', '.join(EFFORTS)}", param_hint="--search")


def precision(text: str | None) -> Precision | None:
    """What --precision says."""
    from aspen_mp.planner.job.options import PRECISIONS

    return one_of(text, PRECISIONS, "--precision")


def auto_precision(text: str | None, samples: Path | None, within: float) -> dict[str, Any]:
    """Arguments of `Runtime.load` from --precision, --samples and --within."""
    if (text == AUTO) != (samples is not None):
        raise typer.BadParameter("--precision auto and --samples DIR need each other. Give both, or neither", param_hint="--precision")
    if samples is None:
        return {"precision": precision(text)}
    if not samples.exists():
        raise typer.BadParameter(f"there is no folder {str(samples)!r}. Give a folder of samples", param_hint="--samples")
    return {"precision": AUTO, "samples": samples, "within": within}


def objective(text: str | None) -> Objective | None:
    """What --objective says."""
    from aspen_mp.planner.job.options import OBJECTIVES

    return one_of(text, OBJECTIVES, "--objective")


def accuracy(text: str | None) -> Accuracy | None:
    """What --accuracy says."""
    from aspen_mp.planner.job.options import ACCURACIES

    return one_of(text, ACCURACIES, "--accuracy")


def one_of(text: str | None, known: Sequence[Word], option: str) -> Word | None:
    """The word that an option gives, if it gives one."""
    for word in known:
        if text == word:
            return word
    if text is not None:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(known)}", param_hint=option)
    return None


_BATCH = ("batch", "n", "b", "bs")
_SEQ = ("seq", "sequence", "length", "tokens", "t", "s")


@dataclass(frozen=True)
class GivenModel:
    """A model to load. `model`: a path or a ModelProto. `label`: its name in messages. `collection`: where it comes from, if it has a
    name."""

    label: str
    model: str | onnx.ModelProto
    collection: Collection | None = None

    @property
    def joins(self) -> bool:
        """Whether it is a file that joins several networks."""
        return isinstance(self.model, str) and self.model.endswith(".networks")

    def index_limits(self) -> dict[str, int]:
        """The limits of `sources.index_limits`; for networks by the names that inputs have in the whole."""
        import onnx

        if not self.joins:
            return index_limits(self.proto())
        from aspen_mp.planner.frontends import networks

        members = networks.members(str(self.model))
        protos = {name: onnx.load(path, load_external_data=False) for name, path in members.items()}
        return {f"{name}.{key}": limit for name, proto in protos.items() for key, limit in index_limits(proto).items()}

    def proto(self) -> onnx.ModelProto:
        """The graph, external weights left where they are. Typer's BadParameter for a file that joins networks."""
        import onnx

        if self.joins:
            raise typer.BadParameter(f"{self.label} joins networks, and --check needs one. Name one of them", param_hint="--check")
        return onnx.load(self.model, load_external_data=False) if isinstance(self.model, str) else self.model


def exists(text: str) -> None:
    """Typer's BadParameter (exit status 2) if there is no model that `text` names."""
    _found(text)


def _found(text: str) -> tuple[Collection, str] | None:
    """The model of a collection that `text` names; None where it is a file that is there."""
    try:
        named = named_models.find(text)
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error), param_hint="MODEL") from None
    if named is not None:
        return named
    path = Path(text)
    if not path.exists():
        raise typer.BadParameter(
            f"there is no file {text!r}. Give the path of an .onnx file, or zoo:NAME for a network of the zoo", param_hint="MODEL"
        )
    if path.is_dir():
        raise typer.BadParameter(f"{text!r} is a folder. Give the path of an .onnx file in it", param_hint="MODEL")
    return None


def resolve(text: str, batch: int | None = None, seq: int | None = None) -> GivenModel:
    """The model that `text` names. Typer's BadParameter (exit status 2) if there is none."""
    named = _found(text)
    if named is None:
        return GivenModel(Path(text).name, text)
    collection, name = named
    return GivenModel(text, collection.build(name, batch=batch or 1, seq=seq or 128), collection)


def pairs(options: Sequence[str] | None, hint: str, lone: str | None = None) -> dict[str, str]:
    """``NAME=VALUE`` options as a dict. Without ``NAME=`` the value belongs to `lone`, if there is just one input."""
    found: dict[str, str] = {}
    for option in options or ():
        name, equals, value = option.partition("=")
        if not equals:
            if lone is None:
                raise typer.BadParameter(f"{option!r} names no input. Write NAME=VALUE", param_hint=hint)
            name, value = lone, option
        if name in found:
            raise typer.BadParameter(f"{name!r} is given twice. Give each input once", param_hint=hint)
        found[name] = value
    return found


def parse_shape(text: str) -> tuple[int, ...]:
    """``1x3x224x224`` (or with commas); an empty text is a scalar's shape."""
    try:
        dims = tuple(int(part) for part in text.replace(",", "x").split("x") if part != "")
    except ValueError:
        dims = (-1,)
    if any(d < 0 for d in dims):
        raise typer.BadParameter(f"{text!r} is not a shape. Write it like 1x3x224x224", param_hint="--shape")
    return dims


def bind_shape(
    name: str, shape: Sequence[int | str | None] | None, given: dict[str, tuple[int, ...]], batch: int | None, seq: int | None
) -> tuple[int, ...]:
    """The shape of an input as integers: from --shape, else its symbols from --batch and --seq; a free batch dimension is 1."""
    if name in given:
        want = given[name]
        if shape is not None and (len(want) != len(shape) or any(isinstance(d, int) and d != w for d, w in zip(shape, want, strict=True))):
            raise typer.BadParameter(f"input {name!r} has shape {describe(shape)}, not {'x'.join(map(str, want))}", param_hint="--shape")
        return want
    if shape is None:
        raise typer.BadParameter(f"the model does not say the shape of input {name!r}. Give it with --shape {name}=…", param_hint="--shape")
    dims = []
    for axis, dim in enumerate(shape):
        symbol = str(dim or "").lower().rpartition(".")[2]  # of networks that were joined: without the network's name
        if isinstance(dim, int):
            dims.append(dim)
        elif symbol.startswith(("batch", "unk__batch")) or symbol in _BATCH or (axis == 0 and not symbol):
            dims.append(batch or 1)
        elif seq is not None and (
            symbol.startswith(("seq", "sequence")) or symbol in _SEQ or "length" in symbol or (axis == 1 and not symbol)
        ):
            dims.append(seq)
        else:
            example = "x".join(str(d) if isinstance(d, int) else "N" for d in shape)
            raise typer.BadParameter(
                f"dimension {dim!r} of input {name!r} has no fixed size. Give --shape {name}={example}, --seq or --batch",
                param_hint="--shape",
            )
    return tuple(dims)


def describe(shape: Sequence[int | str | None] | None) -> str:
    """A shape for people: ``batchx3x224x224``, "?" where nothing is known, "scalar"."""
    if shape is None:
        return "?"
    return "x".join("?" if d is None or d == "" else str(d) for d in shape) or "scalar"


def load_array(path: str, name: str) -> npt.NDArray[Any]:
    """An input from a .npy file, a .pb file (TensorProto), or the entry `name` of an .npz file."""
    try:
        if path.endswith(".pb"):
            import onnx

            return np.asarray(onnx.numpy_helper.to_array(onnx.TensorProto.FromString(Path(path).read_bytes())))
        loaded = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise typer.BadParameter(f"there is no file {path!r}", param_hint="--input") from None
    except Exception as error:  # each format has errors of its own
        raise typer.BadParameter(
            f"{path!r} cannot be read as an array: {error}. Give a .npy, .npz or .pb file", param_hint="--input"
        ) from None
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        if name not in loaded:
            raise typer.BadParameter(f"{path!r} has no array {name!r}; it has {', '.join(loaded.files)}", param_hint="--input")
        return np.asarray(loaded[name])


def index_limits(model: onnx.ModelProto) -> dict[str, int]:
    """For graph inputs that index a constant table (token ids of an embedding), the number of its rows."""
    tables = {t.name: list(t.dims) for t in model.graph.initializer}
    limits: dict[str, int] = {}
    source = {i.name: i.name for i in model.graph.input}
    for node in model.graph.node:
        if node.op_type in ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand") and node.input[0] in source:
            source[node.output[0]] = source[node.input[0]]
        elif node.op_type == "Gather" and node.input[0] in tables and node.input[1] in source:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            name = source[node.input[1]]
            limits[name] = min(limits.get(name, 1 << 31), tables[node.input[0]][axis])
    return limits


def random_array(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], limit: int | None, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Plausible values: normal floats, indices below `limit`, masks of ones, segment ids of zeros."""
    if dtype.kind in "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype == np.dtype(bool):
        return np.ones(shape, dtype)
    if dtype.kind in "iu":
        if "mask" in name.lower():
            return np.ones(shape, dtype)
        top = limit if limit is not None else 2 if "type" in name.lower() or "segment" in name.lower() else 100
        return rng.integers(0, max(1, min(top, np.iinfo(dtype).max)), shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    if dtype == np.dtype(object):
        return np.array([f"text {i}" for i in range(int(np.prod(shape)))], dtype=object).reshape(shape)
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)  # bfloat16 and the 8-bit floats
