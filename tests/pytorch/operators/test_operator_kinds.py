"""Kinds of faults that rules of operators have had, each tested with many operators, types and sizes at once, beside eager PyTorch."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")

from onnx import TensorProto  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import aspen_mp  # noqa: E402
from aspen_mp.torch import backend, registry  # noqa: E402
from aspen_mp.torch.builder import type_fault  # noqa: E402
from aspen_mp.torch.compiled import Compiled  # noqa: E402

Call = Callable[..., Any]
INF, NAN = math.inf, math.nan
HALVES = [torch.float16, torch.bfloat16]
FLOATS = [torch.float32, *HALVES]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
MARKED = torch.tensor([0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 0.5, -2.5, 30000.0, 1e-7])


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with aspen_mp.Runtime(workers=1) as runtime:
        yield runtime


@pytest.fixture
def compiled(runtime: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that compiles. `graphs` and `calls` of it: how many graphs were compiled, and how many calls the runtime had."""
    run = Compiled.__call__

    def compiled(function: Call, dynamic: bool = False) -> Call:
        torch._dynamo.reset()
        compiled.graphs = compiled.calls = 0  # type: ignore[attr-defined]

        def counted(module: Any, inputs: Any) -> Any:
            compiled.graphs += 1  # type: ignore[attr-defined]
            return backend.aspen_mp(module, inputs, options={"runtime": runtime, "min_block_size": 1})

        return torch.compile(function, backend=counted, dynamic=dynamic)  # type: ignore[no-any-return]

    def call(self: Any, *args: Any) -> Any:
        compiled.calls += 1  # type: ignore[attr-defined]
        return run(self, *args)

    monkeypatch.setattr(Compiled, "__call__", call)
    with torch.no_grad():
        yield compiled
    torch._dynamo.reset()


def flat(results: Any) -> list[Any]:
    return [each for result in results for each in flat(result)] if isinstance(results, tuple | list) else [results]


def check(got: Any, want: Any, labels: Sequence[Any] = ()) -> None:
    assert len(flat(got)) == len(flat(want))
    for k, (a, b) in enumerate(zip(flat(got), flat(want), strict=True)):
        label = labels[k] if k < len(labels) else k
        torch.testing.assert_close(a, b, equal_nan=True, msg=lambda text, label=label: f"{label}: {text}")


def compare_all(compiled: Any, calls: dict[Any, tuple[Call, Any]], dynamic: bool = False) -> None:
    """Compare calls of one graph. Those that eager PyTorch refuses are left out."""
    good = {}
    for label, (call, tensor) in calls.items():
        try:
            want = flat(call(tensor))
        except (RuntimeError, TypeError, IndexError, ValueError):
            continue
        good[label] = call, tensor, want
    assert len(good) > len(calls) // 3
    functions = [call for call, _, _ in good.values()]

    def together(*tensors: Any) -> list[Any]:
        return [call(tensor) for call, tensor in zip(functions, tensors, strict=True)]

    got = compiled(together, dynamic)(*[tensor for _, tensor, _ in good.values()])
    assert compiled.calls
    check(got, [want for _, _, want in good.values()], [label for label, (_, _, want) in good.items() for _ in want])


def values(dtype: Any) -> Any:
    """Elements at the ends of a type's range."""
    if dtype.is_floating_point:
        return MARKED.to(dtype)
    if dtype == torch.bool:
        return torch.tensor([True, False])
    info = torch.iinfo(dtype)
    return torch.tensor([0, 1, 2, 7, info.max, info.min, info.max - 1, info.min + 1], dtype=dtype)


# ---- sizes

