"""Canonical expressions: expressions equal up to names of iterators and order of sums, factors and terms have the same text.

Traversal iterators are named by position (``i0, i1, ...``), summation iterators ``r0, r1, ...`` in the order that gives the
smallest text; all ranges start at 0. Padding is part of the identity: it is a guard.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

from egraph.tensor.expr.bodies import applied, flattened, guarded, rebuilt
from egraph.tensor.expr.index import Index, Iterator, Size, Symbol, index, simplify, substitute
from egraph.tensor.expr.printing import format_scalar, format_scope
from egraph.tensor.expr.scope import Apply, Compare, Read, Reduction, Scalar, Scope, Tensor

MOST_ORDERS = 5_040
"""The most orders of summation iterators that are compared; beyond that, iterators that look alike stay in the order given."""
_COMMUTATIVE = ("add", "mul", "max", "min")
Renaming = Mapping[Iterator | Symbol, Size]
Seen = dict[tuple[int, str], Scope]
"""Canonical inner scopes by identity and prefix. They are closed, so the order of the iterators around them does not change them."""


def canonical(scope: Scope) -> Scope:
    """Return the one representative of all scopes that differ in names, order of sums, of factors and of terms."""
    return _canonical(scope, "", {})


def _canonical(scope: Scope, prefix: str, seen: Seen) -> Scope:
    canonical = seen.get((id(scope), prefix))
    if canonical is None:
        canonical = seen[id(scope), prefix] = _made(scope, prefix, seen)
    return canonical


def _made(scope: Scope, prefix: str, seen: Seen) -> Scope:
    traversal = tuple(Iterator(f"{prefix}i{k}", 0, _length(i)) for k, i in enumerate(scope.traversal))
    names: dict[Iterator | Symbol, Size] = {
        old: index(new) + old.low for old, new in zip(scope.traversal, traversal, strict=True)
    }
    kept = [i for i in scope.summation if _length(i) != 1]
    names |= {i: i.low for i in scope.summation if _length(i) == 1}
    best: tuple[str, Scope] | None = None
    for order in _orders(kept, scope, names, seen):
        summation = tuple(Iterator(f"{prefix}r{k}", 0, _length(i)) for k, i in enumerate(order))
        renaming = names | {old: index(new) + old.low for old, new in zip(order, summation, strict=True)}
        reduction = scope.reduction if summation else Reduction.SUM
        candidate = Scope(traversal, summation, reduction, _scalar(scope.body, renaming, prefix, seen))
        text = format_scope(candidate)
        if best is None or text < best[0]:
            best = text, candidate
    assert best is not None
    return best[1]


def _length(iterator: Iterator) -> Size:
    return simplify(index(iterator.high) - iterator.low)


def _orders(iterators: list[Iterator], scope: Scope, names: Renaming, seen: Seen) -> list[tuple[Iterator, ...]]:
    """Return the orders worth comparing: iterators sorted by what they look like in the body, in all orders of those that look alike."""
    if len(iterators) < 2:
        return [tuple(iterators)]
    lengths = [str(_length(iterator)) for iterator in iterators]
    looks: dict[tuple[str, str], list[Iterator]] = {}
    for iterator, length in zip(iterators, lengths, strict=True):
        if lengths.count(length) == 1:
            looks[length, ""] = [iterator]
            continue
        others: dict[Iterator | Symbol, Size] = {i: index(Iterator("other", 0, _length(i))) + i.low for i in iterators if i != iterator}
        own_name: dict[Iterator | Symbol, Size] = {iterator: index(Iterator("own", 0, _length(iterator))) + iterator.low}
        look = format_scalar(_scalar(scope.body, {**names, **others, **own_name}, "", seen))
        looks.setdefault((length, look), []).append(iterator)
    groups = [looks[look] for look in sorted(looks)]
    orders: list[tuple[Iterator, ...]] = [()]
    for group in groups:
        few = len(orders) * math.factorial(len(group)) <= MOST_ORDERS
        arrangements = list(itertools.permutations(group)) if few else [tuple(group)]
        orders = [order + arrangement for order in orders for arrangement in arrangements]
    return orders


def _scalar(body: Scalar, names: Renaming, prefix: str, seen: Seen) -> Scalar:
    def reindex(value: Index) -> Index:
        return substitute(value, names, read)

    def read(inner: Read) -> Read:
        source, coordinates = inner.source, tuple(map(reindex, inner.indices))
        return Read(source if isinstance(source, Tensor) else _canonical(source, prefix + "n", seen), coordinates)

    def part(inner: Scalar) -> Scalar:
        match inner:
            case Read():
                return read(inner)
            case Apply(function) if function in _COMMUTATIVE:
                return applied(function, sorted(map(part, flattened(function, inner)), key=format_scalar))
            case _:
                return rebuilt(inner, part, reindex, _sorted)

    return part(body)


def _sorted(conditions: Iterable[Compare], then: Scalar, otherwise: Scalar) -> Scalar:
    return guarded(sorted(conditions, key=str), then, otherwise)
