"""The rules of the house (`house_rules.py`) hold, and each would be noticed if it did not: a violation is planted beside every look."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import folders
import house_rules as rules
import pytest
from house import (
    APART,
    below,
    circle,
    crowded,
    files_of,
    graph,
    imports_of,
    imports_upwards,
    large_constructors,
    listed,
    long_functions,
    modules_with,
    out_of_order,
    packages,
    sources,
    start_python,
    timed,
    unlisted,
    within,
)
from services import Services, ask_past_rooms, bind_early, rooms, standard_names

from aspen_mp.shm.tables import KERNELS

OURS = ["aspen_mp", "aspen_mp.shm", "aspen_mp.workers", "aspen_mp.planner", "aspen_mp.bench", "aspen_mp.config"]
GENERATED = [folders.TESTS / "stress" / "fuzz" / "corpus"]
"""Folders of data that programs write."""
SHIM = folders.TESTS / "suites" / "shim"
"""Stands for onnxruntime in other projects' tests, under its names."""


def roots() -> list[Path]:
    """The folders of the package's parts, as they lie in the repository or where the package is installed, and that of the tests."""
    found = [Path(importlib.import_module(name).__file__ or "").parent for name in OURS]
    return [*found, folders.TESTS]


def all_folders() -> list[Path]:
    """Every folder of ours, each once."""
    return sorted({folder for root in roots() for folder in below(root, GENERATED)})


def hold(found: set[str], exceptions: Mapping[str, str], rule: str) -> None:
    """What breaks a rule is among its exceptions, and each of these still breaks it."""
    new, gone = found - exceptions.keys(), exceptions.keys() - found
    assert not new, f"{rule}: {sorted(new)}; or say in house_rules.py why not"
    assert not gone, f"no exceptions any more, take them out of house_rules.py: {sorted(gone)}"


def test_files_do_not_import_each_other_in_a_circle() -> None:
    imports = graph()
    assert "aspen_mp.planner.build" in imports
    assert not circle(imports)
    assert circle({**imports, "aspen_mp.planner.ir.graph": {"aspen_mp.planner.build"}})


def test_imports_run_one_way() -> None:
    imports = graph()
    assert not imports_upwards(imports, rules.PARTS)
    for upward in ("aspen_mp.client.session", "aspen_mp.planner.api", "aspen_mp.workers.main"):
        assert imports_upwards({**imports, "aspen_mp.shm.segments": {upward}}, rules.PARTS)


def test_rooms_import_those_before_them() -> None:
    imports = graph(types=False)
    assert not out_of_order(imports, rules.ORDERS)
    assert out_of_order({**imports, "aspen_mp.planner.ops.params": {"aspen_mp.planner.lower.builder"}}, rules.ORDERS)
    assert out_of_order({**imports, "aspen_mp.control.wire.protocol": {"aspen_mp.control.process.main"}}, rules.ORDERS)
    assert out_of_order({**imports, "aspen_mp.tools.calibrate": {"aspen_mp.bench.models.zoo"}}, rules.ORDERS)
    assert out_of_order({**imports, "aspen_mp.tracing.trace": {"aspen_mp.client.session"}}, rules.ORDERS)


def test_benchmarks_are_named_by_their_hooks_alone() -> None:
    benchmarks = {module.removesuffix(".__init__") for module in sources() if within(module, "aspen_mp.bench")}

    def violations(texts: dict[str, str]) -> set[str]:
        return modules_with({module: text for module, text in texts.items() if not within(module, "aspen_mp.bench")}, benchmarks)

    hold(violations(sources()), rules.NAME_BENCHMARKS, "networks of the zoo come from client/named_models.py")
    assert violations({"aspen_mp.client.runtime": 'importlib.import_module("aspen_mp.bench.models")'})


def test_every_import_is_read() -> None:
    known = {"aspen_mp.a.b", "aspen_mp.a.__init__", "aspen_mp.c"}
    for text in ("import aspen_mp.a.b", "from aspen_mp.a import b", "from aspen_mp.a.b import x", "def f():\n    from .a import b"):
        assert "aspen_mp.a.b" in imports_of("aspen_mp.c", text, known)
    assert imports_of("aspen_mp.a.d", "from .b import x", known) == {"aspen_mp.a.b"}
    assert imports_of("aspen_mp.a.d", "from .. import c", known) == {"aspen_mp.c"}
    for_types = "if TYPE_CHECKING:\n    from aspen_mp.a.b import x"
    assert imports_of("aspen_mp.c", for_types, known)
    assert not imports_of("aspen_mp.c", for_types, known, types=False)


