"""Do the operands and parameters of an op fit its kernel? Kernels trust a plan in this: what passes here cannot make one leave its
operands.

Each rule sees the shapes and dtypes of output and inputs and the i64 parameters, as written down in ``workers/kernels/kernel.h``, and
raises `Misfit` naming what does not fit.
"""

from __future__ import annotations

from aspen_mp.planner.ops.checks import axes, elementwise, images, indexing, padding, products, recurrent, rows, sampling
from aspen_mp.planner.ops.checks.call import Arg, Call, Misfit, Rule

__all__ = ["Arg", "Call", "Misfit", "check_call"]

_FAMILIES = (products, images, elementwise, axes, indexing, padding, sampling, recurrent, rows)
_RULES: dict[str, Rule] = {kernel: rule for family in _FAMILIES for kernel, rule in family.RULES.items()}


def check_call(kernel: str, call: Call) -> None:
    """Raises `Misfit` unless a call of `kernel` with these operands stays within them."""
    rule = _RULES.get(kernel)
    if rule is not None:
        rule(call)
