from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

def isas() -> list[str]:
    """Names of the instruction sets that this CPU supports, best first."""

def select(name: str | None = None) -> str:
    """Make an instruction set the default of `call` and return its name.

    Without a name: the one in the environment variable ASPEN_MP_ISA, or the best. ValueError: unknown name.
    NotImplementedError: this CPU or operating system lacks it.
    """

def selected() -> str:
    """The instruction set that `call` uses when none is named."""

def kernels(isa: str | None = None) -> list[str]:
    """Names of the kernels that exist for an instruction set."""

def scratch(kernel: str, args: Sequence[np.ndarray | None], params: Sequence[int | float], lo: Sequence[int], hi: Sequence[int]) -> int:
    """Bytes of scratch memory that such a call asks for."""

def call(
    kernel: str,
    args: Sequence[np.ndarray | None],
    params: Sequence[int | float],
    lo: Sequence[int],
    hi: Sequence[int],
    isa: str | None = None,
    scratch_bytes: int | None = None,
    apart: bool = False,
    part: bool = False,
) -> int:
    """Run a kernel on one tile and return its `enum aspen_kernel_error` (0: success).

    args[0] is the output, written in place inside the box [lo, hi). Further outputs follow, if the kernel has any, then the inputs, None
    where an optional one is absent. Arrays may have any strides that are multiples of the item size. A float among the parameters is passed
    as the bits of a double, an int as it is. Shapes and dtypes are the caller's duty, as in a validated plan: kernels do not check them.
    ValueError: unknown kernel or instruction set, or counts that do not fit the kernel. `scratch_bytes`: of scratch memory, instead of what
    the kernel asks for.
    `apart`: as on a worker whose core shares no cache with others (`aspen_call.apart`).
    `part`: as for a part of a tile in a plan that keeps activations (`aspen_call.part`).
    """

def time_tiles(
    kernel: str,
    args: Sequence[np.ndarray | None],
    params: Sequence[int | float],
    boxes: np.ndarray,
    rounds: int = 1,
    isa: str | None = None,
) -> int:
    """Nanoseconds of running a kernel on the tiles [n, 2, rank] (int64: lower and upper bounds), one after the other, `rounds` times.

    As on a worker that has no others between them, the scratch of one is there for the next (`aspen_call.again`); each round begins anew.

    As `call` otherwise. RuntimeError: the kernel reports an error.
    """

def peak(turns: int, isa: str | None = None) -> float:
    """Fused multiply-adds in registers, GFLOP/s of this core, over `turns` turns of ten vectors each."""

def read_rate(data: np.ndarray, rounds: int, isa: str | None = None) -> float:
    """Reading an array of float32 `rounds` times, GB/s of this core."""

def flush(data: np.ndarray) -> bool:
    """Puts an array of bytes out of the caches of all cores, into memory only. False: programs of this processor cannot."""

class Bound:
    """A kernel bound to the shapes, dtypes and strides of its operands; called with such arrays it returns a new one, like `out`. `seen`:
    the inputs as the kernel sees them, of the rank of the output. `rest`: called with others, and where the kernel fails."""

    def __init__(
        self,
        kernel: str,
        out: np.ndarray,
        inputs: Sequence[np.ndarray],
        seen: Sequence[np.ndarray],
        params: Sequence[int],
        rest: Callable[..., Any],
    ) -> None: ...
    def __call__(self, *arrays: Any) -> Any: ...
