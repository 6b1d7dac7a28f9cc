"""Calls of ATen operators, each operator with shapes, types and options that differ: what `test_aten.py` compares with PyTorch itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")
from aspen_mp.torch.layers import recurrent  # noqa: E402, F401

ops = torch.ops.aten


class Case(NamedTuple):
    """`call(*tensors)` is what is compared."""

    call: Callable[..., Any]
    tensors: tuple[Any, ...]


Cases = Iterator[Case]
GENERATORS: dict[str, Callable[[], Cases]] = {}
_generator = torch.Generator().manual_seed(1)


def real(*shape: int, dtype: Any = torch.float32, low: float = -3.0, high: float = 3.0) -> Any:
    return (torch.rand(shape, generator=_generator, dtype=torch.float64) * (high - low) + low).to(dtype)


def whole(*shape: int, dtype: Any = torch.int64, low: int = -7, high: int = 8) -> Any:
    return torch.randint(low, high, shape, generator=_generator).to(dtype)


def flags(*shape: int) -> Any:
    return whole(*shape, low=0, high=2).bool()


def cases(*names: str) -> Callable[[Callable[..., Cases]], Callable[..., Cases]]:
    """The function makes the cases of each operator of these names, which it is given."""

    def register(function: Callable[..., Cases]) -> Callable[..., Cases]:
        for name in names:
            GENERATORS[name] = lambda name=name: function(operator(name))  # type: ignore[misc]
        return function

    return register


def operator(name: str) -> Any:
    *space, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, space[0]) if space else ops, packet), overload)


SPECIAL = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, 2.5, -1.5])


@cases(*(f"{n}.default" for n in ["abs", "neg", "sign", "ceil", "floor", "round", "trunc", "relu"]))
def _unary(op: Any) -> Cases:
    yield Case(op, (real(3, 5),))
    yield Case(op, (real(),))
    yield Case(op, (SPECIAL.clone(),)) if op.__name__ != "sign.default" else Case(op, (SPECIAL[~SPECIAL.isnan()],))
    yield Case(op, (whole(4, 3),))
    yield Case(op, (whole(6, dtype=torch.int32),))
    yield Case(op, (real(2, 0, 3),))


@cases(*(f"{n}.default" for n in ["exp", "sin", "cos", "tan", "sinh", "cosh", "asinh", "atan", "tanh", "erf", "sigmoid", "expm1", "exp2"]))
def _unary_any(op: Any) -> Cases:
    yield Case(op, (real(3, 5),))
    yield Case(op, (whole(4, 3),))
    yield Case(op, (real(7, low=-1e-4, high=1e-4),))
    yield Case(op, (SPECIAL[torch.isfinite(SPECIAL)],))


@cases(*(f"{n}.default" for n in ["log", "sqrt", "rsqrt", "log2", "log10", "log1p", "acosh"]))
def _unary_positive(op: Any) -> Cases:
    yield Case(op, (real(3, 5, low=1.0, high=9.0),))
    yield Case(op, (whole(4, 3, low=1, high=9),))


@cases("reciprocal.default", "log1p.default")
def _apart_from_zero(op: Any) -> Cases:
    yield Case(op, (real(3, 5, low=0.1),))
    yield Case(op, (real(30, low=1e-10, high=1e-5),))


@cases("asin.default", "acos.default", "atanh.default")
def _unary_small(op: Any) -> Cases:
    yield Case(op, (real(3, 5, low=-0.9, high=0.9),))


@cases("frac.default")
def _frac(op: Any) -> Cases:
    yield Case(op, (real(20),))


@cases("round.decimals")
def _round_decimals(op: Any) -> Cases:
    for decimals in (0, 2, -1):
        yield Case(lambda x, decimals=decimals: op(x, decimals=decimals), (real(9, low=-99, high=99),))


@cases("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum.default", "minimum.default")
def _binary(op: Any) -> Cases:
    yield Case(op, (real(3, 5), real(3, 5)))
    yield Case(op, (real(3, 1, 5), real(4, 1)))
    yield Case(op, (real(3, 5), real()))
    yield Case(op, (whole(3, 5), whole(5, low=1)))
    yield Case(op, (whole(3, 5), real(3, 5, low=0.5)))
    yield Case(op, (whole(3, dtype=torch.int32), whole(3, low=1)))
    yield Case(op, (real(4, dtype=torch.float16), real(4, low=1.0)))
    if op.__name__ not in ("maximum.default", "minimum.default"):
        yield Case(lambda x: op(x, 2), (real(3, 5),))
        yield Case(lambda x: op(x, 2.5), (whole(3, 5),))
    if op.__name__ not in ("sub.Tensor", "rsub.Tensor", "div.Tensor"):
        yield Case(op, (flags(3, 5), flags(3, 5)))
    if op.__name__ in ("add.Tensor", "sub.Tensor", "rsub.Tensor"):
        yield Case(lambda x, y: op(x, y, alpha=3), (real(3), real(3)))


@cases("add.Scalar", "sub.Scalar", "mul.Scalar", "div.Scalar", "rsub.Scalar")
def _binary_scalar(op: Any) -> Cases:
    yield Case(lambda x: op(x, 2), (real(3, 5),))
    yield Case(lambda x: op(x, 2.5), (whole(3, 5),))
    yield Case(lambda x: op(x, 3), (whole(3, 5),))


@cases("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(op: Any) -> Cases:
    for mode in ("floor", "trunc", None):
        for x, y in ((real(40), real(40)), (whole(40), whole(40, low=1)), (whole(40), whole(40, high=0))):
            if op.__name__ == "div.Tensor_mode":
                yield Case(lambda x, y, mode=mode: op(x, y, rounding_mode=mode), (x, y))
        for divisor in (0.1, -0.3, 3, -2):
            yield Case(lambda x, d=divisor, mode=mode: operator("div.Tensor_mode")(x, d, rounding_mode=mode), (real(40),))
            yield Case(lambda x, d=divisor, mode=mode: operator("div.Scalar_mode")(x, d, rounding_mode=mode), (real(40),))


@cases("floor_divide.default", "fmod.Tensor", "remainder.Tensor")
def _modulo(op: Any) -> Cases:
    yield Case(op, (real(60), real(60)))
    yield Case(op, (torch.arange(-20, 20) / 10, torch.full((40,), 0.1)))
    yield Case(op, (whole(60), whole(60, low=1)))
    yield Case(op, (whole(60, dtype=torch.int32), whole(60, high=0, dtype=torch.int32)))


@cases("fmod.Scalar", "remainder.Scalar")
def _modulo_scalar(op: Any) -> Cases:
    for divisor in (3, -3):
        yield Case(lambda x, d=divisor: op(x, d), (whole(30),))
    for divisor in (0.7, -0.7):
        yield Case(lambda x, d=divisor: op(x, d), (real(30),))


@cases("pow.Tensor_Scalar")
def _pow(op: Any) -> Cases:
    for exponent in (0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, 1.7):
        yield Case(lambda x, e=exponent: op(x, e), (real(3, 5, low=0.2),))
    yield Case(lambda x: op(x, 2), (whole(9),))
    yield Case(lambda x: op(x, 4), (whole(9),))
    yield Case(lambda x: op(x, 0.5), (whole(9, low=0),))


@cases("pow.Tensor_Tensor")
def _pow_tensor(op: Any) -> Cases:
    yield Case(op, (real(3, 5, low=0.2), real(5)))
    yield Case(op, (whole(9), whole(9, low=0, high=5)))


@cases("pow.Scalar")
def _pow_scalar(op: Any) -> Cases:
    yield Case(lambda x: op(2.5, x), (real(3, 5),))


@cases("addcmul.default", "addcdiv.default")
def _add_product(op: Any) -> Cases:
    yield Case(op, (real(3, 5), real(3, 5), real(5, low=1.0)))
    yield Case(lambda x, y, z: op(x, y, z, value=2.5), (real(3, 5), real(3, 5), real(5, low=1.0)))


@cases("lerp.Scalar", "lerp.Tensor")
def _lerp(op: Any) -> Cases:
    if op.__name__ == "lerp.Scalar":
        yield Case(lambda x, y: op(x, y, 0.3), (real(3, 5), real(3, 5)))
    else:
        yield Case(op, (real(3, 5), real(3, 5), real(3, 5, low=0.0, high=1.0)))


@cases("clamp.default", "hardtanh.default")
def _clamp(op: Any) -> Cases:
    yield Case(lambda x: op(x, -1.0, 1.5), (real(3, 5),))
    if op.__name__ == "clamp.default":
        yield Case(lambda x: op(x, 0), (real(3, 5),))
        yield Case(lambda x: op(x, None, 1), (SPECIAL.clone(),))
        yield Case(lambda x: op(x, 2, 1), (real(9),))
        yield Case(lambda x: op(x, -3, 3), (whole(20),))
        yield Case(lambda x: op(x, 0.5), (whole(20),))


@cases("clamp_min.default", "clamp_max.default")
def _clamp_one(op: Any) -> Cases:
    yield Case(lambda x: op(x, 0.5), (real(3, 5),))
    yield Case(lambda x: op(x, 2), (whole(9),))


@cases("clamp.Tensor")
def _clamp_tensor(op: Any) -> Cases:
    yield Case(op, (real(3, 5), real(5, high=0.0), real(3, 1, low=0.5)))
    yield Case(lambda x, y: op(x, None, y), (real(3, 5), real(5)))


@cases("where.self")
def _where(op: Any) -> Cases:
    yield Case(op, (flags(3, 5), real(3, 5), real(5)))
    yield Case(op, (flags(3, 1), whole(3, 5), real(5)))
    yield Case(op, (flags(3, 5), whole(3, 5), whole(3, 5)))
    yield Case(op, (flags(3, 5), flags(3, 5), flags(3, 5)))


@cases("masked_fill.Tensor")
def _masked_fill_tensor(op: Any) -> Cases:
    yield Case(op, (real(3, 5), flags(5), real()))


@cases("remainder.Scalar_Tensor")
def _remainder_of_number(op: Any) -> Cases:
    yield Case(lambda x: op(7, x), (whole(30, low=1),))


@cases("masked_fill.Scalar")
def _masked_fill(op: Any) -> Cases:
    yield Case(lambda x, m: op(x, m, -math.inf), (real(3, 5), flags(5)))
    yield Case(lambda x, m: op(x, m, 3), (whole(3, 5), flags(3, 1)))


@cases("nan_to_num.default")
def _nan_to_num(op: Any) -> Cases:
    yield Case(op, (SPECIAL.clone(),))
    yield Case(lambda x: op(x, 1.0, 2.0, -3.0), (SPECIAL.clone(),))


# ---- comparisons


@cases(*(f"{n}.Tensor" for n in ["eq", "ne", "lt", "gt", "le", "ge"]))
def _comparison(op: Any) -> Cases:
    yield Case(op, (whole(3, 5, high=-5), whole(5, high=-5)))
    yield Case(op, (real(3, 5), real(3, 1)))
    yield Case(op, (whole(3, 5), real(3, 5)))
    yield Case(op, (flags(3, 5), flags(5)))
    yield Case(op, (SPECIAL.clone(), SPECIAL.flip(0)))


@cases(*(f"{n}.Scalar" for n in ["eq", "ne", "lt", "gt", "le", "ge"]))
def _comparison_scalar(op: Any) -> Cases:
    yield Case(lambda x: op(x, 2), (whole(20),))
    yield Case(lambda x: op(x, 1.5), (whole(20),))
    yield Case(lambda x: op(x, 0), (real(20),))
    yield Case(lambda x: op(x, 1), (flags(9),))


@cases(*(f"logical_{n}.default" for n in ["and", "or", "xor"]))
def _logical(op: Any) -> Cases:
    yield Case(op, (flags(3, 5), flags(5)))
    yield Case(op, (whole(3, 5, low=0, high=2), real(5)))


@cases(*(f"bitwise_{n}.Tensor" for n in ["and", "or", "xor"]))
def _bitwise(op: Any) -> Cases:
    yield Case(op, (flags(3, 5), flags(5)))
    yield Case(op, (whole(3, 5, low=0, high=99), whole(5, low=0, high=99)))


@cases(*(f"bitwise_{n}.Scalar" for n in ["and", "or", "xor"]))
def _bitwise_scalar(op: Any) -> Cases:
    yield Case(lambda x: op(x, 6), (whole(30, low=0, high=99),))


@cases("logical_not.default", "bitwise_not.default")
def _not(op: Any) -> Cases:
    yield Case(op, (flags(9),))
    yield Case(op, (whole(9),))


@cases("isnan.default", "isinf.default")
def _special(op: Any) -> Cases:
    yield Case(op, (SPECIAL.clone(),))


@cases("_to_copy.default")
def _to_copy(op: Any) -> Cases:
    for source in (real(3, 5), whole(9), flags(9)):
        for dtype in (torch.float32, torch.int64, torch.int32, torch.bool, torch.float64):
            yield Case(lambda x, dtype=dtype: op(x, dtype=dtype), (source,))


@cases("clone.default", "alias.default", "detach.default", "lift_fresh_copy.default")
def _same(op: Any) -> Cases:
    yield Case(op, (real(3, 5),))


@cases("copy.default")
def _copy(op: Any) -> Cases:
    yield Case(op, (real(3, 5), whole(5)))


# ---- activations

_ACTIVATIONS = "gelu silu hardswish hardsigmoid mish elu celu leaky_relu softplus glu log_sigmoid_forward"


@cases(*(f"{n}.default" for n in _ACTIVATIONS.split()))
def _activation(op: Any) -> Cases:
    first = (lambda x: op(x)[0]) if "sigmoid_forward" in op.__name__ else op
    yield Case(first, (real(3, 6, low=-8.0, high=8.0),))
    yield Case(first, (real(2, 4, low=-80.0, high=80.0),))
    if op.__name__ == "gelu.default":
        yield Case(lambda x: op(x, approximate="tanh"), (real(3, 5),))
    if op.__name__ == "elu.default":
        yield Case(lambda x: op(x, 1.5), (real(3, 5),))
        yield Case(lambda x: op(x, 1.5, 1.1, 0.9), (real(3, 5),))
    if op.__name__ == "softplus.default":
        yield Case(lambda x: op(x, 2.0, 5.0), (real(3, 5, low=-9, high=9),))
    if op.__name__ == "glu.default":
        yield Case(lambda x: op(x, 0), (real(4, 5),))


@cases("_prelu_kernel.default")
def _prelu(op: Any) -> Cases:
    yield Case(op, (real(2, 3, 4), real(1, 3, 1)))


@cases("threshold.default")
def _threshold(op: Any) -> Cases:
    yield Case(lambda x: op(x, 0.5, -2.0), (real(3, 5),))


@cases("_softmax.default", "_log_softmax.default")
def _softmax(op: Any) -> Cases:
    for dim in (-1, 0, 1):
        yield Case(lambda x, dim=dim: op(x, dim, False), (real(3, 5, 4),))


@cases("_safe_softmax.default")
def _safe_softmax(op: Any) -> Cases:
    yield Case(lambda x: op(x, -1), (torch.tensor([[0.0, 1.0], [-math.inf, -math.inf], [-math.inf, 3.0]]),))


# ---- reductions


@cases("sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "logsumexp.default")
def _reduction(op: Any) -> Cases:
    for dims, keep in (([1], False), ([-1, 0], True), ([2], True)):
        yield Case(lambda x, dims=dims, keep=keep: op(x, dims, keep), (real(3, 5, 4),))
    if op.__name__ in ("sum.dim_IntList", "amax.default"):
        yield Case(lambda x: op(x, [0]), (whole(3, 5),))
        yield Case(lambda x: op(x, [0]), (flags(3, 5),))


@cases("sum.default", "mean.default", "max.default", "min.default", "prod.default", "any.default", "all.default")
def _reduction_all(op: Any) -> Cases:
    yield Case(op, (real(3, 5),))
    yield Case(op, (real(),))
    if op.__name__ != "mean.default":
        yield Case(op, (whole(3, 2),))
        yield Case(op, (flags(3, 2),))


@cases("max.dim", "min.dim", "argmax.default", "argmin.default", "prod.dim_int", "any.dim", "all.dim", "cumsum.default")
def _reduction_dim(op: Any) -> Cases:
    for dim in (0, -1):
        yield Case(lambda x, dim=dim: op(x, dim), (real(3, 5, 4),))
        yield Case(lambda x, dim=dim: op(x, dim), (whole(3, 50, low=-999, high=999),))
    if op.__name__ != "cumsum.default":
        yield Case(lambda x: op(x, 1, True), (real(3, 5),))
    if op.__name__ in ("any.dim", "all.dim"):
        yield Case(lambda x: op(x, 1), (flags(6, 2),))
    if op.__name__.startswith("arg"):
        yield Case(op, (real(3, 5),))


@cases("any.dims", "all.dims")
def _reduction_dims(op: Any) -> Cases:
    yield Case(lambda x: op(x, [0, 2]), (flags(2, 3, 2),))


@cases("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")
def _variance(op: Any) -> Cases:
    for dims, correction, keep in (([1], 1, False), ([0, 2], 0, True), (None, None, False)):
        yield Case(lambda x, d=dims, c=correction, k=keep: op(x, d, correction=c, keepdim=k), (real(3, 5, 4),))


@cases("linalg_vector_norm.default")
def _norm(op: Any) -> Cases:
    for order in (1, 2, math.inf, -math.inf, 0, 3):
        yield Case(lambda x, order=order: op(x, order, [1], True), (real(3, 5),))
    yield Case(op, (real(3, 5),))


@cases("topk.default")
def _topk(op: Any) -> Cases:
    yield Case(lambda x: op(x, 3), (real(4, 9),))
    yield Case(lambda x: op(x, 2, 0, False), (real(4, 9),))


@cases("sort.default")
def _sort(op: Any) -> Cases:
    yield Case(op, (real(4, 9),))
    yield Case(lambda x: op(x, 0, True), (real(4, 9),))


@cases("sort.stable")
def _sort_stable(op: Any) -> Cases:
    yield Case(lambda x: op(x, stable=True, dim=1), (whole(4, 50),))
    yield Case(lambda x: op(x, stable=True, dim=0, descending=True), (whole(40, 3),))
