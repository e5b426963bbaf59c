"""Where partial functions are applied: the right side of a rule may not ask for more than its left side does.

``x = exp(log(x))`` holds wherever its right side is defined, and makes no number of every x below zero. So what a side asks of
its divisors, roots and logarithms is noted while it is brought into normal form, unless the form itself says that it is so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TypeAlias

from verify.normal.context import Context, constant, negated, scaled, single
from verify.normal.naming import factor_text, value_text
from verify.normal.products import content
from verify.normal.signs import sign
from verify.normal.terms import Extremum, Value

Need: TypeAlias = tuple[str, str, tuple[str, ...]]
"""What is asked, of what, and of which factors it is enough to ask it."""
TOLD = {
    "nonzero": "divides by {}, which may be zero", "positive": "takes the logarithm of {}, which may be negative",
    "root": "takes the root of {}, which may be negative", "power": "takes a power of {}, which may be negative",
}  # fmt: skip
IMPLIED_BY = {
    "nonzero": ("nonzero", "positive"), "positive": ("positive",), "root": ("root", "positive"), "power": ("power", "positive"),
}  # fmt: skip


def asked(context: Context, function: str, arguments: Sequence[Value]) -> Sequence[Value]:
    """Return the arguments; what a partial function asks of them is noted."""
    last = arguments[-1]
    match function:
        case "reciprocal" if not context.dividing:  # else it is a piece of a divisor that is positive as a whole
            _ask(context, "nonzero", last)
        case "log":
            _ask(context, "positive", last)
        case "sqrt":
            _ask(context, "root", last)
        case "pow":
            exponent = constant(last)
            if exponent is None:
                _ask(context, "power", arguments[0])
            elif exponent.denominator != 1:
                _ask(context, "root", arguments[0])
            if exponent is not None and exponent < 0:
                _ask(context, "nonzero", arguments[0])
    return arguments


def _ask(context: Context, kind: str, value: Value) -> None:
    if not value.terms or _known(context, kind, value):
        return
    coefficient, factors, rest = content(context, value)
    parts = [single(factor) for factor in factors] + ([] if constant(rest) is not None else [rest])
    if kind == "nonzero":
        parts = [part for each in parts for part in _parts_of_magnitude(context, each)]
    open_ = tuple(_text(context, part) for part in parts if not _known(context, kind, part))
    if kind == "nonzero" or coefficient > 0:
        whole = _text(context, scaled(value, 1 / coefficient))
        context.needs.add((kind, whole, open_))
    else:
        context.needs.add((kind, _text(context, scaled(value, -1 / coefficient)), ()))


def _parts_of_magnitude(context: Context, value: Value) -> list[Value]:
    """Return what is not zero exactly where a value is not: of a magnitude, max(x, -x), the factors of x; else the value itself."""
    factors = value.terms[0].factors if len(value.terms) == 1 else ()
    match factors:
        case (Extremum("max", (first, second)),) if not (first.iterators or first.conditions or second.iterators or second.conditions):
            if _text(context, first.value) == _text(context, negated(second.value)):
                _, inner, rest = content(context, first.value)
                return [single(factor) for factor in inner] + ([] if constant(rest) is not None else [rest])
    return [value]


def _known(context: Context, kind: str, value: Value) -> bool:
    number = constant(value)
    if number is not None:
        return number >= 0 if kind == "root" else number != 0 if kind == "nonzero" else number > 0
    found = sign(context, value)
    if kind == "nonzero":
        return found == 1 or sign(context, negated(value)) == 1
    return found is not None if kind == "root" else found == 1


def _text(context: Context, value: Value) -> str:
    """Return a value as text; which one of the iterators around it is meant is left open."""
    term = value.terms[0] if len(value.terms) == 1 else None
    plain = term is not None and not term.iterators and not term.conditions and len(term.factors) == 1 and term.coefficient == 1
    text = factor_text(context, term.factors[0]) if term is not None and plain else value_text(context, value)
    return re.sub(r"~\d+", "~", text)


def beyond(right: Collection[Need], left: Collection[Need], *, at_sizes: bool) -> str:
    """Return what the right side asks for and the left side does not, '' where there is nothing.

    At known sizes the sides are written in many ways, by phases and by digits, so that only the kind of what is asked is compared.
    """
    given = {(kind, whole) for kind, whole, _ in left}
    given |= {(kind, factor) for kind, _, factors in left for factor in factors if kind == "nonzero" or len(factors) == 1}

    def met(kind: str, text: str) -> bool:
        if at_sizes:
            return any(stronger == there for stronger in IMPLIED_BY[kind] for there, _ in given)
        return any((stronger, text) in given for stronger in IMPLIED_BY[kind])

    for kind, whole, factors in sorted(right):
        if not met(kind, whole) and not (factors and all(met(kind, factor) for factor in factors)):
            return f"the right side {TOLD[kind].format(whole)}, and the left side does not"
    return ""
