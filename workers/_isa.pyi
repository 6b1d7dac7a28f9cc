from typing import Literal

def names() -> list[str]:
    """Return the names of the instruction sets that this CPU, operating system and build support, best first."""

def name_of(code: int) -> str:
    """Name of an instruction set."""

def find(name: str | None = None) -> int:
    """Code of an instruction set (`enum aspen_isa`). Without a name: the one in the environment variable ASPEN_MP_ISA, or the best; with an
    empty one the best.

    ValueError: unknown name. NotImplementedError: this CPU, operating system or build lacks it.
    """

def vectors() -> Literal["", "short", "halved", "whole"]:
    """The vectors that a core multiplies, if workers are given no instruction set by name. Those of 512 bits are "whole" or, as on Zen 4,
    "halved"; those of 256 are "short". "": shorter ones, or none can be chosen, which workers report themselves."""

def sums_bytes(name: str | None = None) -> bool:
    """Whether this CPU sums products of bytes in one instruction, in vectors of an instruction set (as in `find`), and
    ASPEN_MP_VNNI=off does not forbid it. False where none can be chosen."""

def sums_pairs(name: str | None = None) -> bool:
    """Whether this CPU sums products of pairs of bf16 in one instruction, in vectors of an instruction set (as in `find`).
    ASPEN_MP_BF16=off forbids it. False where none can be chosen."""

def sums_amx(name: str | None = None) -> bool:
    """Whether plans are made for the sums of AMX. With ASPEN_MP_AMX=on they are where this CPU and operating system have it beside an
    instruction set (as in `find`); with ASPEN_MP_AMX=twin, anywhere. False where none can be chosen."""
