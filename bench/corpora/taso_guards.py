"""Preconditions that may make a false TASO rule true: ungrouped convolutions, equal sizes, odd kernels, unit kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from bench.corpora.statements import Guard
from bench.corpora.taso_operators import Reading
from bench.corpora.terms import Application, Term, walk


def _sizes(reading: Reading, term: Term) -> tuple[int, ...]:
    return reading.tensor(term).shape


def _ungrouped(convolutions: Sequence[tuple[Term, Term]]) -> Guard:
    def holds(reading: Reading) -> bool:
        return all(_sizes(reading, x)[1] == _sizes(reading, w)[1] for x, w in convolutions)

    return Guard("every convolution is ungrouped", holds)


def _equal(text: str, terms: Sequence[Term], axes: Sequence[Term]) -> Guard:
    def holds(reading: Reading) -> bool:
        first, places = _sizes(reading, terms[0]), [reading.number(axis) for axis in axes]
        return all(_sizes(reading, term)[axis] == first[axis] for term in terms[1:] for axis in places)

    return Guard(f"{', '.join(map(str, terms))} have {text}", holds)


def _kernels(text: str, weights: Sequence[Term], allowed: Callable[[int], bool]) -> Guard:
    def holds(reading: Reading) -> bool:
        return all(allowed(size) for weight in weights for size in _sizes(reading, weight)[2:])

    return Guard(f"{text} kernels", holds)


def candidates(lefts: Sequence[Term]) -> tuple[Guard, ...]:
    """Return preconditions on the left sides' operators, alone and two at a time, the most likely first."""
    convolutions = list(dict.fromkeys(
        (node.arguments[-2], node.arguments[-1]) for left in lefts for node in walk(left)
        if node.operator == "conv2d" and not _constant(node.arguments[-1])
    ))  # fmt: skip
    single: list[Guard] = []
    if convolutions:
        data = list(dict.fromkeys(x for x, _ in convolutions))
        weights = list(dict.fromkeys(w for _, w in convolutions))
        single.append(_ungrouped(convolutions))
        if len(data) > 1:
            single.append(_equal("equally many channels", data, (1,)))
        if len(weights) > 1:
            single.append(_equal("equally many outputs", weights, (0,)))
            single.append(_equal("equally many channels", weights, (1,)))
            single.append(_equal("equal kernels", weights, (2, 3)))
        inner = [node.arguments[-1] for w in weights for node in walk(w) if node.operator == "enlarge"]
        single.append(_kernels("odd", [*weights, *inner], lambda size: size % 2 == 1))
    for left in lefts:
        for node in walk(left):
            if node.operator == "concat":
                axis, *parts = node.arguments
                single.append(_equal(f"equal sizes along axis {axis}", [p for p in parts if not isinstance(p, int)], (axis,)))
    return (*single, *(_both(first, second) for first, second in combinations(single, 2)))


def _both(first: Guard, second: Guard) -> Guard:
    return Guard(f"{first.text} and {second.text}", lambda reading: first.holds(reading) and second.holds(reading))


def _constant(term: Term) -> bool:
    return isinstance(term, Application) and term.operator in ("Iconv", "Cpool")
