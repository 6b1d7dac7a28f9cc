"""Does aspen-mp compute what onnxruntime computes, and the same bits whatever the workers? `python -m aspen_mp.bench.agreement [NETWORK…]`

Each network runs at several batch sizes on runtimes of several instruction sets and numbers of workers, with and without stealing. Every
result must pass two checks. The largest error is at most `LIMIT` of the output's largest magnitude. The bits are those of every other run
of the same network and instruction set.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from aspen_mp.bench import models
from aspen_mp.bench.models.text import TextOptions
from aspen_mp.bench.models.zoo import entry_of

if TYPE_CHECKING:
    import onnx

    import aspen_mp

Array = NDArray[Any]
LIMIT = 1e-4
TIMEOUT_S = 600.0  # a watchdog, not a measure


@dataclass(frozen=True, slots=True)
class Case:
    """A network, its sizes and how it is written."""

    network: str
    batch: int
    seq: int = 128
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        text = [f"b{self.batch}"] + ([f"s{self.seq}"] if entry_of(self.network).options is TextOptions else [])
        return " ".join([self.network, *text, *(f"{k}={v}" for k, v in self.options.items())])

    def build(self) -> onnx.ModelProto:
        return models.build(self.network, batch=self.batch, seq=self.seq, **self.options)

    def feeds(self, model: onnx.ModelProto) -> dict[str, Array]:
        return models.inputs(model, batch=self.batch, seq=self.seq)


@dataclass(frozen=True, slots=True)
class Setting:
    """A runtime to compare: instruction set, number of workers, whether they steal work from one another. And whether convolutions may use
    Winograd's algorithm."""

    isa: str
    workers: int
    stealing: bool = True
    winograd: bool = True

    def __str__(self) -> str:
        text = f"{self.isa}, {self.workers} {'worker' if self.workers == 1 else 'workers'}"
        return f"{text}{'' if self.stealing else ', no stealing'}{'' if self.winograd else ', direct'}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run. `error`: largest difference from onnxruntime, as a share of the output's largest magnitude (worst output),
    infinite where a value is not finite. `digest` names the bits of all outputs."""

    case: str
    setting: Setting
    error: float
    digest: str
    load_s: float
    first_s: float
    problem: str = ""

    @property
    def agrees(self) -> bool:
        return not self.problem and self.error <= LIMIT


def error_of(ours: Sequence[Array], theirs: Sequence[Array]) -> float:
    worst = 0.0
    for x, y in zip(ours, theirs, strict=True):
        if x.shape != y.shape or x.dtype != y.dtype or not np.isfinite(x).all():
            return float("inf")
        scale = max(float(np.abs(y).max(initial=0)), float(np.finfo(np.float32).tiny))
        worst = max(worst, float(np.abs(x.astype(np.float64) - y.astype(np.float64)).max(initial=0)) / scale)
    return worst


def digest_of(outputs: Iterable[Array]) -> str:
    state = hashlib.sha256()
    for output in outputs:
        state.update(repr((output.shape, output.dtype.str)).encode())
        state.update(np.ascontiguousarray(output).data)
    return state.hexdigest()[:16]


def reference(model: bytes, feeds: Mapping[str, Array]) -> list[Array]:
    """onnxruntime's outputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    options.log_severity_level = 3
    options.add_session_config_entry("session.x64quantprecision", "1")  # or products of bytes saturate on processors without VNNI
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(None, dict(feeds))]


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class Runtimes:
    """One runtime a setting, started when first needed and kept: a context manager that closes them all."""

    def __init__(self) -> None:
        self._open: dict[Setting, aspen_mp.Runtime] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Runtimes:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.clear()
        self._stack.close()

    def get(self, setting: Setting) -> aspen_mp.Runtime:
        import aspen_mp
        from aspen_mp import config

        setting = replace(setting, winograd=True)  # a matter of the model
        if setting not in self._open:
            profile = config.Experiment(stealing=setting.stealing)
            with environment("ASPEN_MP_ISA", setting.isa):
                runtime = aspen_mp.Runtime(workers=setting.workers, profile=profile)
            self._open[setting] = self._stack.enter_context(runtime)
        return self._open[setting]


def run_case(
    case: Case, settings: Sequence[Setting], runtimes: Runtimes, report: Callable[[Outcome], None] = lambda _: None
) -> list[Outcome]:
    """Runs a case under every setting; what raises becomes an outcome with a problem. Each result is checked twice: a second request must
    give the same bits as the first, on memory that is no longer fresh."""
    model = case.build()
    feeds = case.feeds(model)
    data = model.SerializeToString()
    del model
    expected = reference(data, feeds)
    outcomes: list[Outcome] = []
    for setting in settings:
        try:
            outcome = run_once(case, setting, runtimes.get(setting), data, feeds, expected)
        except Exception as error:
            outcome = Outcome(str(case), setting, float("inf"), "", 0.0, 0.0, f"{type(error).__name__}: {error}")
        outcomes.append(outcome)
        report(outcome)
    return outcomes


