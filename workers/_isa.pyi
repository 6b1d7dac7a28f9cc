def names() -> list[str]:
    """Names of the instruction sets that this CPU and operating system support, best first."""

def name_of(code: int) -> str:
    """Name of an instruction set."""

def find(name: str | None = None) -> int:
    """Code of an instruction set (`enum aspen_isa`). Without a name: the one in the environment variable ASPEN_MP_ISA, or the best; with an
    empty one the best.

    ValueError: unknown name. NotImplementedError: this CPU or operating system lacks it.
    """

def halved_vectors() -> bool:
    """Whether workers that are given no instruction set by name run on vectors of 512 bits that a core takes in two halves, as Zen 4 does:
    there, loads are cheap beside multiplications. False also where no instruction set can be chosen, which workers report themselves."""
