"""Reshape the iteration space of terms: split digits, narrow and split at guards, merge contiguous axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

from egraph.tensor.expr.conditions import bound_on, negation
from egraph.tensor.expr.digits import divisors, fitting
from egraph.tensor.expr.index import Floor, Index, Iterator, Modulo, Size, Symbol, atoms, index, known, length
from egraph.tensor.expr.laws import coefficient, iterators_of
from egraph.tensor.expr.scope import Reduction
from lower.eoperator.terms import Term, Terms, indices_of, subterms

UNROLLED = 12
"""Windows of at most so many taps are written out."""
LONGEST_STEP = 16
"""Elements that a read along the last axis may skip for its neighbours to be read from the same lines, at once."""


def rebuild(table: Terms, root: Term, change: Callable[[Reduction, tuple[Iterator, ...], Term], Term]) -> Term:
    """Rebuild bottom-up with ``change(reduction, iterators, body) -> Term`` at every reduction."""
    memo: dict[Term, Term] = {}
    for term in subterms((root,)):
        children = tuple(memo[child] for child in term.children)
        if term.kind == "reduce":
            reduction, iterators = term.data
            memo[term] = change(reduction, iterators, children[0])
        else:
            memo[term] = term if children == term.children else table.rebuilt(term, children)
    return memo[root]


def shifted(table: Terms, iterator: Iterator, low: int, high: int) -> tuple[Iterator, Index]:
    """Return a fresh iterator from 0 for [low, high) of ``iterator``, and what it stands for."""
    part = table.fresh(iterator.name.rstrip("0123456789"), high - low)
    return part, index(part) + low if high - low > 1 else index(low)


def digits(table: Terms, iterator: Iterator, indices: Iterable[Index]) -> tuple[tuple[Iterator, ...], Index] | None:
    """Split i into i1*d + i0 where i // d or i % d occurs and d divides its range, also as (c i + j) // (c d) with j below c."""
    indices = tuple(indices)
    factors = fitting(iterator, divisors(indices).get(iterator, set()) | _divisors_in_sums(iterator, indices))
    if not factors:
        return None
    by = factors[-1]  # the remaining digits may be split again
    outer, inner = table.fresh(iterator.name + "o", length(iterator) // by), table.fresh(iterator.name + "i", by)
    return (outer, inner), index(outer) * by + inner


def _divisors_in_sums(iterator: Iterator, indices: Iterable[Index]) -> set[int]:
    """Return d for each (c i + j) // (c d) and remainder of it, with j below c: what a flat index over several iterators is divided by."""
    numbers: set[int] = set()
    for atom in itertools.chain.from_iterable(map(atoms, indices)):
        if not isinstance(atom, Floor | Modulo) or (by := atom.divisor.constant) is None:
            continue
        steps = {i: coefficient(atom.numerator, i) for i in iterators_of(atom.numerator)}
        step = steps.get(iterator)
        if step is None or step <= 1 or by % step or None in steps.values():
            continue
        smaller = {i: abs(other) for i, other in steps.items() if other is not None and abs(other) < step}
        if sum((length(i) - 1) * other for i, other in smaller.items()) < step:
            numbers.add(by // step)
    return numbers


def split_digits(table: Terms, iterators: tuple[Iterator, ...], root: Term, offset: Index) -> tuple[tuple[Iterator, ...], Term, Index]:
    """Split every iterator of which only digits are used, as far as its extent allows."""
    position = 0
    while position < len(iterators):
        parts = digits(table, iterators[position], indices_of((root,)))
        if parts:
            replace: dict[Iterator | Symbol, Size] = {iterators[position]: parts[1]}
            root, offset = table.substitute(root, replace), table.index(offset, replace)
            iterators = (*iterators[:position], *parts[0], *iterators[position + 1 :])
        else:
            position += 1
    return iterators, root, offset


def merge(
    table: Terms, iterators: Sequence[Iterator], indices: Sequence[Index]
) -> tuple[tuple[Iterator, ...], dict[Iterator | Symbol, Size]]:
    """Return fewer iterators where neighbours always occur as a*length(b) + b, with the replacement."""
    kept = list(iterators)
    replace: dict[Iterator | Symbol, Size] = {}
    position = 0
    while position + 1 < len(kept):
        a, b = kept[position], kept[position + 1]
        if all(_contiguous(value, a, b) for value in indices):
            joined = table.fresh(a.name.rstrip("0123456789"), length(a) * length(b))
            step: dict[Iterator | Symbol, Size] = {a: index(joined) // length(b), b: index(joined) % length(b)}
            replace = {**{key: table.index(index(value), step) for key, value in replace.items()}, **step}
            indices = [table.index(value, step) for value in indices]
            kept[position : position + 2] = [joined]
            position = max(0, position - 1)
        else:
            position += 1
    return tuple(kept), replace


def _contiguous(value: Index, a: Iterator, b: Iterator) -> bool:
    outer, inner = coefficient(value, a), coefficient(value, b)
    return outer is not None and inner is not None and outer == inner * length(b)


def breakpoints(iterator: Iterator, root: Term, outer: frozenset[Iterator]) -> list[int]:
    """Return where to split an iterator so that guards are decided in the parts, ends included.

    Guards over other iterators of ``outer`` too are left alone; over summation iterators the part is found where they always hold.
    """
    low, high = known(iterator.low), known(iterator.low) + length(iterator)
    points = {low, high}
    for term in subterms((root,)):
        if term.kind != "guard":
            continue
        for condition in term.data:
            limit = bound_on(negation(condition) if condition.operator == "!=" else condition, iterator)
            if limit is not None and (limit.exact or not (iterators_of(condition.right - condition.left) - {iterator}) & outer):
                points |= {p for p in (limit.low, limit.high) if low < p < high}
    return sorted(points)


def simplify_reductions(
    table: Terms, root: Term, order: Callable[[tuple[Iterator, ...], Term], tuple[Iterator, ...]] = lambda iterators, body: iterators
) -> Term:
    """Narrow reductions to where their guards hold, merge their contiguous iterators, fold what does not vary.

    ``order``: returns the iterators of a reduction, and its body's, in the order in which they run.
    """

    def change(reduction: Reduction, iterators: tuple[Iterator, ...], body: Term) -> Term:
        iterators, body = _narrow(table, reduction, iterators, body)
        split = True
        while split:
            split = False
            for position, iterator in enumerate(iterators):
                parts = digits(table, iterator, indices_of((body,)))
                if parts:
                    body = table.substitute(body, {iterator: parts[1]})
                    iterators = (*iterators[:position], *parts[0], *iterators[position + 1 :])
                    split = True
                    break
        free = order(tuple(i for i in iterators if i in body.free), body)
        repeated = math.prod(length(i) for i in iterators if i not in body.free)
        merged, replace = merge(table, free, indices_of((body,)))
        result = table.reduce(reduction, merged, table.substitute(body, replace) if replace else body)
        if result.kind == "reduce":
            result = _unroll(table, result)
        if repeated == 0:
            return table.number(reduction.identity.value)
        if repeated == 1 or reduction in ("max", "min"):
            return result
        return table.apply("mul" if reduction == "sum" else "pow", (result, table.number(Fraction(repeated))))

    return rebuild(table, root, change)


def _unroll(table: Terms, term: Term) -> Term:
    """Write a small window (several axes, or guarded taps) out as a chain, so that its guards and weights leave the loops."""
    reduction, iterators = term.data
    body = term.children[0]
    if math.prod(length(i) for i in iterators) > UNROLLED or (
        len(iterators) == 1 and not any(t.kind == "guard" for t in subterms((body,)))
    ):
        return term
    total: Term | None = None
    for position in itertools.product(*(range(known(i.low), known(i.low) + length(i)) for i in iterators)):
        tap = table.substitute(body, dict(zip(iterators, position, strict=True)))
        total = tap if total is None else table.apply(reduction.combine, (total, tap))
    assert total is not None
    return total


def _narrow(table: Terms, reduction: Reduction, iterators: tuple[Iterator, ...], body: Term) -> tuple[tuple[Iterator, ...], Term]:
    """Restrict iterators by guards that depend on one of them alone and contribute nothing where they fail."""
    if body.kind != "guard" or body.children[1] is not table.number(reduction.identity.value):
        return iterators, body
    replace: dict[Iterator | Symbol, Size] = {}
    kept: list[Iterator] = []
    for iterator in iterators:
        low, high = known(iterator.low), known(iterator.low) + length(iterator)
        for condition in body.data:
            limit = bound_on(condition, iterator)
            if limit is not None and limit.exact:
                low, high = max(low, limit.low), min(high, limit.high)
        if (low, high) == (known(iterator.low), known(iterator.low) + length(iterator)):
            kept.append(iterator)
        elif low >= high:
            return (), table.number(reduction.identity.value)
        else:
            part, meaning = shifted(table, iterator, low, high)
            replace[iterator] = meaning
            kept += [part] if high - low > 1 else []
    return tuple(kept), table.substitute(body, replace) if replace else body


def loop_order(iterators: Sequence[Iterator], root: Term) -> Sequence[Iterator]:
    """Return outer loops in the order of the result, or of the one tensor that is read, whichever has the shorter innermost loop.

    Then both are accessed in few contiguous streams.
    """
    reads = [term.data[1] for term in subterms((root,)) if term.kind == "read"]
    if len(reads) != 1 or len(iterators) < 2 or any(coefficient(reads[0], i) is None for i in iterators):
        return iterators
    reading = sorted(iterators, key=lambda i: -abs(coefficient(reads[0], i) or 0))
    return reading if length(reading[-1]) < length(iterators[-1]) else iterators


def interleaved(iterators: Sequence[Iterator], root: Term) -> tuple[Iterator, ...]:
    """Return the loops whose values lie between the elements that a read skips along the last iterator (channels of an image)."""
    loops: dict[Iterator, None] = {}
    for term in subterms((root,)):
        if term.kind != "read":
            continue
        step = abs(coefficient(term.data[1], iterators[-1]) or 1)
        for iterator in iterators[:-1]:
            between = coefficient(term.data[1], iterator)
            if between and abs(between) * length(iterator) <= step <= LONGEST_STEP:
                loops[iterator] = None
    return tuple(i for i in iterators if i in loops)


def with_reciprocals(table: Terms, root: Term) -> Term:
    """e / s = e * (1 / s)  for s = sum exp(x - max x), and for a root s that a row shares: one quotient a row.

    A quotient of vectors takes as long as ten products. Nothing is lost: that sum is at least one, and the root of a float is zero,
    infinite or between 2^-75 and 2^64. Where another divisor may be tiny or huge, its reciprocal may be infinite or lose digits, and the
    quotient stays.
    """
    products: dict[Term, Term] = {}
    for term in subterms((root,)):
        if term.kind != "apply" or term.data != "div":
            continue
        dividend, divisor = term.children
        is_shared_root = divisor.kind == "apply" and divisor.data == "sqrt" and divisor.free < dividend.free
        if is_shared_root or _is_at_least_one(table, divisor):
            products[term] = table.apply("mul", (dividend, table.apply("reciprocal", (divisor,))))
    return table.exchange(root, products) if products else root


def _is_at_least_one(table: Terms, term: Term) -> bool:
    """Return whether a term is sum_k exp(x[k] - max_j x[j]): the largest x contributes one."""
    if term.kind != "reduce" or term.data[0] != "sum":
        return False
    summed, power = term.data[1], term.children[0]
    if power.kind != "apply" or power.data != "exp":
        return False
    difference = power.children[0]
    if difference.kind != "apply" or difference.data != "sub":
        return False
    x, largest = difference.children
    if largest.kind != "reduce" or largest.data[0] != "max" or largest.free & frozenset(summed):
        return False
    over = largest.data[1]
    if [(known(i.low), length(i)) for i in over] != [(known(i.low), length(i)) for i in summed]:
        return False
    same: dict[Iterator | Symbol, Size] = {j: index(k) for j, k in zip(over, summed, strict=True)}
    return table.substitute(largest.children[0], same) is x
