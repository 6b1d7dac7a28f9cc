from typing import Literal

def names() -> list[str]:
    """Names of the instruction sets that this CPU and operating system support, best first."""

def name_of(code: int) -> str:
    """Name of an instruction set."""

def find(name: str | None = None) -> int:
    """Code of an instruction set (`enum aspen_isa`). Without a name: the one in the environment variable ASPEN_MP_ISA, or the best; with an
    empty one the best.

    ValueError: unknown name. NotImplementedError: this CPU or operating system lacks it.
    """

def wide_vectors() -> Literal["", "halved", "whole"]:
    """How a core takes vectors of 512 bits, if workers are given no instruction set by name: "whole", or "halved", as Zen 4 does. "": they
    run on shorter ones, or none can be chosen, which they report themselves."""
