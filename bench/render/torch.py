"""Tables of PyTorch networks: steady times, first calls, memory."""

from __future__ import annotations

from aspen_mp.bench.peers.rounds import OURS
from aspen_mp.bench.render.markdown import number, table
from aspen_mp.bench.render.published import Published
from aspen_mp.bench.torch.engines import AHEAD
from aspen_mp.bench.torch.result import TorchResult, geometric_mean

INTRODUCTION = (
    "PyTorch modules with random weights, called under `torch.no_grad()`. Eager is PyTorch itself, inductor is "
    "`torch.compile(module)`, and frozen means that inductor may fold and pack weights. The results of all engines are compared with the "
    "same module in float64. `aspen-mp-ahead` is a module that `aspen_mp.torch.compile_ahead` has written to a file."
)
"""The text above the tables."""


def torch(item: Published) -> str:
    """Times of calls, then first calls, then memory where it was measured."""
    result: TorchResult = item.record.result
    others = [engine for engine in result.engines if engine not in (OURS, AHEAD)]
    parts = [_means(result, others), _steady(result, others), _first(result)]
    if any(engine.memory for network in result.networks for engine in network.engines):
        parts.append(_memory(result))
    return "\n\n".join(part for part in parts if part)


def _means(result: TorchResult, others: list[str]) -> str:
    rows = [
        [engine, len(ratios), f"{geometric_mean(ratios):.3f}", f"{max(ratios):.2f}", sum(ratio > 1 for ratio in ratios)]
        for engine in others
        if (ratios := result.ratios(engine))
    ]
    columns = ["other engine", "networks", "ours / its, geometric mean", "ours / its, worst", "ours slower"]
    return table(columns, rows) if rows else ""


def _steady(result: TorchResult, others: list[str]) -> str:
    engines = [OURS, *others]
    rows = []
    for network in result.networks:
        found = [network.of(engine) for engine in engines]
        times = ["–" if each is None else number(each.median) + ("*" if each.wrong else "") for each in found]
        ratios = ["–" if each is None or each.ratio is None else f"{each.ratio:.2f}" for each in found[1:]]
        rows.append([f"`{network.network}`", *times, *ratios])
    note = "\n\n* Its result is wrong." if any(each.wrong for network in result.networks for each in network.engines) else ""
    columns = ["network", *(f"{engine}, ms" for engine in engines), *(f"ours / {engine}" for engine in others)]
    return f"### Time of a call\n\n{table(columns, rows)}{note}"


def _first(result: TorchResult) -> str:
    """Seconds from the module to the first result: caches empty, and again in a second process."""
    rows = []
    for network in result.networks:
        found = [network.of(engine) for engine in result.engines]
        rows.append([f"`{network.network}`", *("–" if each is None else f"{each.cold_s:.2f}, {each.warm_s:.2f}" for each in found)])
    text = "The first number is with empty caches. The second is of another process, which finds what the first one has compiled."
    return f"### Seconds until the first result\n\n{text}\n\n{table(['network', *result.engines], rows)}"


def _memory(result: TorchResult) -> str:
    """MiB of all processes that take part."""
    counts = sorted({count for network in result.networks for engine in network.engines for count in engine.memory})
    rows = [
        [f"`{network.network}`", engine.engine, *(_mebibytes(engine.memory.get(count)) for count in counts)]
        for network in result.networks
        for engine in network.engines
        if engine.memory
    ]
    columns = ["network", "engine", *(f"{count} {'process' if count == 1 else 'processes'}, MiB" for count in counts)]
    return f"### Memory of all processes\n\n{table(columns, rows)}"


def _mebibytes(size: int | None) -> str:
    return "–" if size is None else f"{size / 2**20:.0f}"
