"""Maxima in canonical form: flattened, without alternatives that cannot be the largest, with common parts moved outside.

Common terms, common factors and monotone functions are moved outside of a maximum.
A minimum is the negative of a maximum of negatives. In the second pass a maximum of plain values is written with
conditions on data, max(a, b) = b + (a - b) [a - b > 0], so that it can match ``where`` and ``abs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from egraph.tensor.expr.index import Iterator
from egraph.tensor.expr.scope import Compare
from verify.normal.algebra import add, guarded, only_term, plain
from verify.normal.choices import Build, is_infinity, positive, split, under
from verify.normal.conditions import Conditions, conjunction, negation
from verify.normal.context import Context, negated, number, scaled, single
from verify.normal.monotone import corner_of
from verify.normal.naming import close, condition_text, free_iterators, named, rename_condition, rename_term, value_text
from verify.normal.products import content, exponential, multiply, product_of, reciprocal, shared_factors, without
from verify.normal.signs import filled, sign, sign_of_factor
from verify.normal.terms import INFINITY, Alternative, Call, Extremum, Factor, Term, Value

INCREASING = frozenset({"log", "sqrt", "tanh", "erf", "floor", "round"})
FEW = 3
"""Most plain values whose maximum is written with conditions on data."""
MANY = 8
"""Most alternatives that are compared with each other."""


@dataclass(frozen=True)
class Candidate:
    """An alternative under construction: its iterators have fresh names, and its value is not closed."""

    iterators: tuple[Iterator, ...]
    conditions: Conditions
    value: Value
    filled: tuple[Iterator | Compare, ...] = ()
    """Iterators, and conditions on them, that some point is known to satisfy together."""


def maximum(context: Context, values: Sequence[Value]) -> Value:
    """max(values)"""
    return split(
        context, values, lambda given: largest(context, [c for value in given for c in candidates(context, value)])
    )


def minimum(context: Context, values: Sequence[Value]) -> Value:
    """min(values) = -max(-values)"""
    return negated(maximum(context, [negated(value) for value in values]))


def candidates(context: Context, value: Value) -> list[Candidate]:
    """Return alternatives whose maximum is the value: those of a maximum inside it, with the surrounding factors and summands applied."""
    if _is_lowest(value):
        return []
    inside: tuple[Term, Extremum] | None = None
    for term in value.terms:
        for factor in term.factors:
            if type(factor) is Extremum and plain(term) and term.coefficient > 0:
                others = [f for f in term.factors if f is not factor]
                if all(type(f) is not Extremum and sign_of_factor(context, f) is not None for f in others):
                    if inside is not None:
                        return [Candidate((), (), value)]
                    inside = term, factor
    if inside is None:
        return [Candidate((), (), value)]
    term, extremum = inside
    around = Value(tuple(t for t in value.terms if t is not term))
    scale = Value((Term(term.coefficient, (), (), tuple(f for f in term.factors if f is not extremum)),))
    result = []
    for alternative in extremum.alternatives:
        opened = _opened(context, alternative)
        result.append(replace(opened, value=add(context, multiply(context, scale, opened.value), around)))
    return result


def _opened(context: Context, alternative: Alternative) -> Candidate:
    mapping = {i: context.fresh(i) for i in alternative.iterators}
    terms = tuple(rename_term(context, t, mapping) for t in alternative.value.terms) if mapping else alternative.value.terms
    return Candidate(
        tuple(mapping.values()), tuple(rename_condition(context, c, mapping) for c in alternative.conditions), Value(terms)
    )


def largest(context: Context, given: Sequence[Candidate]) -> Value:
    """Return the maximum of alternatives over their iterators; the empty maximum is minus infinity."""
    outside: dict[str, Compare] = {}
    for candidate in given:
        for condition in candidate.conditions:
            if not free_iterators(context, condition) & set(candidate.iterators):
                outside[condition_text(condition)] = condition
    if outside:
        test = outside[min(outside)]
        opposite = negation(test)
        return add(
            context,
            guarded(context, (test,), largest(context, _where(context, given, test))),
            guarded(context, (opposite,), largest(context, _where(context, given, opposite))),
        )
    parts: list[Candidate] = []
    for candidate in given:
        parts += _divided(context, trimmed(context, candidate))
    for candidate in parts:
        for term in candidate.value.terms:
            bound = {*term.iterators, *candidate.iterators}
            for condition in term.conditions:
                if not free_iterators(context, condition) & bound:
                    opposite = negation(condition)
                    return add(
                        context,
                        guarded(context, (condition,), largest(context, _where(context, parts, condition))),
                        guarded(context, (opposite,), largest(context, _where(context, parts, opposite))),
                    )
    kept = _without_absorbed(context, parts)
    if not kept:
        return scaled(single(Call(INFINITY, ())), Fraction(-1))
    if len(kept) == 1 and not kept[0].iterators:
        return kept[0].value
    return _bounded(context, kept) or _cornered(context, kept) or _monotone(context, kept)


def trimmed(context: Context, candidate: Candidate) -> Candidate:
    """Return the alternative without iterators over nonempty ranges on which nothing depends."""
    used: set[Iterator] = set(free_iterators(context, candidate.value))
    mentions = [(c, free_iterators(context, c)) for c in candidate.conditions]
    for condition, mentioned in mentions:
        if condition not in candidate.filled:
            used |= mentioned
    while (more := used.union(*(m for _, m in mentions if m & used & set(candidate.iterators)))) != used:
        used = more
    idle = {i for i in candidate.iterators if i not in used and (i in candidate.filled or _is_idle(context, i, mentions))}
    if not idle:
        return candidate
    conditions = tuple(c for c, mentioned in mentions if not mentioned & idle)
    return replace(candidate, iterators=tuple(i for i in candidate.iterators if i not in idle), conditions=conditions)


def _is_idle(context: Context, iterator: Iterator, mentions: list[tuple[Compare, frozenset[Iterator]]]) -> bool:
    return filled(context, iterator) and not any(iterator in mentioned for _, mentioned in mentions)


def flattened(context: Context, given: Sequence[Candidate]) -> list[Candidate]:
    """Return the alternatives with maxima inside their values expanded."""
    result = []
    for candidate in given:
        for inner in candidates(context, candidate.value):
            conditions = conjunction(context, (*candidate.conditions, *inner.conditions))
            if conditions is not None:
                result.append(Candidate((*candidate.iterators, *inner.iterators), conditions, inner.value, candidate.filled))
    return result


def _where(context: Context, given: Sequence[Candidate], test: Compare) -> list[Candidate]:
    """Return the alternatives simplified under a condition that holds."""
    alone = conjunction(context, (test,))
    result = []
    for candidate in given:
        if conjunction(context, (*candidate.conditions, test)) is None:
            continue
        kept = tuple(c for c in candidate.conditions if conjunction(context, (c, test)) != alone)
        result.append(replace(candidate, conditions=kept, value=under(context, candidate.value, test)))
    return result


def _divided(context: Context, candidate: Candidate) -> list[Candidate]:
    """Move the conditions of the value's terms that mention the alternative's iterators to the alternative."""
    for term in candidate.value.terms:
        for condition in term.conditions:
            mentioned = free_iterators(context, condition)
            if mentioned & set(candidate.iterators) and not mentioned & set(term.iterators):
                result = []
                for test in (condition, negation(condition)):
                    conditions = conjunction(context, (*candidate.conditions, test))
                    if conditions is not None:
                        result += _divided(context, Candidate(candidate.iterators, conditions, under(context, candidate.value, test)))
                return result
    return [] if _is_lowest(candidate.value) else [candidate]


def _is_lowest(value: Value) -> bool:
    term = only_term(value)
    return term is not None and plain(term) and term.coefficient < 0 and len(term.factors) == 1 and is_infinity(term.factors[0])


def _key(context: Context, candidate: Candidate) -> str:
    return named(context, candidate.iterators, (*candidate.conditions, Call("=", (close(context, candidate.value),))))[2]


def _without_absorbed(context: Context, given: Sequence[Candidate]) -> list[Candidate]:
    """Return the alternatives in canonical order, without repeated ones and those that another one always equals or exceeds."""
    by_key = {_key(context, candidate): candidate for candidate in given}
    ordered = [by_key[key] for key in sorted(by_key)]
    still = [candidate for candidate in ordered if not candidate.iterators]
    if len(still) > MANY or (len(still) < 2 and len(ordered) == len(still)):
        return ordered
    dropped: set[int] = set()
    for candidate in still:
        for rival in still:
            if candidate is rival or id(rival) in dropped or id(candidate) in dropped:
                continue
            lead = add(context, rival.value, negated(candidate.value))
            if sign(context, lead) is not None or _below(context, candidate.value, rival.value):
                dropped.add(id(candidate))
    return [candidate for candidate in ordered if id(candidate) not in dropped]


def _below(context: Context, value: Value, bound: Value) -> bool:
    """Return whether the value is a minimum and the bound is one of its alternatives."""
    if not any(type(f) is Extremum and t.coefficient < 0 for t in value.terms for f in t.factors):
        return False
    goal = value_text(context, close(context, negated(bound)))
    inner = candidates(context, negated(value))
    return any(not candidate.iterators and value_text(context, close(context, candidate.value)) == goal for candidate in inner)


def _bounded(context: Context, given: list[Candidate]) -> Value | None:
    """max min(v, b) = min(max v, b) for a bound b that does not vary, if every alternative has it."""
    if not any(candidate.iterators for candidate in given):
        return None
    lower: list[dict[str, Candidate]] = []
    for candidate in given:
        if not any(type(f) is Extremum and t.coefficient < 0 for t in candidate.value.terms for f in t.factors):
            return None
        parts = candidates(context, negated(candidate.value))
        lower.append({_key(context, part): part for part in parts})
    bound = {i for candidate in given for i in candidate.iterators}
    shared = set(lower[0]).intersection(*lower[1:])
    fixed = [key for key in sorted(shared) if not lower[0][key].iterators and not free_iterators(context, lower[0][key].value) & bound]
    if not fixed or any(len(parts) == len(fixed) for parts in lower):
        return None
    remaining = [
        replace(candidate, value=negated(largest(context, [part for key, part in parts.items() if key not in fixed])))
        for candidate, parts in zip(given, lower, strict=True)
    ]
    return minimum(context, [largest(context, flattened(context, remaining)), *(negated(lower[0][key].value) for key in fixed)])


def _cornered(context: Context, given: list[Candidate]) -> Value | None:
    """max g(v) = g(max v) for a nondecreasing function with one corner."""
    corners = []
    for candidate in given:
        corner = corner_of(context, candidate.value, frozenset(candidate.iterators)) if candidate.iterators else None
        if corner is None:
            return None
        corners.append(corner)
    if len({corner.text(context) for corner in corners}) != 1 or not corners[0].rises(context):
        return None
    inner = largest(context, [replace(candidate, value=single(c.variable)) for candidate, c in zip(given, corners, strict=True)])
    return corners[0].at(context, inner)


def _monotone(context: Context, given: list[Candidate]) -> Value:
    """max f(v) = f(max v) for an increasing f, f(min v) for a decreasing one, and likewise for -f."""
    factors: list[tuple[Call, ...]] = []
    signs: set[Fraction] = set()
    for candidate in given:
        term = only_term(candidate.value)
        if term is None or not plain(term) or abs(term.coefficient) != 1 or not term.factors:
            return _translated(context, given)
        calls = tuple(f for f in term.factors if type(f) is Call)
        if len(calls) < len(term.factors):
            return _translated(context, given)
        factors.append(calls)
        signs.add(term.coefficient)
    if len(signs) > 1:
        return _translated(context, given)
    outer = signs.pop()

    def inside(arguments: Sequence[Value], *, increasing: bool, build: Build) -> Value:
        """outer * f(max arguments or min arguments)"""
        turn = Fraction(1 if increasing == (outer > 0) else -1)
        inner = [replace(candidate, value=scaled(argument, turn)) for candidate, argument in zip(given, arguments, strict=True)]
        return scaled(split(context, (scaled(largest(context, inner), turn),), build), outer)

    if all(f.function == "exp" for calls in factors for f in calls):
        exponents = [add(context, *(f.arguments[0] for f in calls)) for calls in factors]
        return inside(exponents, increasing=True, build=lambda v: exponential(context, v[0]))
    names = {calls[0].function for calls in factors}
    if any(len(calls) != 1 or len(calls[0].arguments) != 1 for calls in factors) or len(names) != 1:
        return _translated(context, given)
    arguments = [calls[0].arguments[0] for calls in factors]
    name = names.pop()
    if name in INCREASING:
        return inside(arguments, increasing=True, build=lambda v: single(Call(name, (close(context, v[0]),))))
    if name == "reciprocal" and all(sign(context, argument) == 1 for argument in arguments):
        return inside(arguments, increasing=False, build=lambda v: reciprocal(context, v[0]))
    return _translated(context, given)


def _translated(context: Context, given: list[Candidate]) -> Value:
    """max(v + c) = max(v) + c and max(p v) = p max(v) for a positive p."""
    base = _base(context, given)
    if base.terms:
        given = [replace(candidate, value=add(context, candidate.value, negated(base))) for candidate in given]
        if len(given) > 1 or given[0].iterators:
            return add(context, largest(context, given), base)
    scale, factors = _scale(context, given)
    if scale != 1 or factors:
        out = scaled(product_of(context, factors), scale)
        divided = [replace(candidate, value=_divided_by(context, candidate.value, scale, factors)) for candidate in given]
        return multiply(context, out, largest(context, divided))
    still = [candidate for candidate in given if not candidate.iterators]
    if context.resolving and len(given) > 1 and 0 < len(still) <= FEW:
        moving = [candidate for candidate in given if candidate.iterators]
        result = largest(context, moving) if moving else still.pop().value
        for candidate in still:
            difference = add(context, result, negated(candidate.value))
            result = add(context, candidate.value, multiply(context, difference, positive(context, _direction(context, difference))))
        return result
    return single(_extremum(context, given))


def _direction(context: Context, value: Value) -> Value:
    """Return d with value = p d for a nonnegative p, so that value [value > 0] = value [d > 0]."""
    if not value.terms:
        return value
    coefficient, factors, cofactor = content(context, value)
    result = number(1 if coefficient > 0 else -1)
    if sign(context, cofactor) is None:
        opposite = sign(context, negated(cofactor)) is not None
        result = negated(result) if opposite else multiply(context, result, cofactor)
    for factor in factors:
        if sign_of_factor(context, factor) is None:
            result = multiply(context, result, single(factor))
    return result


def _base(context: Context, given: list[Candidate]) -> Value:
    """Return terms to subtract from all alternatives: those that all share, or those of the first that do not vary within it."""
    moving = [candidate for candidate in given if candidate.iterators]
    if moving:
        fixed: list[tuple[str, Value]] = []
        for candidate in moving:
            bound = set(candidate.iterators)
            varying: list[Term] = []
            still: list[Term] = []
            for term in candidate.value.terms:
                (varying if free_iterators(context, Value((term,))) & bound else still).append(term)
            key = _key(context, replace(candidate, value=Value(tuple(varying))))
            fixed.append((key, Value(tuple(still))))
        return min(fixed, key=lambda pair: pair[0])[1]
    texts = [{value_text(context, close(context, Value((t,)))): t for t in candidate.value.terms} for candidate in given]
    shared = set(texts[0]).intersection(*texts[1:])
    return Value(tuple(texts[0][text] for text in sorted(shared)))


def _scale(context: Context, given: list[Candidate]) -> tuple[Fraction, list[Factor]]:
    """Return the positive number and the positive factors that all terms of all alternatives share."""
    terms = [(candidate, t) for candidate in given for t in candidate.value.terms]
    if not terms:
        return Fraction(1), []
    keyed = min(((_key(context, replace(candidate, value=Value((replace(t, coefficient=Fraction(1)),)))), abs(t.coefficient))
                 for candidate, t in terms))  # fmt: skip
    products = []
    for candidate, term in terms:
        bound = {*candidate.iterators, *term.iterators}
        products.append([f for f in term.factors if sign_of_factor(context, f) is not None and not free_iterators(context, f) & bound])
    return keyed[1], shared_factors(context, products)


def _divided_by(context: Context, value: Value, scale: Fraction, factors: list[Factor]) -> Value:
    rests = (replace(t, coefficient=t.coefficient / scale, factors=without(context, t.factors, factors)) for t in value.terms)
    return Value(tuple(rests))


def _extremum(context: Context, given: list[Candidate]) -> Extremum:
    keyed: dict[str, Alternative] = {}
    for candidate in given:
        value = close(context, candidate.value)
        iterators, mapping, key = named(context, candidate.iterators, (*candidate.conditions, Call("=", (value,))), "max")
        conditions = tuple(rename_condition(context, c, mapping) for c in candidate.conditions)
        renamed = Value(tuple(rename_term(context, t, mapping) for t in value.terms)) if mapping else value
        keyed[key] = Alternative(iterators, conditions, renamed)
    return Extremum("max", tuple(keyed[key] for key in sorted(keyed)))
