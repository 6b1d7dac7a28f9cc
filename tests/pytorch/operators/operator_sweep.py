"""Every operator of PyTorch's own tests, compiled and beside eager PyTorch, and the table of what came out.

Without options, this program runs what `operator_sweep.json` has no entry for. It writes the table after each operator.
`--again all` runs entries that it has, and `--again faults` those with faults. `--compare` writes nothing, and prints differences from
the table.

An entry counts the samples of an operator, for fixed and for varying sizes, by class:

| class | meaning |
|---|---|
| equal | the runtime computed at least a part, and the results are those of eager PyTorch, or as accurate |
| raises | eager PyTorch raises, and the compiled call raises an exception of that class |
| pytorch | PyTorch computed everything, or its compiler fails in the same way without a runtime |
| error | the compiled call raises where eager PyTorch does not |
| wrong | the results differ in value, type, shape or order in memory |
| ended | the process ended or did not answer in time |

Results are compared with the tolerance of `torch.testing`, or with that of PyTorch's own test of an operator. Kernels round float16 and
bfloat16 at different steps. Results of these types may also have at most `MULTIPLE` times the error of eager PyTorch, against float64.

Operators run in a child process. It is started again where one has ended it.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import multiprocessing
import random
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

TABLE: Final = Path(__file__).with_suffix(".json")
DTYPES: Final = ("float32", "float16", "bfloat16", "int32", "int64", "bool")
SIZES: Final = ("fixed", "varying")
CLASSES: Final = ("equal", "raises", "pytorch", "error", "wrong", "ended")
FAULTS: Final = frozenset({"error", "wrong", "ended"})
MOST_SAMPLES: Final = {"float32": 12, "float16": 5, "int64": 5}
OTHERWISE: Final = 3
"""Samples of an operator with a type that `MOST_SAMPLES` does not name."""
LIMIT_S: Final = 240.0
"""Seconds for all samples of an operator with one type and one kind of sizes."""
COLLECTED: Final = 8
"""Tasks between two garbage collections."""
MULTIPLE: Final = 3.0
CREDIBLE: Final = 0.05
"""Relative error of eager results beyond which float64 is no reference for them."""
SEED: Final = 7
UNINITIALISED: Final = re.compile(r"(^|\.|_)empty(_|$)|resize")
"""Operators whose results have elements that nothing has written."""

Table = dict[str, dict[str, list[str]]]


class Found(NamedTuple):
    """`kind`: the class of one sample. `why`: what differs, or what was raised."""

    kind: str
    why: str = ""


class Task(NamedTuple):
    operator: str
    dtype: str
    sizes: str


# ---- operators and their samples


def operators() -> dict[str, Any]:
    """PyTorch's descriptions of operators, by name and variant."""
    return {op.full_name: op for op in op_db}


def tasks(names: Iterable[str], dtypes: Iterable[str], sizes: Iterable[str]) -> list[Task]:
    known = operators()
    return [
        Task(name, dtype, size)
        for name in names
        for dtype in dtypes
        if getattr(torch, dtype) in known[name].supported_dtypes("cpu")
        for size in sizes
    ]


