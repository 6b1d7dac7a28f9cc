"""The commands of `aspen-mp bench`; each imports what it measures when it runs."""

from __future__ import annotations

import typer

from aspen_mp.bench.cli import figures, load, networks, render

app = typer.Typer(
    name="bench",
    help="Measure: whole networks beside other runtimes, kernels beside the machine's limits.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("peers")(networks.peers)
app.command("kernels")(networks.kernels)
app.command("prediction")(networks.prediction)
app.command("elastic")(load.elastic)
app.command("storm")(load.storm)
app.command("churn")(load.churn)
app.command("shapes")(networks.shapes)
app.command("clients")(load.clients)
app.command("hetero")(figures.hetero)
app.command("scaling")(figures.scaling)
app.command("barriers")(figures.barriers)
app.command("order")(figures.order)
app.command("tiles")(figures.tiles)
app.command("synthetic")(figures.synthetic)
app.command("lengths")(figures.lengths)
app.command("agreement")(networks.agreement)
app.command("render")(render.render)
