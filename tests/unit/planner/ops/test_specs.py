"""What the planner knows of a kernel agrees with what C says of it, and what is derived from it holds for every kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aspen_mp.planner.ops import table
from aspen_mp.planner.ops.spec import OPAQUE, SILENT, OpSpec
from aspen_mp.shm.tables import KERNELS

REPOSITORY = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
RUN = [table.SPECS[name] for name in KERNELS if name not in {*SILENT, OPAQUE}]


def test_every_op_of_a_plan_has_a_spec_and_no_other() -> None:
    assert set(KERNELS) == {*SILENT, *(name for name in table.SPECS if name.isupper())}
    assert [spec.name for family in table._FAMILIES for spec in family.SPECS] == list(table.SPECS)


@pytest.mark.parametrize("spec", RUN, ids=lambda spec: spec.name)
def test_a_spec_agrees_with_the_protocol(spec: OpSpec) -> None:
    kernel = KERNELS[spec.name]
    assert sum(param.words for param in spec.params) == kernel.n_params
    assert spec.outputs == kernel.n_outputs
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
