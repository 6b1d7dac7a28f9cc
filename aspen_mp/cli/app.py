"""The commands and their help; each lives in a file of its own and imports what it needs when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from aspen_mp.cli import agreement, doctor, launch, manage, metrics, plan, run, top, trace

app = typer.Typer(
    help="Runs ONNX networks on all cores of a machine without operator barriers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        from aspen_mp import __version__

        typer.echo(f"aspen-mp {__version__}")
        raise typer.Exit(0)


@app.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    pass


app.command("launch")(launch.launch)
app.command("run")(run.run)
app.command("plan")(plan.plan)
app.command("status")(manage.status)
app.command("top")(top.top)
app.command("metrics")(metrics.metrics)
app.command("trace")(trace.trace)
app.command("add")(manage.add)
app.command("remove")(manage.remove)
app.command("scale")(manage.scale)
app.command("stop")(manage.stop)
app.command("doctor")(doctor.doctor)
app.add_typer(agreement.app, name="bench")
