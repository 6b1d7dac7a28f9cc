"""A record: what one run of a benchmark has found, where, and how to run it again.

Records are JSON documents of one schema. `bench/results/MACHINE/BENCHMARK.json` holds those that are published; all figures in
documents are made from them (`aspen_mp.bench.render`).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from aspen_mp.bench.records import environment
from aspen_mp.bench.records.environment import Load, Machine

SCHEMA = 1
"""Version of the document. A reader refuses others."""

Result = TypeVar("Result")

_NOT_REPEATED = {"-o": 1, "--output": 1, "--plot": 1, "--json": 0, "--keep-disturbed": 0}
"""Options that say where a result goes, and how many values each takes."""


class Record(msgspec.Struct, Generic[Result], kw_only=True):
    """A benchmark's result with all that a reader needs to judge or repeat it.

    `benchmark`: name of the command. `command`: the line that made it, without where its output went. `date`: UTC, ISO 8601. `version`: of
    aspen-mp; `commit`: of the source tree, with a `+` where it had changes, None outside one. `packages`: versions of what took part.
    `disturbed`: why the run should not be trusted, a sentence each; empty for a quiet machine.
    """

    schema: int
    benchmark: str
    command: str
    date: str
    version: str
    commit: str | None
    packages: dict[str, str]
    machine: Machine
    load: Load
    disturbed: list[str]
    result: Result


class Recorder:
    """A record in the making. Create it before the benchmark starts: it looks at what else the machine does.

    `timed`: False where the result does not depend on that."""

    def __init__(self, benchmark: str, arguments: Sequence[str], *, timed: bool = True) -> None:
        self._timed = timed
        self._benchmark = benchmark
        self._command = shlex.join(["aspen-mp", *_repeatable(arguments)])
        self._watch = environment.Watch()

    def finish(self, result: Any, disturbed_rounds: int = 0) -> Record[Any]:
        """The record of a benchmark that has just ended. `disturbed_rounds`: rounds that count although other processes ran."""
        import aspen_mp

        load, machine = self._watch.load(), environment.machine()
        return Record(
            schema=SCHEMA,
            benchmark=self._benchmark,
            command=self._command,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            version=aspen_mp.__version__,
            commit=environment.commit(),
            packages=environment.packages(),
            machine=machine,
            load=load,
            disturbed=_reasons(load, machine.cores, disturbed_rounds) if self._timed else [],
            result=result,
        )


def _repeatable(arguments: Sequence[str]) -> list[str]:
    """The command line without the options that say where the result goes."""
    kept: list[str] = []
    skip = 0
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if skip:
            skip -= 1
        elif name in _NOT_REPEATED:
            skip = 0 if equals else _NOT_REPEATED[name]
        else:
            kept.append(argument)
    return kept


def _reasons(load: Load, cores: int, rounds: int) -> list[str]:
    reasons = []
    if load.others > environment.OTHERS_LIMIT * cores:
        reasons.append(f"Other processes used {load.others:.2f} cores before the run.")
    if load.stolen > environment.STOLEN_LIMIT:
        reasons.append(f"The hypervisor took {load.stolen:.1%} of the cores' time.")
    if rounds:
        reasons.append(f"Other processes disturbed {rounds} of the rounds that count.")
    return reasons


def save(record: Record[Any], target: Path) -> Path:
    """Write a record to a file, or, below a folder, to `MACHINE/BENCHMARK.json`. Return the file."""
    file = target
    if target.is_dir():
        file = target / record.machine.slug / f"{record.benchmark}.json"
        file.parent.mkdir(exist_ok=True)
    file.write_text(text(record) + "\n", "utf-8")
    return file


def text(record: Record[Any]) -> str:
    """The record as JSON that people can read and compare line by line."""
    plain = msgspec.to_builtins(record, enc_hook=_plain)
    return json.dumps(_rounded(plain), indent=1, ensure_ascii=False)


def load(file: Path, result: type[Result]) -> Record[Result]:
    """Read a record whose result has a known type. ValueError names the file and what is wrong with it."""
    try:
        record = msgspec.json.decode(file.read_bytes(), type=Record[result])  # type: ignore[valid-type]
    except msgspec.DecodeError as error:
        raise ValueError(f"{file}: {error}") from None
    if record.schema != SCHEMA:
        raise ValueError(f"{file}: schema {record.schema}, not {SCHEMA}. Measure again with: {record.command}")
    return record


def _plain(value: object) -> object:
    item = getattr(value, "tolist", None)  # numpy scalars and arrays
    return item() if callable(item) else str(value)


def _rounded(value: Any) -> Any:
    """Six significant digits: more than any clock gives, and half the bytes."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
