"""The needs of partial functions: conditions on divisors, roots, logarithms and infinities, and where they arise.

``x = exp(log(x))`` holds wherever its right side is defined, but the right side is NaN for every x below zero. The needs of a scope
are therefore recorded when it applies the function, before any law simplifies the result: sqrt(x) sqrt(x) needs x >= 0 although it
is x. A branch has needs only where it is taken, so an application is recorded with the conditions, on indices and on data, under
which its value contributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Iterator as Stream
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from egraph.tensor.expr.scope import Compare
from verify.normal.choices import data_condition, index_condition, settled, truth, under
from verify.normal.conditions import conjunction, negation
from verify.normal.context import Context, TooLarge, constant, negated, scaled, single
from verify.normal.naming import close, value_text
from verify.normal.products import content
from verify.normal.signs import sign
from verify.normal.terms import INFINITY, Alternative, Call, Extremum, Value

PARTIAL = frozenset({"div", "reciprocal", "log", "sqrt", "pow"})
"""Functions that have no value for some arguments."""
WITH_INFINITIES = frozenset({"add", "sub", "mul", "div", "sum", "prod"})
"""Functions and reductions that may turn infinities into NaN: inf - inf and 0 * inf are NaN even if they cancel algebraically."""
MOST_WAYS = 32
"""Most conjunctions of conditions that lead to one application."""
Test: TypeAlias = tuple[Compare | Call, bool]
"""A condition on indices or on data, and whether it holds."""
Way: TypeAlias = frozenset[Test]


@dataclass(frozen=True)
class Need:
    """A requirement on ``value`` (``kind``) where ``given`` holds: nonzero, positive, no negative radicand, a defined power, or no NaN.

    Free iterators that are not the output's take all values of their ranges. ``parts``: if there are any, it suffices that all
    of them meet the requirement. ``alone``: the one part that meets it whenever the value does, because the others are positive.
    """

    kind: str
    value: Value
    parts: tuple[Value, ...] = ()
    alone: Value | None = None
    settled: bool = False
    """Whether the value meets the requirement by its form."""
    given: Way = frozenset()


def note(context: Context, function: str, arguments: Sequence[Value]) -> None:
    """Record the needs of a function applied to arguments."""
    assert context.ways is not None
    for way, values in _cases(context, tuple(arguments)):
        ways = [joint for each in context.ways if (joint := _joint(each, way)) is not None]
        for kind, value in _asked(context, function, values):
            for need in _needed(context, kind, value):
                context.needs += [replace(need, given=given) for given in ways]


@contextmanager
def taken(context: Context, ways: Iterable[Way]) -> Stream[None]:
    """Within the context, record needs as arising under one of the conjunctions."""
    before = context.ways
    if before is not None:
        choices = tuple(ways)
        joints = dict.fromkeys(j for way in before for choice in choices if (j := _joint(way, choice)) is not None)
        if len(joints) > MOST_WAYS:
            raise TooLarge(f"branches of more than {MOST_WAYS} conditions", fix="prove the rule for smaller attribute values")
        context.ways = tuple(joints)
    try:
        yield
    finally:
        context.ways = before


def holding(conditions: Iterable[Compare]) -> Way:
    """Return a conjunction of conditions on indices."""
    return frozenset((condition, True) for condition in conditions)


def ways_to(context: Context, test: Value, *, truthful: bool) -> list[Way]:
    """Return the conjunctions under which a test is nonzero if ``truthful``, else those under which it is zero."""
    ways = []
    for way, (value,) in _cases(context, (truth(context, test),)):
        constant_value = constant(value)
        if constant_value is None:
            raise TooLarge("a condition that is no sum of conditions", fix="state the rule with plain comparisons")
        if (constant_value != 0) == truthful:
            ways.append(way)
    return ways


def _joint(first: Way, second: Way) -> Way | None:
    """Return the conjunction of two; None if they exclude each other."""
    joint = first | second
    return None if any((test, not holds) in joint for test, holds in joint) else joint


def _cases(context: Context, values: tuple[Value, ...], way: Way = frozenset()) -> Stream[tuple[Way, tuple[Value, ...]]]:
    """Yield the values free of conditions, each with the conjunction under which it holds."""
    if len(way) > MOST_WAYS:
        raise TooLarge(f"a function over more than {MOST_WAYS} conditions", fix="prove the rule for smaller attribute values")
    test = index_condition(context, values, frozenset())
    if test is not None:
        for now, holds in ((test, True), (negation(test), False)):
            if conjunction(context, (now,)) is not None:
                yield from _cases(context, tuple(under(context, value, now) for value in values), way | {(test, holds)})
        return
    atom = data_condition(context, values, frozenset())
    if atom is None:
        yield way, values
        return
    for holds in (True, False):
        yield from _cases(context, tuple(settled(context, value, atom, truth=holds) for value in values), way | {(atom, holds)})


def holds_infinity(context: Context, value: Value) -> bool:
    """Return whether an infinite constant occurs in a value."""
    return context.infinite and INFINITY in value_text(context, value)


def _asked(context: Context, function: str, arguments: Sequence[Value]) -> Stream[tuple[str, Value]]:
    last = arguments[-1]
    infinite = sum(holds_infinity(context, argument) for argument in arguments)
    if function in WITH_INFINITIES and infinite > (function in ("add", "sub")):
        operands = tuple(close(context, argument) for argument in arguments)
        if function in ("add", "mul"):
            operands = tuple(sorted(operands, key=lambda operand: value_text(context, operand)))
        yield "infinite", single(Call(function, operands))
    match function:
        case "div" | "reciprocal":
            yield "nonzero", last
        case "log":
            yield "positive", last
        case "sqrt":
            yield "root", last
        case "pow":
            exponent = constant(last)
            if exponent is None and not is_certainly(context, "positive", arguments[0]):
                yield "power", single(Call("pow", tuple(close(context, argument) for argument in arguments)))
            elif exponent is not None and exponent.denominator != 1:
                yield ("positive" if exponent < 0 else "root"), arguments[0]
            elif exponent is not None and exponent < 0:
                yield "nonzero", arguments[0]


def _needed(context: Context, kind: str, value: Value) -> Stream[Need]:
    """Yield the needs under which a value is of a kind; a product is nonzero if no factor is zero."""
    if kind == "infinite":
        yield Need(kind, value)
        return
    if is_certainly(context, kind, value):
        if constant(value) is None and sign(context, value) == 1:
            yield Need("positive", value, settled=True)
        return
    if kind == "power" or not value.terms:
        yield Need(kind, value)
        return
    if kind == "nonzero":
        yield from (Need(kind, part) for part in _factors(context, value))
        return
    coefficient, factors, cofactor = content(context, value)
    whole = scaled(value, 1 / abs(coefficient))
    if coefficient < 0:
        yield Need(kind, whole)
        return
    parts = [single(factor) for factor in factors] + ([] if constant(cofactor) is not None else [cofactor])
    unsettled = [part for part in parts if not is_certainly(context, "positive", part)]
    enough = tuple(part for part in parts if not is_certainly(context, kind, part))
    yield Need(kind, whole, enough, unsettled[0] if len(unsettled) == 1 else None)


def _factors(context: Context, value: Value) -> Stream[Value]:
    """Yield values that are all nonzero if and only if a value is: its factors, with max(x, -x) replaced by x and roots by radicands."""
    _, factors, cofactor = content(context, value)
    for factor in factors:
        match factor:
            case Call("reciprocal" | "exp", _):
                continue
            case Call("sqrt", (radicand,)):
                yield from _factors(context, radicand)
            case Extremum("max", (first, second)) if _opposite(context, first, second):
                yield from _factors(context, first.value)
            case _ if not is_certainly(context, "nonzero", single(factor)):
                yield single(factor)
    if constant(cofactor) is None:
        yield cofactor


def _opposite(context: Context, first: Alternative, second: Alternative) -> bool:
    """Return whether two alternatives are v and -v, so that their maximum is |v|."""
    if first.iterators or first.conditions or second.iterators or second.conditions:
        return False
    return value_text(context, close(context, first.value)) == value_text(context, close(context, negated(second.value)))


def is_certainly(context: Context, kind: str, value: Value) -> bool:
    """Return whether a value is of a kind by its form."""
    number = constant(value)
    if number is not None:
        return number >= 0 if kind == "root" else number != 0 if kind == "nonzero" else number > 0
    known_sign = sign(context, value)
    if kind == "nonzero":
        return known_sign == 1 or sign(context, negated(value)) == 1
    return known_sign is not None if kind == "root" else known_sign == 1
