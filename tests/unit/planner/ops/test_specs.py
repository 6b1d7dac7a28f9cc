"""What the planner knows of a kernel agrees with what C says of it, and what is derived from it holds for every kernel."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.ops import classical, movement, table
from aspen_mp.planner.ops.packing import winograd
from aspen_mp.planner.ops.spec import OPAQUE, SILENT, OpSpec
from aspen_mp.shm.tables import KERNELS, NUMBERS

REPOSITORY = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
RUN = [table.SPECS[name] for name in KERNELS if name not in {*SILENT, OPAQUE}]


def test_every_op_of_a_plan_has_a_spec_and_no_other() -> None:
    assert set(KERNELS) == {*SILENT, *(name for name in table.SPECS if name.isupper())}
    assert [spec.name for family in table._FAMILIES for spec in family.SPECS] == list(table.SPECS)


@pytest.mark.parametrize("spec", RUN, ids=lambda spec: spec.name)
def test_a_spec_agrees_with_the_protocol(spec: OpSpec) -> None:
    kernel = KERNELS[spec.name]
    assert kernel.n_params in {sum(param.words for param in spec.params), NUMBERS["ANY_PARAMS"]}
    assert spec.outputs == (0 if kernel.n_outputs == NUMBERS["ANY_OUTPUTS"] else kernel.n_outputs)
    assert len(spec.inputs) == kernel.max_inputs
    assert max(i + 1 for i, x in enumerate(spec.inputs) if not x.optional) == kernel.min_inputs
    assert spec.checks is not None
    roles, names = [x.role for x in spec.inputs], [param.name for param in spec.params if param.name]
    assert len(set(roles)) == len(roles)
    assert len(set(names)) == len(names)
    assert all(param.about for param in spec.params)


def test_every_spec_has_a_kernel() -> None:
    text = (REPOSITORY / "workers" / "kernels" / "kernels.def").read_text(encoding="utf-8")
    assert set(re.findall(r"^KERNEL\((\w+),", text, re.MULTILINE)) == {spec.name for spec in RUN}


def test_every_kernel_has_its_contract() -> None:
    """A paragraph of `kernel.h` begins with the kernel's name, in no other kernel's."""
    text = (REPOSITORY / "workers" / "kernels" / "kernel.h").read_text(encoding="utf-8")
    named = [name for heads in re.findall(r"^ \*\n \* ([A-Z_]+(?:, [A-Z_]+)*): ", text, re.MULTILINE) for name in heads.split(", ")]
    assert sorted(named) == sorted(spec.name for spec in RUN)


@pytest.mark.parametrize("op", ["CONV", "QCONV", "BCONV"])
def test_convolutions_count_alike(op: str) -> None:
    """With the attributes that their parameters are made of, and no others."""
    named = {param.name for param in table.SPECS[op].params}
    attrs = {name: value for name, value in {"groups": 1, "kernel": (3, 3)}.items() if name in named}
    tensors = [Tensor(name, shape, np.dtype(np.float32)) for name, shape in (("x", (1, 8, 5, 5)), ("y", (1, 4, 5, 5)))]
    assert table.SPECS[op].cost.flops(Node(op, "node", tensors[:1], tensors[1:], attrs)) == 2 * 4 * 25 * 8 * 9


def test_winograd_runs_the_blocks_that_weights_are_made_for() -> None:
    text = (REPOSITORY / "workers" / "kernels" / "conv" / "winograd.h").read_text(encoding="utf-8")
    kinds = re.findall(r"X\(\w+, (\d+), (\d+), (\d+), (\d+), (\d+)\)", text)
    run = {tuple(map(int, kind)) for kind in kinds}
    assert run == {
        (*kernel, stride, *winograd.blocks_of(tuple(kernel), (stride, stride), block).sides)
        for (*kernel, stride), blocks in winograd.BLOCKS.items()
        for block in blocks
    }
    assert len(run) == len(kinds) > 10


@pytest.mark.parametrize(
    ("source", "table"), [("classical/scores.c", classical.TRANSFORMS), ("movement/scatter.c", movement.SCATTER_REDUCTIONS)]
)
def test_names_count_as_in_the_kernel(source: str, table: dict[str, int]) -> None:
    text = (REPOSITORY / "workers" / "kernels" / source).read_text(encoding="utf-8")
    assert f"enum {{ {', '.join(name.upper() for name in sorted(table, key=table.__getitem__))} }};" in text