OF_SIZES: dict[str, Call] = {
    "full": lambda x: x + torch.full((1,), x.shape[0]),
    "a large full": lambda x: torch.full((300, 300), x.shape[0] * 2.5).sum() + x,
    "fill": lambda x: x.fill_diagonal_(x.shape[1]) if x.dim() > 2 else torch.full_like(x, x.shape[1] / 2),
    "roll": lambda x: x.roll(5, 0) + x.roll((7, -9), (0, 1)),
    "roll by a size": lambda x: x.roll(x.shape[1], 0) - x.roll(-4),
    "var": lambda x: torch.var(x, 0) + torch.std(x, 1, correction=0).sum(),
    "add": lambda x: torch.add(x, x, alpha=x.shape[0]) + x.shape[1],
    "pow": lambda x: x.abs() ** (x.shape[0] / x.shape[1]),
    "clamp": lambda x: x.clamp(-x.shape[0] / 4, x.shape[1] / 8) + x.clamp(max=x.shape[0]),
    "addmm": lambda x: torch.addmm(x @ x.mT, x, x.mT, beta=x.shape[0], alpha=x.shape[1]),
    "slice": lambda x: x[: x.shape[0] - 1, 1:] * 2,
    "view": lambda x: x.reshape(-1, 1, x.shape[0]) + 1,
    "repeat": lambda x: x.repeat(2, x.shape[0]) * 2,
    "pad": lambda x: F.pad(x, (1, x.shape[0])) + 1,
    "reflect and cut": lambda x: F.pad(x, (2, x.shape[0] - 9), "reflect") + 1,
    "repeat and cut": lambda x: F.pad(x, (x.shape[0] - 6, 3), "replicate") + 1,
    "arange": lambda x: torch.arange(x.shape[0], dtype=torch.float16)[:, None] + x,
    "cat": lambda x: torch.cat([x, x.new_ones(x.shape[0], 2)], 1) * 2,
    "mean": lambda x: (x / x.shape[0]).sum(0) * x.shape[1],
    "interpolate": lambda x: F.interpolate(x[None], x.shape[0] + 3, mode="linear"),
}


@pytest.mark.parametrize("name", OF_SIZES)
def test_one_graph_serves_sizes_that_vary(compiled: Any, name: str) -> None:
    run = compiled(OF_SIZES[name], dynamic=True)
    for n, m in ((8, 12), (10, 9), (3, 11), (4, 5)):
        x = torch.arange(1.0 * n * m).reshape(n, m) / 10
        check(run(x.clone()), OF_SIZES[name](x.clone()), [(n, m)])
    assert compiled.graphs == 1
    assert compiled.calls > 1


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_sizes_that_depend_on_data(compiled: Any) -> None:
    def function(x: Any, n: Any) -> Any:
        ones = x.new_ones(n.item())
        return torch.cat([x * 2, ones]) + 1, ones.unsqueeze(0) * 3, torch.stack([ones, ones + 1])

    run, x = compiled(function), torch.randn(2)
    for n in (3, 0, 1, 5):
        check(run(x, torch.tensor(n)), function(x, torch.tensor(n)))


# ---- rules that fail, and types that ONNX refuses


