"""`compile_ahead` writes files that a runtime loads without the module's code; `load_ahead` makes them modules again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")
from torch import nn  # noqa: E402

import aspen_mp  # noqa: E402
from aspen_mp.errors import ModelParseError, RequestError, UnsupportedModelError  # noqa: E402
from aspen_mp.torch import (  # noqa: E402
    compile_ahead,
    decompositions,
    load_ahead,
)
from aspen_mp.torch.ahead import export as ahead  # noqa: E402
from aspen_mp.torch.importer import ASSERTION, import_graph, operator_name  # noqa: E402


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with aspen_mp.Runtime(workers=2) as runtime:
        yield runtime


class Mixed(nn.Module):
    """Arguments and results of several kinds, and one weight for two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Any, pair: Any, *, factor: int = 1, mask: Any = None) -> Any:
        y = self.second(torch.relu(self.first(x))) * factor + pair[0] * pair[1]
        return {"y": y, "x": x, "rows": x.shape[0], "nothing": mask, "parts": (y.sum(-1), y.sum(-1))}


def mixed() -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(3)
    return Mixed().eval(), (torch.randn(3, 4), (torch.randn(3, 4), torch.randn(3, 4)))


def arrays(*tensors: Any) -> list[Any]:
    return [tensor.detach().numpy() for tensor in tensors]


def test_names_and_sizes_that_vary(runtime: Any, tmp_path: Path) -> None:
    module, (x, pair) = mixed()
    rows = {0: "rows"}
    compile_ahead(module, (x, pair), tmp_path / "mixed.onnx", dynamic={"x": rows, "pair": (rows, rows)})
    onnx.checker.check_model(str(tmp_path / "mixed.onnx"), full_check=True)
    model = runtime.load(tmp_path / "mixed.onnx")
    assert [(info.name, list(info.shape)) for info in model.inputs] == [(name, ["rows", 4]) for name in ("x", "pair_0", "pair_1")]
    assert [info.name for info in model.outputs] == ["y", "x.result", "parts_0", "parts_1"]
    for count in (1, 3, 7):
        x, a, b = (torch.randn(count, 4) for _ in range(3))
        want = module(x, (a, b))
        got = model.run(dict(zip(("x", "pair_0", "pair_1"), arrays(x, a, b), strict=True)))
        for name, tensor in [("y", want["y"]), ("x.result", x), ("parts_0", want["parts"][0]), ("parts_1", want["parts"][1])]:
            np.testing.assert_allclose(got[name], *arrays(tensor), rtol=1e-5, atol=1e-6)


def test_arguments_by_name_are_fixed_where_nothing_is_said(runtime: Any, tmp_path: Path) -> None:
    module, (x, pair) = mixed()
    compile_ahead(module, {"x": x, "pair": pair, "factor": 3}, tmp_path / "mixed.onnx")
    model = runtime.load(tmp_path / "mixed.onnx")
    assert [(info.name, list(info.shape)) for info in model.inputs] == [(name, [3, 4]) for name in ("x", "pair_0", "pair_1")]
    got = model.run(dict(zip(("x", "pair_0", "pair_1"), arrays(x, *pair), strict=True)))
    np.testing.assert_allclose(got["y"], *arrays(module(x, pair, factor=3)["y"]), rtol=1e-5, atol=1e-6)


def test_layout_of_examples_does_not_matter(runtime: Any, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 2, 3)).eval().to(memory_format=torch.channels_last)
    image = torch.randn(2, 3, 9, 8).to(memory_format=torch.channels_last)
    compile_ahead(module, image, tmp_path / "image.onnx")
    model = runtime.load(tmp_path / "image.onnx")
    assert [list(info.shape) for info in (*model.inputs, *model.outputs)] == [[2, 3, 9, 8], [2, 2, 5, 4]]
    assert [info.name for info in (*model.inputs, *model.outputs)] == ["input", "output"]
    np.testing.assert_allclose(model.run({"input": image.contiguous().numpy()})["output"], *arrays(module(image)), rtol=1e-4, atol=1e-5)


