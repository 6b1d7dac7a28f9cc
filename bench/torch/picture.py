"""The picture of `aspen-mp bench torch`: steady time and first call of each network, in units of eager PyTorch's time and in seconds."""

from __future__ import annotations

from pathlib import Path

from aspen_mp.bench.figures.picture import colour, pyplot, save
from aspen_mp.bench.peers.rounds import OURS
from aspen_mp.bench.torch.engines import AHEAD, EAGER
from aspen_mp.bench.torch.result import TorchResult


def plot(result: TorchResult, file: Path) -> None:
    """Draw bars for each network: the time of a call in units of PyTorch's own, and of the first call in seconds."""
    networks = [network for network in result.networks if network.of(EAGER) is not None]
    engines = [engine for engine in result.engines if engine not in (EAGER, AHEAD)]
    figure, (left, right) = pyplot().subplots(
        1, 2, sharey=True, figsize=(11, 1.2 + 0.16 * max(len(networks), 1) * (len(engines) + 1)), layout="constrained"
    )
    height = 0.85 / max(len(engines), 1)
    for i, engine in enumerate(engines):
        there = [(k, found, eager) for k, network in enumerate(networks)
                 if (found := network.of(engine)) is not None and (eager := network.of(EAGER)) is not None]  # fmt: skip
        at = [k + (i - (len(engines) - 1) / 2) * height for k, _, _ in there]
        shade = COLOURS.get(engine, colour(engine))
        bars = left.barh(at, [found.median / eager.median for _, found, eager in there], height * 0.9, color=shade, label=engine)
        left.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
        bars = right.barh(at, [found.cold_s for _, found, _ in there], height * 0.9, color=shade)
        right.bar_label(bars, fmt="%.1f", fontsize=7, padding=2)
    left.axvline(1, color="0.3", linewidth=0.8)
    left.set_yticks(range(len(networks)), [network.network for network in networks], fontsize=8)
    left.invert_yaxis()
    left.margins(x=0.12)
    left.set(xlabel="time of a call, in units of eager PyTorch's")
    right.set(xlabel="seconds of the first call, caches empty", xscale="log")
    right.margins(x=0.15)
    figure.legend(loc="outside upper center", ncols=max(len(engines), 1), fontsize=8)
    for axes in (left, right):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    save(figure, file)


COLOURS = {OURS: colour(OURS), "inductor": "tab:purple", "inductor-frozen": "tab:pink", "inductor-tuned": "tab:red",
           "openvino": colour("openvino")}  # fmt: skip
"""As in other pictures, where the engine is the same."""
