"""Check that every need of a rule's right side is met by needs of its left side.

A need is met by a need of the same value, up to the names of iterators, or by one of which it is an instance: a need of y[j] for
all j meets the need of y[k - n] if k - n is in the range of j. The conditions of several needs may jointly cover those of one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from collections.abc import Iterator as Stream
from dataclasses import dataclass

from egraph.tensor.expr.index import Index, Iterator, Size, Symbol, index
from egraph.tensor.expr.laws import iterators_of
from egraph.tensor.expr.scope import Compare
from verify.assumptions import Assumptions
from verify.normal.conditions import negation
from verify.normal.context import Context
from verify.normal.domains import Need, Way
from verify.normal.naming import Labels, close, condition_text, factor_text, free_iterators, labelled, range_text, unique, value_text
from verify.normal.scopes import Places, placed, rebuild
from verify.normal.terms import Call, Element, Extremum, Factor, Product, Value

REQUESTS = {
    "nonzero": "divides by {}, which may be zero", "positive": "takes the logarithm of {}, which may be negative",
    "root": "takes the root of {}, which may be negative", "power": "takes a power, {}, whose base may be negative",
    "infinite": "computes {} with infinities, which may be no number",
}  # fmt: skip
IMPLIED_BY = {
    "nonzero": ("nonzero", "positive"), "positive": ("positive",), "root": ("root", "positive"), "power": ("power", "positive"),
    "infinite": ("infinite",),
}  # fmt: skip
DEEPEST = 8
"""Most conditions by which cases are distinguished."""
Literals = frozenset[tuple[str, bool]]
Equality = Callable[[Value, Value], bool]


@dataclass(frozen=True)
class Given:
    """A need of the left side: ``text`` is its value up to names, ``when`` the conditions under which it arises."""

    kind: str
    value: Value
    text: str
    when: Literals
    way: Way


def beyond(right: Sequence[Need], left: Sequence[Need], assumptions: Assumptions, equal: Equality) -> str:
    """Return a need of the right side that no need of the left side meets; '' if there is none.

    ``equal`` decides whether values that are written differently, by phases or by digits, are equal.
    """
    asked = [need for need in dict.fromkeys(right) if not need.settled]
    if not asked:
        return ""
    context = Context(assumptions)
    given = list(dict.fromkeys(_given(context, left)))
    for need in asked:
        if not _met(context, need.kind, need.value, need.given, given) and not (
            need.parts and all(_met(context, need.kind, part, need.given, given) for part in need.parts)
        ) and not _met_by_equal(context, need, given, equal):
            return f"the right side {REQUESTS[need.kind].format(need.value)}, and the left side does not"
    return ""


def _given(context: Context, needs: Sequence[Need]) -> Stream[Given]:
    for need in dict.fromkeys(needs):
        for value in (need.value, *((need.alone,) if need.alone is not None else ())):
            text, labels = _text(context, value)
            yield Given(need.kind, value, text, _literals(context, need.given, labels), need.given)


def _bound(context: Context, part: Value | Factor | Compare) -> list[Iterator]:
    """Return the free iterators of a part that are not the output's."""
    return sorted((i for i in free_iterators(context, part) if i.name[0] in "~@"), key=lambda i: (len(i.name), i.name))


def _text(context: Context, value: Value) -> tuple[str, Labels]:
    """Return a value as text that does not depend on names, and the labels of its iterators in it."""
    closed = close(context, value)
    free = tuple(_bound(context, closed))
    labels = labelled(context, free, (Call("=", (closed,)),)) if free else {}
    return value_text(context, closed, labels), labels


def _literals(context: Context, way: Way, labels: Labels) -> Literals:
    literals = set()
    for test, holds in way:
        names = {i: f"{i.name}:{range_text(i)}" for i in _bound(context, test)} | dict(labels)
        if isinstance(test, Compare):
            text, opposite = condition_text(test, names), condition_text(negation(test), names)
            literals.add((text, holds) if text < opposite else (opposite, not holds))
        else:
            literals.add((factor_text(context, test, names), holds))
    return frozenset(literals)


