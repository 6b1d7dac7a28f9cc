"""The rules of the house as data: limits, orders, and exceptions, each with its reason.

`test_house.py` holds the package to them. ARCHITECTURE.md prints `markdown()` between two comments (`MARKS`); where the rules have changed,
`python tests/unit/house_rules.py` writes it there.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Final, NamedTuple

PARTS: Final = {
    "aspen_mp.shm": {"aspen_mp.shm", "aspen_mp.system"},
    "aspen_mp.workers": {"aspen_mp.workers", "aspen_mp.shm", "aspen_mp.system"},
    "aspen_mp.planner": {"aspen_mp.planner", "aspen_mp.shm", "aspen_mp.workers.fallback"},
    "aspen_mp.config": {"aspen_mp.config", "aspen_mp.shm"},
}
"""What each part may import of the package."""
ORDERS: Final = {
    "aspen_mp": [
        *("system", "shm", "config", "workers", "planner", "errors", "control", "tracing", "client"),
        *("compat", "torch", "ray", "backend", "tools", "quantization", "serving", "cli", "bench"),
    ],
    "aspen_mp.planner": [
        "job",
        "ir",
        "ops",
        "layout",
        "cost",
        "frontends",
        "lower",
        "passes",
        "simulation",
        "tiling",
        "plan",
        "coschedule",
    ],
    "aspen_mp.control": ["wire", "memory", "planning", "pool", "models", "process"],
    "aspen_mp.workers": ["_isa", "_kernels", "fallback"],
}
"""Rooms of a part, or single modules: each may import itself and those before it, and nothing that lies beside them."""
NAME_BENCHMARKS: Final = {
    "aspen_mp.client.named_models": "networks of the zoo, when somebody asks for one",
    "aspen_mp.cli.app": "the commands of `aspen-mp bench`, when somebody asks for them",
}
"""Modules that import a module of the benchmarks by its name, and why."""
HEAVY: Final = {
    *("numpy", "onnx", "typer", "rich", "msgspec", "psutil", "onnxruntime", "ml_dtypes"),
    *("torch", "ray", "pyarrow", "starlette", "uvicorn", "grpc", "google.protobuf", "tokenizers"),
}
MOST_FILES: Final = 20
MOST_ENTRIES: Final = {"aspen_mp.planner": 15, "aspen_mp.control": 8, "aspen_mp.workers.kernels": 14}
MOST_LINES: Final = 60
MOST_PARAMETERS: Final = 10

LONG_FUNCTIONS: Final = {
    "aspen_mp.cli.launch.launch": "the parameters of a command are its options, a line and its help each",
    "aspen_mp.cli.plan.plan": "the parameters of a command are its options, a line and its help each",
    "aspen_mp.cli.quantize.quantize": "the parameters of a command are its options, a line and its help each",
    "aspen_mp.cli.run.run": "the parameters of a command are its options, a line and its help each",
    "aspen_mp.cli.serve.serve": "the parameters of a command are its options, a line and its help each",
    "aspen_mp.cli.trace.trace": "the parameters of a command are its options, a line and its help each",
    "aspen_mp.planner.passes.patterns.activations._rows": "a table: one row for each spelling",
}
"""Functions with more than `MOST_LINES` lines, and why."""
LARGE_CONSTRUCTORS: Final = {
    "aspen_mp.client.runtime.Runtime.__init__": "what a user may say of a runtime, each by its name",
}
"""Constructors with more than `MOST_PARAMETERS` parameters, and why."""

KNOW_OPS: Final = ("aspen_mp.planner.ops", "aspen_mp.planner.lower", "aspen_mp.planner.passes")
"""Rooms in which kernels' ops are known by their names."""
NO_OPERATORS: Final = {"JOIN", "END", "OPAQUE"}
"""Names of opcodes that are no operator's: tiles without work, and whatever is computed in Python."""
ONNX_TOO: Final = {"LSTM", "GRU", "RNN", "LRN", "SOFTMAX", "RBF"}
"""Names of ops that ONNX has, too, for an operator or as an attribute's value: `SPEAK_ONNX` means those."""
SPEAK_ONNX: Final = ("aspen_mp.planner.frontends", "aspen_mp.workers.fallback", "aspen_mp.bench.drawn", "aspen_mp.torch.operators")
NAME_OPS: Final = {
    "aspen_mp.cli.doctor": "measures what a kernel gives, beside other processors' figures",
    "aspen_mp.planner.cost.factors": "measured times are by kernel, as calibrations are",
    "aspen_mp.workers.fallback.bound": "calls kernels itself, for the bodies of loops",
}
"""Modules outside `KNOW_OPS` in which the name of an op stands as a string, and why."""

START_PYTHON: Final = {
    "aspen_mp.control.wire.python": "the one way",
    "aspen_mp.bench.examples.pipeline": "an example for users, who start processes by multiprocessing",
    "aspen_mp.bench.examples.shared": "an example for users, who call the command and multiprocessing",
}
"""Modules that start a Python by its path, by `-m` or by multiprocessing, and why."""