def samples(op: Any, dtype: Any) -> list[Any]:
    """Some of the operator's samples, evenly spread."""
    _seed()
    every = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    most = MOST_SAMPLES.get(str(dtype).removeprefix("torch."), OTHERWISE)
    count = min(len(every), most)
    return [every[k * len(every) // count] for k in range(count)]


def _seed() -> None:
    torch.manual_seed(SEED)
    np.random.seed(SEED)
    random.seed(SEED)


def _copy(value: Any) -> Any:
    """A tensor with the same layout in memory of its own; everything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout != torch.strided or value.device.type == "meta":
        return value.clone()
    storage = value.untyped_storage().clone()
    copy = torch.empty(0, dtype=value.dtype).set_(storage, value.storage_offset(), value.shape, value.stride())
    copy = torch._neg_view(copy) if value.is_neg() else copy
    return copy.conj() if value.is_conj() else copy


def tolerance(op: Any, dtype: Any) -> dict[str, float]:
    """What PyTorch's own tests allow for an operator, where they allow more than usual."""
    found = [
        override.d[dtype]
        for decorator in op.decorators
        for override in getattr(decorator, "decorators", [decorator])
        if isinstance(override, toleranceOverride) and dtype in override.d
    ]
    return {"rtol": max(t.rtol for t in found), "atol": max(t.atol for t in found)} if found else {}


# ---- one sample


class Comparison:
    """Compiled calls beside eager ones.

    Args:
        runtime: Where compiled graphs run.
    """

    def __init__(self, runtime: Any) -> None:
        from aspen_mp.torch.compiled import Compiled

        self._options = {"runtime": runtime, "min_block_size": 1}
        self._calls = 0
        whole = Compiled.__call__

        def counted(compiled: Any, *args: Any) -> Any:
            results = whole(compiled, *args)
            self._calls += 1
            return results

        Compiled.__call__ = counted  # type: ignore[method-assign]

    def entry(self, task: Task) -> tuple[str, list[str]]:
        """The entry of the table, and what is to be said of faults."""
        op, dtype = operators()[task.operator], getattr(torch, task.dtype)
        found = [self._sample(op, dtype, sample, task.sizes == "varying") for sample in samples(op, dtype)]
        said = [f"{' '.join(task)} [{place}] {kind}: {why}" for place, (kind, why) in enumerate(found) if kind in FAULTS]
        return _counted(each.kind for each in found), said

    def _sample(self, op: Any, dtype: Any, sample: Any, varying: bool) -> Found:
        def compiled(function: Any) -> Any:
            return torch.compile(function, backend="aspen_mp", dynamic=varying, options=self._options)

        def without_runtime(function: Any) -> Any:
            return torch.compile(function, backend="aot_eager", dynamic=varying)

        expected = _outcome(op, sample, lambda function: function)
        self._calls = 0
        got = _outcome(op, sample, compiled)
        found = _compared(op, dtype, expected, got)
        if found.kind == "wrong" and dtype in (torch.float16, torch.bfloat16) and _as_accurate(op, sample, expected, got):
            found = Found("equal")
        if found.kind in FAULTS and _compared(op, dtype, expected, _outcome(op, sample, without_runtime)).kind in FAULTS:
            return Found("pytorch")
        return Found("pytorch") if found.kind == "equal" and not self._calls else found


def _outcome(op: Any, sample: Any, compiler: Callable[[Any], Any]) -> Any:
    """The results and the arguments behind a call; the exception where it raises one."""
    given, args, kwargs = pytree.tree_map(_copy, (sample.input, sample.args, sample.kwargs))

    def call(given: Any, args: Any, kwargs: Any) -> Any:
        return op.op(given, *args, **kwargs)

    torch._dynamo.reset()
    function = compiler(call)
    _seed()
    try:
        with torch.no_grad():
            return function(given, args, kwargs), (given, args, kwargs)
    except Exception as error:
        return error


def _compared(op: Any, dtype: Any, expected: Any, got: Any) -> Found:
    if isinstance(got, Exception):
        raises = isinstance(expected, Exception) and isinstance(got, type(expected))
        return Found("raises") if raises else Found("error", "".join(traceback.format_exception_only(got)))
    if isinstance(expected, Exception):
        return Found("wrong", f"eager PyTorch raises {type(expected).__name__}")
    wanted, found = (_leaves(outcome) for outcome in (expected, got))
    if len(wanted) != len(found):
        return Found("wrong", f"{len(found)} results, not {len(wanted)}")
    for a, b in zip(wanted, found, strict=True):
        why = _difference(a, b, tolerance(op, dtype), UNINITIALISED.search(op.full_name) is None)
        if why:
            return Found("wrong", why)
    return Found("equal")


def _as_accurate(op: Any, sample: Any, expected: Any, got: Any) -> bool:
    """Whether results are about as close as those of eager PyTorch to what it computes in float64."""
    exact = _outcome(op, sample.transform(_widened), lambda function: function)
    if any(isinstance(outcome, Exception) for outcome in (expected, got, exact)):
        return False
    every = [_leaves(outcome) for outcome in (expected, got, exact)]
    return len({len(leaves) for leaves in every}) == 1 and all(map(_is_as_close, *every))


def _is_as_close(wanted: Any, found: Any, exact: Any) -> bool:
    if not _difference(wanted, found, {}, True):
        return True
    if not all(isinstance(value, torch.Tensor) and value.is_floating_point() for value in (wanted, found, exact)):
        return False
    if _difference(wanted, found, {}, False):
        return False
    wanted = torch.where(wanted.isfinite(), wanted, exact.to(wanted.dtype))  # an intermediate result may have been too large
    if not torch.equal(wanted.isfinite(), found.isfinite()):
        return False
    finite = wanted.isfinite() & exact.isfinite()
    size, theirs, ours = (float(value.double()[finite].square().mean().sqrt()) for value in (exact, wanted - exact, found - exact))
    return theirs <= CREDIBLE * size and ours <= MULTIPLE * theirs


def _widened(value: Any) -> Any:
    halves = (torch.float16, torch.bfloat16)
    if isinstance(value, torch.dtype):
        return torch.float64 if value in halves else value
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in halves else value


def _leaves(outcome: Any) -> list[Any]:
    return [value for value in pytree.tree_leaves(outcome) if isinstance(value, torch.Tensor | int | float | complex)]


def _difference(wanted: Any, found: Any, allowed: dict[str, float], has_values: bool) -> str:
    """What differs; empty where nothing does."""
    if isinstance(wanted, torch.Tensor) and isinstance(found, torch.Tensor):
        about = [(value.dtype, tuple(value.shape), value.layout, _order(value)) for value in (wanted, found)]
        if about[0] != about[1]:
            return f"{about[1]}, not {about[0]}"
        has_values = has_values and wanted.device.type != "meta"
    if not has_values:
        return ""
    try:
        torch.testing.assert_close(found, wanted, equal_nan=True, **allowed)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def _order(tensor: Any) -> Any:
    """The order of axes in memory."""
    if tensor.layout != torch.strided or 0 in tensor.shape:
        return None
    moving = [axis for axis, n in enumerate(tensor.shape) if n != 1]
    return sorted(moving, key=lambda axis: (-tensor.stride(axis), axis))


def _counted(kinds: Iterable[str]) -> str:
    counts = Counter(kinds)
    return ", ".join(f"{counts[kind]} {kind}" for kind in CLASSES if counts[kind])


def counts(entry: str) -> Counter[str]:
    """The samples of an entry by class."""
    return Counter({kind: int(n) for n, kind in (part.split() for part in entry.split(", ") if part)})


def has_faults(entry: str) -> bool:
    return any(counts(entry)[kind] for kind in FAULTS)


def is_worse(entry: str, than: str) -> bool:
    """Whether an entry has more faults than the table says, or fewer samples that the runtime computes."""
    new, old = counts(entry), counts(than)
    return sum(new[kind] for kind in FAULTS) > sum(old[kind] for kind in FAULTS) or new["equal"] < old["equal"]


# ---- processes


def _serve(connection: Connection) -> None:
    """What a child does: a task in, its entry out."""
    import aspen_mp
    from aspen_mp.torch import work

    work.SMALL = 0  # samples are small
    torch.set_num_threads(1)
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0  # it flushes caches, which takes longer than most operators do
    gc.collect()
    gc.freeze()
    with aspen_mp.Runtime(workers=1) as runtime:
        comparison = Comparison(runtime)
        connection.send("ready")
        for count in itertools.count(1):
            task = connection.recv()
            if task is None:
                break
            connection.send(comparison.entry(task))
            if count % COLLECTED == 0:
                gc.collect()  # compiled graphs refer to themselves, and hold models


def run(wanted: Iterable[Task]) -> Iterator[tuple[Task, str, list[str]]]:
    """Each task with its entry and what is to be said of faults."""
    context = multiprocessing.get_context("spawn")
    child, connection = None, None
    try:
        for task in wanted:
            if child is None:
                connection, theirs = context.Pipe()
                child = context.Process(target=_serve, args=(theirs,))
                child.start()
                theirs.close()
                connection.recv()
            try:
                connection.send(task)
                if not connection.poll(LIMIT_S):
                    raise TimeoutError(f"no answer within {LIMIT_S} s")
                entry, said = connection.recv()
            except (EOFError, OSError, TimeoutError) as error:
                child.kill()
                child.join()
                said = [f"{' '.join(task)} ended: exit code {child.exitcode}, {type(error).__name__} {error}"]
                child, entry = None, "1 ended"
            yield task, entry, said
    finally:
        if child is not None:
            connection.send(None)
            child.join()


# ---- the table


def read() -> Table:
    """The committed table; empty for another version of PyTorch, whose samples differ."""
    found = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    return found["operators"] if found.get("torch") == _version() else {}  # type: ignore[no-any-return]


def write(table: Table) -> None:
    lines = [f"{json.dumps(name)}: {json.dumps(table[name])}" for name in sorted(table)]
    head = f'{{"torch": "{_version()}", "operators": {{'
    part = TABLE.with_suffix(".part")
    part.write_text(head + "\n" + ",\n".join(lines) + "\n}}\n", encoding="utf-8")
    part.replace(TABLE)


def _version() -> str:
    return str(torch.__version__).partition("+")[0]


def put(table: Table, task: Task, entry: str) -> Table:
    row = table.setdefault(task.operator, {})
    row.setdefault(task.dtype, [""] * len(SIZES))[SIZES.index(task.sizes)] = entry
    return table | {task.operator: {dtype: row[dtype] for dtype in DTYPES if dtype in row}}


def known(table: Table, task: Task) -> str:
    """The entry of the table; empty where it has none."""
    return table.get(task.operator, {}).get(task.dtype, [""] * len(SIZES))[SIZES.index(task.sizes)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--operators", default="", help="Run operators whose names this regular expression finds.")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES, help="Types of elements.")
    parser.add_argument("--sizes", nargs="+", default=SIZES, choices=SIZES, help="Whether graphs are for one size.")
    parser.add_argument("--again", choices=["all", "faults"], default="", help="Run entries that the table has, too, or those with faults.")
    parser.add_argument("--compare", action="store_true", help="Write nothing, and fail if an entry is worse than in the table.")
    given = parser.parse_args()
    table, worse, total, begin = read(), 0, Counter[str](), time.monotonic()
    names = [name for name in sorted(operators()) if re.search(given.operators, name)]
    every = tasks(names, given.dtypes, given.sizes)
    again = {"all": bool, "faults": has_faults, "": lambda entry: False}["all" if given.compare else given.again]
    for task, entry, said in run(task for task in every if again(known(table, task)) or not known(table, task)):
        print(*said, sep="\n", end="\n" if said else "", flush=True)
        total += counts(entry)
        before = known(table, task)
        if before and before != entry:
            print(f"{' '.join(task)}: {entry} (before: {before})", flush=True)
        if not given.compare:
            write(put(read(), task, entry))  # another process may have written
        elif not before or is_worse(entry, before):
            worse += 1
    print(f"{_counted(total.elements())} in {time.monotonic() - begin:.0f} s")
    return int(worse > 0)


if __name__ == "__main__":
    sys.exit(main())
