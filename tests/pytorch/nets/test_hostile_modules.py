"""Modules that are awkward to compile: each must give what PyTorch gives, on every call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

import torch_checks  # noqa: E402
from torch import nn  # noqa: E402
from torch_checks import agrees, compiled, loaded, same  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(7)
    with torch_checks.fresh():
        yield


def perceptron(width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)).eval()


class Wrapped(nn.Module):
    """A function as a module, with the submodules that it needs."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *arguments: Any) -> Any:
        return self.function(self, *arguments)


# ---- what does not run in a runtime


@torch.library.custom_op("aspen_mp_tests::backwards", mutates_args=())
def backwards(x: torch.Tensor) -> torch.Tensor:
    """An operator that nobody else knows."""
    return x.flip(-1).contiguous()


@backwards.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_unknown_operator_in_the_middle() -> None:
    module = Wrapped(lambda self, x: self.after(backwards(self.before(x))), before=perceptron(), after=nn.Sequential(
        nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)))  # fmt: skip
    before = loaded()
    ours = agrees(module.eval(), (torch.randn(5, 8),))
    assert loaded() - before == 2, "both sides of it run in the runtime"
    del ours


def test_complex_numbers_stay_with_pytorch() -> None:
    def spectrum(self: Any, x: torch.Tensor) -> Any:
        found = torch.fft.rfft(self.first(x))
        return self.second(found.abs())

    agrees(Wrapped(spectrum, first=nn.Linear(8, 16), second=nn.Linear(9, 4)).eval(), (torch.randn(3, 8),))


def test_random_numbers_are_those_of_pytorch() -> None:
    module = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 64), nn.Dropout(0.5))
    x = torch.randn(4, 8)
    with torch.no_grad():
        results = []
        for run in (torch.compile(module, backend="aot_eager"), compiled(module)):
            torch.manual_seed(3)
            results.append([run(x), run(x)])
    same(results[1], results[0])
    assert not torch.equal(*results[1])


# ---- control flow and hooks


def test_a_branch_that_data_decides() -> None:
    def choose(self: Any, x: torch.Tensor) -> Any:
        hidden = self.first(x)
        if hidden.sum() > 0:
            return self.second(hidden).relu() + 1
        return self.third(hidden).tanh() - 1

    module = Wrapped(choose, first=perceptron(), second=nn.Linear(4, 4), third=nn.Linear(4, 4)).eval()
    ours = compiled(module)
    with torch.no_grad():
        signs = set()
        for _ in range(12):
            x = 4 * torch.randn(2, 8)
            signs.add(bool(module.first(x).sum() > 0))
            same(ours(x), module(x))
    assert signs == {True, False}


def test_a_loop_that_data_ends() -> None:
    def settle(self: Any, x: torch.Tensor) -> Any:
        steps = 0
        while x.abs().max() > 0.5 and steps < 10:
            x = torch.tanh(self.step(x)) * 0.8
            steps += 1
        return x, steps

    module = Wrapped(settle, step=nn.Linear(6, 6)).eval()
    ours = compiled(module)
    with torch.no_grad():
        for scale in (0.01, 1.0, 9.0):
            x = scale * torch.randn(3, 6)
            same(ours(x), module(x))


def test_hooks_run() -> None:
    module = perceptron()
    module[0].register_forward_pre_hook(lambda _, inputs: (inputs[0] * 2,))
    handle = module[2].register_forward_hook(lambda _, inputs, output: output + inputs[0].mean())
    ours = agrees(module, (torch.randn(3, 8),))
    x = torch.randn(3, 8)
    with torch.no_grad():
        hooked = ours(x)
        handle.remove()
        same(ours(x), module(x))
        assert not torch.allclose(ours(x), hooked)