ASK_THROUGH_ROOMS: Final = ("aspen_mp.control", "aspen_mp.client", "aspen_mp.serving", "aspen_mp.shm", "aspen_mp.workers")
"""Parts that ask for services of the operating system through `aspen_mp/system` only."""
WHOLE_SERVICES: Final = {
    *("_thread", "glob", "multiprocessing", "queue", "random", "sched", "secrets", "shutil", "subprocess", "tempfile", "uuid"),
}
"""Modules all of whose functions are services of the system, besides those that the rooms take theirs from."""
SINGLE_SERVICES: Final = {
    *("ctypes.CDLL", "os.path.getmtime", "os.path.getsize", "os.path.lexists", "os.path.ismount", "os.path.samefile"),
    *("datetime.date.today", "datetime.datetime.now", "datetime.datetime.today", "datetime.datetime.utcnow"),
}
HARMLESS: Final = {
    *("os.PathLike", "os.fsdecode", "os.fsencode", "os.fspath", "os.strerror", "os.stat_result", "os.sched_param", "os.major", "os.minor"),
    *("os.WEXITSTATUS", "os.WIFEXITED", "os.WIFSIGNALED", "os.WTERMSIG", "os.waitstatus_to_exitcode"),
    *("resource.getpagesize", "socket.CMSG_SPACE", "uuid.UUID"),
}
"""Functions and types of these modules that compute only."""
ASK_PAST_ROOMS: Final = {
    "aspen_mp.client.openmp": "asks the library that the user's program has loaded",
    "aspen_mp.client.trials.samples": "reads a user's files of samples, as numpy does",
    "aspen_mp.control.wire.python": "looks for an interpreter among the programs that are really there",
    "aspen_mp.shm.greenlets": "compares what gevent and eventlet have patched with what the rooms have",
}
"""Modules of these parts that ask for a service by its own name, and why."""

CLOCKS: Final = {
    *("monotonic", "perf_counter", "process_time", "thread_time", "time"),
    *("monotonic_ns", "perf_counter_ns", "process_time_ns", "thread_time_ns", "time_ns"),
    *("cpu_times", "getrusage"),
}
"""What tells the time of day, of a machine, or that a process has had."""
COMPARE_DURATIONS: Final = {
    "test_runtime.test_workers_account_for_their_time": "accounts of one time by two clocks agree, however long it is",
}
"""Tests that assert on what has passed on a clock, and why: how long anything takes depends on who else uses the machine."""


class Rule(NamedTuple):
    """What must hold, and the test of `test_house.py` that looks."""

    says: str
    test: str


def _short(module: str) -> str:
    return f"`{module.removeprefix('aspen_mp.').replace('.', '/')}`"


def _imports(part: str, allowed: set[str]) -> str:
    others = sorted(_short(each) for each in allowed - {part})
    return f"{_short(part)} imports {', '.join(others) if others else 'nothing of ours'}"


def _exceptions(table: dict[str, str]) -> str:
    return f"exceptions: {len(table)}"


RULES: Final = [
    Rule("; ".join(_imports(part, allowed) for part, allowed in PARTS.items()), "test_imports_run_one_way"),
    Rule("a room imports itself and those before it in the lists below", "test_rooms_import_those_before_them"),
    Rule(
        f"{_short('aspen_mp.bench')} is imported by name, late, in {len(NAME_BENCHMARKS)} places",
        "test_benchmarks_are_named_by_their_hooks_alone",
    ),
    Rule("files do not import each other in a circle", "test_files_do_not_import_each_other_in_a_circle"),
    Rule(f"a folder holds at most {MOST_FILES} files, also in `tests`", "test_folders_are_not_crowded"),
    Rule(
        f"entries at most: {', '.join(f'{_short(name)} {most}' for name, most in MOST_ENTRIES.items())}",
        "test_parts_have_few_entries",
    ),
    Rule("a folder's README, or the nearest above it, lists its files", "test_readmes_list_their_files"),
    Rule(
        f"names of ops are strings in {', '.join(map(_short, KNOW_OPS))} only; {_exceptions(NAME_OPS)}",
        "test_ops_are_named_in_their_rooms",
    ),
    Rule(f"a function has {MOST_LINES} lines at most; {_exceptions(LONG_FUNCTIONS)}", "test_functions_are_short"),
    Rule(f"a constructor has {MOST_PARAMETERS} parameters at most; {_exceptions(LARGE_CONSTRUCTORS)}", "test_constructors_are_small"),
    Rule(
        f"no test asserts on how long something takes; {_exceptions(COMPARE_DURATIONS)}",
        "test_tests_do_not_assert_on_time",
    ),
    Rule(
        f"children of Python are started by {_short('aspen_mp.control.wire.python')}; {_exceptions(START_PYTHON)}",
        "test_children_are_started_one_way",
    ),
    Rule(
        f"the operating system is asked through {_short('aspen_mp.system')}; {_exceptions(ASK_PAST_ROOMS)}",
        "test_the_system_is_asked_through_its_rooms",
    ),
    Rule("`import aspen_mp` loads neither numpy nor onnx, nor anything else of size", "test_import_is_light"),
    Rule(
        "the folders of the repository are imported as `aspen_mp.…` only",
        "test_bare_import_from_the_repository_is_refused",
    ),
]

MARKS: Final = ("<!-- house rules -->", "<!-- end of house rules -->")


def markdown() -> str:
    """The rules as a table, and the orders of rooms as a list."""
    table = ["| rule | `tests/unit/test_house.py` |", "|---|---|", *(f"| {rule.says} | `{rule.test}` |" for rule in RULES)]
    orders = [f"- {_short(part)}: {', '.join(order)}" for part, order in ORDERS.items() if len(order) > 1]
    return "\n".join([*table, "", "Orders of rooms:", "", *(textwrap.fill(line, 120, subsequent_indent="  ") for line in orders)])


def printed(document: str) -> str:
    """The document with the rules between the two marks. ValueError where it lacks one of these."""
    before, begin, rest = document.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not begin or not end:
        raise ValueError(f"the document lacks {MARKS[0]} or, behind it, {MARKS[1]}")
    return f"{before}{begin}\n{markdown()}\n{end}{after}"


if __name__ == "__main__":
    architecture = Path(__file__).resolve().parents[2] / "ARCHITECTURE.md"
    architecture.write_text(printed(architecture.read_text(encoding="utf-8")), encoding="utf-8")
