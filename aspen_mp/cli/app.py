"""The commands and their help; each lives in a file of its own and imports what it needs when it runs."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any, Final

import typer
import typer.main
from typer.core import TyperGroup

from aspen_mp.cli import coplan, doctor, launch, manage, metrics, options, output, plan, quantize, run, serve, top, trace

MOUNTED: Final = {"bench": "aspen_mp.bench.cli.app"}
"""By command: the module above this package whose `app` it is, imported when somebody asks for it, or for all commands."""


_WrongUse: Final[type[Exception]] = typer.BadParameter.__mro__[1]
"""Typer's exception for a command line that cannot be understood: UsageError, which it does not export."""


class _Commands(TyperGroup):
    """The commands of this package, and those that are mounted."""

    def main(self, *args: Any, **more: Any) -> Any:
        """Runs a command. Where it is to print JSON, wrong use is said in JSON, too."""
        words = args[0] if args else more.get("args")
        given = list(sys.argv[1:] if words is None else words)
        options_end = given.index("--") if "--" in given else len(given)
        if "--json" not in given[:options_end]:
            return super().main(*args, **more)
        try:
            status = super().main(*args, **{**more, "standalone_mode": False})
        except _WrongUse as error:
            output.wrong_use(error.format_message())  # type: ignore[attr-defined]
            status = 2
        sys.exit(status or 0)

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
    help="Run ONNX networks on all cores of a machine, without a barrier after each operator.",
    no_args_is_help=True,
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


for _command, *_calls in (
    (launch.launch, "launch --name web --workers 4 --detach model.onnx"),
    (serve.serve, "serve model.onnx --port 8000", "serve models --watch --http-workers 4"),
    (
        run.run,
        "run zoo:resnet50 --random --check",
        "run model.onnx --input x=x.npy --output results",
        "run model.onnx --stream frames --noise 8 --refresh 100",
    ),
    (plan.plan, "plan model.onnx --explain --measure", "plan model.onnx --why", "plan model.onnx --cores 8P+8E"),
    (
        quantize.quantize,
        "quantize model.onnx --calibrate samples -o model.int8.onnx",
        "quantize model.onnx --calibrate samples -o model.int8.onnx --keep auto --within 0.02",
    ),
    (coplan.coplan, "coplan zoo:resnet50 zoo:bert_base --cores 8P+8E", "coplan a.onnx b.onnx --objective throughput -o timeline.svg"),
    (manage.status, "status --name web --json"),
    (top.top, "top --name web --interval 2"),
    (metrics.metrics, "metrics --name web --listen 9464", "metrics --name web --once"),
    (trace.trace, "trace model.onnx --output trace.json --png trace.png", "trace --name web --seconds 5 --output trace.json"),
    (manage.add, "add 1 --name web --cores 3"),
    (manage.remove, "remove 1 --name web"),
    (manage.scale, "scale 2 --name web", "scale auto --name web"),
    (manage.stop, "stop --name web --drain"),
    (doctor.doctor, "doctor", "doctor --calibrate"),
):
    app.command(cls=options.Command, epilog=options.examples(*_calls))(_command)
