"""Tables of streams: frames of which a part has changed, and noisy pictures of cameras."""

from __future__ import annotations

from statistics import median

from aspen_mp.bench.render import networks
from aspen_mp.bench.render.markdown import number, table
from aspen_mp.bench.render.published import Published


def changed(item: Published) -> str:
    rows = []
    for r in item.record.result:
        for p in r.parts:
            cells = [networks.name(r.case), f"{p.percent:g}", number(median(p.whole_ms))]
            for kind in ("bits", "values"):
                cells += [number(median(p.stream_ms[kind])), f"{p.speedup(kind):.2f}", _bound(p.bound(kind))]
            rows.append(cells)
    kinds = [title for kind in ("same bits", "rounding differs") for title in (f"{kind}, ms", "speedup", "bound")]
    memory = "; ".join(f"{networks.name(r.case)} {r.bytes['bits'] / 2**20:.0f} MiB" for r in item.record.result)
    wrong = sum(r.wrong for r in item.record.result)
    text = f"Shared memory of one stream: {memory}. {wrong} rows ended with other bits than a new stream's first frame has."
    return table(["network", "changed, %", "whole, ms", *kinds], rows) + f"\n\n{text}"


def _bound(bound: float | None) -> str:
    return "nothing runs" if bound is None else f"{bound:.2f}"


def cameras(item: Published) -> str:
    parts = []
    for r in item.record.result:
        head = ["what runs", "frames/s", "p50, ms", "p99, ms"]
        rows = [[f"one camera, {what}", number(1e3 / median(times)), number(median(times)), ""] for what, times in r.alone]
        for fleet in r.fleets:
            spread = fleet.spread
            name = f"{r.cameras} cameras, {fleet.engine}"
            rows.append([name, number(median(fleet.per_s)), number(spread.p50_ms), number(spread.p99_ms)])
        text = (
            f"{networks.name(r.case)}: an object that covers {r.scene.share:.2%} of the picture moves, and each pixel has noise with a "
            f"standard deviation of {r.scene.noise:g}. The tolerance is {r.scene.multiple:g} times the noise. That of layers is "
            f"{r.scene.layer_tol:g} of an activation's range. Boxes are the same where their intersection over union with those of the "
            f"whole frame is 0.95 or more."
        )
        kinds = [
            [
                one.engine,
                f"{one.speedup:.2f}",
                f"{1 / median(one.work):.2f}",
                f"{one.same:.2%}",
                f"{one.least:.3f}",
                f"{one.bytes / 2**20:.0f}",
            ]
            for one in r.watched
        ]
        found = table(["one camera", "speedup", "less arithmetic", "same boxes", "least overlap", "MiB of a stream"], kinds)
        text = f"{text}\n\n{found}"
        threads = r.peer_threads or len(r.cores)
        text += (
            f"\n\naspen-mp has one worker for each of {len(r.cores)} cores, for all cameras. onnxruntime has a session for each camera, "
            f"with {threads} {'thread' if threads == 1 else 'threads'}."
        )
        parts.append(f"{text}\n\n{table(head, rows)}")
    return "\n\n".join(parts)
