"""`aspen-mp bench torch`: PyTorch modules as PyTorch runs them, compiled by inductor and by OpenVINO, and by aspen-mp."""

from __future__ import annotations

import enum
import fnmatch
import importlib.util
from typing import TYPE_CHECKING, Annotated

import typer

from aspen_mp.bench.cli import findings, options
from aspen_mp.bench.cli.benchmark import Run, benchmark
from aspen_mp.cli import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aspen_mp.bench.cli.benchmark import Say
    from aspen_mp.bench.figures.seats import Schedule
    from aspen_mp.bench.torch.networks.network import TorchNetwork
    from aspen_mp.bench.torch.result import NetworkResult, TorchResult

CHOSEN = (
    *("torchvision/resnet50", "torchvision/mobilenet_v3_small", "torchvision/densenet121", "timm/convnext_atto", "timm/mobilevit_xxs"),
    *("timm/swin_tiny_patch4_window7_224", "timm/vit_tiny_patch16_224", "transformers/bert-base", "transformers/gpt2"),
    *("transformers/llama", "transformers/t5-small", "transformers/whisper-tiny", "own/lstm", "own/diffusion-unet"),
)
"""Networks that are measured where nobody says which."""


class Sizes(enum.StrEnum):
    """Sizes of networks: of seconds for tests, or as published."""

    small = "small"
    full = "full"


@benchmark()
def torch(
    run: Run,
    networks: Annotated[
        list[str] | None,
        typer.Argument(metavar="NETWORK…", help="Networks, such as timm/mixer_s16_224; 'timm/*' is all of timm's. Default: some of each."),
    ] = None,
    every: Annotated[bool, typer.Option("--list", help="Measure nothing. Print the networks.")] = False,
    size: Annotated[Sizes, typer.Option("--size", help="Measure networks as published, or small ones.")] = Sizes.full,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="1,4", help="Measure memory and speed of these numbers of processes, too.")
    ] = None,
    cores: options.Cores = None,
    engines: Annotated[
        str | None,
        typer.Option("--engines", metavar="A,B", help="Engines to measure. Default: all that are installed but inductor-tuned."),
    ] = None,
    rounds: options.Rounds = 5,
    seconds: options.Seconds = 0.3,
    runs: options.Runs = 3,
) -> None:
    """Measure PyTorch networks beside eager PyTorch, inductor and OpenVINO: first call, steady time, accuracy, memory.

    Every result is compared with float64. Exit status 1 if an engine failed or a result of ours is wrong.
    """
    from aspen_mp.bench.torch import picture

    if importlib.util.find_spec("torch") is None:
        raise typer.BadParameter("PyTorch is not installed. Install it with: pip install torch", param_hint="bench torch")
    if every:
        _print()
        return
    (cpus,) = options.core_sets(None, cores)
    counts = options.counts(memory, "--memory") if memory else []
    wanted, missing = _networks(networks or CHOSEN)
    chosen, absent = _engines(engines)
    schedule = options.schedule(rounds, seconds, runs)
    with run.saying() as say:
        result = _measured(wanted, size, chosen, cpus, schedule, counts, say)
    result.absent, result.missing = absent, missing
    run.draw(picture.plot, result)
    shown = [*map(_network, result.networks), findings.Shown("", ["package missing"], [[name] for name in missing], result.verdict)]
    run.end(result, shown, absent, disturbed=sum(network.disturbed for network in result.networks))


def _measured(
    wanted: Sequence[TorchNetwork],
    size: Sizes,
    engines: Sequence[str],
    cpus: list[int],
    schedule: Schedule,
    counts: Sequence[int],
    say: Say,
) -> TorchResult:
    """Times of all networks, and their memory in several processes."""
    from aspen_mp.bench.peers.seat import SeatError
    from aspen_mp.bench.torch import measure
    from aspen_mp.bench.torch.result import TorchResult
    from aspen_mp.bench.torch.several import several

    result = TorchResult()
    for network in wanted:
        found = measure.measure(network, size.value, engines, cpus, schedule, say)
        for engine in found.engines if counts else ():
            try:
                several(network, size.value, engine, counts, cpus, schedule.seconds, say)
            except SeatError as error:
                found.failed[f"{engine.engine}, several processes"] = str(error)
        result.networks.append(found)
    return result


def _networks(patterns: Sequence[str]) -> tuple[list[TorchNetwork], list[str]]:
    """Those whose names match, and the names of those whose package is missing."""
    from aspen_mp.bench.torch.networks.all import NETWORKS, installed

    names: dict[str, None] = {}
    for pattern in patterns:
        matching = fnmatch.filter(NETWORKS, pattern)
        if not matching:
            raise typer.BadParameter(f"there is no network {pattern!r}. See: aspen-mp bench torch --list", param_hint="NETWORK")
        names |= dict.fromkeys(matching)
    there = [NETWORKS[name] for name in names if installed(NETWORKS[name])]
    return there, [name for name in names if not installed(NETWORKS[name])]


def _engines(text: str | None) -> tuple[list[str], list[str]]:
    """Those to measure, and those that are not installed."""
    from aspen_mp.bench.torch.engines import DEFAULT, ENGINES

    names = text.split(",") if text else list(DEFAULT)
    unknown = [name for name in names if name not in ENGINES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is not an engine. Give some of {', '.join(ENGINES)}", param_hint="--engines")
    return [name for name in names if ENGINES[name].installed], [name for name in names if not ENGINES[name].installed]


def _print() -> None:
    """A table of all networks."""
    from aspen_mp.bench.torch.networks.all import NETWORKS, installed

    rows = [[network.name, network.family, "yes" if installed(network) else "no"] for network in NETWORKS.values()]
    output.table("", ["network", "family", "package installed"], rows)


def _network(network: NetworkResult) -> findings.Shown:
    """A network's table."""
    columns = ["engine", "first s", "again s", "ms", "min ms", "ours / its", "error", "PyTorch's", "memory MiB", "PyTorch's MiB"]
    rows = [
        [
            *(e.engine, f"{e.cold_s:.2f}", f"{e.warm_s:.2f}", f"{e.median:.2f}", f"{e.min:.2f}"),
            "" if e.ratio is None else f"{e.ratio:.3f}",
            *(f"{e.error:.1e}", f"{e.eager_error:.1e}"),
            *(", ".join(f"{count}: {size / 2**20:.0f}" for count, size in sizes.items()) for sizes in (e.memory, e.floor)),
        ]
        for e in network.engines
    ]
    wrong = {e.engine: e.wrong for e in network.engines if e.wrong}
    failed = {f"{network.network}, {name}": why for name, why in (network.failed | wrong).items()}
    together = [f"{e.engine}: {e.together}" for e in network.engines if e.together]
    verdict = "; ".join([f"{network.network}: {network.parameters / 1e6:.1f} million parameters", *together])
    return findings.Shown(f"{network.network}, {network.size}", columns, rows, verdict, failed=failed)
