"""`torch.compile(module, backend=aspen_mp)`: modules as people write them give what PyTorch gives."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import aspen_mp  # noqa: E402
from aspen_mp.shm.errors import UnsupportedModelError  # noqa: E402
from aspen_mp.torch import backend  # noqa: E402


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with aspen_mp.Runtime(workers=2) as runtime:
        yield runtime


@pytest.fixture
def compiled(runtime: Any) -> Iterator[Any]:
    """A function that compiles. `loads()`: how many models have been loaded by then."""
    torch._dynamo.reset()

    def compiled(module: Any, **options: Any) -> Any:
        dynamic = options.pop("dynamic", None)
        return torch.compile(
            module, backend=backend.aspen_mp, dynamic=dynamic, options={"runtime": runtime, "min_block_size": 1, **options}
        )

    with torch.no_grad():
        yield compiled
    torch._dynamo.reset()
    gc.collect()


def models(runtime: Any) -> int:
    gc.collect()
    return len(runtime.status()["models"])


def same(got: Any, want: Any) -> None:
    if isinstance(want, tuple | list):
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            same(a, b)
    elif isinstance(want, torch.Tensor):
        assert got.stride() == want.stride() or got.numel() < 2
        torch.testing.assert_close(
            got, want, rtol=2e-5 if want.dtype.itemsize > 2 else 2e-2, atol=1e-5 if want.dtype.itemsize > 2 else 2e-2
        )
    else:
        assert got == want


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        y = F.relu_(self.norm(self.conv(x)))
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


def block() -> Any:
    torch.manual_seed(3)
    module = Block().eval()
    module.norm.running_mean.normal_()  # type: ignore[operator, union-attr]
    module.norm.running_var.uniform_(0.5, 2)  # type: ignore[operator, union-attr]
    return module


def test_convolutions_and_norms(compiled: Any) -> None:
    module, x = block(), torch.randn(2, 3, 9, 9)
    same(compiled(module)(x), module(x))


def test_inputs_in_other_layouts(compiled: Any) -> None:
    module, x = block(), torch.randn(2, 3, 9, 9)
    run = compiled(module)
    for layout in (x.to(memory_format=torch.channels_last), x.transpose(2, 3), torch.randn(2, 3, 9, 18)[..., ::2], x[:, :, 1:, 1:]):
        torch.testing.assert_close(run(layout), module(layout), rtol=2e-5, atol=1e-5)


def test_results_have_the_strides_that_pytorch_gives(compiled: Any) -> None:
    def views(x: Any) -> Any:
        y = x + 1
        return y.transpose(0, 2), y.permute(1, 2, 0) * 2, y.flatten(), y[0]

    x = torch.randn(2, 3, 4)
    same(compiled(views)(x), views(x))


def test_results_with_gaps_in_memory_keep_the_order_of_their_axes(compiled: Any) -> None:
    for call in (lambda x: (x + 1).t()[1:], lambda x: (x + 1).permute(2, 0, 1)[:, 1:], lambda x: (x + 1)[..., ::2]):
        for x in (torch.randn(4, 6, 5), torch.randn(4, 6)):
            try:
                want = call(x)
            except (RuntimeError, IndexError):
                continue
            got = compiled(call)(x)
            assert torch.equal(got, want)
            assert [*torch.tensor(got.stride()).argsort()] == [*torch.tensor(want.stride()).argsort()]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("call", ["topk", "sort", "argsort", "stable sort"])
def test_places_of_equal_elements(call: str, dtype: Any, compiled: Any) -> None:
    calls = {
        "topk": lambda x: torch.topk(x, 5),
        "sort": torch.sort,
        "argsort": lambda x: torch.argsort(x, descending=True),
        "stable sort": lambda x: torch.sort(x, stable=True),
    }
    x = torch.randint(0, 9, (3, 200)).to(dtype)
    for a, b in zip(compiled(lambda x: calls[call](x + 1))(x), calls[call](x + 1), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["trunc", "floor"])
def test_whole_quotients_of_halves(mode: str, dtype: Any, compiled: Any) -> None:
    x, y = (torch.randn(100, 100) * 100).to(dtype), torch.randn(100, 100).to(dtype)
    assert torch.equal(compiled(lambda x, y: torch.div(x, y, rounding_mode=mode))(x, y), torch.div(x, y, rounding_mode=mode))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "call",
    [
        torch.lerp,
        lambda x, y, z: torch.addcmul(x, y, z, value=0.3),
        lambda x, y, z: x * 0.3,
        lambda x, y, z: x + 0.3,
        lambda x, y, z: torch.add(x, y, alpha=0.7),
        lambda x, y, z: F.silu(x),
        lambda x, y, z: F.log_softmax(x, -1),
        lambda x, y, z: F.softplus(x, beta=3),
        lambda x, y, z: F.logsigmoid(x),
        lambda x, y, z: F.glu(x),
        lambda x, y, z: F.selu(x),
        lambda x, y, z: x.abs().pow(1.3),
        lambda x, y, z: x.abs().rsqrt(),
        lambda x, y, z: x.abs().log10(),
        lambda x, y, z: x.logsumexp(-1),
        lambda x, y, z: torch.round(x, decimals=2),
    ],
)
def test_halves_are_rounded_once(call: Any, dtype: Any, compiled: Any) -> None:
    """Of operators that are several nodes."""
    given = [torch.randn(64, 64).to(dtype) for _ in range(3)]
    got, want = compiled(call)(*given).double(), call(*given).double()
    exact = call(*(tensor.double() for tensor in given))
    assert (got - exact).norm() <= 1.1 * (want - exact).norm()


def test_graph_breaks(compiled: Any) -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            return self.second(y) if y.sum() > 0 else self.second(-y) * 2

    module = Branch().eval()
    run = compiled(module)
    for seed in range(6):
        torch.manual_seed(seed)
        x = torch.randn(3, 4)
        same(run(x), module(x))


def test_writing_in_place(compiled: Any) -> None:
    def writes(x: Any, y: Any) -> Any:
        x.add_(1)
        z = x[:, 0]
        z.mul_(y)
        return x.sum(), z + 1

    x, y = torch.randn(3, 4), torch.randn(3)
    a, b = x.clone(), x.clone()
    same(compiled(writes)(a, y), writes(b, y))
    same(a, b)


def test_an_operator_that_is_left_to_pytorch(compiled: Any, runtime: Any) -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            y = F.gelu(self.first(x))
            y = torch.special.digamma(y.abs() + 1)
            return F.gelu(self.second(y)) + y.shape[0]

    module, x = Partly().eval(), torch.randn(4, 8)
    before = models(runtime)
    run = compiled(module)
    same(run(x), module(x))
    assert models(runtime) == before + 2
    with torch.no_grad():
        module.second.weight.mul_(2)
    same(run(x), module(x))


def test_small_graphs_stay_with_pytorch(compiled: Any, runtime: Any) -> None:
    before = models(runtime)
    run = compiled(lambda x: x * 2 + 1, min_block_size=3)
    same(run(torch.ones(3)), torch.full((3,), 3.0))
    assert models(runtime) == before


def test_nothing_is_supported(compiled: Any) -> None:
    same(compiled(torch.special.digamma)(torch.ones(3)), torch.special.digamma(torch.ones(3)))


def test_results_without_computing(compiled: Any) -> None:
    def give(x: Any, n: int) -> Any:
        return x, None, n, x.shape[0], (x * 2).sum(), torch.ones(2)

    x = torch.randn(3, 4)
    same(compiled(give)(x, 7), give(x, 7))


def test_weights_that_change_are_noticed(compiled: Any) -> None:
    module, x = block(), torch.randn(2, 3, 9, 9)
    run = compiled(module)
    same(run(x), module(x))
    module.head.weight.add_(0.5)
    same(run(x), module(x))
    module.load_state_dict({key: value + 0.1 if value.is_floating_point() else value for key, value in module.state_dict().items()})
    same(run(x), module(x))
    module.head.weight = nn.Parameter(torch.randn(5, 8))
    same(run(x), module(x))
    module.head.bias.data = torch.randn(5)
    same(run(x), module(x))
    module.norm.running_mean.zero_()
    same(run(x), module(x))


@pytest.mark.parametrize("how", ["data", "numpy", "dlpack", "part"])
def test_changes_that_pytorch_does_not_count_are_noticed(how: str, compiled: Any) -> None:
    module = block()
    x, weight = torch.randn(1, 3, 16, 16), module.conv.weight
    same(compiled(module)(x), module(x))
    version = weight._version
    if how == "data":
        weight.data.mul_(2)  # exponents change, and no other bits
    elif how == "numpy":
        weight.detach().numpy()[:] = 0.5
    elif how == "dlpack":
        torch.from_dlpack(weight.detach()).data.add_(1)
    else:
        weight.data[len(weight) // 2 :] = 0
    assert weight._version == version
    same(compiled(module)(x), module(x))


def test_a_weight_whose_changes_are_not_counted_becomes_an_input(compiled: Any, runtime: Any) -> None:
    module = block()
    run = compiled(module)
    x = torch.randn(1, 3, 16, 16)
    for step in range(6):
        same(run(x), module(x))
        module.conv.weight.data.sub_(0.01 * (step + 1))
    before = runtime.status()["models"]
    same(run(x), module(x))
    assert [model["id"] for model in runtime.status()["models"]] == [model["id"] for model in before]


def test_a_weight_that_changes_often_becomes_an_input(compiled: Any, runtime: Any) -> None:
    module, x = block(), torch.randn(2, 3, 9, 9)
    run = compiled(module)
    for _ in range(8):
        module.head.weight.add_(0.5)
        same(run(x), module(x))
    before = models(runtime)
    for _ in range(5):
        module.head.weight.add_(0.5)
        same(run(x), module(x))
    assert models(runtime) == before


def test_a_buffer_that_the_module_changes(compiled: Any) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            self.count += 1
            return self.linear(x) + self.count

    torch.manual_seed(1)
    module = Counter().eval()
    want, run, x = Counter().eval(), compiled(module), torch.randn(2, 3)
    want.load_state_dict(module.state_dict())
    for _ in range(4):
        same(run(x), want(x))
        same(module.count, want.count)


def test_modules_of_one_class_keep_their_weights_apart(compiled: Any) -> None:
    modules = [block() for _ in range(3)]
    for k, module in enumerate(modules):
        module.head.weight.add_(k)
    runs, x = [compiled(module) for module in modules], torch.randn(2, 3, 9, 9)
    for _ in range(2):
        for run, module in zip(runs, modules, strict=True):
            same(run(x), module(x))


def test_memory_of_a_weight_that_is_gone_may_be_another_ones(compiled: Any) -> None:
    def product(x: Any, module: Any) -> Any:
        return F.relu(module(x))

    run, x = compiled(product), torch.randn(2, 64)
    for seed in range(6):
        torch.manual_seed(seed)
        module = nn.Linear(64, 64)
        same(run(x, module), product(x, module))
        del module
        gc.collect()


def test_tied_weights(compiled: Any) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 6)
            self.out = nn.Linear(6, 11, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, x: Any) -> Any:
            return self.out(self.embed(x))

    module, x = Tied().eval(), torch.randint(0, 11, (2, 5))
    same(compiled(module)(x), module(x))


def test_lengths_that_change_need_no_other_model(compiled: Any, runtime: Any) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.qkv = nn.Embedding(50, 32), nn.Linear(32, 96)
            self.norm = nn.LayerNorm(32)

        def forward(self, tokens: Any) -> Any:
            x = self.norm(self.embed(tokens))
            n, length, _ = x.shape
            q, k, v = self.qkv(x).view(n, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return y.transpose(1, 2).reshape(n, length, 32).mean(1), torch.arange(length) + n

    module = Attention().eval()
    run = compiled(module, dynamic=True)
    before = models(runtime)
    for n, length in ((2, 7), (3, 9), (2, 16), (5, 31), (2, 33)):
        tokens = torch.randint(0, 50, (n, length))
        same(run(tokens), module(tokens))
    assert models(runtime) == before + 1


def test_sizes_are_computed_from_those_of_inputs(compiled: Any) -> None:
    def sized(x: Any) -> Any:
        n, c, h, w = x.shape
        y = x.reshape(n, c * h, w)[:, : (c * h) // 2]
        return (
            F.interpolate(x, size=(h * 2, w + 1)),
            y.new_zeros(n, h + w) + h,
            F.pad(x, (0, h % 3)),
            x.expand(2, *x.shape[1:]) if n == 1 else x + 1,
        )

    run = compiled(sized, dynamic=True)
    for shape in ((2, 3, 4, 5), (3, 2, 5, 7), (4, 6, 9, 8)):
        x = torch.randn(shape)
        same(run(x), sized(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_other_floats(compiled: Any, dtype: Any) -> None:
    module, x = block().to(dtype), torch.randn(2, 3, 9, 9, dtype=dtype)
    same(compiled(module)(x), module(x))


def test_no_elements(compiled: Any) -> None:
    module, x = block(), torch.randn(0, 3, 9, 9)
    same(compiled(module, dynamic=False)(x), module(x))


def test_gradients_are_pytorchs(runtime: Any) -> None:
    torch._dynamo.reset()
    backend._warned.clear()
    module, x = block(), torch.randn(2, 3, 9, 9)
    run = torch.compile(module, backend=backend.aspen_mp, options={"runtime": runtime})
    with pytest.warns(UserWarning, match="no_grad"):
        run(x).sum().backward()
    assert module.head.weight.grad is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(x)
    with torch.inference_mode():
        same(run(x), module(x))


def test_inference_mode(compiled: Any) -> None:
    with torch.inference_mode():
        module, x = block(), torch.randn(2, 3, 9, 9)
        same(compiled(module)(x), module(x))


def test_autocast(compiled: Any) -> None:
    module, x = block(), torch.randn(2, 3, 9, 9)
    run = compiled(module)
    with torch.autocast("cpu", torch.bfloat16):
        same(run(x), module(x))


def test_other_devices_are_refused() -> None:
    class Elsewhere:
        """What a tensor on an accelerator looks like from here."""

    fake = torch._subclasses.FakeTensorMode()
    with fake:
        tensor = torch.empty(2, device="cuda")
    with pytest.raises(UnsupportedModelError, match=r"to\('cpu'\)"):
        backend.check_devices([tensor])


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValueError, match="'speed'"):
        backend.options_of({"speed": 2})


def test_threads(compiled: Any) -> None:
    module = block()
    run, x = compiled(module), torch.randn(2, 3, 9, 9)
    want, got = module(x), []

    def work() -> None:
        with torch.no_grad():
            got.extend(run(x) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 20
    for result in got:
        same(result, want)


def test_another_runtime_takes_over(compiled: Any) -> None:
    from aspen_mp.compat import default_runtime

    module, x = block(), torch.randn(2, 3, 9, 9)
    run = compiled(module, runtime=None)
    try:
        same(run(x), module(x))
        default_runtime.close()
        same(run(x), module(x))
    finally:
        default_runtime.close()


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masked", ["not", "causal", "padding"])
def test_fused_layers_of_torch_are_taken_apart(compiled: Any, norm_first: bool, masked: str) -> None:
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first, activation="gelu").eval()
    masks: dict[str, Any] = {
        "not": {},
        "causal": {"src_mask": nn.Transformer.generate_square_subsequent_mask(5)},
        "padding": {"src_key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])},
    }
    x = torch.randn(2, 5, 16)
    same(compiled(layer)(x, **masks[masked]), layer(x, **masks[masked]))
    found = aspen_mp.explain(layer, x, **masks[masked])
    assert all(row.where == "aspen_mp" for row in found.rows), str(found)


def test_fused_attention_of_torch_is_taken_apart(compiled: Any) -> None:
    torch.manual_seed(2)
    attention, x = nn.MultiheadAttention(16, 4, batch_first=True).eval(), torch.randn(2, 5, 16)
    same(compiled(lambda x: attention(x, x, x, need_weights=False)[0])(x), attention(x, x, x, need_weights=False)[0])
    same(compiled(lambda x: attention(x, x, x))(x), attention(x, x, x))


@pytest.mark.parametrize(("size", "hop"), [(64, 16), (400, 100), (1024, 256)])
def test_spectra_and_back(compiled: Any, size: int, hop: int) -> None:
    """The graph of the inverse does not grow with the window."""

    class Spectra(nn.Module):
        def forward(self, x: Any) -> Any:
            window = torch.hann_window(size)
            spectra = torch.view_as_real(torch.stft(x, size, hop, window=window, return_complex=True))
            spectra = (spectra * 0.5 + spectra.abs().mean(-1, keepdim=True) * 0.01).contiguous()
            return torch.istft(torch.view_as_complex(spectra), size, hop, window=window, length=x.shape[-1]) * 2 + 1

    module, x = Spectra().eval(), torch.randn(2, 4 * size)
    torch.testing.assert_close(compiled(module)(x), module(x), rtol=1e-4, atol=1e-5)
    assert len(aspen_mp.explain(module, x).rows) < 100
