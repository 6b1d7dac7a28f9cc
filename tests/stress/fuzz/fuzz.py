"""Runs a fuzzer by hand: ``fuzz.py NAME [SEED …] [--seconds S] [--first N] [--keep LABEL]``. NAME: models, plans, files, values, frames."""

from __future__ import annotations

import argparse
import itertools
import sys

import fuzz_bytes
import fuzz_models
import fuzz_plans
from fuzzing import attempt, explore

FUZZERS = {
    "models": fuzz_models.case,
    "plans": fuzz_plans.case,
    "files": fuzz_bytes.plan_bytes,
    "values": fuzz_bytes.value,
    "frames": fuzz_bytes.frames,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=FUZZERS, help="The fuzzer.")
    parser.add_argument("seeds", type=int, nargs="*", help="Run these cases only.")
    parser.add_argument("--seconds", type=float, default=60, help="How long to look for findings (default: 60).")
    parser.add_argument("--first", type=int, default=0, help="The seed to begin with (default: 0).")
    parser.add_argument("--keep", metavar="LABEL", help="Put the model of the seed into the corpus, under this label.")
    options = parser.parse_args()
    case = FUZZERS[options.name]
    fuzz_models.bases()  # once, before processes are forked
    if options.seeds:
        for seed in options.seeds:
            if options.name == "models":
                print(fuzz_models.mutated(seed)[0])
            print(seed, *attempt(case, seed))
            if options.keep:
                print(fuzz_models.keep(seed, options.keep))
        return 0
    report = explore(case, itertools.count(options.first), options.seconds)
    print(report)
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
