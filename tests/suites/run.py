"""Other projects' own tests, first with the real onnxruntime, then with aspen_mp in its place:

    python tests/suites/run.py --checkouts ../checkouts [SUITE …]

Prints, for each suite, how many of the tests that pass with onnxruntime pass with aspen_mp, and lists the rest by reason. `suites.toml`
says which projects there are. Each file of tests is run by a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import reasons

HERE = Path(__file__).parent
ENGINES = ("onnxruntime", "aspen_mp")


@dataclass(frozen=True)
class Suite:
    """An entry of suites.toml."""

    name: str
    checkout: str
    copy: dict[str, str]
    tests: list[str]
    folder: str = "."
    without: list[str] = field(default_factory=list)

    def lay_out(self, checkouts: Path, scratch: Path) -> None:
        """Copies what the tests need. FileNotFoundError where the checkout is missing."""
        for source, target in self.copy.items():
            shutil.copytree(checkouts / self.checkout / source, scratch / target, dirs_exist_ok=True, symlinks=True)

    def files(self, scratch: Path, only: str) -> list[Path]:
        """The files of tests, relative to the suite's folder."""
        folder = scratch / self.folder
        found = {path for pattern in self.tests for path in folder.glob(pattern) if only in path.name}
        return sorted(path.relative_to(folder) for path in found if not any(path.match(pattern) for pattern in self.without))


def suites() -> dict[str, Suite]:
    with open(HERE / "suites.toml", "rb") as file:
        return {name: Suite(name, **entry) for name, entry in tomllib.load(file).items()}


def run(suite: Suite, engine: str, args: argparse.Namespace, records: Path) -> None:
    """Runs one suite with one engine; outcomes are appended to the file `records`."""
    with tempfile.TemporaryDirectory(prefix=f"suite-{suite.name}-") as made:
        scratch = Path(made)
        suite.lay_out(args.checkouts, scratch)
        environment = dict(os.environ)
        paths = [str(HERE / "plugin"), str(scratch / suite.folder), str(scratch), *filter(None, [environment.get("PYTHONPATH")])]
        if engine == "aspen_mp":
            paths.insert(0, str(HERE / "shim"))
            environment.setdefault("ASPEN_MP_CACHE", "off")
        environment |= {"PYTHONPATH": os.pathsep.join(paths), "SUITES_RECORD": str(records), "SUITES_TEST_SECONDS": str(args.test_seconds)}
        for path in suite.files(scratch, args.file):
            _run_file(scratch / suite.folder, path, environment, args)


def _run_file(folder: Path, path: Path, environment: dict[str, str], args: argparse.Namespace) -> None:
    # The scratch folder is no part of any repository: nobody's configuration of pytest counts.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "suites_record",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
    ]
    command += ["-W", "ignore", "--tb", "short", str(path), *(["-k", args.select] if args.select else [])]
    print(f"  {path}", flush=True)
    with open(args.log, "ab") as log:
        child = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            code = child.wait(args.file_seconds)
            outcome = f"pytest ended with status {code}" if code < 0 or code > 5 else ""
        except subprocess.TimeoutExpired:
            outcome = f"the file took more than {args.file_seconds:g} s"
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    if outcome:  # stands for the tests of the file that did not run
        with open(environment["SUITES_RECORD"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"test": str(path), "outcome": "failed", "why": outcome}) + "\n")


def outcomes(records: Path) -> dict[str, tuple[str, str]]:
    """{test: (outcome, why)}; of several lines of a test the worst counts."""
    rank = {"passed": 0, "skipped": 1, "failed": 2}
    found: dict[str, tuple[str, str]] = {}
    if records.exists():
        for line in records.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            before = found.get(entry["test"])
            if before is None or rank[entry["outcome"]] > rank[before[0]]:
                found[entry["test"]] = (entry["outcome"], entry["why"])
    return found


def compare(theirs: dict[str, tuple[str, str]], ours: dict[str, tuple[str, str]]) -> Iterator[str]:
    """Lines for people: the rate, then what fails, by reason."""
    wanted = [test for test, (outcome, _) in theirs.items() if outcome == "passed"]
    failed = {test: _found(test, ours) for test in wanted if _found(test, ours)[0] != "passed"}
    share = 1 - len(failed) / len(wanted) if wanted else 0.0
    yield f"{len(wanted) - len(failed)} of {len(wanted)} that onnxruntime passes ({share:.1%})"
    groups: dict[str, list[str]] = defaultdict(list)
    for test, (_, why) in failed.items():
        groups[reasons.kind(why)].append(test)
    for reason, tests in sorted(groups.items(), key=lambda group: -len(group[1])):
        yield f"{len(tests):5}  {reason}"
        yield from (f"         {test}" for test in sorted(tests))


def _found(test: str, outcomes: dict[str, tuple[str, str]]) -> tuple[str, str]:
    """A test's outcome; that of its file where it did not run."""
    return outcomes.get(test) or outcomes.get(test.split("::", maxsplit=1)[0]) or ("missing", "the test did not run")


def _arguments(argv: Iterable[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"Suites to run (default: all): {', '.join(suites())}.")
    parser.add_argument("--checkouts", type=Path, required=True, help="The folder of the projects' checkouts.")
    parser.add_argument("--records", type=Path, default=Path("build/suites"), help="The folder of outcomes (default: build/suites).")
    parser.add_argument(
        "--engine", choices=ENGINES, action="append", help="Run this engine only, and compare with the kept outcomes of the other."
    )
    parser.add_argument("--file", default="", help="Run only files whose name contains this.")
    parser.add_argument("--select", default="", help="Run only tests that match this expression, which pytest gets as -k.")
    parser.add_argument("--test-seconds", type=float, default=120, help="A test that takes longer fails (default: 120).")
    parser.add_argument("--file-seconds", type=float, default=3600, help="A file that takes longer is ended (default: 3600).")
    args = parser.parse_args(None if argv is None else list(argv))
    unknown = sorted(set(args.suites) - set(suites()))
    if unknown:
        parser.error(f"no suite {', '.join(unknown)}; there are {', '.join(suites())}")
    return args


def main(argv: Iterable[str] | None = None) -> int:
    args = _arguments(argv)
    args.checkouts, args.records = args.checkouts.absolute(), args.records.absolute()
    args.records.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the tests under way end with this
    part = args.file or args.select
    for name, suite in suites().items():
        if args.suites and name not in args.suites:
            continue
        if not (args.checkouts / suite.checkout).is_dir():
            print(f"{name}: no checkout at {args.checkouts / suite.checkout}")
            continue
        kept = {engine: args.records / f"{name}.{engine}{'.part' if part else ''}.jsonl" for engine in ENGINES}
        for engine in args.engine or ENGINES:
            print(f"{name} with {engine}", flush=True)
            kept[engine].unlink(missing_ok=True)
            args.log = args.records / f"{name}.{engine}.log"
            args.log.unlink(missing_ok=True)
            run(suite, engine, args, kept[engine])
        text = "\n".join(compare(*(outcomes(kept[engine]) for engine in ENGINES)))
        (args.records / f"{name}.txt").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {text}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