def test_arguments_of_many_kinds() -> None:
    def forward(self: Any, first: torch.Tensor, other: Any = None, *, scale: float = 1.0, flags: tuple[bool, ...] = ()) -> Any:
        hidden = self.first(first) * scale
        if other is not None:
            hidden = hidden + self.second(other["x"])
        return {"hidden": hidden, "none": None, "flags": flags, "parts": [hidden.sum(), (hidden.argmax(-1), hidden > 0)]}

    class Named(Wrapped):
        def forward(self, *arguments: Any, **named: Any) -> Any:
            return self.function(self, *arguments, **named)

    module = Named(forward, first=perceptron(), second=nn.Linear(3, 4)).eval()
    ours = compiled(module)
    x, other = torch.randn(2, 8), {"x": torch.randn(2, 3)}
    with torch.no_grad():
        for arguments, named in (((x,), {}), ((x, other), {"scale": 0.5}), ((x,), {"flags": (True,)}), ((x, other), {"scale": 2.5})):
            same(ours(*arguments, **named), module(*arguments, **named))


# ---- state


def test_buffers_that_change() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> Any:
            y = self.layer(x)
            self.calls += 1
            self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
            return y - self.mean, self.calls * 2

    module, other = Counts().eval(), Counts().eval()
    other.load_state_dict(module.state_dict())
    ours = compiled(module)
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(3, 8)
            same(ours(x), other(x))
    same(dict(module.state_dict()), dict(other.state_dict()))


def test_batch_norm_in_training_without_gradients() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4)).train()
    other = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4)).train()
    other.load_state_dict(module.state_dict())
    ours = compiled(module)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 3, 12, 12)
            same(ours(x), other(x), 1e-4)
    same(dict(module.state_dict()), dict(other.state_dict()), 1e-4)
    with torch.no_grad():
        same(ours.eval()(x), other.eval()(x), 1e-4)


