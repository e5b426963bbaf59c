"""Conditions on data, signs, and functions over guarded values: f([c] a + [not c] b) = [c] f(a) + [not c] f(b)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from egraph.tensor.expr.index import Index, Iterator, index
from egraph.tensor.expr.scope import Compare
from verify.normal.algebra import add, guarded, only_term, plain
from verify.normal.conditions import conjunction, negation
from verify.normal.context import ONE, ZERO, Context, TooLarge, constant, negated, number, scaled, single
from verify.normal.naming import blind_key, close, condition_text, factor_text, free_iterators, value_text
from verify.normal.products import common_factors, divide_by, independent, multiply, split_constant, without
from verify.normal.signs import above, sign, sign_of_factor, split_offset
from verify.normal.terms import INFINITY, Call, Factor, IndexFactor, Term, Value

Build = Callable[[Sequence[Value]], Value]
DEEPEST = 12
"""Most conditions by which the arguments of one function are split."""


def split(
    context: Context, values: Sequence[Value], build: Build, inner: frozenset[Iterator] = frozenset(), depth: int = DEEPEST
) -> Value:
    """Return build(values), with the conditions that depend on no iterator of a sum or of ``inner`` moved outward."""
    test = index_condition(context, values, inner)
    if test is not None:
        if not depth:
            raise TooLarge(f"a function over more than {DEEPEST} conditions", fix="prove the rule for smaller attribute values")
        opposite = negation(test)
        return add(
            context,
            guarded(context, (test,), split(context, [under(context, v, test) for v in values], build, inner, depth - 1)),
            guarded(context, (opposite,), split(context, [under(context, v, opposite) for v in values], build, inner, depth - 1)),
        )
    atom = data_condition(context, values, inner)
    if atom is None:
        return build(values)
    if not depth:
        raise TooLarge(f"a function over more than {DEEPEST} conditions", fix="prove the rule for smaller attribute values")
    holds = single(atom)
    yes, no = (split(context, [settled(context, v, atom, truth=truth) for v in values], build, inner, depth - 1) for truth in (True, False))
    return add(context, no, multiply(context, holds, add(context, yes, negated(no))))


def index_condition(context: Context, values: Sequence[Value], inner: frozenset[Iterator]) -> Compare | None:
    """Return a condition on indices that depends on no iterator of the values' sums or of ``inner``; None if there is none."""
    tests: dict[str, Compare] = {}
    for value in values:
        for term in value.terms:
            bound = inner.union(term.iterators)
            for condition in term.conditions:
                if not free_iterators(context, condition) & bound:
                    tests[condition_text(condition)] = condition
    return tests[min(tests)] if tests else None


def data_condition(context: Context, values: Sequence[Value], inner: frozenset[Iterator]) -> Call | None:
    """Return a condition on data, a factor of the values, that depends on no iterator of their sums or of ``inner``; None if there is none.
    """
    tests: dict[str, Call] = {}
    for value in values:
        for term in value.terms:
            bound = inner.union(term.iterators)
            for factor in term.factors:
                if type(factor) is Call and factor.function in ("positive", "zero") and not free_iterators(context, factor) & bound:
                    tests[factor_text(context, factor)] = factor
    return tests[min(tests)] if tests else None


def under(context: Context, value: Value, test: Compare) -> Value:
    """Return the value simplified under a condition that holds."""
    alone = conjunction(context, (test,))
    terms = []
    for term in value.terms:
        if conjunction(context, (*term.conditions, test)) is None:
            continue
        kept = tuple(c for c in term.conditions if conjunction(context, (c, test)) != alone)
        terms.append(term if kept == term.conditions else replace(term, conditions=kept))
    return add(context, *(Value((term,)) for term in terms))


def settled(context: Context, value: Value, atom: Call, *, truth: bool) -> Value:
    """Return the value simplified under a known truth of a condition on data."""
    terms = []
    for term in value.terms:
        factors: list[Factor] = []
        for factor in term.factors:
            implied = _implied(context, factor, atom, truth=truth)
            if implied is False:
                break
            if implied is None:
                factors.append(factor)
        else:
            terms.append(Value((replace(term, factors=tuple(factors)),)))
    return add(context, *terms)


def _implied(context: Context, factor: Factor, atom: Call, *, truth: bool) -> bool | None:
    """Return the truth of a condition on data that atom == truth implies, else None. Both have the form v + c > 0 or v + c == 0."""
    if type(factor) is not Call or factor.function not in ("positive", "zero"):
        return None
    varying, offset = split_offset(atom.arguments[0])
    tested, shift = split_offset(factor.arguments[0])
    if value_text(context, varying) != value_text(context, tested):
        return None
    weaker, stronger = above(context, shift, offset), above(context, offset, shift)  # a larger offset makes a weaker condition
    same = weaker == stronger == 0
    match atom.function, truth, factor.function:
        case "positive", True, "positive":
            return True if weaker in (0, 1) else None
        case "positive", True, _:
            return False if weaker in (0, 1) else None
        case "positive", False, "positive":
            return False if stronger in (0, 1) else None
        case "positive", False, _:
            return False if stronger == 1 else None
        case "zero", True, "positive":
            return True if weaker == 1 else (False if stronger in (0, 1) else None)
        case "zero", True, _:
            return True if same else (False if 1 in (weaker, stronger) else None)
        case _:
            return False if factor.function == "zero" and same else None


_ODD = frozenset({"tanh", "erf", "reciprocal"})
"""Functions that have the sign of their argument."""


def positive(context: Context, value: Value) -> Value:
    """[value > 0]"""
    return split(context, (value,), lambda values: _positive(context, values[0]))


def zero(context: Context, value: Value) -> Value:
    """[value == 0]"""
    return split(context, (value,), lambda values: _zero(context, values[0]))


