"""`aspen-mp bench agreement`: rounding errors of the zoo's convolutional networks against float64."""

from __future__ import annotations

from typing import Annotated

import typer

from aspen_mp.cli import figures, output
from aspen_mp.cli.bench import OutputOption, _write

app = figures.app


@app.command("agreement")
@output.command
def agreement(
    networks: Annotated[
        list[str] | None, typer.Argument(metavar="NETWORK…", help="Of the zoo; default: all that have convolutions.")
    ] = None,
    weights: Annotated[str, typer.Option("--weights", metavar="zoo,pytorch", help="Whose weights.")] = "zoo,pytorch",
    file: OutputOption = None,
    as_json: output.Json = False,
) -> None:
    """Compare networks with their evaluation in float64, by level of accuracy, beside direct sums and onnxruntime.

    Errors are shares of the largest output. Needs onnxruntime. Takes some seconds a network, more for large ones.
    """
    import aspen_mp
    from aspen_mp.bench import errors
    from aspen_mp.planner.job.options import ACCURACIES

    names = networks or errors.networks()
    unknown = [name for name in names if name not in errors.networks()]
    if unknown:
        raise typer.BadParameter(f"no convolutional network {', '.join(map(repr, unknown))} in the zoo", param_hint="NETWORK")
    kinds = [kind for kind in errors.WEIGHTS if kind in weights.split(",")]
    if not kinds or any(part not in errors.WEIGHTS for part in weights.split(",")):
        raise typer.BadParameter(f"{weights!r}: one or both of {', '.join(errors.WEIGHTS)}", param_hint="--weights")
    found = []
    with aspen_mp.Runtime() as runtime, output.progress("comparing", quiet=as_json) as update:
        total = len(names) * len(kinds)
        for row in errors.rows(names, runtime, kinds):
            found.append(row)
            update(f"{row.network}, {row.weights}", len(found), total)
    _write(errors.document(found), file, as_json)
    if as_json:
        return
    columns = ["network", "weights", "onnxruntime", "direct", *ACCURACIES]
    table = [
        [row.network, row.weights, f"{row.onnxruntime:.1e}", f"{row.direct:.1e}"]
        + [f"{row.levels[level]:.1e} ×{row.factor(level):.1f}" for level in ACCURACIES]
        for row in found
    ]
    output.table("largest error against float64, and times that of direct sums", columns, table, right=range(2, len(columns)))
