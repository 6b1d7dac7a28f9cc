"""Which operators run: the table of conformance tests by operator, and the operators of onnxruntime's own domain."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import onnx

from aspen_mp.bench import conformance
from aspen_mp.planner import lower  # noqa: F401 - registers the rules
from aspen_mp.planner.frontends import contrib
from aspen_mp.planner.frontends.contrib.absent import ABSENT
from aspen_mp.planner.lower.registry import RULES

Operator = tuple[str, str]  # domain, name
_ONNX: Final = {"": "ai.onnx"}


def text() -> str:
    version, verdicts = conformance.read_table(conformance.table_path())
    tests = _tests()
    passed = sum(not reason for reason in verdicts.values())
    parts = [f"{passed} of {len(verdicts)} tests of onnx {version} and of drawn models pass.", ""]
    for domain in sorted({domain for domain, _ in tests if domain != contrib.DOMAIN}):
        mine = sorted(op for op in tests if op[0] == domain)
        parts += [f"## {_ONNX.get(domain, domain)}", "", "| operator | computed by | tests passed | tests excluded |", "|---|---|---|---|"]
        parts += [_row(op, tests[op], verdicts) for op in mine] + [""]
    excluded = {name: reason for name, reason in verdicts.items() if reason}
    parts += ["## Excluded tests", "", "| test | reason |", "|---|---|", *(f"| `{n}` | {_cell(r)} |" for n, r in excluded.items()), ""]
    parts += [f"## {contrib.DOMAIN}", "", "Operators of onnxruntime's own domain that run:", "", _listed(contrib.NAMES), ""]
    parts += ["These do not run:", "", "| operators | each is an operator that |", "|---|---|"]
    reasons: dict[str, list[str]] = defaultdict(list)
    for op, reason in ABSENT.items():
        reasons[reason].append(op)
    return "\n".join([*parts, *(f"| {_listed(ops)} | {_cell(reason)} |" for reason, ops in reasons.items())])


def _tests() -> dict[Operator, list[str]]:
    """The tests whose models have a node of the operator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx's cases overflow on purpose
        cases, _ = conformance.cases()
        found: dict[Operator, list[str]] = defaultdict(list)
        for case in cases:
            for op in _operators(case.make().graph):
                found[op].append(case.name)
    return found


def _operators(graph: onnx.GraphProto) -> set[Operator]:
    found: set[Operator] = set()
    for node in graph.node:
        found.add(("" if node.domain == "ai.onnx" else node.domain, node.op_type))
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                found |= _operators(inner)
    return found


def _row(op: Operator, tests: list[str], verdicts: dict[str, str]) -> str:
    domain, name = op
    excluded = [test for test in tests if verdicts.get(test, "it is not in the table")]
    how = "kernels" if (f"{domain}.{name}" if domain else name) in RULES else "Python"
    return f"| {name} | {how} | {len(tests) - len(excluded)} | {len(excluded) or ''} |"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