def _positive(context: Context, value: Value) -> Value:
    constant_value = constant(value)
    if constant_value is not None:
        return ONE if constant_value > 0 else ZERO
    if sign(context, value) == 1:
        return ONE
    if sign(context, negated(value)) is not None:
        return ZERO
    endless = [t for t in value.terms if plain(t) and len(t.factors) == 1 and is_infinity(t.factors[0])]
    if endless:
        context.use("finite")
        return ONE if endless[0].coefficient > 0 else ZERO
    simpler = _of_same_sign(context, value) or _without_floor(context, value)
    if simpler is not None:
        return positive(context, simpler)
    rounded = _without_round(context, value)
    if rounded is not None:
        return rounded
    canonical, flipped = _oriented(context, value)
    if constant(canonical) is not None:
        return _positive(context, canonical)
    atom = single(Call("positive", (close(context, canonical),)))
    if not flipped:
        return atom
    return add(context, ONE, negated(atom), negated(_zero(context, canonical)))


def _of_same_sign(context: Context, value: Value) -> Value | None:
    """Return a simpler value of the same sign: a tanh(b) / c for a product has the sign of a b c."""
    term = only_term(value)
    if term is None or not plain(term) or not any(type(f) is Call and f.function in _ODD for f in term.factors):
        return None
    result = scaled(ONE, term.coefficient)
    for factor in term.factors:
        inner = single(factor)
        if type(factor) is Call and factor.function in _ODD:
            inner = factor.arguments[0]
            if factor.function == "reciprocal":
                divide_by(context, factor)
        result = multiply(context, result, inner)
    return result


def _without_floor(context: Context, value: Value) -> Value | None:
    """[c - floor(v) > 0] = [ceil(c) - v > 0]"""
    varying, offset = split_constant(value)
    match varying.terms:
        case (Term(factor, (), (), (Call("floor", (inner,)),)),) if factor < 0:
            return add(context, number(math.ceil(offset / -factor)), negated(inner))
    return None


def _without_round(context: Context, value: Value) -> Value | None:
    """[round(v) >= m] = [v >= m - 1/2] for even m, [v > m - 1/2] for odd m, and likewise from above, because ties round to even"""
    varying, offset = split_constant(value)
    match varying.terms:
        case (Term(factor, (), (), (Call("round", (inner,)),)),):
            up = factor > 0
            bound = math.floor(-offset / factor) + 1 if up else math.ceil(offset / -factor) - 1
            half = Fraction(1, 2)
            room = add(context, inner, number(half - bound)) if up else add(context, number(bound + half), negated(inner))
            strict = positive(context, room)
            return strict if bound % 2 else add(context, strict, zero(context, room))
    return None


def _zero(context: Context, value: Value) -> Value:
    constant_value = constant(value)
    if constant_value is not None:
        return ZERO if constant_value else ONE
    if sign(context, value) == 1 or sign(context, negated(value)) == 1:
        return ZERO
    canonical, _ = _oriented(context, value)
    if constant(canonical) is not None:
        return _zero(context, canonical)
    return single(Call("zero", (close(context, canonical),)))


def is_infinity(factor: Factor) -> bool:
    """Return whether a factor is the constant infinity."""
    return type(factor) is Call and factor.function == INFINITY


def _oriented(context: Context, value: Value) -> tuple[Value, bool]:
    """Return a positive or negative multiple of the value with leading coefficient 1, and whether it is negative."""
    for _ in range(DEEPEST):  # v / d has the sign of v for a positive d
        divisor = _positive_divisor(context, value)
        if divisor is None:
            break
        value = multiply(context, value, divisor)
    common = [f for f in common_factors(context, value) if sign_of_factor(context, f) == 1]
    if common:
        value = Value(tuple(replace(t, factors=without(context, t.factors, common)) for t in value.terms))
    varying, _ = split_offset(value)
    if not varying.terms:
        return value, False
    leading = min(varying.terms, key=lambda t: blind_key(context, t)).coefficient
    return scaled(value, 1 / leading), leading < 0


def _positive_divisor(context: Context, value: Value) -> Value | None:
    for term in value.terms:
        for factor in independent(context, term):
            match factor:
                case Call("reciprocal", (divisor,)) if sign(context, divisor) == 1:
                    return divisor
    return None


def truth(context: Context, value: Value) -> Value:
    """[value != 0]; the value itself if it is a condition already"""
    if boolean(context, value):
        return value
    return add(context, ONE, negated(zero(context, value)))


def boolean(context: Context, value: Value) -> bool:
    """Return whether a value consists of conditions only and is always 0 or 1."""
    constant_value = constant(value)
    if constant_value is not None:
        return constant_value in (0, 1)
    atoms = all(
        not t.iterators and all(type(f) is Call and f.function in ("positive", "zero") for f in t.factors) for t in value.terms
    )
    return atoms and not add(context, multiply(context, value, value), negated(value)).terms


def choose(context: Context, condition: Value, then: Value, otherwise: Value) -> Value:
    """``then`` where the condition is not zero, else ``otherwise``"""
    test = truth(context, condition)
    return add(context, otherwise, multiply(context, test, add(context, then, negated(otherwise))))


def count(context: Context, low: Index, high: Index) -> Value:
    """Return the number of integers in [low, high) as a value; the range must not be reversed."""
    return index_number(context, high - low)


def index_number(context: Context, value: Index) -> Value:
    """Return an index as a sum of products of its atoms."""
    terms = []
    for monomial, coefficient in context.simplify(value).terms:
        terms.append(Term(Fraction(coefficient), (), (), tuple(IndexFactor(index(atom)) for atom in monomial)))
    return Value(tuple(terms))
