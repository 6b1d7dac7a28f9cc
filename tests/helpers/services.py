"""Which services of the operating system the package's files ask for, and whether they ask through `aspen_mp/system`."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from functools import cache
from pathlib import Path, PurePath
from types import ModuleType
from typing import Final

SYSTEM: Final = "aspen_mp.system"
_PATH_METHODS: Final = {name for name in dir(Path) if not hasattr(PurePath, name)} - {"replace", "rename", "open", "group"}
"""Methods of `pathlib.Path` that touch the file system; without names that other objects have, too."""


def rooms() -> dict[str, ModuleType]:
    """The rooms of `aspen_mp.system` by their names."""
    folder = Path(importlib.import_module(SYSTEM).__file__ or "").parent
    names = sorted({file.stem for file in folder.glob("[a-z]*.py")} - {"injection"})  # which hands on nothing
    return {name: importlib.import_module(f"{SYSTEM}.{name}") for name in names}


def standard_names(room: ModuleType) -> dict[str, str]:
    """The names that a room re-exports, and what each is called in the standard library, as `os.close`."""
    taken = _names(ast.parse(inspect.getsource(room)))
    return {name: taken[name] for name in room.__all__ if name in taken}


class Services:
    """What only the rooms may ask of the system.

    Args:
        whole: Modules all of whose functions and classes count, besides those that the rooms take theirs from.
        single: Dotted names that count besides.
        harmless: Dotted names of these modules that do not count.
    """

    def __init__(self, whole: Collection[str], single: Collection[str], harmless: Collection[str]) -> None:
        offered = {name for room in rooms().values() for name in standard_names(room).values()}
        self._single = {*single, *offered, "builtins.open"}
        self._whole = {*whole, *(name.rpartition(".")[0] for name in offered)} - {"os.path"}
        self._harmless = {*harmless}

    def has(self, name: str) -> bool:
        """Whether a dotted name is that of a service. Constants, exceptions and enumerations are not."""
        module, _, attribute = name.rpartition(".")
        if name in self._harmless or (name not in self._single and module not in self._whole):
            return False
        if name in self._single:
            return True
        value = getattr(importlib.import_module(module), attribute, None)
        return callable(value) and not (isinstance(value, type) and issubclass(value, BaseException | Enum))

    def asked(self, text: str) -> set[str]:
        """The services that a file asks for past the rooms, by their dotted names."""
        tree = _tree(text)
        names = _names(tree)
        found = {name for node in ast.walk(tree) if (name := _dotted(node, names)) and self.has(name)}
        if "pathlib.Path" in names.values():
            found |= {f"pathlib.Path.{name}" for name in _called(tree, names) & _PATH_METHODS}
        return found


def ask_past_rooms(texts: Mapping[str, str], services: Services) -> dict[str, set[str]]:
    """Modules that ask for services past the rooms, and for which."""
    return {module: asked for module, text in texts.items() if (asked := services.asked(text))}


def bind_early(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Modules that take a name of a room once and for all, and which names.

    They import the name instead of its room, or bind it while they are imported: as a default, a base or an attribute of a class.
    """
    return {module: bound for module, text in texts.items() if (bound := _bound(_tree(text)))}


@cache
def _tree(text: str) -> ast.Module:
    """The syntax of a file; an empty one of Cython."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module([], [])


def _names(tree: ast.AST) -> dict[str, str]:
    """What the names that a file imports stand for, dotted."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = alias.name if alias.asname else alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _dotted(node: ast.AST, names: Mapping[str, str]) -> str:
    """The dotted name of what is read, written out as it is imported; empty where it is not a name."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        before = _dotted(node.value, names)
        return f"{before}.{node.attr}" if before else ""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return names.get(node.id, f"builtins.{node.id}" if hasattr(builtins, node.id) else "")
    return ""


def _called(tree: ast.AST, names: Mapping[str, str]) -> set[str]:
    """The names of methods that a file calls on anything but modules of ours."""
    methods = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return {method.attr for method in methods if not _dotted(method.value, names).startswith("aspen_mp.")}


def _bound(tree: ast.Module) -> set[str]:
    """The names of rooms that a file binds while it is imported, dotted."""
    names = _names(tree)
    found = {name for name in names.values() if name.startswith(f"{SYSTEM}.") and name.count(".") > 2}
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in _evaluated(tree):
        name = _dotted(node, names)
        if name.startswith(f"{SYSTEM}.") and name.count(".") > 2 and id(node) not in called and not name.rpartition(".")[2].isupper():
            found.add(name)
    return found


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Whatever Python evaluates while it imports a file: bodies of functions and annotations are left out."""
    yield node
    later = {"annotation", "returns"}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        later.add("body")
    for field, value in ast.iter_fields(node):
        if field in later:
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                yield from _evaluated(each)
