"""Arguments and results of modules compiled ahead that are no computed tensors: numbers, strings, parameters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")
from torch import nn  # noqa: E402

import aspen_mp  # noqa: E402
import aspen_mp.torch  # noqa: E402
from aspen_mp.shm.errors import RequestError  # noqa: E402


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with aspen_mp.Runtime(workers=2) as runtime:
        yield runtime


class Chosen(nn.Module):
    """With a number, a string and a truth value that decide what is computed, and with its parameters among the results."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.arange(3.0))
        self.unused = nn.Parameter(torch.full((2, 2), 5.0))

    def forward(self, x: Any, power: int, factor: float, kind: str, both: bool, *, also: int = 2) -> Any:
        y = torch.relu(x) if kind == "relu" else torch.tanh(x)
        y = (y * self.scale) ** power * factor + also
        return {"y": y + 1 if both else y, "scale": self.scale, "unused": self.unused, "again": self.scale}


GIVEN: dict[str, Any] = {"power": 2, "factor": 0.5, "kind": "relu", "both": True, "also": 3}
OTHERS: dict[str, list[Any]] = {
    "power": [3, 2.0, True, "2"],
    "factor": [0.25, float("nan"), 1],
    "kind": ["tanh", 0],
    "both": [False, 1],
    "also": [4, 3.0],
}


@pytest.fixture(scope="module")
def loaded(runtime: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    path: Path = tmp_path_factory.mktemp("ahead") / "chosen.onnx"
    module = Chosen().eval()
    aspen_mp.torch.compile_ahead(module, {"x": torch.randn(2, 3), **GIVEN}, path)
    return module, aspen_mp.torch.load_ahead(path, runtime=runtime)


def test_parameters_are_results(loaded: tuple[Any, Any]) -> None:
    module, function = loaded
    x = torch.randn(2, 3)
    got, want = function(x=x, **GIVEN), module(x=x, **GIVEN)
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(got[name], value.detach())


@pytest.mark.parametrize(("name", "other"), [(name, other) for name, others in OTHERS.items() for other in others])
def test_another_value_than_compiled_for_is_refused(loaded: tuple[Any, Any], name: str, other: Any) -> None:
    module, function = loaded
    x = torch.randn(2, 3)
    with pytest.raises(RequestError, match=r"compiled for .* Compile it again"):
        function(x=x, **{**GIVEN, name: other})
    torch.testing.assert_close(function(x=x, **GIVEN)["y"], module(x=x, **GIVEN)["y"].detach())
