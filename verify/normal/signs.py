"""Known signs of values, and comparison of values that differ by an index or a number."""

from __future__ import annotations

import math

from egraph.tensor.expr.index import Index, Iterator, index
from egraph.tensor.expr.scope import Compare
from verify.normal.algebra import add, plain
from verify.normal.conditions import NOTHING
from verify.normal.context import Context, constant, negated
from verify.normal.naming import factor_text, value_text
from verify.normal.terms import Alternative, Call, Extremum, Factor, IndexFactor, Product, Term, Value


def filled(context: Context, iterator: Iterator) -> bool:
    """Return whether an iterator's range is known to be nonempty."""
    return context.decide(Compare(index(iterator.low), "<", index(iterator.high))) is True


def sign(context: Context, value: Value) -> int | None:
    """Return 1 for a value known to be positive, 0 for one known to be nonnegative, else None."""
    constant_value = constant(value)
    if constant_value is not None:
        return 1 if constant_value > 0 else (0 if constant_value == 0 else None)
    polynomial = index_polynomial(value)
    if polynomial is not None:
        if context.decide(Compare(NOTHING, "<", polynomial)):
            return 1
        return 0 if context.decide(Compare(NOTHING, "<=", polynomial)) else None
    signs = [_sign_of_term(context, term) for term in value.terms]
    return None if None in signs else max((s for s in signs if s is not None), default=0)


def _sign_of_term(context: Context, term: Term) -> int | None:
    if term.coefficient < 0:
        return None
    odd: dict[str, Factor] = {}
    squares = False
    for factor in term.factors:
        if type(factor) is not Call or factor.function not in ("exp", "sqrt"):
            text = factor_text(context, factor)
            if text in odd:
                del odd[text]
                squares = True
                continue
            odd[text] = factor
    signs = [sign_of_factor(context, factor) for factor in odd.values()]
    if None in signs:
        return None
    certain = not term.conditions and all(filled(context, i) for i in term.iterators)
    rooted = any(type(f) is Call and f.function == "sqrt" for f in term.factors)
    return 1 if certain and not squares and not rooted and all(signs) else 0


def sign_of_factor(context: Context, factor: Factor) -> int | None:
    """Return 1 for a factor known to be positive, 0 for one known to be nonnegative, else None."""
    match factor:
        case IndexFactor(value):
            if context.decide(Compare(NOTHING, "<", value)):
                return 1
            return 0 if context.decide(Compare(NOTHING, "<=", value)) else None
        case Call("exp") | Call("infinity"):
            return 1
        case Call("reciprocal", (inner,)):
            return 1 if sign(context, inner) == 1 else None
        case Call("sqrt" | "positive" | "zero"):
            return 0
        case Call("pow", (base, _)):
            return sign(context, base)
        case Extremum("max", alternatives):
            signs = [
                sign(context, a.value)
                for a in alternatives
                if not a.conditions and all(filled(context, i) for i in a.iterators)
            ]
            return max((s for s in signs if s is not None), default=0 if _is_magnitude(context, alternatives) else None)
        case Product(_, _, value):
            return sign(context, value)
    return None


def _is_magnitude(context: Context, alternatives: tuple[Alternative, ...]) -> bool:
    """Return whether one of the alternatives is the negative of another: max(v, -v) = |v|."""
    plainly = [alternative.value for alternative in alternatives if not alternative.iterators and not alternative.conditions]
    texts = {value_text(context, value) for value in plainly}
    return any(value_text(context, negated(value)) in texts for value in plainly)


def index_polynomial(value: Value) -> Index | None:
    """Return a positive multiple of a value that consists of indices only, as one index; else None."""
    common = math.lcm(*(term.coefficient.denominator for term in value.terms))
    total = NOTHING
    for term in value.terms:
        if not plain(term):
            return None
        product = index(int(term.coefficient * common))
        for factor in term.factors:
            if type(factor) is not IndexFactor:
                return None
            product = product * factor.value
        total = total + product
    return total


def split_offset(value: Value) -> tuple[Value, Value]:
    """Split a value into its part that varies with data and a sum of indices and numbers; without data, split off only the number."""
    indices = [t for t in value.terms if plain(t) and all(type(f) is IndexFactor for f in t.factors)]
    if len(indices) == len(value.terms):
        indices = [t for t in indices if not t.factors]
    return Value(tuple(t for t in value.terms if t not in indices)), Value(tuple(indices))


def above(context: Context, left: Value, right: Value) -> int | None:
    """Return 1 if left > right is known, 0 if left >= right is known, else None."""
    return sign(context, add(context, left, negated(right)))
