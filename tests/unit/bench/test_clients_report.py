"""What `bench clients` makes of its measurements."""

from __future__ import annotations

from pathlib import Path

from aspen_mp.bench.clients import ClientsResult, Found, Setting, plot


def result() -> ClientsResult:
    found = [
        Found(Setting("aspen-mp", 1, 4), [20.0, 30.0], [0.1, 0.2], 100, 5, [50]),
        Found(Setting("aspen-mp", 4, 1), [19.0, 33.0], [0.2, 0.2, 0.3], 120, 8, [20, 25, 24, 22]),
        Found(Setting("onnxruntime", 1, 1), [10.0, 11.0], [0.05], 90, 1, [21]),
        Found(Setting("onnxruntime", 4, 1), [5.0, 5.5], [0.4], 360, 4, [4, 4, 5, 4]),
    ]
    return ClientsResult("net", [0, 1], 2 << 20, found, 2 << 20)


def test_ratios_are_of_rounds_side_by_side():
    assert result().ratio("aspen-mp") == ((0.95 + 1.1) / 2, 1.2)
    assert result().ratio("onnxruntime") == (0.5, 4.0)
    assert result().found[1].spread.worst_ms == 300.0
    assert result().verdict == (
        "net: aspen-mp: 4 client processes have 1.025 of the throughput of one and 1.20 of its memory, "
        "p99 is 1.50 times the median, and the client served least has 0.800 of the throughput of the one served most; "
        "onnxruntime: 4 client processes have 0.500 of the throughput of one and 4.00 of its memory, "
        "p99 is 1.00 times the median, and the client served least has 0.800 of the throughput of the one served most; "
        "packed weights 2 MiB, mapped 1.00 times"
    )


def test_a_single_setting_has_no_ratio():
    lone = ClientsResult("net", [0], 0, [Found(Setting("aspen-mp", 1, 1), [1.0], [0.1], 1, 1)])
    assert lone.ratio("aspen-mp") is None


def test_picture(tmp_path: Path):
    plot(result(), tmp_path / "clients.png")
    assert (tmp_path / "clients.png").read_bytes().startswith(b"\x89PNG")
