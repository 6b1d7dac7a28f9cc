"""`python -m aspen_mp.bench.profile NETWORK`: where the time of a network goes, op by op.

A network of the zoo is planned as a runtime does (`local_plans.py`). Its tiles run one by one in this process, with the real kernels on
warm memory. Their order is that of a single worker. A request takes longer than their sum: scheduling, idling and submission are not in it.
"""

from __future__ import annotations

import argparse
import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from aspen_mp.bench import models
from aspen_mp.tools.local_plans import calibrated, cpus_for, machine_of, planned
from aspen_mp.tools.measure import PlanTimes, profile


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m aspen_mp.bench.profile", description=__doc__)
    parser.add_argument("network", help="A network of the zoo. A wrong name lists them all.")
    parser.add_argument("--workers", type=int, default=1, help="Use the tiles of a runtime with this number of workers (default: 1).")
    parser.add_argument("--batch", type=int, default=1, help="Batch size (default: 1).")
    parser.add_argument("--seq", type=int, default=128, help="Tokens, for networks that read text (default: 128).")
    parser.add_argument("--rounds", type=int, default=20, help="Number of times that each op runs (default: 20).")
    parser.add_argument("--top", type=int, default=40, help="Ops to show, slowest first (default: 40). 0 shows all in order.")
    args = parser.parse_args(argv)
    model = models.build(args.network, batch=args.batch, seq=args.seq)
    feeds = models.inputs(model)
    with calibrated():
        try:
            plan = planned(model, feeds, machine_of(cpus_for(args.workers)))
        except ValueError as error:
            parser.error(str(error))
    show(profile(plan, feeds, rounds=args.rounds), args.top, Console(width=180))
    return 0


def show(result: PlanTimes, top: int, console: Console) -> None:
    ops = sorted(result.ops, key=lambda o: -o.median_ns)[:top] if top else result.ops
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("op", no_wrap=True, max_width=70)
    for column in ("kernel", "tile", "tiles", "µs", "min", "share", "GFLOP/s", "GB/s", "predicted"):
        table.add_column(column, justify="left" if column in {"kernel", "tile"} else "right", no_wrap=True)
    for op in ops:
        i, ns = op.info, max(op.median_ns, 1.0)
        table.add_row(
            f"{i.name} {i.op}",
            i.kernel,
            "×".join(map(str, i.tile_shape)),
            str(i.tiles),
            f"{ns / 1e3:.1f}",
            f"{op.min_ns / 1e3:.1f}",
            f"{ns / result.median_ns:.1%}",
            f"{i.flops / ns:.1f}",
            f"{i.bytes / ns:.1f}",
            f"{i.predicted_ms * 1e3:.1f}",
        )
    console.print(table)
    kernels: dict[str, tuple[float, float, int]] = {}
    for op in result.ops:
        ns, flops, n = kernels.get(op.info.kernel, (0.0, 0.0, 0))
        kernels[op.info.kernel] = (ns + op.median_ns, flops + op.info.flops, n + op.info.tiles)
    for kernel, (ns, flops, n) in sorted(kernels.items(), key=lambda item: -item[1][0]):
        console.print(f"{kernel:12} {ns / 1e6:8.3f} ms  {ns / result.median_ns:6.1%}  {flops / max(ns, 1):7.1f} GFLOP/s  {n} tiles")
    console.print(f"all          {result.median_ns / 1e6:8.3f} ms, least {result.min_ns / 1e6:.3f} ms, {result.tiles} tiles")


if __name__ == "__main__":
    sys.exit(main())