def test_imports_of_cython_files_are_read() -> None:
    known = {"aspen_mp.a.b", "aspen_mp.a.__init__", "aspen_mp.c"}
    body = '"""A file\nimport of which nothing is said."""\ncdef int f() noexcept nogil:\n    return <int>0\n'
    for text in (
        "cimport aspen_mp.a.b",
        "from aspen_mp.a.b cimport x, y",
        "from aspen_mp.a cimport (\n  b,\n)",
        "import aspen_mp.a.b as z",
    ):
        assert "aspen_mp.a.b" in imports_of("aspen_mp.c", f"{text}\n{body}", known)
        assert "aspen_mp.a.b" in imports_of("aspen_mp.c", f"{body}def g():\n    {text}\n", known)
    assert not imports_of("aspen_mp.c", body, known)


def test_folders_are_not_crowded(tmp_path: Path) -> None:
    assert not crowded(all_folders(), rules.MOST_FILES)
    assert any(folder.name == "gemm" for folder in all_folders())
    for i in range(rules.MOST_FILES + 1):
        (tmp_path / f"{i}.py").touch()
    assert crowded(below(tmp_path), rules.MOST_FILES)


def test_names_of_test_files_are_unique() -> None:
    files = [file.name for file in (folders.ROOT / "tests").rglob("test_*.py")]
    assert not {name for name in files if files.count(name) > 1}, "pytest imports test files by name"


@pytest.mark.parametrize("name", rules.MOST_ENTRIES)
def test_parts_have_few_entries(name: str) -> None:
    parent, _, last = name.rpartition(".")
    places = packages().get(name) or [folder / last for folder in packages()[parent]]
    files = {each.name for folder in places if folder.is_dir() for each in files_of(folder)} - APART
    rooms = {each.name for folder in places if folder.is_dir() for each in folder.iterdir() if each.is_dir() and files_of(each)}
    assert len(files | rooms) <= rules.MOST_ENTRIES[name], sorted(files | rooms)


def test_readmes_list_their_files(tmp_path: Path) -> None:
    missing = [each for root in roots() for each in unlisted(below(root, [*GENERATED, SHIM]), root)]
    assert not missing, missing
    room = tmp_path / "part" / "room"
    room.mkdir(parents=True)
    for name in ("one.py", "two.pyx", "__init__.py"):
        (room / name).touch()
    readme = room.parent / "README.md"
    for said in (
        "",
        "`one.py`, `two.pyx`",
        "`room/one.py`",
        "`room/one.py`, `other/three.py`, `two.pyx`",
        "## `other/`\n`one.py` `two.pyx`",
    ):
        readme.write_text(said)
        assert str(room / "two.pyx") in unlisted(below(tmp_path), tmp_path), said
    for said in ("`room/one.py`, `two`", "## `room/`\n| `one` |\n| `two.pyx` |", "`room/` has `one.py` and `two.pyx`"):
        readme.write_text(said)
        assert not unlisted(below(tmp_path), tmp_path), said
    (room / "README.md").write_text("`one.py`")
    assert unlisted(below(tmp_path), tmp_path) == [str(room / "two.pyx")]
    assert listed("`two` of `../room/three.py`", "") == {"two"}


def test_ops_are_named_in_their_rooms() -> None:
    ops = KERNELS.keys() - rules.NO_OPERATORS

    def violations(texts: dict[str, str]) -> set[str]:
        elsewhere = {module: text for module, text in texts.items() if not any(within(module, each) for each in rules.KNOW_OPS)}
        speaks_onnx = {module: text for module, text in elsewhere.items() if any(within(module, each) for each in rules.SPEAK_ONNX)}
        others = {module: text for module, text in elsewhere.items() if module not in speaks_onnx}
        return modules_with(others, ops) | modules_with(speaks_onnx, ops - rules.ONNX_TOO)

    hold(violations(sources()), rules.NAME_OPS, "ops are asked of planner/ops, not named")
    for module in ("aspen_mp.planner.plan.memory", "aspen_mp.workers.main", "aspen_mp.client.model", "aspen_mp.planner.frontends.bind"):
        assert module in violations({module: "OPS = {'GEMM'}"})
    assert not violations({"aspen_mp.planner.ops.params": "OPS = {'GEMM'}", "aspen_mp.planner.frontends.bind": "OP = 'LSTM'  # GEMM"})