CHANGES: dict[str, Callable[[Any], object]] = {
    "in place": lambda module: module[0].weight.mul_(1.5),
    "a state that is loaded": lambda module: module.load_state_dict({k: v * 0.5 + 0.1 for k, v in module.state_dict().items()}),
    "another parameter": lambda module: setattr(module[2], "weight", nn.Parameter(torch.randn_like(module[2].weight))),
    "another layer": lambda module: module.__setitem__(2, nn.Linear(16, 16)),
    "another storage": lambda module: setattr(module[0].weight, "data", torch.randn_like(module[0].weight)),
    "a row": lambda module: module[4].bias[1:2].fill_(7.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_results_follow_weights_that_change(change: Callable[[Any], object]) -> None:
    module = perceptron()
    ours = compiled(module)
    x = torch.randn(3, 8)
    with torch.no_grad():
        before = ours(x)
        for _ in range(4):
            change(module)
            same(ours(x), module(x))
        assert not torch.allclose(ours(x), before)


def test_weights_that_an_optimizer_changes() -> None:
    module = perceptron()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    ours = compiled(module)
    x = torch.randn(3, 8)
    for _ in range(4):
        with torch.no_grad():
            same(ours(x), module(x))
        module(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_weights_that_were_made_in_inference_mode() -> None:
    with torch.inference_mode():
        module = perceptron()
        ours = compiled(module)
        x = torch.randn(3, 8)
        for _ in range(3):
            same(ours(x), module(x))
            module[0].weight.mul_(2)


def test_two_modules_of_one_class_keep_their_weights() -> None:
    first, second = perceptron(), perceptron()
    ours = [compiled(module) for module in (first, second)]
    x = torch.randn(3, 8)
    with torch.no_grad():
        for _ in range(3):
            for run, module in zip(ours, (first, second), strict=True):
                same(run(x), module(x))


def test_tied_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(50, 16)
            self.layer = nn.Linear(16, 16)
            self.head = nn.Linear(16, 50, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, ids: torch.Tensor) -> Any:
            return self.head(torch.tanh(self.layer(self.tokens(ids))))

    module = Tied().eval()
    ours = agrees(module, (torch.randint(0, 50, (2, 5)),))
    with torch.no_grad():
        module.tokens.weight.add_(0.25)
        ids = torch.randint(0, 50, (2, 5))
        same(ours(ids), module(ids))


# ---- precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves(dtype: torch.dtype) -> None:
    module = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).eval().to(dtype)
    agrees(module, (torch.randn(4, 32, dtype=dtype),), precision=str(dtype).partition(".")[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_of_convolutions(dtype: torch.dtype) -> None:
    module = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3)).eval().to(dtype)
    agrees(module, (torch.randn(1, 3, 20, 20, dtype=dtype),), precision=str(dtype).partition(".")[2])


def test_doubles() -> None:
    module = perceptron().double()
    x = torch.randn(3, 8, dtype=torch.float64)
    with torch.no_grad():
        same(compiled(module)(x), module(x), 1e-12)


def test_autocast() -> None:
    module = perceptron()
    ours = compiled(module)
    x = torch.randn(3, 8)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        same(ours(x), module(x), 3e-2)
    with torch.no_grad():
        same(ours(x), module(x))


def test_int8_dynamic_quantised() -> None:
    quantization = pytest.importorskip("torch.ao.quantization", reason="this PyTorch has no torch.ao.quantization")
    module = quantization.quantize_dynamic(perceptron(64), {nn.Linear}, dtype=torch.qint8)
    ours = compiled(module)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(5, 8)
            same(ours(x), module(x), 2e-2)


@pytest.mark.parametrize("config", ["Int8DynamicActivationInt8WeightConfig", "Int8WeightOnlyConfig"])
def test_torchao_quantised(config: str) -> None:
    torchao = pytest.importorskip("torchao.quantization", reason="needs torchao: pip install aspen-mp[nets]")
    module = perceptron(64)
    torchao.quantize_(module, getattr(torchao, config)())
    before, ours = loaded(), compiled(module)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(5, 8)
            same(ours(x), module(x), 2e-2)
    assert loaded() > before, "it runs in the runtime"


# ---- inputs and outputs

VIEWS: dict[str, Callable[[], Any]] = {
    "every second column": lambda: torch.randn(4, 16)[:, ::2],
    "transposed": lambda: torch.randn(8, 4).t(),
    "expanded": lambda: torch.randn(1, 8).expand(4, 8),
    "an offset": lambda: torch.randn(100)[3:35].view(4, 8),
    "overlapping": lambda: torch.randn(40).as_strided((4, 8), (2, 1)),
    "narrowed": lambda: torch.randn(9, 9).narrow(0, 2, 4).narrow(1, 1, 8),
    "one row": lambda: torch.randn(8),
    "three dimensions": lambda: torch.randn(8, 2, 3).permute(1, 2, 0),
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
def test_views_as_inputs(make: Callable[[], Any]) -> None:
    agrees(perceptron(), (make(),))


def test_images_with_channels_last() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2)).eval()
    ours = agrees(module, (torch.randn(2, 3, 16, 16).contiguous(memory_format=torch.channels_last),))
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        same(ours(x), module(x))
        module.to(memory_format=torch.channels_last)
        same(ours(x), module(x))


def test_inputs_that_are_one_tensor() -> None:
    module = Wrapped(lambda self, a, b: self.first(a) + self.second(b), first=perceptron(), second=perceptron()).eval()
    ours = compiled(module)
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    with torch.no_grad():
        for pair in ((x, y), (x, x), (x, x[:]), (y, x)):
            same(ours(*pair), module(*pair))


def test_inputs_that_are_written() -> None:
    def forward(self: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        y[1:] = self.first(x)[1:]
        return self.second(y).relu_()

    module = Wrapped(forward, first=perceptron(), second=nn.Linear(4, 3)).eval()
    ours = compiled(module)
    with torch.no_grad():
        for _ in range(2):
            x, y = torch.randn(3, 8), torch.randn(3, 4)
            x_too, y_too = x.clone(), y.clone()
            same(ours(x, y), module(x_too, y_too))
            same((x, y), (x_too, y_too))


def test_outputs_that_are_inputs_or_views_of_them() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        y = self.first(x)
        return x, x.view(-1), x.t(), y, y[0], self.first[0].weight, 3, "text"

    module = Wrapped(forward, first=perceptron()).eval()
    ours = compiled(module)
    x = torch.randn(3, 8)
    with torch.no_grad():
        found = ours(x)
        same(found, module(x))
        assert found[0] is x
        found[1][0] = 99.0
        assert x[0, 0] == 99.0, "a view of an input is one"
        assert found[5] is module.first[0].weight


def test_results_stay_when_the_next_call_comes() -> None:
    module = perceptron()
    ours = compiled(module)
    inputs = [torch.randn(3, 8) for _ in range(6)]
    with torch.no_grad():
        results = [ours(x) for x in inputs]
        for x, found in zip(inputs, results, strict=True):
            same(found, module(x))
            found.add_(1)
            same(found, module(x) + 1)


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (0, 3, 8)], ids=str)
def test_no_rows(shape: tuple[int, ...]) -> None:
    agrees(perceptron(), (torch.randn(shape),))


