"""The house rules that a machine can check: imports run one way, rooms stay small, and `import aspen_mp` stays light."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

Imports = Mapping[str, set[str]]

PARTS = {
    "aspen_mp.shm": {"aspen_mp.shm"},
    "aspen_mp.workers": {"aspen_mp.workers", "aspen_mp.shm"},
    "aspen_mp.planner": {"aspen_mp.planner", "aspen_mp.shm", "aspen_mp.workers.fallback"},
    "aspen_mp.config": {"aspen_mp.config", "aspen_mp.shm"},
}
"""What each part may import of the package."""
ORDERS = {
    "aspen_mp.planner": ["job", "ir", "ops", "layout", "cost", "frontends", "lower", "passes", "simulation", "tiling", "plan"],
    "aspen_mp.control": ["wire", "memory", "planning", "pool", "models"],
    "aspen_mp.workers": ["fallback"],
}
"""Rooms of a part: each may import itself and those before it, and nothing that lies beside the rooms."""
HEAVY = {"numpy", "onnx", "typer", "rich", "msgspec", "psutil", "onnxruntime", "ml_dtypes"}
MOST_FILES = 20
MOST_ENTRIES = {"aspen_mp.planner": 14, "aspen_mp.control": 8, "aspen_mp.workers.kernels": 14}
APART = {"__init__.py", "README.md", "CMakeLists.txt"}
"""Files that every folder may have besides."""


def packages() -> dict[str, list[Path]]:
    """The folders of each package, by its name."""
    found, todo = {}, ["aspen_mp"]
    while todo:
        name = todo.pop()
        folders = [Path(each) for each in importlib.import_module(name).__path__]
        found[name] = folders
        todo += [module.name for module in pkgutil.iter_modules(map(str, folders), f"{name}.") if module.ispkg]
    return found


def sources() -> dict[str, str]:
    """The text of every Python file of the package, by its module's name; those of packages are called `….__init__`."""
    return {
        f"{name}.{file.stem}": file.read_text(encoding="utf-8")
        for name, folders in packages().items()
        for folder in folders
        for file in folder.glob("*.py")
    }


