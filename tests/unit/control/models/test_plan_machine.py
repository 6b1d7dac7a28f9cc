"""Events are carried out one after the other, each to its end, whatever they cause and whichever of them fail."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aspen_mp.control.models.plan_machine import EventQueue

TREES = st.recursive(st.just([]), lambda children: st.lists(children, max_size=4), max_leaves=30)
"""An event is a list of the events that it causes."""


def preorder(tree: list[list[object]], name: str = "0") -> list[str]:
    """The names of an event and of all that it causes, in the order in which they are carried out."""
    found = [name]
    for k, child in enumerate(tree):
        found += preorder(child, f"{name}.{k}")  # type: ignore[arg-type]
    return found


@given(TREES, st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_what_follows_comes_first(tree: list[list[object]], fails: set[int], postpones: set[int]) -> None:
    """Some events fail, and the others are carried out all the same; some find out that a client has gone."""
    queue, begun, ended, gone = EventQueue(), list[str](), list[str](), list[str]()

    def carry_out(tree: list[list[object]], name: str) -> None:
        assert begun == ended, "another event is half done"
        number = len(begun)
        begun.append(name)
        for k, child in enumerate(tree):
            queue.follow(partial(carry_out, child, f"{name}.{k}"))  # type: ignore[arg-type]
        if number in postpones:
            queue.later(lambda: gone.append(f"{len(ended)} after {name}"))
        ended.append(name)
        if number in fails:
            raise ValueError(name)

    names = preorder(tree)
    failed = [name for number, name in enumerate(names) if number in fails]
    if failed:
        with pytest.raises(ValueError, match=f"^{failed[0]}$"):
            queue.follow(partial(carry_out, tree, "0"))
    else:
        queue.follow(partial(carry_out, tree, "0"))
    assert begun == ended == names
    assert gone == [f"{len(names)} after {name}" for number, name in enumerate(names) if number in postpones]
    queue.follow(lambda: ended.append("next"))
    assert ended[-1] == "next"


def test_long_chains_need_no_stack() -> None:
    queue, left = EventQueue(), [10_000]

    def carry_out() -> None:
        left[0] -= 1
        if left[0]:
            queue.follow(carry_out)

    queue.follow(carry_out)
    assert left == [0]
