"""The options of `aspen-mp run --stream`, and what they mean together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from aspen_mp.cli import sources
from aspen_mp.client.streams import tolerance

StreamOption = Annotated[
    Path | None,
    typer.Option(
        "--stream",
        metavar="DIR",
        help="Run the files of this folder (.npy, .npz, .pb) as frames, in the order of their names. Only what changed since the frame "
        "before runs. --repeat counts the whole runs that are measured first.",
    ),
]
TolOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tol",
        metavar="DIFFERENCE",
        help="With --stream: the largest difference of an element that counts as none. NAME=DIFFERENCE: of this input; may be given "
        "several times.",
    ),
]
NoiseOption = Annotated[
    float,
    typer.Option("--noise", metavar="TIMES", min=0, help="With --stream: the same as a multiple of the input's noise."),
]
LayerTolOption = Annotated[
    float,
    typer.Option(
        "--layer-tol",
        metavar="SHARE",
        min=0,
        help="With --stream: the same as --tol inside the network, as a share of an activation's range.",
    ),
]
RefreshOption = Annotated[
    int,
    typer.Option("--refresh", metavar="N", min=0, help="With --stream: each N-th frame also runs whole, which tells the error. 0: none."),
]
MemoryOption = Annotated[
    int | None,
    typer.Option(
        "--stream-memory",
        metavar="MIB",
        min=1,
        help="With --stream: shared memory that activations of the last frame may take. Default: any.",
    ),
]
SameBitsOption = Annotated[
    bool | None,
    typer.Option(
        "--same-bits/--no-same-bits",
        help="With --stream: results have the bits of whole frames, or may differ by rounding errors. Default: the same bits, unless "
        "there is a tolerance.",
    ),
]


_OPTIONS = {
    **{"tol": "--tol", "noise": "--noise", "layer_tol": "--layer-tol", "refresh": "--refresh"},
    **{"same_bits": "--same-bits", "memory": "--stream-memory"},
}


def how(
    tol: Sequence[str] | None, noise: float, layer_tol: float, refresh: int, same_bits: bool | None, memory: int | None
) -> dict[str, Any]:
    """Arguments of `Model.stream` from the options."""
    found: dict[str, Any] = {"noise": noise, "layer_tol": layer_tol, "refresh": refresh}
    found |= {} if same_bits is None else {"same_bits": same_bits}
    found |= {} if memory is None else {"memory": memory << 20}
    if tol:
        lone = "" if len(tol) == 1 else None
        numbers = {name: _number(text) for name, text in sources.pairs(tol, "--tol", lone=lone).items()}
        found["tol"] = numbers.get("", numbers)
    try:
        tolerance.checked(found.get("tol", 0.0), noise, layer_tol, refresh, same_bits)
    except ValueError as error:  # below 0, infinite or NaN, or what does not go together
        raise typer.BadParameter(str(error)) from None
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number", param_hint="--tol") from None


def check_options(folder: Path | None, told: Mapping[str, Any], others: Mapping[str, bool]) -> None:
    """Typer's BadParameter for options that do not go together. `told`: of `how`; `others`: options that frames leave no place for."""
    if folder is None:
        if given := [_OPTIONS[name] for name, value in told.items() if value or name == "same_bits"]:
            raise typer.BadParameter("this is said of frames. Give --stream DIR as well, or leave it out", param_hint=given[0])
        return
    if not folder.exists():
        raise typer.BadParameter(f"there is no folder {str(folder)!r}. Give a folder of frames", param_hint="--stream")
    for name, is_given in others.items():
        if is_given:
            raise typer.BadParameter("--stream takes all frames from files and compares them with nothing. Leave this out", param_hint=name)
