"""A module that was compiled ahead gives what it gave, without its code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")
from torch import nn  # noqa: E402

import aspen_mp  # noqa: E402
import aspen_mp.torch  # noqa: E402
from aspen_mp.shm.errors import ModelParseError, RequestError, UnsupportedModelError  # noqa: E402


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with aspen_mp.Runtime(workers=1) as runtime:
        yield runtime


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)
        self.register_buffer("shift", torch.ones(5))

    def forward(self, x: Any, options: dict[str, Any]) -> dict[str, Any]:
        y = torch.relu(self.conv(x)).mean((2, 3))
        return {"scores": self.linear(y) * options["scale"] + self.shift, "image": x.permute(0, 2, 3, 1), "none": None}


def arguments(n: int = 2, size: int = 8) -> tuple[Any, ...]:
    return torch.randn(n, 3, size, size), {"scale": torch.tensor(2.0)}


def test_file_gives_what_the_module_gives(runtime: Any, tmp_path: Path) -> None:
    module, given = Pair().eval(), arguments()
    aspen_mp.torch.compile_ahead(module, given, tmp_path / "m.onnx")
    run = aspen_mp.torch.load_ahead(tmp_path / "m.onnx", runtime=runtime)
    with torch.no_grad():
        want = module(*given)
    got = run(*given)
    assert list(got) == list(want)
    assert got["none"] is None
    for name in ("scores", "image"):
        torch.testing.assert_close(got[name], want[name])
    with pytest.raises(RequestError, match="structured"):
        run(given[0])


def test_sizes_that_vary(runtime: Any, tmp_path: Path) -> None:
    module, batch = Pair().eval(), torch.export.Dim("batch")
    aspen_mp.torch.compile_ahead(module, arguments(), tmp_path / "m.onnx", dynamic_shapes=({0: batch}, {"scale": None}))
    run = aspen_mp.torch.load_ahead(tmp_path / "m.onnx", runtime=runtime)
    for n in (2, 5):
        given = arguments(n)
        with torch.no_grad():
            torch.testing.assert_close(run(*given)["scores"], module(*given)["scores"])


def test_operators_that_cannot_run_are_listed(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.special.digamma(x) + 1

    with pytest.raises(UnsupportedModelError, match="digamma"):
        aspen_mp.torch.compile_ahead(Odd(), (torch.ones(3),), tmp_path / "m.onnx")


def test_modules_that_change_are_refused(tmp_path: Path) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.count += 1
            return x + self.count

    with pytest.raises(UnsupportedModelError, match="count"):
        aspen_mp.torch.compile_ahead(Counter(), (torch.ones(3),), tmp_path / "m.onnx")


def test_files_of_others_are_refused(runtime: Any, tmp_path: Path) -> None:
    from aspen_mp.bench import models

    (tmp_path / "m.onnx").write_bytes(models.build("tcn", **models.miniature("tcn")).SerializeToString())
    with pytest.raises(ModelParseError, match="compile_ahead"):
        aspen_mp.torch.load_ahead(tmp_path / "m.onnx", runtime=runtime)
