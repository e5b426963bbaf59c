"""Products of values and the laws between factors: exponentials add, roots pair up, reciprocals cancel, conditions on data combine.

A condition on data is a factor that is 0 or 1: ``positive(v)`` is [v > 0], ``zero(v)`` is [v == 0].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from verify.normal.algebra import add, apart, collect, only_term, plain, with_factors
from verify.normal.conditions import conjunction
from verify.normal.context import LARGEST, ONE, ZERO, Context, TooLarge, constant, negated, number, scaled, single
from verify.normal.naming import blind_key, close, factor_text, free_iterators, value_text
from verify.normal.signs import above, sign, split_offset
from verify.normal.terms import INFINITY, Call, Factor, Term, Value

MEETING = frozenset({"exp", "sqrt", "cos", "reciprocal", "positive", "zero", INFINITY})
"""Functions whose calls have laws with the other factors of a product."""
_REDUCTIONS = 6
"""Most reductions of one product by relations. Each reduction is correct, so stopping early only leaves more terms to pair."""


def multiply(context: Context, left: Value, right: Value) -> Value:
    """Return the product, distributed over both sums."""
    for value, partner in ((left, right), (right, left)):
        factor = constant(value)
        if factor is not None:
            return scaled(partner, factor)
    if len(left.terms) * len(right.terms) > LARGEST:
        raise TooLarge(f"a product of {len(left.terms)} by {len(right.terms)} terms", fix="prove the rule for smaller attribute values")
    result: list[Term] = []
    for a in left.terms:
        for b in right.terms:
            result += _times(context, a, apart(context, a, b)).terms
    return collect(context, result)


def _times(context: Context, a: Term, b: Term) -> Value:
    conditions = conjunction(context, (*a.conditions, *b.conditions)) if a.conditions and b.conditions else a.conditions + b.conditions
    if conditions is None:
        return ZERO
    coefficient, iterators = a.coefficient * b.coefficient, (*a.iterators, *b.iterators)
    factors = a.factors + b.factors
    if not (_meets(a.factors) or _meets(b.factors)):
        return Value((Term(coefficient, iterators, conditions, factors),))
    result = []
    for term in product_of(context, factors).terms:
        result.append(Term(coefficient * term.coefficient, (*iterators, *term.iterators), (*conditions, *term.conditions), term.factors))
    return Value(tuple(result))


def _meets(factors: Sequence[Factor]) -> bool:
    return any(type(f) is Call and f.function in MEETING for f in factors)


def product_of(context: Context, factors: Sequence[Factor], depth: int = _REDUCTIONS) -> Value:
    """Return the product of factors, with the laws between them applied."""
    exponents = [f.arguments[0] for f in factors if type(f) is Call and f.function == "exp"]
    if len(exponents) < 2:
        return _without_exponents(context, factors, depth)
    kept = [f for f in factors if not (type(f) is Call and f.function == "exp")]
    calls, others = _exponentials(context, add(context, *exponents))
    result = _without_exponents(context, (*kept, *calls), depth)
    for simpler in others:
        result = multiply(context, result, simpler)
    return result


def _without_exponents(context: Context, factors: Sequence[Factor], depth: int) -> Value:
    left = list(factors)
    texts = [factor_text(context, f) for f in left]
    for position, factor in enumerate(left):
        if type(factor) is not Call:
            continue
        match factor:
            case Call("reciprocal", (inner,)):
                term = only_term(inner)
                if term is None or not plain(term) or len(term.factors) != 1 or term.coefficient != 1:
                    continue
                text = factor_text(context, term.factors[0])
                if text in texts:
                    divide_by(context, factor)
                    return _without(context, left, (position, texts.index(text)), ONE, depth)
                if isinstance(term.factors[0], Call) and term.factors[0].function == "sqrt" and texts.count(texts[position]) > 1:
                    radicand = term.factors[0].arguments[0]
                    twin = texts.index(texts[position], position + 1)
                    return _without(context, left, (position, twin), reciprocal(context, radicand), depth)
            case Call("sqrt", (radicand,)) if texts.count(texts[position]) > 1:
                if constant(radicand) is None:
                    context.use("argument of a root not negative")
                return _without(context, left, (position, texts.index(texts[position], position + 1)), radicand, depth)
            case Call("cos", (angle,)) if texts.count(texts[position]) > 1:
                sine = single(Call("sin", (angle,)))
                by = add(context, ONE, negated(multiply(context, sine, sine)))
                return _without(context, left, (position, texts.index(texts[position], position + 1)), by, depth)
    checked = _conditions_on_data(context, left)
    if checked is None:
        return ZERO
    for position, factor in enumerate(checked if depth else ()):
        if type(factor) is Call and factor.function in ("reciprocal", "zero"):
            reduced = _reduced(context, checked, position, factor, depth)
            if reduced is not None:
                return reduced
        if type(factor) is Call and factor.function == "positive" and (squareless := _without_squares(context, checked, position, factor)):
            return product_of(context, squareless, depth - 1)
    return with_factors(Fraction(1), checked)


def _without(context: Context, factors: list[Factor], positions: tuple[int, ...], by: Value, depth: int) -> Value:
    """Return ``by`` times the factors at the other positions."""
    remaining = [f for k, f in enumerate(factors) if k not in positions]
    return multiply(context, product_of(context, remaining, depth), by)


def divide_by(context: Context, divisor: Call) -> None:
    """Record that a reciprocal was cancelled, unless its divisor cannot be zero."""
    inner = divisor.arguments[0]
    if factor_text(context, divisor) not in context.nonzero and 1 not in (sign(context, inner), sign(context, negated(inner))):
        context.use("nonzero divisor")


def split_constant(value: Value) -> tuple[Value, Fraction]:
    """Split a value into its varying part and a number."""
    varying = tuple(t for t in value.terms if not (plain(t) and not t.factors))
    return Value(varying), sum((t.coefficient for t in value.terms if plain(t) and not t.factors), Fraction(0))


def _conditions_on_data(context: Context, factors: list[Factor]) -> list[Factor] | None:
    """Drop conditions that others imply; return None if they exclude each other. All have the form v + c > 0 or v + c == 0."""
    atoms = [f for f in factors if type(f) is Call and f.function in ("positive", "zero")]
    if len(atoms) < 2:
        return factors
    distinct = {factor_text(context, atom): atom for atom in atoms}
    groups: dict[str, list[tuple[Value, Call]]] = {}
    for atom in distinct.values():
        varying, offset = split_offset(atom.arguments[0])
        groups.setdefault(value_text(context, varying), []).append((offset, atom))
    kept = dict(distinct)
    for group in groups.values():
        for position, (offset, atom) in enumerate(group):
            for other_offset, partner in group[:position]:
                if factor_text(context, atom) not in kept or factor_text(context, partner) not in kept:
                    continue
                implied = _meeting(context, offset, atom, other_offset, partner)
                if implied is None:
                    return None
                for redundant in implied:
                    del kept[factor_text(context, redundant)]
    return [f for f in factors if not (type(f) is Call and f.function in ("positive", "zero"))] + list(kept.values())


def _meeting(context: Context, offset: Value, atom: Call, other_offset: Value, partner: Call) -> list[Call] | None:
    """Return in a list the one of two conditions on one value that the other implies; None if they exclude each other."""
    if atom.function != partner.function:
        if atom.function == "positive":
            atom, partner, offset, other_offset = partner, atom, other_offset, offset
        if above(context, other_offset, offset) == 1:  # v == -offset and v > -other_offset
            return [partner]
        return None if above(context, offset, other_offset) in (0, 1) else []
    weaker, stronger = above(context, offset, other_offset), above(context, other_offset, offset)
    if weaker == stronger == 0:
        return [partner]
    if atom.function == "zero":
        return None if 1 in (weaker, stronger) else []
    if weaker in (0, 1):
        return [atom]
    return [partner] if stronger in (0, 1) else []


def _reduced(context: Context, factors: list[Factor], position: int, relation: Call, depth: int) -> Value | None:
    """Apply v * reciprocal(v) = 1 or v * zero(v) = 0 if the product contains the leading term of v."""
    inner = relation.arguments[0]
    if not all(plain(t) for t in inner.terms) or (relation.function == "reciprocal" and len(inner.terms) < 2):
        return None
    leading = max(inner.terms, key=lambda t: (len(t.factors), blind_key(context, t)))
    if not leading.factors:
        return None
    texts = [factor_text(context, f) for f in factors]
    taken: list[int] = []
    for factor in leading.factors:
        text = factor_text(context, factor)
        free = next((k for k, t in enumerate(texts) if t == text and k not in taken and k != position), None)
        if free is None:
            return None
        taken.append(free)
    others = [f for k, f in enumerate(factors) if k not in taken and k != position]
    remainder = Value(tuple(t for t in inner.terms if t is not leading))
    for_rest = ZERO
    for term in remainder.terms:
        for_rest = add(context, for_rest, scaled(product_of(context, (*term.factors, relation), depth - 1), term.coefficient))
    total = negated(for_rest) if relation.function == "zero" else add(context, ONE, negated(for_rest))
    if relation.function == "reciprocal":
        divide_by(context, relation)
    return multiply(context, product_of(context, others, depth - 1), scaled(total, 1 / leading.coefficient))


def _without_squares(context: Context, factors: list[Factor], position: int, relation: Call) -> list[Factor] | None:
    """f positive(f^2 v) = f positive(v); if f is zero, both sides are."""
    term = only_term(relation.arguments[0])
    if term is None or not plain(term) or len(term.factors) < 2:
        return None
    others = factors[:position] + factors[position + 1 :]
    outside = {factor_text(context, f) for f in others}
    left: dict[str, Factor] = {}
    squares = 0
    for factor in term.factors:
        text = factor_text(context, factor)
        if text in left and text in outside:
            del left[text]
            squares += 1
        elif text in left:
            return None
        else:
            left[text] = factor
    if not squares:
        return None
    value = Value((Term(term.coefficient, (), (), tuple(left.values())),))
    known_sign = sign(context, value)
    if known_sign != 1 and not left:
        return None
    return others if known_sign == 1 else [*others, Call("positive", (close(context, value),))]


def exponential(context: Context, value: Value) -> Value:
    """exp(a + b) = exp(a) exp(b), with one factor for each term; the value has no conditions to split by."""
    calls, others = _exponentials(context, value)
    result = with_factors(Fraction(1), calls)
    for simpler in others:
        result = multiply(context, result, simpler)
    return result


def _exponentials(context: Context, value: Value) -> tuple[list[Factor], list[Value]]:
    """Return the exponentials of the terms: those that stay, and those with a simpler form."""
    calls: list[Factor] = []
    simpler: list[Value] = []
    for term in value.terms:
        match term:
            case Term(coefficient, (), (), (Call("log", (inner,)),)) if coefficient.denominator == 1 and abs(coefficient) <= 4:
                context.use("positive argument of a logarithm")
                simpler.append(power(context, inner if coefficient > 0 else reciprocal(context, inner), abs(int(coefficient))))
            case Term(coefficient, (), (), (Call(function, ()),)) if function == INFINITY and coefficient < 0:
                simpler.append(ZERO)
            case _:
                calls.append(Call("exp", (close(context, Value((term,))),)))
    return calls, simpler


def power(context: Context, value: Value, exponent: int) -> Value:
    """value ** exponent for a small nonnegative exponent"""
    result = ONE
    for _ in range(exponent):
        result = multiply(context, result, value)
    return result


def content(context: Context, value: Value) -> tuple[Fraction, list[Factor], Value]:
    """Return (number, factors, rest) with value = number * factors * rest; the rest is the same for all multiples of the value."""
    if len(value.terms) > 1:
        exponent, value = _pivoted(context, value)
        pulled: list[Factor] = [f for t in exponent.terms for f in t.factors]
    else:
        pulled = []
    common = common_factors(context, value)
    if common:
        value = Value(tuple(replace(t, factors=without(context, t.factors, common)) for t in value.terms))
    leading = min(value.terms, key=lambda t: blind_key(context, t)) if len(value.terms) > 1 else value.terms[0]
    return leading.coefficient, [*pulled, *common], scaled(value, 1 / leading.coefficient)


def independent(context: Context, term: Term) -> list[Factor]:
    """Return the factors of a term that do not depend on its iterators."""
    if not term.iterators:
        return list(term.factors)
    return [f for f in term.factors if not free_iterators(context, f) & set(term.iterators)]


def common_factors(context: Context, value: Value) -> list[Factor]:
    """Return the factors that all terms share."""
    return shared_factors(context, [independent(context, term) for term in value.terms])


def shared_factors(context: Context, products: Sequence[list[Factor]]) -> list[Factor]:
    """Return the factors common to all products, with their least multiplicity."""
    common = products[0]
    for product in products[1:]:
        texts = [factor_text(context, f) for f in product]
        kept = []
        for factor in common:
            text = factor_text(context, factor)
            if text in texts:
                texts.remove(text)
                kept.append(factor)
        common = kept
    return common


def without(context: Context, factors: tuple[Factor, ...], gone: list[Factor]) -> tuple[Factor, ...]:
    texts = [factor_text(context, f) for f in gone]
    kept = []
    for factor in factors:
        text = factor_text(context, factor)
        if text in texts:
            texts.remove(text)
        else:
            kept.append(factor)
    return tuple(kept)


def _pivoted(context: Context, value: Value) -> tuple[Value, Value]:
    """Return (e, rest) with value = e * rest for an exponential e, chosen so that 1 + exp(-x) and exp(x) + 1 have the same rest."""
    exponents: dict[str, Value] = {}
    for term in value.terms:
        arguments = [f.arguments[0] for f in independent(context, term) if type(f) is Call and f.function == "exp"]
        total = add(context, *arguments)
        exponents[value_text(context, total)] = total
    if set(exponents) == {""} or len(exponents) > 8:
        return ONE, value
    best: tuple[int, str, Value, Value] | None = None
    for pivot in exponents.values():
        out = exponential(context, pivot)
        if len(out.terms) != 1 or not plain(out.terms[0]):
            continue
        quotient = multiply(context, exponential(context, negated(pivot)), value)
        text = value_text(context, close(context, quotient))
        if best is None or (len(text), text) < best[:2]:
            best = len(text), text, out, quotient
    return (ONE, value) if best is None else best[2:]


def reciprocal(context: Context, value: Value) -> Value:
    """1 / value, for a value without conditions to split by"""
    constant_value = constant(value)
    if constant_value is not None:
        return number(1 / constant_value) if constant_value else single(Call("reciprocal", (ZERO,)))
    coefficient, factors, cofactor = content(context, value)
    result = number(1 / coefficient)
    for factor in factors:
        result = multiply(context, result, _inverse(context, factor))
    if constant(cofactor) is None:
        call = Call("reciprocal", (close(context, cofactor),))
        if context.dividing:
            context.nonzero.add(factor_text(context, call))
        result = multiply(context, result, single(call))
    return result


def _inverse(context: Context, factor: Factor) -> Value:
    match factor:
        case Call("reciprocal", (inner,)):
            divide_by(context, factor)
            return inner
        case Call("exp", (exponent,)):
            return exponential(context, negated(exponent))
        case Call("sqrt", (radicand,)):
            constant_value = constant(radicand)
            if constant_value:
                return scaled(single(factor), 1 / constant_value)
    return single(Call("reciprocal", (close(context, single(factor)),)))
