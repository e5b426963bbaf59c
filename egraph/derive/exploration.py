"""Explore: every rule at a contraction, whatever it leads to. What repairs of conflicts do not reach is looked for like this."""

from __future__ import annotations

from collections.abc import Iterator as Iterable
from itertools import combinations, permutations

from egraph.derive.rules.bodies import Refusal
from egraph.derive.rules.boundary import tighten
from egraph.derive.rules.matrices import Matrix
from egraph.derive.rules.substitution import merge_iterators, split_iterator, unimodular
from egraph.derive.rules.summation import split_summation
from egraph.tensor.expr.bodies import reads_of
from egraph.tensor.expr.index import Iterator, length
from egraph.tensor.expr.laws import affine
from egraph.tensor.expr.scope import Scope

MOST_SUMS = 5
"""Summation iterators of which all subsets are moved outward."""


def explored(scope: Scope) -> Iterable[tuple[str, Scope]]:
    """Yield what single rules make of a scope: sums moved outward, iterators merged, split, mapped, ranges tightened."""
    for name, result in _ways(scope):
        if isinstance(result, Scope):
            yield name, result


def _ways(scope: Scope) -> Iterable[tuple[str, Scope | Refusal]]:
    for group in (scope.summation, scope.traversal):
        for major, minor in permutations(group, 2):
            yield f"merging {major.name} and {minor.name}", merge_iterators(scope, major, minor)
    for iterators, matrix in maps_of(scope):
        yield f"substitution of {iterators[0].name}", unimodular(scope, iterators, matrix)
    for iterator in scope.traversal + scope.summation:
        yield f"tightening {iterator.name}", tighten(scope, iterator)
        for factor in range(2, length(iterator)):
            if length(iterator) % factor == 0:
                yield f"splitting {iterator.name} by {factor}", split_iterator(scope, iterator, factor)
    if len(scope.summation) <= MOST_SUMS:
        for count in range(1, len(scope.summation)):
            for outer in combinations(scope.summation, count):
                yield f"summation splitting of {', '.join(i.name for i in outer)}", split_summation(scope, outer)


def maps_of(scope: Scope) -> Iterable[tuple[tuple[Iterator, ...], Matrix]]:
    """Yield the unimodular maps that indices suggest: y = c1 x1 + c2 x2 + ..., with 1 or -1 before x1, for iterators of one kind."""
    seen: set[tuple[tuple[Iterator, ...], tuple[int, ...]]] = set()
    for read in reads_of(scope.body):
        for coordinate in map(affine, read.indices):
            for group in (scope.traversal, scope.summation):
                terms = {i: coordinate[1][i] for i in group if i in coordinate[1]} if coordinate is not None else {}
                for first in (i for i, c in terms.items() if abs(c) == 1 and len(terms) > 1):
                    iterators = (first, *(i for i in terms if i != first))
                    row = tuple(terms[i] for i in iterators)
                    if (iterators, row) not in seen:
                        seen.add((iterators, row))
                        unit_rows = [[int(k == at) for k in range(len(row))] for at in range(1, len(row))]
                        yield iterators, (row, *unit_rows)
