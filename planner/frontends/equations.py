"""The equations of Einsum: which letters each operand and the result have, and how long the axes are that they name."""

from __future__ import annotations

from collections.abc import Sequence

_HIDDEN = [chr(0x391 + k) for k in range(8)]
"""Names of the axes that an ellipsis stands for, counted from the last one."""


def parse(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each operand, which has `ranks` axes, and of the result; an ellipsis becomes capital Greek letters, aligned at the
    right. ValueError where the equation does not fit operands of these ranks."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"the equation {equation!r} has {len(terms)} operands, not {len(ranks)}")
    widest = 0
    for k, term in enumerate(terms):
        n = ranks[k] - len(term.replace("...", ""))
        if "..." in term and 0 <= n <= len(_HIDDEN):
            widest = max(widest, n)
            terms[k] = term.replace("...", "".join(_HIDDEN[len(_HIDDEN) - n :]))
        if len(terms[k]) != ranks[k]:
            raise ValueError(f"operand {k} of the equation {equation!r} has {ranks[k]} axes")
    ellipsis = "".join(_HIDDEN[len(_HIDDEN) - widest :]) if widest else ""
    if not arrow:
        whole = "".join(terms)
        once = sorted(c for c in set(whole) if whole.count(c) == 1 and c not in _HIDDEN)
        return terms, ellipsis + "".join(once)
    result = right.replace("...", ellipsis)
    if not set(result) <= set("".join(terms)):
        raise ValueError(f"the result of the equation {equation!r} has letters that no operand has")
    return terms, result


def sizes(terms: Sequence[str], shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """How long the axis of each letter is: axes of length 1 are repeated. ValueError where operands disagree."""
    found: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, dim in zip(term, shape, strict=True):
            known = found.setdefault(letter, dim)
            if known != dim and 1 not in (known, dim):
                raise ValueError(f"an axis has the lengths {known} and {dim}")
            found[letter] = dim if known == 1 else known
    return found
