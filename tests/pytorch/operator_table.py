"""The table of ATen operators in the reference: which have rules, with which types they are tested, and which are refused.

`python tests/pytorch/operator_table.py > docs/reference/pytorch-operators.md` writes it.
"""

from __future__ import annotations

from collections import defaultdict

import aten_layouts  # noqa: F401
from aten_cases import GENERATORS

from aspen_mp.torch import importer
from aspen_mp.torch.registry import REFUSED, RULES

HEAD = """# PyTorch operators

PyTorch takes a module apart into ATen operators before aspen-mp sees it. The first table lists those that run in a runtime. A test
compares each with PyTorch, with inputs of the types named here. All other operators stay with PyTorch. So do calls with arguments that
ONNX cannot express: `aspen_mp.explain` names them.

`python tests/pytorch/operator_table.py` makes this page.

| operator | family | types tested |
|---|---|---|
"""
REFUSALS = """
## Operators that stay with PyTorch on purpose

| operator | why |
|---|---|
"""


def page() -> str:
    assert importer.RULES is RULES
    families: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name in RULES:
        packet = name.rpartition(".")[0].removeprefix("aspen_mp.")
        family = RULES[name].__module__.rpartition(".")[2]
        types = {str(tensor.dtype).removeprefix("torch.") for case in GENERATORS[name]() for tensor in case.tensors}
        families[packet, family] |= types
    lines = [f"| `{packet}` | {family} | {', '.join(sorted(types))} |" for (packet, family), types in sorted(families.items())]
    refused = [f"| `{name.rpartition('.')[0]}` | {why} |" for name, why in sorted(REFUSED.items())]
    return HEAD + "\n".join(lines) + "\n" + REFUSALS + "\n".join(dict.fromkeys(refused)) + "\n"


if __name__ == "__main__":
    print(page(), end="")
