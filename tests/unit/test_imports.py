"""The house rules that a machine can check: imports run one way, and `import aspen_mp` stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import aspen_mp

PACKAGE = Path(aspen_mp.__file__).parent
ALLOWED = {
    "shm": {"shm"},
    "workers": {"workers", "shm"},
    "planner": {"planner", "shm"},
    "config": {"config", "shm"},
}
HEAVY = {"numpy", "onnx", "typer", "rich", "msgspec", "psutil", "onnxruntime", "ml_dtypes"}


def folder_files(part: str) -> list[Path]:
    import importlib

    module = importlib.import_module(f"aspen_mp.{part}")
    roots = [Path(p) for p in module.__path__]
    return sorted({f for root in roots for f in root.rglob("*.py")})


def imported_parts(path: Path) -> set[str]:
    """Sub-packages of aspen_mp that a file imports anywhere, late imports included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module] if node.module != "aspen_mp" else [f"aspen_mp.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "aspen_mp":
                found.add(parts[1] if len(parts) > 1 else "")
    return found


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_imports_run_one_way(part: str) -> None:
    files = folder_files(part)
    assert files
    for path in files:
        extra = imported_parts(path) - ALLOWED[part]
        assert not extra, f"{path} imports {sorted(extra)}; {part} may import {sorted(ALLOWED[part])}"


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