def run_once(
    case: Case, setting: Setting, runtime: aspen_mp.Runtime, data: bytes, feeds: Mapping[str, Array], expected: Sequence[Array]
) -> Outcome:
    begin = time.perf_counter()
    model = runtime.load(data, name=case.network, winograd=setting.winograd)
    loaded = time.perf_counter()
    try:
        first = list(model.run(dict(feeds), timeout=TIMEOUT_S).values())
        done = time.perf_counter()
        again = list(model.run(dict(feeds), timeout=TIMEOUT_S).values())
    finally:
        model.unload()
    digest = digest_of(first)
    problem = "" if digest_of(again) == digest else "a second run gave other bits"
    return Outcome(str(case), setting, error_of(first, expected), digest, loaded - begin, done - loaded, problem)


def disagreements(outcomes: Sequence[Outcome]) -> list[str]:
    """The faults of outcomes of one case, one line each; empty if there are none."""
    found = [
        f"{o.case} on {o.setting}: {o.problem or f'error {o.error:.1e}, at most {LIMIT:.0e} allowed'}" for o in outcomes if not o.agrees
    ]
    firsts: dict[tuple[str, bool], Outcome] = {}
    for outcome in outcomes:
        if not outcome.digest:
            continue
        first = firsts.setdefault((outcome.setting.isa, outcome.setting.winograd), outcome)
        if outcome.digest != first.digest:
            found.append(f"{outcome.case} on {outcome.setting}: other bits than on {first.setting}")
    return found


def settings(isas: Sequence[str], workers: Sequence[int], direct: bool = False) -> list[Setting]:
    """All combinations, and the largest number of workers without stealing; `direct`: also once without Winograd's algorithm."""
    found = []
    for isa in isas:
        found += [Setting(isa, count) for count in workers] + [Setting(isa, max(workers), stealing=False)]
        found += [Setting(isa, max(workers), winograd=False)] if direct else []
    return found


def numbers(text: str) -> list[int]:
    values = [int(part) for part in text.split(",")]
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text}: numbers from 1")
    return values


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    from aspen_mp.workers import _kernels

    parser = argparse.ArgumentParser(prog="python -m aspen_mp.bench.agreement", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="Networks of the zoo; without one, all.")
    parser.add_argument("--workers", type=numbers, default=[1, 2, 4], help="Numbers of workers, separated by commas (default: 1,2,4).")
    parser.add_argument("--batches", type=numbers, default=[1, 3], help="Batch sizes, separated by commas (default: 1,3).")
    parser.add_argument("--isas", default=",".join(_kernels.isas()), help="Instruction sets, separated by commas (default: all).")
    parser.add_argument("--direct", action="store_true", help="Show, too, what Winograd's algorithm adds to the error.")
    parser.add_argument("--mini", action="store_true", help="Use small versions of the networks.")
    parser.add_argument("--seq", type=int, default=128, help="Tokens, for networks that read text (default: 128).")
    parser.add_argument("--json", metavar="FILE", help="Write every outcome to this file.")
    args = parser.parse_args(argv)
    args.networks = args.networks or models.names(extra=True)
    unknown = [n for n in args.networks if n not in models.names(extra=True)]
    unknown += [isa for isa in args.isas.split(",") if isa not in _kernels.isas()]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    from rich.console import Console

    args = arguments(argv)
    console = Console()
    wanted = settings(args.isas.split(","), args.workers, args.direct)
    outcomes: list[Outcome] = []
    wrong: list[str] = []

    def show(o: Outcome) -> None:
        mark = "[green]agrees[/]" if o.agrees else "[red]differs[/]"
        detail = o.problem or f"error {o.error:.1e}, bits {o.digest}, load {o.load_s:.2f} s, first run {o.first_s:.2f} s"
        console.print(f"{o.case:<28} {o.setting!s:<32} {mark} {detail}", highlight=False, soft_wrap=True)

    with Runtimes() as runtimes:
        for network in args.networks:
            for batch in args.batches:
                case = Case(network, batch, args.seq, models.miniature(network) if args.mini else {})
                found = run_case(case, wanted, runtimes, show)
                outcomes += found
                wrong += disagreements(found)
    if args.json:
        Path(args.json).write_text(
            json.dumps({"disagreements": wrong, "outcomes": [asdict(o) for o in outcomes]}, indent=2) + "\n", "utf-8"
        )
    for line in wrong:
        console.print(line, style="red", highlight=False, markup=False)
    console.print(f"{len(outcomes)} runs, {len(wrong)} disagreements")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
