"""What `make test` leaves out (`tiers.py`): what is named there exists, and no value of a parameter is lost but those of seeds and ISAs."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import folders
import pytest
import tiers


class Case(SimpleNamespace):
    """As much of a test as the rule reads. `full`: what it says of it."""

    def __init__(self, name: str, file: str = "unit/test_x.py", **params: object) -> None:
        super().__init__(
            name=f"{name}[…]", originalname=name, path=folders.TESTS / file, callspec=SimpleNamespace(params=params), full=False
        )
        if not params:
            del self.callspec

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        assert marker.name == "full"
        self.full = True


def stay(cases: list[Case]) -> list[dict[str, Any]]:
    tiers.mark(cases)  # type: ignore[arg-type]
    return [case.callspec.params for case in cases if not case.full]


def test_every_value_stays() -> None:
    sizes, kinds, models = [(1, 2), (3, 4), (5, 6)], ["a", "b"], [[], [1], [2]]  # lists are as models: nobody can hash them
    drawn = [Case("test_a", n=n, m=m, kind=kind, model=model) for (n, m), kind, model in product(sizes, kinds, models)]
    found = stay([*drawn, Case("test_b", kind="a")])
    assert {(case["n"], case["m"]) for case in found[:-1]} == set(sizes)
    assert {case["kind"] for case in found} == set(kinds)
    assert [model in [case.get("model") for case in found] for model in models] == [True] * 3
    assert found[-1] == {"kind": "a"}, "what another test has counts for that one alone"
    assert len(found) <= 1 + 2 + 1 + 2 + 1 < len(drawn)


def test_equal_values_of_other_types_are_others() -> None:
    assert len(stay([Case("test_a", x=x) for x in (1, True, 1.0, 1)])) == 3


def test_seeds_and_instruction_sets() -> None:
    isas = [tiers.BEST, "another"]
    found = stay([Case("test_a", seed=seed, isa=isa, kind=kind) for kind, isa, seed in product("ab", isas, range(10, 40))])
    assert {case["isa"] for case in found} == {tiers.BEST}
    assert {case["seed"] for case in found if case["kind"] == "a"} == set(range(10, 10 + tiers.SEEDS))
    assert {case["kind"] for case in found} == {"a", "b"}


def test_files_and_tests_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "FULL", {"unit/a": "", "unit/test_x.py": "", "unit/test_y.py::test_a": ""})
    cases = [Case("test_a", f"unit/{file}") for file in ("a/b/test_z.py", "ab/test_z.py", "test_x.py", "test_y.py")]
    tiers.mark([*cases, other := Case("test_ab", "unit/test_y.py")])  # type: ignore[list-item]
    assert [case.full for case in [*cases, other]] == [True, False, True, True, False]


@pytest.mark.parametrize("name", tiers.FULL)
def test_what_is_named_exists(name: str) -> None:
    file, _, test = name.partition("::")
    assert (folders.TESTS / file).exists()
    assert not test or f"def {test}(" in (folders.TESTS / file).read_text(encoding="utf-8")
    assert tiers.FULL[name]
