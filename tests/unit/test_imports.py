"""The house rules that a machine can check: imports run one way, and `import aspen_mp` stays light."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import aspen_mp

PACKAGE = Path(aspen_mp.__file__).parent
ALLOWED = {
    "shm": {"shm"},
    "workers": {"workers", "shm", "numpy_operators"},
    "planner": {"planner", "shm", "numpy_operators"},
    "config": {"config", "shm"},
}
LEAVES = ["numpy_operators.py"]  # files of the root package that its parts share
HEAVY = {"numpy", "onnx", "typer", "rich", "msgspec", "psutil", "onnxruntime", "ml_dtypes"}


def folder_files(part: str) -> list[Path]:
    import importlib

    module = importlib.import_module(f"aspen_mp.{part}")
    roots = [Path(p) for p in module.__path__]
    return sorted({f for root in roots for f in root.rglob("*.py")})


def imported_names(path: Path) -> set[str]:
    """What a file imports anywhere, late imports included, and those for types alone: modules, and names out of them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imported_parts(path: Path) -> set[str]:
    """Sub-packages of aspen_mp that a file imports."""
    parts = [name.split(".") for name in imported_names(path)]
    return {part[1] if len(part) > 1 else "" for part in parts if part[0] == "aspen_mp"}


def modules() -> dict[str, Path]:
    """Every Python file of the package by its module's name, packages' own files left out: they hand names on."""
    import pkgutil

    found: dict[str, Path] = {}
    todo = [("aspen_mp", [str(path) for path in aspen_mp.__path__])]
    while todo:
        name, folders = todo.pop()
        for module in pkgutil.iter_modules(folders, f"{name}."):
            spec = module.module_finder.find_spec(module.name)  # type: ignore[call-arg]
            if spec is None:
                continue
            if module.ispkg:
                todo.append((module.name, list(spec.submodule_search_locations or [])))
            elif spec.origin and spec.origin.endswith(".py"):
                found[module.name] = Path(spec.origin)
    return found


def test_files_do_not_import_each_other_in_a_circle() -> None:
    files = modules()
    assert "aspen_mp.planner.build" in files
    graph = {}
    for name, path in files.items():
        wanted = imported_names(path)
        wanted |= {each.rpartition(".")[0] for each in wanted}  # a module itself, or names out of it
        graph[name] = (wanted & set(files)) - {name}
    TopologicalSorter(graph).prepare()  # CycleError names the circle


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_imports_run_one_way(part: str) -> None:
    files = folder_files(part)
    assert files
    for path in files:
        extra = imported_parts(path) - ALLOWED[part]
        assert not extra, f"{path} imports {sorted(extra)}; {part} may import {sorted(ALLOWED[part])}"


@pytest.mark.parametrize("file", LEAVES)
def test_what_parts_share_imports_nothing_of_ours(file: str) -> None:
    assert not imported_parts(PACKAGE / file)


def test_import_is_light() -> None:
    code = "import sys, aspen_mp; print(' '.join(m for m in sys.modules if '.' not in m))"
    loaded = set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())
    assert not loaded & HEAVY


@pytest.mark.parametrize("part", ["shm", "workers", "planner", "bench", "config"])
def test_bare_import_from_the_repository_is_refused(part: str) -> None:
    import importlib

    folder = Path(importlib.import_module(f"aspen_mp.{part}").__file__ or "").parent
    if folder.name != part:
        pytest.fail(f"{folder} is not the folder of aspen_mp.{part}")
    run = subprocess.run([sys.executable, "-c", f"import {part}"], cwd=folder.parent, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert f"aspen_mp.{part}" in run.stderr
