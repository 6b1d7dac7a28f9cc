"""The commands and their help; each lives in a file of its own and imports what it needs when it runs."""

from __future__ import annotations

import importlib
from typing import Annotated, Any, Final

import typer
import typer.main
from typer.core import TyperGroup

from aspen_mp.cli import doctor, launch, manage, metrics, plan, run, top, trace

MOUNTED: Final = {"bench": "aspen_mp.bench.cli.app"}
"""By command: the module above this package whose `app` it is, imported when somebody asks for it, or for all commands."""


class _Commands(TyperGroup):
    """The commands of this package, and those that are mounted."""

    def list_commands(self, ctx: Any) -> list[str]:
        self._mount()
        return super().list_commands(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            self._mount()
        return super().resolve_command(ctx, args)

    def _mount(self) -> None:
        for name, module in MOUNTED.items():
            if name not in self.commands:
                self.commands[name] = typer.main.get_command(importlib.import_module(module).app)


app = typer.Typer(
    cls=_Commands,
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