def test_functions_are_short() -> None:
    hold(long_functions(sources(), rules.MOST_LINES), rules.LONG_FUNCTIONS, f"a function has {rules.MOST_LINES} lines at most")
    docstring = "        '''Says\n" + "\n" * 99 + "        '''\n"
    body = "        x = 0\n" * (rules.MOST_LINES - 1)
    head = f"class A:\n    async def f(self):\n{docstring}"
    assert not long_functions({"m": head + body}, rules.MOST_LINES)
    assert long_functions({"m": f"{head}{body}        y = 0\n"}, rules.MOST_LINES) == {"m.A.f"}


def test_constructors_are_small() -> None:
    hold(large_constructors(sources(), rules.MOST_PARAMETERS), rules.LARGE_CONSTRUCTORS, f"{rules.MOST_PARAMETERS} parameters at most")
    names = ", ".join(f"a{i}" for i in range(rules.MOST_PARAMETERS))
    assert not large_constructors({"m": f"class A:\n    def __init__(self, {names}): ..."}, rules.MOST_PARAMETERS)
    assert large_constructors({"m": f"class A:\n    def __init__(self, {names}, *, b): ..."}, rules.MOST_PARAMETERS) == {"m.A.__init__"}


def test_tests_do_not_assert_on_time() -> None:
    texts = {file.stem: file.read_text(encoding="utf-8") for file in folders.TESTS.rglob("*.py")}
    hold(timed(texts, rules.CLOCKS), rules.COMPARE_DURATIONS, "a test asserts on events, states and counters")
    for body in (
        "    t = time.monotonic()\n    assert time.monotonic() - t < 1\n",
        "    t = process_time()\n    taken = process_time() - t\n    assert 0 < taken / 2 < 0.5\n",
    ):
        assert timed({"m": f"def f():\n{body}"}, rules.CLOCKS) == {"m.f"}
    assert not timed({"m": "def f():\n    end = time.monotonic() + 60\n    assert time.monotonic() < end, 'watchdog'\n"}, rules.CLOCKS)


def test_children_are_started_one_way() -> None:
    hold(start_python(sources()), rules.START_PYTHON, "commands come from control/wire/python.py")
    for planted in (
        "subprocess.run([sys.executable, '-c', code])",
        "from sys import executable",
        "os.posix_spawn(sys._base_executable, command, os.environ)",
        "command = [find_python(), '-m', 'aspen_mp.cli']",
        "import multiprocessing",
        "from multiprocessing import get_context",
        "def f():\n    from concurrent.futures import ProcessPoolExecutor",
    ):
        assert start_python({"aspen_mp.cli.launch": f"import sys\n{planted}\n"}), planted
    assert not start_python({"m": "from multiprocessing.shared_memory import SharedMemory\nimport sys\nsys.exit('-c')\n"})