@pytest.mark.parametrize("kind", [ZeroDivisionError, RuntimeError, OverflowError, AttributeError, NotImplementedError, RecursionError])
def test_whatever_a_rule_raises_leaves_its_operator_with_pytorch(compiled: Any, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    def fault(*_: Any, **__: Any) -> Any:
        raise kind("a fault")

    monkeypatch.setitem(registry.RULES, "sin.default", fault)
    x = torch.randn(4)
    check(compiled(lambda x: (x.exp() + 1).sin().cos() * 2)(x), (x.exp() + 1).sin().cos() * 2)
    assert compiled.calls == 2


def test_types_are_those_of_onnx() -> None:
    real, flag, whole, half = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64, TensorProto.FLOAT16
    allowed = [("Add", (real, real), (real,)), ("Where", (flag, whole, whole), (whole,)), ("Concat", (half,) * 5, (half,))]
    allowed += [("Clip", (real, None, real), (real,)), ("TopK", (half, whole), (half, whole)), ("Pow", (real, whole), (real,))]
    refused = [
        ("Add", (flag, flag), (flag,)),
        ("Add", (real, half), (real,)),
        ("Where", (real, real, real), (real,)),
        ("Add", (real,), (real,)),
    ]
    refused += [
        ("Concat", (half, real), (half,)),
        ("IsNaN", (whole,), (flag,)),
        ("Conv", (whole, whole), (whole,)),
        ("Exp", (real,), (half,)),
    ]
    assert not [case for case in allowed if type_fault(*case)]
    assert not [case for case in refused if not type_fault(*case)]


# ---- reductions

SHAPED = [
    torch.tensor(-3.0),
    torch.tensor(0.0),
    torch.tensor(NAN),
    torch.arange(12.0).view(3, 4) / 5 - 1,
    torch.zeros(0, 3),
    torch.ones(1, 5),
]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
def test_norms_of_all_orders(compiled: Any, dtype: Any) -> None:
    calls: dict[Any, tuple[Call, Any]] = {}
    for place, x in enumerate(SHAPED):
        for order in (0, 1, 2, 3, -1, 0.5, -0.5, INF, -INF):
            for dim, keepdim in ((None, False), (0, True), (-1, False)):
                if x.numel() or 0 <= order < INF:
                    norm = lambda x, a=(order, dim, keepdim): torch.linalg.vector_norm(x, *a)  # noqa: E731
                    calls[place, order, dim] = norm, x.to(dtype)
    compare_all(compiled, calls)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_variances_with_any_correction(compiled: Any, dtype: Any, dynamic: bool) -> None:
    calls: dict[Any, tuple[Call, Any]] = {}
    for place, x in enumerate([*SHAPED, torch.linspace(0, 1, 80_000)]):
        for name in ("var", "std", "var_mean", "std_mean"):
            for correction in (0, 1, 5) if not dynamic else (0.5,):
                call = lambda x, n=name, c=correction: getattr(torch, n)(x, None if x.dim() == 0 else -1, correction=c)  # noqa: E731
                calls[place, name, correction] = call, x.to(dtype)
    compare_all(compiled, calls, dynamic)


# ---- values

UNARY: dict[str, Call] = {
    name: getattr(torch, name)
    for name in (
        *("abs", "neg", "sign", "sgn", "ceil", "floor", "round", "trunc", "frac", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "tanh"),
        *("reciprocal", "isnan", "isinf", "isfinite", "isposinf", "signbit", "square", "logical_not", "bitwise_not", "nan_to_num"),
        *("lgamma", "digamma", "erfc", "sin", "sigmoid", "relu", "sum", "prod", "amax", "argmin", "any", "all"),
    )
}
POWERS: dict[str, Call] = {f"x ** {p}": lambda x, p=p: x**p for p in (2, 3, 0.5, -0.5, -1, 0)}  # type: ignore[misc]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64, *INTEGERS, torch.bool], ids=str)
def test_elements_at_the_ends_of_a_type(compiled: Any, dtype: Any) -> None:
    compare_all(compiled, {name: (call, values(dtype)) for name, call in (UNARY | POWERS).items()})


WITH_NUMBERS: dict[str, Call] = {
    "x + n": lambda x, n: x + n,
    "n - x": lambda x, n: n - x,
    "x * n": lambda x, n: x * n,
    "x / n": lambda x, n: x / n,
    "x % n": lambda x, n: x % n if n else x,
    "x // n": lambda x, n: x // n if n else x,
    "trunc": lambda x, n: torch.div(x, n, rounding_mode="trunc") if n else x,
    "fmod": lambda x, n: torch.fmod(x, n) if n else x,
    "x > n": lambda x, n: x > n,
    "x == n": lambda x, n: x == n,
    "where": lambda x, n: torch.where(x > 0, x, n),
    "clamp": lambda x, n: (x.clamp(min=n), x.clamp(-1, n), x.clamp_max(n)),
    "lerp": lambda x, n: torch.lerp(x, x * 2, n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "hardtanh": lambda x, n: F.hardtanh(x, -1, n),
    "full": torch.full_like,
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
}


@pytest.mark.parametrize("number", [True, 0, 3, -3, 300, 1e10, -1e10, 1e-9, 0.5, INF, NAN])
def test_numbers_that_a_type_cannot_hold(compiled: Any, number: Any) -> None:
    calls: dict[Any, tuple[Call, Any]] = {}
    for dtype in (*FLOATS, torch.int8, torch.uint8, torch.int64, torch.bool):
        x = values(dtype)
        if dtype in INTEGERS:
            x = x[x != torch.iinfo(dtype).min]
        for name, call in WITH_NUMBERS.items():
            calls[dtype, name] = lambda x, call=call: call(x, number), x
    compare_all(compiled, calls)


BESIDE: list[Any] = [torch.add, torch.mul, torch.div, torch.pow, torch.fmod, torch.remainder, torch.atan2, torch.copysign, torch.maximum]
BESIDE += [torch.xlogy, torch.special.xlogy, torch.special.xlog1py]


@pytest.mark.parametrize("whole", [torch.int64, torch.int32, torch.int16], ids=str)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_integers_beside_halves(compiled: Any, dtype: Any, whole: Any) -> None:
    """Integers become halves, which hold few of them, before anything is computed."""
    numbers = torch.tensor([0, 1, 3, -7, 2049, 70_000]).to(whole)[:, None]
    half = torch.tensor([0.0, 1.0, 0.5, 3.0, -7.0, INF, NAN]).to(dtype)
    calls: dict[Any, tuple[Call, Any]] = {}
    for place, call in enumerate(BESIDE):
        calls[place, call.__name__] = lambda x, call=call: call(numbers, x), half
        calls[place, call.__name__, "turned"] = lambda x, call=call: call(x, numbers), half
    compare_all(compiled, calls)


ODD: dict[str, Call] = {name: getattr(torch, name) for name in ("asin", "atan", "sinh", "asinh", "tanh", "atanh", "erf")}
ODD |= {name: getattr(torch, name) for name in ("sign", "trunc", "frac", "ceil", "floor", "round", "neg", "abs", "sqrt", "expm1", "log1p")}
ODD |= {
    "gelu": F.gelu,
    "silu": F.silu,
    "relu": F.relu,
    "x * -3": lambda x: x * -3,
    "3 - x": lambda x: 3 - x,
    "where": lambda x: x.where(x > 5, -0.0),
}


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
def test_zeros_keep_their_signs(compiled: Any, dtype: Any) -> None:
    """`atan2` tells: of 0 it is pi, of -0 it is -pi."""
    x = torch.tensor([0.0, -0.0, 0.3, -0.3, 0.5, -0.5]).to(dtype)
    compare_all(compiled, {name: (lambda x, call=call: torch.atan2(call(x), x * 0 - 1), x) for name, call in ODD.items()})


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_what_is_infinite(compiled: Any, dtype: Any, approximate: str) -> None:
    """PyTorch's own kernel has inf for inf; that of oneDNN, which some types and sizes use, has NaN."""
    x = torch.tensor([-INF, NAN, -1e4, -30.0, -0.0, 0.0, 1e4]).to(dtype)
    compare_all(compiled, {"gelu": (lambda x: F.gelu(x, approximate=approximate), x)})
    x = torch.full((20,), INF, dtype=dtype)
    check(compiled(lambda x: F.gelu(x, approximate=approximate))(x), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pools_of_any_size(compiled: Any, dtype: Any) -> None:
    calls: dict[Any, tuple[Call, Any]] = {}
    for n in (1, 2):
        for k, shape in enumerate([(2, 3, 8, 6)[: n + 2], (3, 7, 5)[: n + 1], (0, 3, 8, 6)[: n + 2]]):
            x = torch.arange(1.0 * math.prod(shape)).sin().view(shape).to(dtype)
            for size in (0, 1, 2, 3, 5):
                for kind in ("avg", "max"):
                    pool = getattr(F, f"adaptive_{kind}_pool{n}d")
                    calls[kind, n, k, size] = lambda x, pool=pool, size=size: pool(x, size), x
            calls["avg", n, k] = lambda x, n=n: getattr(F, f"avg_pool{n}d")(x, 3, 2, 1, ceil_mode=True), x
            calls["max", n, k] = lambda x, n=n: getattr(F, f"max_pool{n}d")(x, 3, 2, 1, 1, ceil_mode=True), x
    compare_all(compiled, calls)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate"])
def test_pads_that_add_and_cut(compiled: Any, mode: str, dynamic: bool) -> None:
    calls: dict[Any, tuple[Call, Any]] = {}
    for n in (1, 2, 3):
        x = torch.arange(4.0 * 5**n).view(2, 2, *[5] * n)
        for pad in itertools.product((-2, -1, 0, 3), repeat=2):
            calls[n, pad] = lambda x, pad=(*pad, *(1, -2, -1, 2)[: 2 * n - 2]): F.pad(x, pad, mode) + 1, x
    compare_all(compiled, calls, dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_statistics_of_a_batch(compiled: Any, dtype: Any, dynamic: bool) -> None:
    """Halves within their precision: sums differ in order."""

    def function(x: Any, mean: Any, var: Any) -> Any:
        mean, var = mean.clone(), var.clone()
        y = F.relu(F.batch_norm(x, mean, var, training=True, momentum=0.3)) * 2 + 1
        return y, mean, var, F.instance_norm(x) * 2, F.batch_norm(x, None, None, training=True) + 1

    torch.manual_seed(0)
    args = torch.randn(4, 3, 5).to(dtype), torch.zeros(3, dtype=dtype), torch.ones(3, dtype=dtype)
    run, tolerance = compiled(function, dynamic), {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}[dtype]
    for a, b in zip(run(*args), function(*args), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8, torch.int64, torch.uint8], ids=str)
def test_ranges(compiled: Any, dtype: Any) -> None:
    ranges = [(0, 10, 4), (5, -5, 3), (1, 1, 1), (0, 1, 0), (0.3, 100.7, 50), (-1, 1, 2)]
    steps = [(5,), (0,), (-3, 4), (1, 0, -0.3), (0.5, 7.5), (0.1, 5, 0.7), (10, 0, -3)]
    calls: dict[Any, tuple[Call, Any]] = {}
    for a in ranges:
        calls["linspace", a] = lambda x, a=a: (torch.linspace(*a, dtype=dtype), x + 1), torch.ones(1)
    for b in steps:
        calls["arange", b] = lambda x, b=b: (torch.arange(*b, dtype=dtype), x + 1), torch.ones(1)
    compare_all(compiled, calls)


# ---- random numbers

DRAWS: dict[str, Call] = {
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(3, 4),
    "randint": lambda x: torch.randint(0, 100, (3, 4)),
    "randperm": lambda x: torch.randperm(12).view(3, 4),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "multinomial": lambda x: torch.multinomial(x.sigmoid(), 4, True),
    "normal": lambda x: torch.normal(x, x.abs()),
    "exponential": lambda x: torch.empty(3, 4).exponential_(2.0),
    "dropout": lambda x: F.dropout(x, 0.4),
    "gumbel": F.gumbel_softmax,
    "rrelu": lambda x: F.rrelu(x, training=True),
    "Python's": lambda x: x * random.random(),
}


def program(seed: int) -> Call:
    """A function in which draws depend on each other or not, with arithmetic between them."""
    choice = random.Random(seed)
    steps = [(DRAWS[choice.choice(sorted(DRAWS))], choice.randrange(4), choice.randrange(4)) for _ in range(5)]

    def function(x: Any) -> Any:
        found, drawn = [x, x.sin(), x * 2 + 1, x.cos()], []
        for draw, a, b in steps:
            given = found[a].clamp(-2, 2)
            drawn.append(draw(given))
            found[b] = (drawn[-1].float() * found[b]).tanh() + given
        return drawn, found

    return function


@pytest.mark.parametrize("seed", range(10))
def test_random_numbers_are_drawn_in_order(compiled: Any, seed: int) -> None:
    call, x = program(seed), torch.linspace(-1, 1, 12).view(3, 4)
    run = compiled(call, bool(seed % 2))
    for _ in range(2):
        states = []
        for each in (run, call):
            torch.manual_seed(seed)
            random.seed(seed)
            states.append((flat(each(x)), torch.rand(1), random.random()))
        check(states[0][0], states[1][0])
        assert states[0][1:] == states[1][1:]


# ---- layouts

LAYOUTS: dict[str, Callable[[int, int], Any]] = {
    "usual": torch.randn,
    "one row": lambda n, m: torch.randn(1, m).expand(n, m),
    "one column": lambda n, m: torch.randn(n, 1).expand(n, m),
    "one element": lambda n, m: torch.randn(()).expand(n, m),
    "transposed": lambda n, m: torch.randn(m, n).t(),
    "a part": lambda n, m: torch.randn(n + 2, m + 3)[1:-1, 2:-1],
    "overlapping": lambda n, m: torch.randn(n + m).unfold(0, m, 1)[:n],
}


def views(x: Any) -> Any:
    y = x * 2
    row = x.sum(0)
    return [
        x.view_as(x),
        x.unsqueeze(-1).expand(*x.shape, 2),
        x[1:, 1:].t(),
        x[:, :1].expand(-1, x.shape[0]),
        x[0],
        y.expand(2, *y.shape),
        row.expand_as(x),
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_inputs_in_any_layout(compiled: Any, layout: str, dynamic: bool) -> None:
    run = compiled(views, dynamic)
    for n, m in ((4, 5), (6, 3), (2, 7)) if dynamic else ((4, 5),):
        x = LAYOUTS[layout](n, m)
        got, want = run(x), views(x)
        check(got, want)
        assert [a.stride() for a in got] == [b.stride() for b in want]
        assert [a.data_ptr() for a in got[:5]] == [b.data_ptr() for b in want[:5]]
    assert compiled.calls


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_inputs_that_lie_elsewhere_in_their_memory(compiled: Any, dynamic: bool) -> None:
    run, memory = compiled(views, dynamic), torch.randn(100)
    for offset in (0, 7, 40, 3):
        x = memory[offset : offset + 20].view(4, 5)
        check(run(x), views(x), [offset] * 7)
