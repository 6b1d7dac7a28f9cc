"""Digests of what networks compute, to be compared before and after a change that should leave every bit as it is:
`python -m aspen_mp.bench.bits FILE [--against OLD]`.

FILE receives a digest of the outputs of every network of the zoo (at several batch sizes) and of every case of the conformance suite. There
is one for each instruction set of this machine and several numbers of workers. With `--against`, digests are compared with those of an
earlier file; the exit status is 1 where any of them differs. A case whose second run gives other bits than its first draws random numbers,
and is recorded as such.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from aspen_mp.bench import models
from aspen_mp.bench.agreement import TIMEOUT_S, Case, Runtimes, Setting, numbers
from aspen_mp.bench.conformance import THREADS, cases
from aspen_mp.errors import AspenError

if TYPE_CHECKING:
    from collections.abc import Callable

    import aspen_mp

RANDOM = "random"
"""The digest of a case whose outputs differ from run to run."""
FAILED = "failed: "
"""How the digest of a case begins that raises an error; the error's type follows."""

Digests = dict[str, str]


def digest(values: Any) -> str:
    """The digest of outputs of any kind: arrays by dtype, shape and bytes; strings, sequences and maps by their contents."""
    state = hashlib.sha256()
    _add(state, values)
    return state.hexdigest()[:16]


def _add(state: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        _add(state, list(value.items()))
    elif isinstance(value, (list, tuple)):
        state.update(f"sequence of {len(value)}".encode())
        for each in value:
            _add(state, each)
    elif isinstance(value, np.ndarray) and value.dtype.kind not in "OUST":
        state.update(f"{value.dtype.name} {value.shape}".encode())
        state.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, np.ndarray):
        state.update(f"strings {value.shape}".encode())
        _add(state, value.ravel().tolist())
    else:
        state.update(f"{type(value).__name__} {value!r}".encode())


def digest_of_runs(runtime: aspen_mp.Runtime, model: bytes, feeds: Sequence[Mapping[str, Any]]) -> str:
    """Load a model, run it twice on each of `feeds`, and return the digest of all outputs, RANDOM, or FAILED and the error's type."""
    try:
        loaded = runtime.load(model)
        try:
            first, second = (digest([loaded.run(dict(each), timeout=TIMEOUT_S) for each in feeds]) for _ in range(2))
        finally:
            loaded.unload()
    except AspenError as error:
        return FAILED + type(error).__name__
    return first if first == second else RANDOM


def zoo(networks: Sequence[str], batches: Sequence[int], mini: bool) -> Iterator[tuple[str, bytes, list[Mapping[str, Any]]]]:
    """Name, model and inputs of each network at each batch size."""
    for network in networks:
        for batch in batches:
            case = Case(network, batch, 128, models.miniature(network) if mini else {})
            model = case.build()
            yield str(case), model.SerializeToString(), [case.feeds(model)]


def conformance() -> Iterator[tuple[str, bytes, list[Mapping[str, Any]]]]:
    """Name, model and inputs of each case of the conformance suite."""
    for case in cases()[0]:
        model = case.make()
        constants = {tensor.name for tensor in model.graph.initializer}
        names = [value.name for value in model.graph.input if value.name not in constants]
        feeds: list[Mapping[str, Any]] = [dict(zip(names, inputs, strict=False)) for inputs, _ in case.data(model)]
        yield case.name, model.SerializeToString(), feeds


def record(
    settings: Sequence[Setting], networks: Sequence[str], batches: Sequence[int], mini: bool, report: Callable[[str], None]
) -> dict[str, Digests]:
    """Digests by setting and case. Networks run one after the other, conformance cases several at a time."""
    found: dict[str, Digests] = {str(setting): {} for setting in settings}
    small = list(conformance())
    with Runtimes() as runtimes, ThreadPoolExecutor(THREADS) as pool:
        for name, model, feeds in zoo(networks, batches, mini):
            report(name)
            for setting in settings:
                found[str(setting)][name] = digest_of_runs(runtimes.get(setting), model, feeds)
        for setting in settings:
            report(f"conformance, {setting}")
            runtime = runtimes.get(setting)
            done = pool.map(lambda case, runtime=runtime: (case[0], digest_of_runs(runtime, case[1], case[2])), small)
            found[str(setting)].update(done)
    return found


def differences(before: Mapping[str, Digests], after: Mapping[str, Digests]) -> list[str]:
    """One line for each setting and case that both have and whose digests differ, or that only `before` has."""
    lines = []
    for setting in before.keys() & after.keys():
        old, new = before[setting], after[setting]
        lines += [f"{setting}: {case}: {old[case]} became {new.get(case, 'nothing')}" for case in old if old[case] != new.get(case)]
    return sorted(lines)


def main(argv: Sequence[str] | None = None) -> int:
    from aspen_mp.workers import _kernels

    parser = argparse.ArgumentParser(prog="python -m aspen_mp.bench.bits", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("file", type=Path, help="The JSON document to write.")
    parser.add_argument("--against", type=Path, help="An earlier document to compare with.")
    parser.add_argument("--networks", help="Networks of the zoo, separated by commas (default: all; '' for none).")
    parser.add_argument("--batches", type=numbers, default=[1, 3], help="Batch sizes, separated by commas (default: 1,3).")
    parser.add_argument("--workers", type=numbers, default=[1, 2], help="Numbers of workers, separated by commas (default: 1,2).")
    parser.add_argument("--isas", default=",".join(_kernels.isas()), help="Instruction sets, separated by commas (default: all).")
    parser.add_argument("--mini", action="store_true", help="Use small versions of the networks.")
    args = parser.parse_args(argv)
    networks = models.names(extra=True) if args.networks is None else [name for name in args.networks.split(",") if name]
    settings = [Setting(isa, count) for isa in args.isas.split(",") for count in args.workers]
    found = record(settings, networks, args.batches, args.mini, lambda text: print(text, file=sys.stderr, flush=True))
    document = {"python": platform.python_version(), "onnx": onnx.__version__, "numpy": np.__version__, "digests": found}
    args.file.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    if args.against is None:
        return 0
    lines = differences(json.loads(args.against.read_text("utf-8"))["digests"], found)
    print("\n".join([*lines, f"{sum(map(len, found.values()))} digests, {len(lines)} differences"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