def test_the_system_is_asked_through_its_rooms() -> None:
    texts = {module: text for module, text in sources().items() if any(within(module, part) for part in rules.ASK_THROUGH_ROOMS)}
    services = Services(rules.WHOLE_SERVICES, rules.SINGLE_SERVICES, rules.HARMLESS)
    found = ask_past_rooms(texts, services)
    hold(set(found), rules.ASK_PAST_ROOMS, f"services come from the modules of aspen_mp/system, which the simulation replaces: {found}")
    offered = {name for room in rooms().values() for name in standard_names(room).values()}
    assert {"os.close", "time.monotonic", "threading.Lock", "os.path.exists", "mmap.mmap"} <= offered
    for name in offered | rules.SINGLE_SERVICES:
        module, _, attribute = name.rpartition(".")
        assert services.asked(f"import {module}\n{name}(1)") == {name}
        assert services.asked(f"def f():\n    from {module} import {attribute} as g\n    return [g]") == {name}
    for planted in (
        *("import os\nos.fork()", "import os as system\nsystem.wait3(0)", "import signal\nsignal.raise_signal(2)"),
        *("import time\ntime.sleep(1)", "from time import thread_time as t\nt()", "from datetime import datetime\ndatetime.now()"),
        *("import socket\nsocket.create_connection(())", "import select\nselect.epoll()", "import uuid\nuuid.uuid4()"),
        *("import subprocess\nsubprocess.Popen([])", "import secrets\nsecrets.token_hex()", "import random\nrandom.random()"),
        *("import threading\nclass A(threading.Thread): ...", "import threading\ndef f(lock: threading.Lock): ..."),
        *("from pathlib import Path\nPath('a').read_text()", "from pathlib import Path\ndef f(path: Path): return path.parent.exists()"),
        *("from dataclasses import field\nimport time\nfield(default_factory=time.time)", "with open('a') as file: ..."),
    ):
        assert services.asked(planted), planted
    for right in (
        "import os\nx = os.O_RDONLY, os.path.join('a'), os.waitstatus_to_exitcode(0)",
        "import signal, socket\nx = signal.SIGKILL, signal.Signals(9), socket.AF_UNIX",
        "import queue, subprocess\ntry: ...\nexcept (queue.Empty, subprocess.SubprocessError): ...",
        "from pathlib import Path\nfrom aspen_mp.system import filesystem\nfilesystem.exists(Path('a').parent)",
        "file.open()\nclass A:\n    def open(self): ...",
    ):
        assert not services.asked(right), right


def test_names_of_rooms_are_read_when_they_are_called() -> None:
    texts = {module: text for module, text in sources().items() if within(module, "aspen_mp") and not within(module, "aspen_mp.system")}
    bound = bind_early(texts)
    assert not bound, f"`clock.monotonic()` reads the room when it is called; these take its function once and for all: {bound}"
    taken = "from aspen_mp.system import clock, threads\n"
    for early in (
        *("from aspen_mp.system.clock import monotonic", f"{taken}now = clock.monotonic", f"{taken}def f(now=clock.monotonic): ..."),
        *(f"{taken}class A(threads.Thread): ...", f"{taken}class A:\n    lock: threads.Lock = field(default_factory=threads.Lock)"),
        "import aspen_mp.system.clock\nnow = aspen_mp.system.clock.time",
    ):
        assert bind_early({"m": early}), early
    for late in (
        f"{taken}_lock: threads.Lock = threads.Lock()",
        f"{taken}def f(lock: threads.Lock) -> threads.Event:\n    now = clock.monotonic",
        f"{taken}class A:\n    at: float = field(default_factory=lambda: clock.monotonic())",
        "from aspen_mp.system import watches\nX = watches.CREATED",
    ):
        assert not bind_early({"m": late}), late


def test_import_is_light() -> None:
    code = "import sys, aspen_mp; print(' '.join(m for m in sys.modules if '.' not in m))"
    loaded = set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())
    assert not loaded & rules.HEAVY


@pytest.mark.parametrize("part", ["shm", "workers", "planner", "bench", "config"])
def test_bare_import_from_the_repository_is_refused(part: str) -> None:
    folder = Path(importlib.import_module(f"aspen_mp.{part}").__file__ or "").parent
    if folder.name != part:
        pytest.fail(f"{folder} is not the folder of aspen_mp.{part}")
    run = subprocess.run([sys.executable, "-c", f"import {part}"], cwd=folder.parent, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert f"aspen_mp.{part}" in run.stderr


def test_every_rule_has_its_test() -> None:
    assert all(callable(globals()[rule.test]) for rule in rules.RULES)


def test_every_exception_has_its_reason() -> None:
    for found, exceptions in (({"m.f"}, {}), (set(), {"m.f": "a table"})):
        with pytest.raises(AssertionError, match=r"m\.f"):
            hold(found, exceptions, "a rule")
    hold({"m.f"}, {"m.f": "a table"}, "a rule")
    tables = (rules.LONG_FUNCTIONS, rules.LARGE_CONSTRUCTORS, rules.NAME_OPS, rules.START_PYTHON, rules.COMPARE_DURATIONS)
    for table in (*tables, rules.ASK_PAST_ROOMS):
        assert all(reason and "\n" not in reason for reason in table.values())
