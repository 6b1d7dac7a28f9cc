"""Lists of kernel calls as text files, one line for each distinct call of a network's plan.

    3 CONV f32:1x64x56x56/200704,1,3584,64 f32:1x64x56x56/200704,1,3584,64 w:1x2x576x32/36864,18432,32,1 w:64/1 tile=1x32x14x56
      flops=231211008 bytes=1753344 params=1,3,3,1,1,1,1,1,1,10,0,0,0,0,0,0 name=layer1.0.conv2/Conv                     (all one line)

A line has the times it is called, kernel, output, and inputs: type, dims, strides in elements; `w` for float32 weights, `-` for none. Then
come the largest tile's sides, work of the whole call, parameters as in `workers/kernels/kernel.h`, and the first node that makes it.
Nothing in a line depends on the kind of kernel, so a new family needs nothing here. `aspen-mp bench shapes` writes the files from the zoo's
plans.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from aspen_mp.bench.peers.cases import Case
from aspen_mp.planner import api
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.shm.tables import KERNEL_BY_CODE, NUMPY_BY_CODE, SPACES

FOLDER = Path(__file__).parent.parent / "shapes"
WORKERS = 2
"""Workers of the plan that tiles are of."""
_NO_KERNEL = frozenset({"JOIN", "END", "OPAQUE"})
_SHORT = {"float32": "f32", "float64": "f64", "float16": "f16"}
_LONG = {short: name for name, short in _SHORT.items()}


@dataclass(frozen=True, slots=True)
class Operand:
    """`strides` in elements; `weight`: packed when the model was loaded."""

    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    weight: bool = False

    def __str__(self) -> str:
        kind = "w" if self.weight and self.dtype == "float32" else _SHORT.get(self.dtype, self.dtype)
        return f"{kind}:{'x'.join(map(str, self.dims))}/{','.join(map(str, self.strides))}"

    @classmethod
    def parse(cls, text: str) -> Operand | None:
        if text == "-":
            return None
        kind, _, rest = text.partition(":")
        dims, _, strides = rest.partition("/")
        dtype = "float32" if kind == "w" else _LONG.get(kind, kind)
        np.dtype(dtype)
        shape = tuple(int(d) for d in dims.split("x") if d)
        steps = tuple(int(s) for s in strides.split(",") if s)
        if len(shape) != len(steps):
            raise ValueError(f"{text!r}: {len(shape)} dims, {len(steps)} strides")
        return cls(dtype, shape, steps, kind == "w")


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One line: `operands[0]` is the output. `flops`, `bytes`: of one call, as the cost model counts them."""

    times: int
    kernel: str
    operands: tuple[Operand | None, ...]
    tile: tuple[int, ...]
    flops: float
    bytes: float
    params: tuple[int, ...]
    name: str

    def __str__(self) -> str:
        operands = " ".join("-" if o is None else str(o) for o in self.operands)
        tail = f"flops={self.flops:.0f} bytes={self.bytes:.0f} params={','.join(map(str, self.params))} name={self.name}"
        return f"{self.times} {self.kernel} {operands} tile={'x'.join(map(str, self.tile))} {tail}"

    @property
    def label(self) -> str:
        """The call for people: output, and the dims of what else decides the work."""
        out, first = self.operands[0], self.operands[1] if len(self.operands) > 1 else None
        return " ← ".join("x".join(map(str, o.dims)) for o in (out, first) if o is not None)


def parse(line: str) -> KernelCall:
    """A line of a file. ValueError where it is none."""
    head, _, name = line.partition(" name=")
    times, kernel, *rest = head.split()
    operands = [word for word in rest if "=" not in word]
    fields = dict(word.split("=", 1) for word in rest if "=" in word)
    if not operands or fields.keys() != {"tile", "flops", "bytes", "params"}:
        raise ValueError(f"no kernel call: {line!r}")
    return KernelCall(
        int(times),
        kernel,
        tuple(Operand.parse(word) for word in operands),
        tuple(int(side) for side in fields["tile"].split("x") if side),
        float(fields["flops"]),
        float(fields["bytes"]),
        tuple(int(p) for p in fields["params"].split(",") if p),
        name,
    )


def calls(plan: Plan) -> list[KernelCall]:
    """The distinct kernel calls of a plan, in its order."""
    found: dict[tuple[object, ...], KernelCall] = {}
    for op, info in zip(plan.ops, plan.info, strict=False):
        kernel = KERNEL_BY_CODE[int(op["kernel"])].name
        if kernel in _NO_KERNEL or info.tiles == 0:
            continue
        operands: list[Operand | None] = []
        for row in plan.operands[op["operand"] : op["operand"] + op["n_outputs"] + op["n_inputs"]]:
            if not row["dtype"]:
                operands.append(None)
                continue
            rank = int(row["rank"])
            dims, strides = (tuple(int(x) for x in row[field][:rank]) for field in ("dims", "strides"))
            operands.append(Operand(NUMPY_BY_CODE[int(row["dtype"])].name, dims, strides, int(row["space"]) >= SPACES["WEIGHTS"]))
        params = tuple(int(p) for p in plan.params[op["param"] : op["param"] + op["n_params"]])
        key = (kernel, tuple(operands), info.tile_shape, params)
        first = KernelCall(0, kernel, tuple(operands), info.tile_shape, info.flops, info.bytes, params, info.name.replace(" ", "_"))
        known = found.get(key, first)
        found[key] = replace(known, times=known.times + 1)
    return list(found.values())


def generate(case: Case) -> list[KernelCall]:
    """The calls of a network of the zoo."""
    from aspen_mp.bench import models

    model = models.build(case.network, batch=case.batch, seq=case.seq, **case.options)
    bindings = {value.name: api.Binding(value.dtype, tuple(value.shape or ())) for value in api.inspect(model).inputs}  # type: ignore[arg-type]
    plan = api.plan_stage(model, [bindings], workers=WORKERS).plan
    if plan is None:
        raise ValueError(f"{case.label}: its shapes are known only when it runs")
    return calls(plan)


def write(case: Case, folder: Path = FOLDER) -> Path:
    """Writes the file of a network; returns its path."""
    path = folder / f"{case.network}.txt"
    head = f"# Kernel calls of {case.label}, planned for {WORKERS} workers. Written by `aspen-mp bench shapes {case.label}`.\n"
    path.write_text(head + "".join(f"{call}\n" for call in generate(case)), "utf-8")
    return path


def read(name: str, folder: Path = FOLDER) -> list[KernelCall]:
    """The calls of a network's file. FileNotFoundError where there is none, ValueError where a line is wrong."""
    lines = (folder / f"{name}.txt").read_text("utf-8").splitlines()
    return [parse(line) for line in lines if line and not line.startswith("#")]


def names(folder: Path = FOLDER) -> list[str]:
    """Networks that have a file."""
    return sorted(path.stem for path in folder.glob("*.txt"))
