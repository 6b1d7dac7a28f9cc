"""What `test_house.py` reads of the package: its folders, its sources and what they import, its functions, and its READMEs."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

Imports = Mapping[str, set[str]]
SOURCES = {".py", ".pyx", ".c", ".h"}
"""Endings of what is a source file. Stubs (.pyi) and declarations (.pxd) go with the .pyx beside them."""
APART = {"__init__.py", "README.md", "CMakeLists.txt"}
"""Files that every folder may have besides."""


@cache
def packages() -> dict[str, list[Path]]:
    """The folders of each package, by its name."""
    found, todo = {}, ["aspen_mp"]
    while todo:
        name = todo.pop()
        spec = importlib.util.find_spec(name)  # nothing is imported but what holds it: a package may need what is not installed
        assert spec is not None
        folders = [Path(each) for each in spec.submodule_search_locations or ()]
        found[name] = folders
        inside = [module.name for module in pkgutil.iter_modules(map(str, folders), f"{name}.") if module.ispkg]
        todo += [each for each in inside if each != "aspen_mp.aspen_mp"]  # the folder of the package, met in that of the repository
    return found


@cache
def sources() -> dict[str, str]:
    """The text of every Python and Cython file of the package, by its module's name; those of packages are called `….__init__`."""
    return {
        f"{name}.{file.stem}": file.read_text(encoding="utf-8")
        for name, folders in packages().items()
        for folder in folders
        for pattern in ("*.py", "*.pyx")
        for file in folder.glob(pattern)
    }


@cache
def _python(text: str) -> ast.Module:
    """A file's syntax; of a Cython file its import statements alone, `cimport` among them."""
    try:
        return ast.parse(text)
    except SyntaxError:
        found = ast.Module([], [])
        for each in re.findall(r"^[ \t]*((?:from[ \t]+[\w.]+[ \t]+)?c?import[ \t]+(?:\([^)]*\)|[^\n#]+))", text, re.MULTILINE):
            with suppress(SyntaxError):  # a line of a docstring
                found.body += ast.parse(re.sub(r"\bcimport\b", "import", each)).body
        return found


