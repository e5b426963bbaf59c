"""Monotone functions with one corner: max g(v) = g(max v) for g(v) = a + b v where v <= -c, and a' + b' v above."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from egraph.tensor.expr.index import Iterator
from verify.normal.algebra import add, plain
from verify.normal.choices import positive
from verify.normal.context import Context, negated, scaled, single
from verify.normal.naming import close, factor_text, free_iterators, value_text
from verify.normal.products import multiply
from verify.normal.signs import sign
from verify.normal.terms import Call, Element, Factor, Term, Value


@dataclass(frozen=True)
class Corner:
    """low[0] + low[1] v, plus step[0] + step[1] v where v + offset > 0; only v varies."""

    variable: Element
    offset: Value
    low: tuple[Value, Value]
    step: tuple[Value, Value]

    def text(self, context: Context) -> str:
        """Return a text that equal functions share, whatever their argument."""
        return "|".join(value_text(context, close(context, v)) for v in (self.offset, *self.low, *self.step))

    def rises(self, context: Context) -> bool:
        """Return whether the function is nondecreasing: on both sides of the corner and at it."""
        at_corner = add(context, self.step[0], negated(multiply(context, self.step[1], self.offset)))
        slopes = self.low[1], add(context, self.low[1], self.step[1])
        return all(sign(context, value) is not None for value in (*slopes, at_corner))

    def at(self, context: Context, value: Value) -> Value:
        """Return the function of a value."""
        low = add(context, self.low[0], multiply(context, self.low[1], value))
        step = add(context, self.step[0], multiply(context, self.step[1], value))
        return add(context, low, multiply(context, step, positive(context, add(context, value, self.offset))))


def corner_of(context: Context, value: Value, bound: frozenset[Iterator]) -> Corner | None:
    """Return a value as a function with one corner of the one element that varies with the iterators, else None."""
    variables: dict[str, Element] = {}
    tests: dict[str, Call] = {}
    for term in value.terms:
        if not plain(term):
            return None
        for factor in term.factors:
            if not free_iterators(context, factor) & bound:
                continue
            match factor:
                case Element():
                    variables[factor_text(context, factor)] = factor
                case Call("positive"):
                    tests[factor_text(context, factor)] = factor
                case _:
                    return None
    if len(tests) != 1 or len(variables) > 1:
        return None
    (test,) = tests.values()
    inner = test.arguments[0]
    leading = [t for t in inner.terms if free_iterators(context, Value((t,))) & bound]
    if len(leading) != 1 or leading[0].coefficient != 1 or not plain(leading[0]) or len(leading[0].factors) != 1:
        return None
    variable = leading[0].factors[0]
    if not isinstance(variable, Element) or (variables and factor_text(context, variable) not in variables):
        return None
    parts = _parts(context, value, factor_text(context, variable), factor_text(context, test))
    if parts is None:
        return None
    offset = add(context, inner, scaled(single(variable), Fraction(-1)))
    return Corner(variable, offset, (parts[0][0], parts[0][1]), (parts[1][0], parts[1][1]))


def _parts(context: Context, value: Value, variable: str, test: str) -> list[list[Value]] | None:
    """Return the coefficients of 1, v, [test] and v [test]; None if a higher power of v occurs."""
    terms: list[list[list[Term]]] = [[[], []], [[], []]]
    for term in value.terms:
        texts = [factor_text(context, f) for f in term.factors]
        power, tested = texts.count(variable), texts.count(test)
        if power > 1 or tested > 1:
            return None
        others: Sequence[Factor] = [f for f, text in zip(term.factors, texts, strict=True) if text not in (variable, test)]
        terms[tested][power].append(replace(term, factors=tuple(others)))
    return [[add(context, *(Value((t,)) for t in group)) for group in pair] for pair in terms]