def test_large_weights_lie_beside(runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, (x, pair) = mixed()
    monkeypatch.setattr(ahead, "MOST_INSIDE", 16)
    compile_ahead(module, (x, pair), tmp_path / "mixed.onnx")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mixed.onnx", "mixed.onnx.data"]
    got = runtime.load(tmp_path / "mixed.onnx").run(dict(zip(("x", "pair_0", "pair_1"), arrays(x, *pair), strict=True)))
    np.testing.assert_allclose(got["y"], *arrays(module(x, pair)["y"]), rtol=1e-5, atol=1e-6)


def test_an_optimized_module_can_be_written(runtime: Any, tmp_path: Path) -> None:
    module, (x, pair) = mixed()
    want = module(x, pair)["y"]
    aspen_mp.optimize(module, runtime=runtime)
    compile_ahead(module, (x, pair), tmp_path / "mixed.onnx")
    got = runtime.load(tmp_path / "mixed.onnx").run(dict(zip(("x", "pair_0", "pair_1"), arrays(x, *pair), strict=True)))
    np.testing.assert_allclose(got["y"], *arrays(want), rtol=1e-5, atol=1e-6)


def test_the_file_needs_no_pytorch(tmp_path: Path) -> None:
    module, (x, pair) = mixed()
    compile_ahead(module, (x, pair), tmp_path / "mixed.onnx")
    np.savez(tmp_path / "inputs.npz", x=x, pair_0=pair[0], pair_1=pair[1])
    np.save(tmp_path / "want.npy", *arrays(module(x, pair)["y"]))
    program = """
import sys
sys.modules["torch"] = None
import numpy, aspen_mp
with aspen_mp.Runtime(workers=1) as runtime:
    got = runtime.load("mixed.onnx").run(dict(numpy.load("inputs.npz")))
numpy.testing.assert_allclose(got["y"], numpy.load("want.npy"), rtol=1e-5, atol=1e-6)
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=120)


def test_a_file_is_called_as_the_module_was(runtime: Any, tmp_path: Path) -> None:
    module, (x, pair) = mixed()
    rows = {0: "rows"}
    compile_ahead(module, {"pair": pair, "x": x, "factor": 2}, tmp_path / "mixed.onnx", dynamic={"x": rows, "pair": (rows, rows)})
    run = load_ahead(tmp_path / "mixed.onnx", runtime=runtime)
    for count in (2, 5):
        x, a, b = (torch.randn(count, 4) for _ in range(3))
        with torch.no_grad():
            want = module(x, (a, b), factor=2)
        got = run(pair=(a, b), factor=2, x=x)
        assert list(got) == list(want)
        assert got["nothing"] is None
        for name in ("y", "x", "parts"):
            torch.testing.assert_close(got[name], want[name])
    with pytest.raises(RequestError, match="structured"):
        run(x)


class Checked(nn.Module):
    """`torch.export` checks the type of what `to` takes, and the range of a size."""

    def forward(self, x: Any, mask: Any) -> Any:
        torch._check(x.shape[0] < 1000)
        hidden = mask.to(torch.float64).to(x.dtype)[:, None]
        return torch.where(mask.to(torch.bool)[:, None], x, hidden - 1)


@pytest.mark.parametrize("rows", [None, {0: "rows"}])
def test_checks_of_types_need_no_operator(rows: Any, runtime: Any, tmp_path: Path) -> None:
    x, mask = torch.randn(3, 4), torch.tensor([0, 1, 2])
    compile_ahead(Checked().eval(), (x, mask), tmp_path / "checked.onnx", dynamic=rows and {"x": rows, "mask": rows})
    assert "_assert_tensor_metadata" in str(torch.export.export(Checked().eval(), (x, mask)).graph)
    np.testing.assert_array_equal(load_ahead(tmp_path / "checked.onnx", runtime=runtime)(x, mask), Checked()(x, mask))


class Halves(nn.Module):
    def forward(self, x: Any) -> Any:
        torch._check(x.shape[0] % 2 == 0)
        return x.reshape(x.shape[0] // 2, -1).relu() * 2


class Counted(nn.Module):
    def forward(self, x: Any) -> Any:
        count = x[0, 0].int().item()
        torch._check(count >= 2)
        return x * count


@pytest.mark.parametrize(("module", "supported"), [(Halves(), True), (Counted(), False)])
def test_checks_of_sizes_need_no_operator_and_those_of_values_do(module: Any, supported: bool) -> None:
    shapes = ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(
        module.eval(), (torch.full((6, 4), 3.0),), dynamic_shapes=shapes, prefer_deferred_runtime_asserts_over_guards=True
    ).run_decompositions(decompositions.table())
    checks = [node for node in program.graph.nodes if operator_name(node.target) == ASSERTION]
    unsupported = import_graph(program.graph).unsupported
    assert checks
    assert not any(check in unsupported for check in checks) if supported else all(check in unsupported for check in checks)


class Placed(nn.Module):
    """Embeddings of places, resized for the image as timm's vision transformers do it."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(1, 4, 7, 7))

    def forward(self, x: Any) -> Any:
        places = nn.functional.interpolate(self.places, x.shape[-2:], mode="bicubic", antialias=True)
        return (x + places * 2).relu()


def test_what_follows_from_weights_is_computed_where_it_has_no_rule(runtime: Any, tmp_path: Path) -> None:
    module, x = Placed().eval(), torch.randn(2, 4, 10, 9)
    before = [name for name, _ in module.named_buffers()]
    compile_ahead(module, (x,), tmp_path / "placed.onnx")
    (result,) = runtime.load(tmp_path / "placed.onnx").run(x.numpy()).values()
    np.testing.assert_allclose(result, *arrays(module(x)), rtol=1e-5, atol=1e-6)
    assert [name for name, _ in module.named_buffers()] == before


def test_loading_imports_no_compiler(tmp_path: Path) -> None:
    module, given = mixed()
    compile_ahead(module, given, tmp_path / "mixed.onnx")
    code = """
import sys, torch, aspen_mp, aspen_mp.torch
with aspen_mp.Runtime(workers=1) as runtime:
    module = aspen_mp.torch.load_ahead(sys.argv[1], runtime=runtime)
    print(module(torch.ones(3, 4), (torch.ones(3, 4), torch.ones(3, 4)))["y"].shape)
print(*(name for name in ("torch._dynamo", "torch._functorch.aot_autograd") if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "mixed.onnx"], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["torch.Size([3, 4])", "", ""]


def test_classes_that_are_not_imported_are_named(runtime: Any, tmp_path: Path) -> None:
    module, given = mixed()
    compile_ahead(module, given, tmp_path / "mixed.onnx")
    proto = onnx.load(tmp_path / "mixed.onnx")
    (entry,) = proto.metadata_props
    entry.value = entry.value.replace("builtins.dict", "somebody.Outputs")
    onnx.save(proto, tmp_path / "strange.onnx")
    with pytest.raises(ModelParseError, match="Import the package"):
        load_ahead(tmp_path / "strange.onnx", runtime=runtime)


def test_files_of_others_are_refused(runtime: Any, tmp_path: Path) -> None:
    from aspen_mp.bench import models

    (tmp_path / "m.onnx").write_bytes(models.build("tcn", **models.miniature("tcn")).SerializeToString())
    with pytest.raises(ModelParseError, match="compile_ahead"):
        load_ahead(tmp_path / "m.onnx", runtime=runtime)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x * self.calls


class Odd(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.special.digamma(x)


def test_what_a_file_cannot_hold_is_refused(tmp_path: Path) -> None:
    path, x = tmp_path / "m.onnx", torch.randn(1, 4)
    with pytest.raises(UnsupportedModelError, match=r"digamma.*test_ahead\.py:\d+"):
        compile_ahead(Odd().eval(), x, path)
    with pytest.raises(UnsupportedModelError, match="'Counts' changes calls"):
        compile_ahead(Counts().eval(), x, path)
    with pytest.raises(ValueError, match=r"module\.eval\(\)"):
        compile_ahead(Odd(), x, path)
    with pytest.raises(TypeError, match="function"):
        compile_ahead(lambda x: x, x, path)
    with pytest.raises(ValueError, match="none of the arguments: x"):
        compile_ahead(Odd().eval(), x, path, dynamic={"y": {0: "rows"}})
    with pytest.raises(ValueError, match="has no axis 2"):
        compile_ahead(Odd().eval(), x, path, dynamic={"x": {2: "rows"}})
    with pytest.raises(ValueError, match="2 or more"):
        compile_ahead(Odd().eval(), x, path, dynamic={"x": {0: "rows"}})
    assert not list(tmp_path.iterdir())


RESIZED: dict[str, dict[str, Any]] = {
    "nearest by size": {"size": (9, 5)},
    "nearest by scale": {"scale_factor": 2},
    "exact": {"scale_factor": (1.5, 2.0), "mode": "nearest-exact"},
    "bilinear by size": {"size": (3, 11), "mode": "bilinear"},
    "corners": {"size": (7, 4), "mode": "bilinear", "align_corners": True},
    "bilinear by scale": {"scale_factor": 2.5, "mode": "bilinear"},
    "scale computed again": {"scale_factor": 1.7, "mode": "bilinear", "recompute_scale_factor": True},
    "bicubic": {"scale_factor": (0.5, 2.5), "mode": "bicubic"},
}


@pytest.mark.parametrize("how", RESIZED)
def test_resizing(how: str, runtime: Any, tmp_path: Path) -> None:
    class Resize(nn.Module):
        def forward(self, x: Any) -> Any:
            return nn.functional.interpolate(x, **RESIZED[how]).relu()

    torch.manual_seed(3)
    x = torch.randn(2, 3, 6, 8)
    compile_ahead(Resize().eval(), (x,), tmp_path / "resize.onnx")
    torch.testing.assert_close(load_ahead(tmp_path / "resize.onnx", runtime=runtime)(x), Resize()(x), rtol=1e-4, atol=1e-5)
