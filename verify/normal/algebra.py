"""Linear arithmetic of values: sums with like terms merged, guards, summation over iterators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from egraph.tensor.expr.index import Iterator
from egraph.tensor.expr.scope import Compare
from verify.normal.conditions import Conditions, conjunction, negation
from verify.normal.context import LARGEST, ZERO, Context, TooLarge
from verify.normal.naming import blind_key, close_term, condition_text, factor_text, free_iterators, rename_term
from verify.normal.terms import Factor, Term, Value


def add(context: Context, *values: Value) -> Value:
    """Return the sum of values, with like terms merged."""
    filled = [value for value in values if value.terms]
    if len(filled) < 2:
        return filled[0] if filled else ZERO
    return collect(context, [term for value in filled for term in value.terms])


def collect(context: Context, terms: Sequence[Term]) -> Value:
    """Return the sum of terms, with equal terms merged, zeros dropped, and [c] t + [not c] t = t applied."""
    if len(terms) < 2:
        return Value(tuple(t for t in terms if t.coefficient))
    if len(terms) > LARGEST:
        raise TooLarge(f"a sum of {len(terms)} terms", fix="prove the rule for smaller attribute values")
    groups: dict[str, list[Term]] = {}
    for term in terms:
        groups.setdefault(blind_key(context, term), []).append(term)
    merged: list[Term] = []
    for group in groups.values():
        merged += group if len(group) == 1 else _merged(context, group)
    return Value(tuple(_without_complements(context, [t for t in merged if t.coefficient])))


def _merged(context: Context, group: list[Term]) -> list[Term]:
    """Merge terms that are equal up to the names of their iterators."""
    totals: dict[str, Term] = {}
    for term in group:
        key = close_term(context, term)[1] if term.iterators else ""  # without iterators, the key up to renaming is exact
        total = totals.get(key)
        totals[key] = term if total is None else replace(total, coefficient=total.coefficient + term.coefficient)
    return list(totals.values())


def _without_complements(context: Context, terms: list[Term]) -> list[Term]:
    """[c] t + [not c] t = t"""
    if sum(bool(term.conditions) for term in terms) < 2:
        return terms
    groups: dict[object, list[Term]] = {}
    for term in terms:
        factors = sorted(factor_text(context, f) for f in term.factors)
        groups.setdefault((term.coefficient, tuple(i.name for i in term.iterators), *factors), []).append(term)
    if len(groups) == len(terms):
        return terms
    changed: dict[int, Term | None] = {}
    for group in groups.values():
        left = list(group)
        while (pair := _complement(left)) is not None:
            first, second, conditions = pair
            kept = conjunction(context, conditions)
            changed[id(second)] = None
            left.remove(second)
            joined = replace(first, conditions=kept or ())
            changed[id(first)] = joined
            left[left.index(first)] = joined
    result = []
    for term in terms:
        now: Term | None = term
        while now is not None and id(now) in changed:
            now = changed[id(now)]
        if now is not None:
            result.append(now)
    return result


def _complement(terms: list[Term]) -> tuple[Term, Term, Conditions] | None:
    """Find two terms whose conditions differ only in one condition, which is negated in the other term."""
    for position, first in enumerate(terms):
        mine = set(first.conditions)
        for second in terms[position + 1 :]:
            only, only_second = mine - set(second.conditions), set(second.conditions) - mine
            if len(only) == len(only_second) == 1 and negation(next(iter(only))) in only_second:
                return first, second, tuple(c for c in first.conditions if c not in only)
    return None


def guarded(context: Context, conditions: Iterable[Compare], value: Value) -> Value:
    """[conditions] value"""
    conditions = tuple(conditions)
    result = []
    for term in value.terms:
        kept = conjunction(context, (*term.conditions, *conditions))
        if kept is not None:
            result.append(replace(term, conditions=kept))
    return Value(tuple(result))


def pieces(context: Context, conditions: Sequence[Compare]) -> list[Conditions]:
    """Return disjoint conjunctions whose union is the complement of the conjunction of all conditions: [not a], [a, not b], ..."""
    result = []
    for position, last in enumerate(conditions):
        kept = conjunction(context, (*conditions[:position], negation(last)))
        if kept is not None:
            result.append(kept)
    return result


def bind(iterators: Sequence[Iterator], value: Value) -> Value:
    """Sum a value over iterators that are free in it."""
    return Value(tuple(replace(term, iterators=(*iterators, *term.iterators)) for term in value.terms))


def apart(context: Context, left: Term, right: Term) -> Term:
    """Return the right term renamed so that it shares no names with the left term."""
    used = {i.name for i in left.iterators}
    if not any(i.name in used for i in right.iterators):
        return right
    return rename_term(context, right, {i: context.fresh(i) for i in right.iterators})


def unused(context: Context, term: Term) -> list[Iterator]:
    """Return the term's iterators that neither its conditions nor its factors mention."""
    used: set[Iterator] = set()
    for part in (*term.conditions, *term.factors):
        used |= free_iterators(context, part)
    return [i for i in term.iterators if i not in used]


def only_term(value: Value) -> Term | None:
    """Return the term of a value that has exactly one, else None."""
    return value.terms[0] if len(value.terms) == 1 else None


def plain(term: Term) -> bool:
    """Return whether a term has neither iterators nor conditions."""
    return not term.iterators and not term.conditions


def with_factors(coefficient: Fraction, factors: Sequence[Factor]) -> Value:
    """coefficient * factors"""
    return Value((Term(coefficient, (), (), tuple(factors)),)) if coefficient else ZERO


def ordered(value: Value, context: Context) -> Value:
    """Return a value with its terms, conditions and factors in canonical order."""
    terms = []
    for term in value.terms:
        factors = tuple(sorted(term.factors, key=lambda f: factor_text(context, f)))
        terms.append(replace(term, factors=factors, conditions=tuple(sorted(term.conditions, key=condition_text))))
    return Value(tuple(sorted(terms, key=lambda t: (blind_key(context, t), t.coefficient))))