def imports_of(module: str, text: str, known: set[str], *, types: bool = True) -> set[str]:
    """The modules of `known` that a file imports, late and relative imports included; without those for types alone if not `types`."""
    tree = ast.parse(text)
    for_types: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for_types |= {id(each) for each in ast.walk(node)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if not types and id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return (found & known | {f"{name}.__init__" for name in found} & known) - {module}


def graph(*, types: bool = True) -> dict[str, set[str]]:
    """Which modules of the package each of them imports."""
    texts = sources()
    return {module: imports_of(module, text, set(texts), types=types) for module, text in texts.items()}


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def imports_upwards(imports: Imports, parts: Mapping[str, set[str]]) -> list[str]:
    """Imports that leave what a part may import."""
    return [
        f"{module} imports {other}"
        for part, allowed in parts.items()
        for module, others in imports.items()
        if within(module, part)
        for other in sorted(others)
        if not any(within(other, each) for each in allowed)
    ]


def out_of_order(imports: Imports, orders: Mapping[str, Sequence[str]]) -> list[str]:
    """Imports from a room of a part to one that does not come before it."""
    found: list[str] = []
    for part, order in orders.items():
        for module, others in imports.items():
            room = module.removeprefix(f"{part}.").split(".")[0]
            if not within(module, part) or room not in order:
                continue
            allowed = [f"{part}.{each}" for each in order[: order.index(room) + 1]]
            found += [
                f"{module} imports {other}"
                for other in sorted(others)
                if within(other, part) and other != f"{part}.__init__" and not any(within(other, each) for each in allowed)
            ]
    return found


def circle(imports: Imports) -> list[str]:
    """Modules that import each other in a circle, if any do. Files of packages are left out: they hand names on."""
    files = {module: {each for each in others if not each.endswith(".__init__")} for module, others in imports.items()}
    try:
        TopologicalSorter({module: others for module, others in files.items() if not module.endswith(".__init__")}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_files_do_not_import_each_other_in_a_circle() -> None:
    imports = graph()
    assert "aspen_mp.planner.build" in imports
    assert not circle(imports)
    assert circle({**imports, "aspen_mp.planner.ir.graph": {"aspen_mp.planner.build"}})


def test_imports_run_one_way() -> None:
    imports = graph()
    assert not imports_upwards(imports, PARTS)
    for upward in ("aspen_mp.client.session", "aspen_mp.planner.api", "aspen_mp.workers.main"):
        assert imports_upwards({**imports, "aspen_mp.shm.segments": {upward}}, PARTS)


def test_rooms_import_those_before_them() -> None:
    imports = graph(types=False)
    assert not out_of_order(imports, ORDERS)
    assert out_of_order({**imports, "aspen_mp.planner.ops.params": {"aspen_mp.planner.lower.builder"}}, ORDERS)
    assert out_of_order({**imports, "aspen_mp.control.wire.protocol": {"aspen_mp.control.server"}}, ORDERS)


def test_every_import_is_read() -> None:
    known = {"aspen_mp.a.b", "aspen_mp.a.__init__", "aspen_mp.c"}
    for text in ("import aspen_mp.a.b", "from aspen_mp.a import b", "from aspen_mp.a.b import x", "def f():\n    from .a import b"):
        assert "aspen_mp.a.b" in imports_of("aspen_mp.c", text, known)
    assert imports_of("aspen_mp.a.d", "from .b import x", known) == {"aspen_mp.a.b"}
    assert imports_of("aspen_mp.a.d", "from .. import c", known) == {"aspen_mp.c"}
    for_types = "if TYPE_CHECKING:\n    from aspen_mp.a.b import x"
    assert imports_of("aspen_mp.c", for_types, known)
    assert not imports_of("aspen_mp.c", for_types, known, types=False)


def files_of(folder: Path) -> list[Path]:
    """The sources and documents of one folder."""
    return [each for each in folder.iterdir() if each.is_file() and each.suffix not in {".so", ".pyc"}]


def crowded(folders: Iterable[Path]) -> list[str]:
    """Folders with too many files."""
    return [str(folder) for folder in folders if folder.is_dir() and len(files_of(folder)) > MOST_FILES]


def test_folders_are_not_crowded(tmp_path: Path) -> None:
    folders = [folder for each in packages().values() for folder in each if not (folder / "pyproject.toml").exists()]
    kernels = [folder / "kernels" for folder in packages()["aspen_mp.workers"]]
    assert not crowded([*folders, *kernels, *(each for folder in kernels for each in folder.glob("*"))])
    for i in range(MOST_FILES + 1):
        (tmp_path / f"{i}.py").touch()
    assert crowded([tmp_path])


@pytest.mark.parametrize("name", MOST_ENTRIES)
def test_parts_have_few_entries(name: str) -> None:
    parent, _, last = name.rpartition(".")
    folders = packages().get(name) or [folder / last for folder in packages()[parent]]
    files = {each.name for folder in folders if folder.is_dir() for each in files_of(folder)} - APART
    rooms = {each.name for folder in folders if folder.is_dir() for each in folder.iterdir() if each.is_dir() and files_of(each)}
    assert len(files | rooms) <= MOST_ENTRIES[name], sorted(files | rooms)


def test_import_is_light() -> None:
    code = "import sys, aspen_mp; print(' '.join(m for m in sys.modules if '.' not in m))"
    loaded = set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())
    assert not loaded & HEAVY


@pytest.mark.parametrize("part", ["shm", "workers", "planner", "bench", "config"])
def test_bare_import_from_the_repository_is_refused(part: str) -> None:
    folder = Path(importlib.import_module(f"aspen_mp.{part}").__file__ or "").parent
    if folder.name != part:
        pytest.fail(f"{folder} is not the folder of aspen_mp.{part}")
    run = subprocess.run([sys.executable, "-c", f"import {part}"], cwd=folder.parent, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert f"aspen_mp.{part}" in run.stderr
