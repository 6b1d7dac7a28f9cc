"""The tests of the onnx package (`onnx.backend.test`) on aspen-mp, and drawn models of `ai.onnx.ml`, beside what `onnx.reference` makes of
them.

    python -m aspen_mp.bench.conformance                  run everything, rewrite the table
    python -m aspen_mp.bench.conformance test_conv        only tests whose name contains this; the table stays

The table (`tests/conformance/table.txt` of the repository) lists every test as passed or excluded with the reason. It may only grow: a test
that passed once and fails now keeps its place, is reported, and makes the exit status 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper

from aspen_mp.bench.drawn import DRAWS

if TYPE_CHECKING:
    import aspen_mp
    import aspen_mp.backend

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
DRAWN = 6
"""How many models of each family of `bench.drawn`: of operators for which the onnx package has few tests or none. onnxruntime says what is
right."""
RUN_TIMEOUT_S = 120.0
THREADS = 4

_DOWNLOAD = "its model must be downloaded"
# Tests that no run decides, by the beginning of their names.
_NOT_ASKED = {
    "test_bernoulli": "random numbers: the generator is the implementation's choice, so the expected values are one draw of many",
    "test_image_decoder": "onnx.reference decodes images with Pillow, which aspen-mp does not depend on",
}
# Why a test fails, where that can be said better than by the error's text.
_KNOWN = {
    "test_attention_4d_causal_fp16": "the expected values carry the float16 rounding of each step of onnx.reference's softmax; ours is "
    "computed in float32 and rounded once, which is nearer to the exact result (largest error 4.0e-4 against 4.9e-4)",
    "test_gradient_of": "training: onnx.reference does not have the operator Gradient either",
}


@dataclass(frozen=True)
class Case:
    """One test: a model and data sets of (inputs, expected outputs)."""

    name: str
    kind: str
    rtol: float
    atol: float
    make: Callable[[], onnx.ModelProto]
    data: Callable[[onnx.ModelProto], Iterable[tuple[list[Any], list[Any]]]]


@dataclass(frozen=True)
class Verdict:
    """`error` is empty where the test passed, else why it is excluded."""

    name: str
    error: str = ""

    @property
    def passed(self) -> bool:
        return not self.error


def cases() -> tuple[list[Case], dict[str, str]]:
    """All tests of the installed onnx package, and those that cannot be run here with the reason."""
    from onnx.backend.test.loader import load_model_tests

    found: list[Case] = []
    refused: dict[str, str] = {}
    for kind in KINDS:
        for test in load_model_tests(kind=kind):
            if test.model is not None and test.data_sets is not None:
                found.append(_in_memory(test, kind))
            elif test.model_dir is not None:
                found.append(_in_folder(test, kind, Path(test.model_dir)))
            elif (light := _light(test.url)) is not None:
                found.append(_light_case(test, light))
            else:
                refused[test.name] = _DOWNLOAD
    found += [_drawn(family, seed) for family in DRAWS for seed in range(DRAWN)]
    return sorted(found, key=lambda case: case.name), refused


def _drawn(family: str, seed: int) -> Case:
    case = DRAWS[family](np.random.default_rng(seed))

    def data(model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
        import onnxruntime

        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        yield list(case.feeds.values()), session.run(None, case.feeds)

    name = f"test_drawn_{family.lower().replace(' ', '_')}_{seed}"
    return Case(name, "drawn", case.tolerance, case.tolerance, case.model, data)


def _in_memory(test: Any, kind: str) -> Case:
    def data(model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
        for inputs, outputs in test.data_sets:
            yield [_array(x) for x in inputs], [_array(x) for x in outputs]

    return Case(test.name, kind, test.rtol, test.atol, lambda: test.model, data)


def _in_folder(test: Any, kind: str, folder: Path) -> Case:
    def data(model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
        for part in sorted(folder.glob("test_data_set_*")):
            yield _read(part, "input", model.graph.input), _read(part, "output", model.graph.output)

    return Case(test.name, kind, test.rtol, test.atol, lambda: onnx.load(folder / "model.onnx"), data)


def _light(url: str | None) -> Path | None:
    """The file of a model that comes with the onnx package (real networks with weights replaced by constants)."""
    prefix = "onnx/backend/test/data/light/"
    if url is None or not url.startswith(prefix):
        return None
    path = Path(onnx.__file__).parent / url.removeprefix("onnx/")
    return path if path.exists() else None


def _light_case(test: Any, path: Path) -> Case:
    from onnx.backend.test.runner import Runner

    def data(model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
        constants = {t.name for t in model.graph.initializer}
        inputs = [Runner.generate_dummy_data(i, seed=0, name=test.name) for i in model.graph.input if i.name not in constants]
        yield inputs, [_tensor(path.with_name(f"{path.stem}_output_{i}.pb")) for i in range(len(model.graph.output))]

    return Case(test.name, "real", test.rtol, test.atol, lambda: onnx.load(path), data)


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _tensor(path: Path) -> Any:
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def _read(folder: Path, what: str, infos: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    values: list[Any] = []
    for i in range(len(list(folder.glob(f"{what}_*.pb")))):
        path, kind = folder / f"{what}_{i}.pb", infos[i].type
        if kind.HasField("sequence_type"):
            values.append(numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes())))
        elif kind.HasField("optional_type"):
            values.append(numpy_helper.to_optional(onnx.OptionalProto.FromString(path.read_bytes())))
        else:
            values.append(_tensor(path))
    return values


def judge(case: Case, prepare: Callable[[onnx.ModelProto], Any]) -> Verdict:
    """Runs one test. `prepare(model)` returns an object with ``run(list of inputs) -> sequence of outputs`` and ``close()``."""
    from onnx.backend.test.runner import Runner

    try:
        model = case.make()
        prepared = prepare(model)
        try:
            for inputs, expected in case.data(model):
                got = list(prepared.run(inputs))
                want = [_tabled(value, of) for value, of in zip(expected, expected, strict=True)]
                got = [_tabled(value, of) for value, of in zip(got, expected, strict=True)]
                Runner.assert_similar_outputs(want, got, rtol=case.rtol, atol=case.atol)
        finally:
            prepared.close()
    except Exception as error:
        return Verdict(case.name, f"{type(error).__name__}: {' '.join(str(error).split())[:240]}")
    return Verdict(case.name)


def _tabled(value: Any, expected: Any) -> Any:
    """Where a sequence of maps is expected, their values as an array, which the onnx package compares."""
    if not isinstance(expected, list) or not expected or not isinstance(expected[0], dict):
        return value
    if [list(row) for row in value] != [list(row) for row in expected]:
        raise AssertionError("maps with other keys")
    return np.array([list(row.values()) for row in value])


def judge_all(cases: Sequence[Case], prepare: Callable[[onnx.ModelProto], Any], threads: int = THREADS) -> Iterator[Verdict]:
    """Runs tests, several at a time (planning a test's model takes longer than running it); verdicts come in the order of `cases`."""
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(lambda case: judge(case, prepare), cases)


class Reference:
    """`onnx.reference` behind the interface that `judge` expects."""

    def __init__(self, model: onnx.ModelProto) -> None:
        from onnx.reference import ReferenceEvaluator

        constants = {t.name for t in model.graph.initializer}
        self._names = [i.name for i in model.graph.input if i.name not in constants]
        self._evaluator = ReferenceEvaluator(model)

    def run(self, inputs: list[Any]) -> Any:
        with np.errstate(all="ignore"):
            return self._evaluator.run(None, dict(zip(self._names, inputs, strict=False)))

    def close(self) -> None:
        pass


class OnRuntime:
    """aspen-mp behind the interface that `judge` expects: ``OnRuntime(runtime)(model)``."""

    def __init__(self, runtime: aspen_mp.Runtime) -> None:
        self._runtime = runtime

    def __call__(self, model: onnx.ModelProto) -> _Prepared:
        from aspen_mp import backend

        return _Prepared(backend.prepare(model, runtime=self._runtime, instances=1))


class _Prepared:
    def __init__(self, model: aspen_mp.backend.PreparedModel) -> None:
        self._model = model

    def run(self, inputs: list[Any]) -> tuple[Any, ...]:
        return self._model.run(inputs, timeout=RUN_TIMEOUT_S)

    def close(self) -> None:
        self._model.close()


def table_path() -> Path:
    """The repository's table, beside the tests."""
    from aspen_mp import bench

    return Path(bench.__path__[0]).resolve().parent / "tests" / "conformance" / "table.txt"


def read_table(path: Path) -> tuple[str, dict[str, str]]:
    """(version of onnx, name → "" for passed, else the reason of exclusion)."""
    version, rows = "", {}
    for line in path.read_text().splitlines():
        if line.startswith("# onnx "):
            version = line.split()[2]
        elif line and not line.startswith("#"):
            name, verdict, *reason = line.split("\t")
            rows[name] = "" if verdict == "pass" else reason[0]
    return version, rows


def write_table(path: Path, rows: dict[str, str], reference: dict[str, bool]) -> None:
    """Sorted, one test a line, so that a diff shows what changed."""
    passed = sum(not reason for reason in rows.values())
    theirs = [name for name, ok in reference.items() if ok]
    ours = sum(not rows.get(name, "-") for name in theirs)
    lines = [
        f"# onnx {onnx.__version__}",
        f"# {passed} of {len(rows)} tests pass; of the {len(theirs)} that onnx.reference passes, {ours} pass.",
        "# Written by  python -m aspen_mp.bench.conformance",
        *(f"{name}\tpass" if not reason else f"{name}\texcluded\t{reason}" for name, reason in sorted(rows.items())),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m aspen_mp.bench.conformance", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("pattern", nargs="?", default="", help="Run only tests whose name contains this. The table is left alone.")
    parser.add_argument("--workers", type=int, default=2, help="Number of workers (default: 2).")
    parser.add_argument("--table", type=Path, default=None, help="The table's file (default: the one in the repository).")
    parser.add_argument("--verbose", action="store_true", help="Print each test as it runs.")
    options = parser.parse_args(arguments)
    import aspen_mp

    found, refused = cases()
    if options.pattern:
        found = [case for case in found if options.pattern in case.name]
    path = options.table or table_path()
    before = read_table(path)[1] if path.exists() else {}
    verdicts: dict[str, Verdict] = {}
    reference: dict[str, bool] = {}
    began = time.perf_counter()
    with aspen_mp.Runtime(workers=options.workers) as runtime:
        for i, (case, verdict) in enumerate(zip(found, judge_all(found, OnRuntime(runtime)), strict=True)):
            verdicts[case.name] = verdict
            reference[case.name] = case.kind == "real" or judge(case, Reference).passed
            if options.verbose or not verdict.passed:
                print(
                    f"{case.name}: {verdict.error or 'pass'}{'' if reference[case.name] else '   (onnx.reference fails too)'}", flush=True
                )
            elif i % 100 == 0 and sys.stderr.isatty():
                print(f"{i} of {len(found)}", end="\r", file=sys.stderr)
    passed = sum(v.passed for v in verdicts.values())
    ours = sum(v.passed for v in verdicts.values() if reference[v.name])
    theirs = sum(reference.values())
    print(f"{passed} of {len(verdicts)} pass; of the {theirs} that onnx.reference passes, {ours} ({time.perf_counter() - began:.0f} s)")
    lost = [name for name, v in verdicts.items() if not v.passed and before.get(name) == ""]
    for name in lost:
        print(f"LOST {name}: {verdicts[name].error}")
    if not options.pattern:
        rows = {name: "" if name in lost else _reason(v, reference[name]) for name, v in verdicts.items()}
        write_table(path, rows | refused, reference)
        print(f"wrote {path}")
    return 1 if lost else 0


def _reason(verdict: Verdict, reference: bool) -> str:
    """Empty where the test counts as passed."""
    for prefix, reason in _NOT_ASKED.items():
        if verdict.name.startswith(prefix):
            return reason
    if verdict.passed:
        return ""
    known = next((reason for prefix, reason in _KNOWN.items() if verdict.name.startswith(prefix)), "")
    return known or (verdict.error if reference else f"onnx.reference fails as well; {verdict.error}")


if __name__ == "__main__":
    sys.exit(main())