def _met(context: Context, kind: str, value: Value, way: Way, given: Collection[Given]) -> bool:
    text, labels = _text(context, value)
    when = _literals(context, way, labels)
    stronger = [offer for offer in given if offer.kind in IMPLIED_BY[kind]]
    if kind == "power":
        (call,) = (factor for term in value.terms for factor in term.factors)
        assert isinstance(call, Call)
        base = _text(context, call.arguments[0])[0]
        stronger = [offer for offer in stronger if offer.text == (base if offer.kind == "positive" else text)]
        return _covered(when, [offer.when for offer in stronger])
    if _covered(when, [offer.when for offer in stronger if offer.text == text]):
        return True
    return any(_instance(context, offer, value, text, way, when) for offer in stronger)


def _met_by_equal(context: Context, need: Need, given: Collection[Given], equal: Equality) -> bool:
    """Return whether a need of one value is met by a need of a value that is proved equal."""
    if _bound(context, need.value) or need.kind == "power":
        return False
    when = _literals(context, need.given, {})
    within = _within(context, need.given)
    bound_by_way = {iterator for test, _ in need.given for iterator in _bound(context, test)}
    return any(
        offer.kind in IMPLIED_BY[need.kind] and not _bound(context, offer.value)
        and all(iterator in bound_by_way for test, _ in offer.way for iterator in _bound(context, test))
        and _holds(within, offer.way, {}, {}, when) and equal(unique(context, offer.value), unique(context, need.value))
        for offer in given
    )  # fmt: skip


def _covered(when: Literals, ways: Sequence[Literals], depth: int = DEEPEST) -> bool:
    """Return whether, wherever ``when`` holds, one of the ways holds."""
    left = [way - when for way in ways if not any((text, not holds) in when for text, holds in way)]
    if not all(left):
        return True
    if not left or not depth:
        return False
    text = min(text for way in left for text, _ in way)
    return all(_covered(when | {(text, holds)}, left, depth - 1) for holds in (True, False))


def _instance(context: Context, offer: Given, value: Value, text: str, way: Way, when: Literals) -> bool:
    """Return whether a value is an instance of a need of the left side."""
    bound = set(_bound(context, offer.value))
    labels = _text(context, value)[1]
    within = _within(context, way)
    for unifier in _unifications(offer.value, value, free_iterators(context, value)):
        places: dict[Iterator | Symbol, Size] = {iterator: position for iterator, position in unifier.items() if iterator in bound}
        if places.keys() != bound or not all(_inside(within, iterator, unifier[iterator]) for iterator in bound):
            continue
        if _text(context, rebuild(context, offer.value, places))[0] == text and _holds(within, offer.way, labels, places, when):
            return True
    return False


def _within(context: Context, way: Way) -> Context:
    """Return a context in which the way's conditions on indices hold."""
    return Context(context.assumptions.assume(*(test if holds else negation(test) for test, holds in way if isinstance(test, Compare))))


def _inside(context: Context, iterator: Iterator, position: Index) -> bool:
    ends = Compare(index(iterator.low), "<=", position), Compare(position, "<", index(iterator.high))
    return all(context.assumptions.entails(end) for end in ends)


def _holds(context: Context, asked: Way, labels: Labels, places: Places, when: Literals) -> bool:
    """Return whether the conditions of a left side's need hold at the given places, under the conditions of the right side's need."""
    for test, holds in asked:
        if isinstance(test, Compare):
            moved = Compare(placed(context, test.left, places), test.operator, placed(context, test.right, places))
            if not context.assumptions.entails(moved if holds else negation(moved)):
                return False
        elif _bound(context, test) or not _literals(context, frozenset({(test, holds)}), labels) <= when:
            return False
    return True


def _unifications(pattern: Value, value: Value, outside: frozenset[Iterator]) -> Stream[dict[Iterator, Index]]:
    """Yield substitutions for the iterators of a pattern that turn one of its elements into an element of a value."""
    for element in _elements(pattern):
        for target in _elements(value):
            if element.tensor != target.tensor:
                continue
            places: dict[Iterator, Index] = {}
            for at, position in zip(element.indices, target.indices, strict=True):
                iterator = next(iter(iterators_of(at)), None)
                if iterator is not None and at == index(iterator) and iterators_of(position) <= outside:
                    places.setdefault(iterator, position)
            yield places


def _elements(value: Value) -> Stream[Element]:
    for term in value.terms:
        for factor in term.factors:
            match factor:
                case Element():
                    yield factor
                case Call(_, arguments):
                    for argument in arguments:
                        yield from _elements(argument)
                case Product(_, _, inner):
                    yield from _elements(inner)
                case Extremum(_, alternatives):
                    for alternative in alternatives:
                        yield from _elements(alternative.value)