@cache
def _imports(text: str) -> tuple[list[ast.Import | ast.ImportFrom], set[int]]:
    """The import statements of a file, and which of them (`id`) are for types alone."""
    for_types: set[int] = set()
    found: list[ast.Import | ast.ImportFrom] = []
    for node in ast.walk(_python(text)):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for_types |= {id(each) for each in ast.walk(node)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
    return found, for_types


def imports_of(module: str, text: str, known: Collection[str], *, types: bool = True) -> set[str]:
    """The modules of `known` that a file imports, late and relative imports included; without those for types alone if not `types`."""
    found: set[str] = set()
    nodes, for_types = _imports(text)
    for node in nodes:
        if not types and id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            parents = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return (found & set(known) | {f"{name}.__init__" for name in found} & set(known)) - {module}


@cache
def graph(*, types: bool = True) -> dict[str, set[str]]:
    """Which modules of the package each of them imports."""
    texts = sources()
    return {module: imports_of(module, text, texts.keys(), types=types) for module, text in texts.items()}


def start_python(texts: Mapping[str, str]) -> set[str]:
    """Modules that know how to start a Python: by `sys.executable`, by ``-m``, or by `multiprocessing`, except for its shared memory."""

    def starts(node: ast.AST) -> bool:
        match node:
            case ast.Attribute(attr="executable" | "_base_executable") | ast.Constant(value="-m"):
                return True
            case ast.ImportFrom(module=module, names=names):
                taken = {f"{module}.{name.name}" for name in names}
            case ast.Import(names=names):
                taken = {name.name for name in names}
            case _:
                return False
        foreign = {
            each for each in taken if each.startswith(("multiprocessing", "concurrent.futures.process", "concurrent.futures.Process"))
        }
        return bool(taken & {"sys.executable", "sys._base_executable"} or foreign - {"multiprocessing.shared_memory.SharedMemory"})

    return {module for module, text in texts.items() if any(map(starts, ast.walk(_python(text))))}


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


def files_of(folder: Path) -> list[Path]:
    """The sources and documents of one folder."""
    return [each for each in folder.iterdir() if each.is_file() and each.suffix not in {".so", ".pyc"}]


def crowded(folders: Iterable[Path], most: int) -> list[str]:
    """Folders with more files than `most`."""
    return [str(folder) for folder in folders if folder.is_dir() and len(files_of(folder)) > most]


def below(root: Path, without: Iterable[Path] = ()) -> list[Path]:
    """A folder and all folders in it; none of `without`, nor what lies in these, nor what tools keep for themselves."""
    left_out = list(without)
    return [
        folder
        for folder in (root, *(each for each in sorted(root.rglob("*")) if each.is_dir()))
        if not any(folder.is_relative_to(each) for each in left_out)
        and not any(part.startswith((".", "__")) for part in folder.relative_to(root).parts)
    ]


def listed(readme: str, room: str) -> set[str]:
    """What a README names, in backticks, of a folder below its own (`a/b`; "": its own).

    A name counts with the folder before it (`a/b/file.py`), behind another of that folder on the same line (`a/b/file.py`, `other.py`), and
    below a heading that names the folder (`a/b/`).
    """
    found: set[str] = set()
    under = ""
    for line in readme.splitlines():
        tokens = re.findall(r"`([^`]+)`", line)
        if line.startswith("#"):
            under = next((token.rstrip("/") for token in tokens if token.endswith("/")), "")
        folder = under
        for token in tokens:
            path, slash, name = token.rpartition("/")
            folder = path if slash else folder
            if room in {folder, path if slash else "", under if not slash else folder}:
                found.add(name)
    return found


def unlisted(folders: Iterable[Path], root: Path) -> list[str]:
    """Source files that neither the README of their folder nor the nearest one above it names, if there is more than one of them.

    `root`: the folder above which no README is looked for.
    """
    missing: list[str] = []
    for folder in folders:
        names = {each.name for each in files_of(folder) if each.suffix in SOURCES} - APART
        if len(names) < 2:
            continue
        above = [folder, *(each for each in folder.parents if each.is_relative_to(root))]
        readme = next((each / "README.md" for each in above if (each / "README.md").exists()), None)
        said = listed(readme.read_text(encoding="utf-8"), folder.relative_to(readme.parent).as_posix().rstrip(".")) if readme else set()
        missing += [f"{folder / name}" for name in sorted(names) if not {name, Path(name).stem} & said]
    return missing


def functions(text: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function of a file by its qualified name."""

    def walk(node: ast.AST, path: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            inner = f"{path}.{child.name}" if named else path
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield inner, child
            yield from walk(child, inner)

    return walk(_python(text), "")


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many lines a function has from `def` to its end, without its docstring."""
    first = function.body[0]
    docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    assert function.end_lineno is not None
    assert first.end_lineno is not None
    return function.end_lineno - function.lineno + 1 - (first.end_lineno - first.lineno + 1 if docstring else 0)


def long_functions(texts: Mapping[str, str], most: int) -> set[str]:
    """Functions with more lines than `most`, as `module.Class.function`."""
    return {f"{module}{name}" for module, text in texts.items() for name, each in functions(text) if lines_of(each) > most}


def large_constructors(texts: Mapping[str, str], most: int) -> set[str]:
    """Constructors with more parameters than `most` besides `self`, as `module.Class.__init__`."""

    def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        given = function.args
        return len([*given.posonlyargs, *given.args, *given.kwonlyargs]) - 1

    return {
        f"{module}{name}"
        for module, text in texts.items()
        for name, each in functions(text)
        if each.name == "__init__" and parameters(each) > most
    }


def modules_with(texts: Mapping[str, str], words: Collection[str]) -> set[str]:
    """Modules in which one of `words` stands as a string of its own."""
    return {
        module
        for module, text in texts.items()
        if any(isinstance(node, ast.Constant) and node.value in words for node in ast.walk(_python(text)))
    }


def _reads(node: ast.AST, clocks: Collection[str]) -> bool:
    """Whether a clock is asked, or what is called like one is used, in an expression."""
    return any(
        (isinstance(each, ast.Attribute) and each.attr in clocks) or (isinstance(each, ast.Name) and each.id in clocks)
        for each in ast.walk(node)
    )


def timed(texts: Mapping[str, str], clocks: Collection[str]) -> set[str]:
    """Functions that assert on what has passed on one of `clocks`: on a difference, or on a name that has been given one."""

    def duration(node: ast.AST) -> bool:
        return any(isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub) and _reads(each, clocks) for each in ast.walk(node))

    found: set[str] = set()
    for module, text in texts.items():
        for name, function in functions(text):
            durations: set[str] = set()
            for each in ast.walk(function):
                if isinstance(each, ast.Assign) and duration(each.value):
                    durations |= {leaf.id for target in each.targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
            if any(isinstance(each, ast.Assert) and (duration(each.test) or _reads(each.test, durations)) for each in ast.walk(function)):
                found.add(f"{module}{name}")
    return found
