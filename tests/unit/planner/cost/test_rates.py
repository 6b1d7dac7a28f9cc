"""Which machine a calibration belongs to."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from aspen_mp.planner.cost import rates

X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: {family}
model\t\t: 17
model name\t: AMD EPYC
stepping\t: 1
cpu MHz\t\t: {mhz}

processor\t: 1
model name\t: another
"""
ARM = """processor\t: 0
BogoMIPS\t: 243.75
CPU implementer\t: 0x41
CPU variant\t: 0x1
CPU part\t: 0xd0c
"""


def test_processors_that_virtual_machines_give_one_name(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"

    def of(text: str) -> str:
        path.write_text(text)
        return rates.processor(str(path))

    one, busy, other = (of(X86.format(family=family, mhz=mhz)) for family, mhz in ((25, 2500), (25, 3700), (26, 2500)))
    assert one == busy != other
    assert one.startswith("AMD EPYC, ")
    assert "another" not in one
    assert "0xd0c" in of(ARM)


def test_who_made_it(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    for text, wanted in ((X86.format(family=25, mhz=2500), "AuthenticAMD"), (ARM, "")):
        path.write_text(text)
        assert rates.vendor(str(path)) == wanted
    assert rates.vendor(str(tmp_path / "none")) == ""


def test_a_list_that_is_not_there(tmp_path: Path) -> None:
    assert rates.processor(str(tmp_path / "cpuinfo"))
    assert rates.processor()


@pytest.mark.parametrize(
    ("at", "table", "good"),
    [
        ([], [], True),
        ([0.0, 0.5], [[1.0, 1.0], [1.0, 1.6]], True),
        ([0.0, 0.5], [[1.0, 1.0]], False),
        ([0.5, 0.5], [[1.0, 1.0], [1.0, 1.6]], False),
        ([0.0, 0.5], [[1.0, 1.0], [1.0, 0.9]], False),
        ([0.0, 0.5], [[1.0, 1.0], [1.0, float("inf")]], False),
    ],
)
def test_tables_of_contention_that_are_kept(tmp_path: Path, at: list[float], table: list[list[float]], good: bool) -> None:
    known = msgspec.structs.replace(rates.BUILT_IN, contended_at=at, contention=table)
    rates.save(str(tmp_path), rates.Calibration(rates.FORMAT, rates.processor(), "avx2", "1", {}, known))
    assert (rates.load(str(tmp_path), "1") == known) is good
