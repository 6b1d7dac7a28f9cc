"""Each rule for an ATen operator gives what PyTorch gives, with the same shape and type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")

import aten_layouts  # noqa: E402, F401
from aten_cases import GENERATORS  # noqa: E402

from aspen_mp.torch.compiled import Compiled, Options  # noqa: E402
from aspen_mp.torch.decompositions import KEPT, LEFT  # noqa: E402
from aspen_mp.torch.importer import import_graph  # noqa: E402
from aspen_mp.torch.registry import REFUSED, RULES  # noqa: E402


@pytest.fixture(scope="module")
def runtime() -> Any:
    import aspen_mp

    with aspen_mp.Runtime(workers=1) as runtime:
        yield runtime


_TRACED_AS = {"detach.default": "alias.default"}
"""Operators that PyTorch traces as others, since version 2.14."""


def test_rule_gives_what_pytorch_gives(name: str, runtime: Any) -> None:
    cases = list(GENERATORS[name]())
    tensors = [tensor for case in cases for tensor in case.tensors]
    places = iter(range(len(tensors)))
    spans = [[next(places) for _ in case.tensors] for case in cases]

    def all_cases(*tensors: Any) -> list[Any]:
        found = []
        for case, span in zip(cases, spans, strict=True):
            result = case.call(*(tensors[k] for k in span))
            found += result if isinstance(result, tuple | list) else [result]
        return found

    graph = traced(all_cases, tensors, closed=name.startswith("aspen_mp."))
    hit = {str(node.target).removeprefix("aten.") for node in graph.graph.nodes if node.op == "call_function"}
    assert name in hit or _TRACED_AS.get(name) in hit
    imported = import_graph(graph.graph)
    assert not imported.unsupported
    got = Compiled(graph.graph, [], Options(runtime))(*tensors)
    want = [value for value in all_cases(*tensors) if value is not None]
    assert len(got) == len(want)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.dtype == b.dtype, k
        assert a.shape == b.shape, k
        rounds = b.dtype in (torch.float16, torch.bfloat16)
        np.testing.assert_allclose(a.double().numpy(), b.double().numpy(), rtol=1e-2 if rounds else 2e-5, atol=2e-6, err_msg=str(k))


def traced(function: Any, tensors: Any, closed: bool = False) -> Any:
    """`closed`: whether the function has tensors of its own."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad():
        graph = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=closed)(*tensors)
    graph.graph.eliminate_dead_code()
    return graph


def test_every_rule_is_tested() -> None:
    assert set(RULES) == set(GENERATORS)
    assert not set(RULES) & set(REFUSED)


def test_what_is_not_taken_apart_has_a_rule() -> None:
    assert len(set(KEPT)) == len(KEPT)
    assert {f"{name}.default" for name in LEFT} <= set(REFUSED)
    assert set(KEPT) <= {name.partition(".")[0] for name in RULES}


def pytest_generate_tests(metafunc: Any) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", sorted(GENERATORS))


def test_the_reference_lists_the_rules() -> None:
    import operator_table

    assert (Path(__file__).parents[2] / "docs/reference/pytorch-operators.md").read_text(encoding="utf-8") == operator_table.page(), (
        "write it again: python tests/pytorch/operator_table.py > docs/reference/pytorch-operators.md"
    )