def test_no_images() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)).eval()
    ours = compiled(module)
    with torch.no_grad():
        for batch in (2, 0, 3, 0, 1):
            x = torch.randn(batch, 3, 9, 9)
            same(ours(x), module(x))


def test_numbers_that_are_no_numbers() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Softmax(-1)).eval()
    x = torch.tensor([[1.0, float("nan"), 0, 0], [float("inf"), 0, 0, 0], [0, 0, 0, 0]])
    with torch.no_grad():
        found, expected = compiled(module)(x), module(x)
    assert torch.equal(found.isnan(), expected.isnan())


def test_scalars_and_whole_numbers() -> None:
    def forward(self: Any, x: torch.Tensor, step: torch.Tensor, k: int, rate: float) -> Any:
        hidden = self.first(x) * rate + step
        return hidden.sum(), (hidden * k).argmax(), step + 1, hidden.shape[0] * k

    module = Wrapped(forward, first=perceptron()).eval()
    ours = compiled(module)
    with torch.no_grad():
        for k, rate in ((1, 0.5), (2, 0.25), (3, -1.0), (4, 1e-3)):
            x, step = torch.randn(3, 8), torch.tensor(k)
            same(ours(x, step, k, rate), module(x, step, k, rate))


def test_every_batch_another() -> None:
    module = perceptron()
    with torch.no_grad():
        for dynamic in (None, True, False):
            torch._dynamo.reset()
            ours = compiled(module, dynamic=dynamic)
            for batch in (4, 7, 1, 5, 2, 9):
                x = torch.randn(batch, 8)
                same(ours(x), module(x))


def test_lengths_that_change_need_few_models() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    module = nn.Sequential(nn.Embedding(50, 32), layer, nn.Linear(32, 50)).eval()
    module[1].train(False)
    ours = compiled(module, dynamic=True)
    before = loaded()
    with torch.no_grad():
        for length in (5, 9, 17, 12, 30, 21, 6, 44):
            ids = torch.randint(0, 50, (1, length))
            same(ours(ids), module(ids), 1e-4)
    assert loaded() - before <= 3


# ---- gradients and errors


def test_gradients_are_pytorch_s() -> None:
    module, other = perceptron(), perceptron()
    other.load_state_dict(module.state_dict())
    ours = compiled(module)
    x = torch.randn(3, 8)
    for run in (ours, other):
        run(x).square().sum().backward()
    for mine, expected in zip(module.parameters(), other.parameters(), strict=True):
        same(mine.grad, expected.grad)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_modes_without_gradients(mode: Any) -> None:
    module = perceptron()
    ours = compiled(module)
    before = loaded()
    with mode():
        for _ in range(3):
            x = torch.randn(3, 8)
            same(ours(x), module(x))
    assert loaded() > before


def test_wrong_shapes_are_pytorch_s_error() -> None:
    ours = compiled(perceptron())
    with torch.no_grad():
        with pytest.raises(Exception, match=r"shape|size|mat1"):
            ours(torch.randn(3, 9))
        assert ours(torch.randn(3, 8)).shape == (3, 4)


def test_recurrent_layers() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 12, num_layers=2, bidirectional=True, batch_first=True)
            self.head = nn.Linear(24, 3)

        def forward(self, x: torch.Tensor) -> Any:
            states, (last, cell) = self.lstm(x)
            return self.head(states), last, cell

    with torch._dynamo.config.patch(allow_rnn=True):
        agrees(Tagger().eval(), (torch.randn(2, 6, 8),))
