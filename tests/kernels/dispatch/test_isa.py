"""Choice of the instruction set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cbuild
import pytest
from folders import ROOT

from aspen_mp.workers import _isa, _kernels

PRINT = "from aspen_mp.workers import _kernels; print(_kernels.selected())"


def selected_by(environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "ASPEN_MP_ISA": environment}
    return subprocess.run([sys.executable, "-c", PRINT], env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("isa", _kernels.isas())
def test_environment_forces_an_isa(isa):
    assert selected_by(isa).stdout.strip() == isa


def test_unknown_name_is_an_error():
    assert "ValueError: unknown instruction set 'sse9'" in selected_by("sse9").stderr
    with pytest.raises(ValueError, match="expected one of portable, avx2, avx512"):
        _kernels.select("sse9")


def test_best_comes_first_and_portable_is_everywhere():
    assert _kernels.isas()[-1] == "portable"
    assert selected_by("").stdout.strip() == _kernels.isas()[0]


@pytest.mark.parametrize(
    ("environment", "vectors"), [("avx512", ("halved", "whole")), ("avx2", ("short",)), ("portable", ("",)), ("sse9", ("",))]
)
def test_vectors_are_those_of_the_instruction_set(environment, vectors, monkeypatch):
    monkeypatch.setenv("ASPEN_MP_ISA", environment)
    assert _isa.vectors() in (vectors if environment in _isa.names() else ("",))


def test_select_changes_what_runs():
    """A forced ISA really runs: portable rounds product and sum, the others only the sum."""
    import numpy as np

    a = np.array([[1.0, 1 + 2.0**-12]], np.float32)
    b = np.array([[-1 - 2.0**-11], [1 + 2.0**-12]], np.float32)
    results = {}
    try:
        for isa in _kernels.isas():
            assert _kernels.select(isa) == isa == _kernels.selected()
            out = np.empty((1, 1), np.float32)
            assert _kernels.call("GEMM", [out, a, b], [0, 1.0, 0, 0.0, 0.0, 0, 0, 0], [0, 0], [1, 1]) == 0
            results[isa] = float(out[0, 0])
    finally:
        _kernels.select()
    assert results.pop("portable") == 0.0
    assert all(value == 2.0**-24 for value in results.values())


def test_every_isa_has_every_kernel():
    assert len({tuple(_kernels.kernels(isa)) for isa in _kernels.isas()}) == 1


def test_pairs_are_summed_in_vectors_of_512_bits_alone():
    assert not _isa.sums_pairs("portable")
    assert not _isa.sums_pairs("avx2")
    assert not _isa.sums_pairs("sse9")


def test_environment_forbids_sums_of_pairs():
    command = "from aspen_mp.workers import _isa; print(any(_isa.sums_pairs(name) for name in _isa.names()))"
    env = {**os.environ, "ASPEN_MP_BF16": "off"}
    assert subprocess.run([sys.executable, "-c", command], env=env, capture_output=True, text=True, check=True).stdout.strip() == "False"


@pytest.mark.parametrize(("value", "names"), [(None, []), ("off", []), ("1", []), ("on", ["avx512"]), ("twin", _isa.names())])
def test_environment_asks_for_amx(value, names):
    """Its twin is everywhere, its instructions are beside vectors of 512 bits, if anywhere."""
    command = "from aspen_mp.workers import _isa; print([name for name in [*_isa.names(), 'sse9'] if _isa.sums_amx(name)])"
    env = {name: setting for name, setting in os.environ.items() if name != "ASPEN_MP_AMX"} | ({"ASPEN_MP_AMX": value} if value else {})
    found = subprocess.run([sys.executable, "-c", command], env=env, capture_output=True, text=True, check=True).stdout.strip()
    there = {"amx_tile", "amx_int8", "amx_bf16"} <= set(Path("/proc/cpuinfo").read_text().split())
    assert found == str([name for name in names if value == "twin" or (there and name in _isa.names())])


@pytest.mark.skipif(not (ROOT / "workers").is_dir(), reason="the tests lie away from the sources")
@pytest.mark.parametrize("only", ["portable", "avx2", "avx512"])
def test_a_build_for_one_machine_has_one_isa(only: str, tmp_path: Path) -> None:
    """Its choice is that ISA, or an error (-2) where the CPU lacks it, whatever else the CPU has."""
    kernels = ROOT / "workers" / "kernels"
    command = [cbuild.compiler(), f"-DASPEN_ONLY={only}", f"-I{kernels}", kernels / "dispatch" / "best.c", "-o", tmp_path / "best"]
    subprocess.run(command, check=True)
    expected = _isa.find(only) if only in _isa.names() else -2
    assert subprocess.run([tmp_path / "best"], check=False).returncode == expected % 256
