"""Examine instances of cases that stay open: if the sides differ at one, the rule is false; otherwise it may hold.

Random draws seldom hit the cases that a guard singles out. A case is described by its choices and its conditions on sizes and numbers,
from which Z3 finds an example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from random import Random
from typing import Any

from egraph.errors import EinsatError
from egraph.rewrite.clock import look
from egraph.rule import Binding, MergeRule, Mismatch, Rule
from egraph.tensor import TensorType, attributes
from egraph.tensor.expr.index import Floor, Index, Modulo, RealSymbol, Symbol, atoms, index
from egraph.tensor.expr.scope import Compare
from verify.application import objection_to
from verify.cases import Case
from verify.models import small_values
from verify.numbers import Ideal
from verify.random_binding import Refused
from verify.random_testing import CRASHES, Data, Difference, Instance, compare, instantiate

NUMBERS = (0.0, 1.0, 0.5, -1.0, 2.0, -0.5, 0.0625, 3.0, -2.0, 100.0, 6.0, 0.25)
"""Values of named numbers besides those that Z3 finds: ends and middles of the ranges that guards single out."""
ATTEMPTS, FEWEST = 192, 16
"""Number of instances that all open cases of a rule share, and least number of attempts for each case."""
MOST = 64
"""Most instances of one case."""
LARGER, SHARES = ((2, 2, 3, 3, 4, 5, 7), (2, 5, 6, 8, 9, 11)), (0.2, 0.4, 0.6)
"""Lower bounds for larger values of the symbols, and the shares of the symbols that get one."""
MOST_TIGHT = 8
"""Most inequalities that are equalities at the smallest values of a case and are made strict, one by one."""
MOST_ELEMENTS = 1 << 20
"""Most elements of an instance that is evaluated."""
DATA: tuple[Data, ...] = ("signed", "zeros", "integers", "positive")

Values = Mapping[Symbol | RealSymbol, int | Fraction]


def attempts_for(cases: int) -> int:
    """Return the number of instances to draw of each of ``cases`` open cases."""
    return min(MOST, max(FEWEST, ATTEMPTS // max(1, cases)))


def examined(rule: Rule | MergeRule, case: Case, attempts: int = MOST) -> Difference | bool:
    """Return how the sides differ at an instance of a case; else whether they are proved equal at all instances found, at least one."""
    confirmed = False
    for number, (instance, fits) in enumerate(_instances(rule, case, attempts)):
        look()
        is_open = bool(objection_to(instance.left, instance.right, instance.numbers))
        kinds = list(enumerate(DATA))
        for position, data in kinds if is_open else [kinds[number % len(kinds)]]:  # what is proved is compared on one kind of data
            try:
                defined, alike = data == "zeros" or rule.rounding == "assumes finite", rule.rounding == "reassociates"
                _, difference = compare(instance, position, data, bits=False, defined=defined, alike=alike)
            except (Refused, EinsatError, *CRASHES):
                continue
            if difference is not None:
                return difference
        if is_open:
            return False
        confirmed = confirmed or fits
    return confirmed and not case.is_opaque


def _instances(rule: Rule | MergeRule, case: Case, attempts: int) -> Iterator[tuple[Instance, bool]]:
    """Yield instances near a case, and whether they meet all of its conditions."""
    conditions = case.assumptions.conditions
    symbols = symbols_of(case)
    random = Random(case.scope_note)
    models = list(islice(_models(conditions, symbols, random), attempts))
    numbers = dict.fromkeys(atom for value in _indices(case) for atom in atoms(value) if isinstance(atom, RealSymbol))
    seen: list[object] = []
    for attempt in range(attempts if models else 0):
        values = dict(models[attempt % len(models)])
        for atom in numbers:
            if atom not in values or attempt % 2:
                values[atom] = Fraction(NUMBERS[attempt // 2] if attempt < len(NUMBERS) else random.choice(NUMBERS))
        try:
            bindings = bindings_at(rule, case, values)
            if repr(bindings) in seen:
                continue
            seen.append(repr(bindings))
            instance = instantiate(rule, bindings)
        except (Mismatch, Refused, EinsatError, *CRASHES):
            continue
        if instance.elements <= MOST_ELEMENTS:
            yield instance, all(holds_at(condition, values) for condition in conditions)


def symbols_of(case: Case) -> list[Symbol]:
    """Return every size that an instance of a case needs."""
    return sorted({atom for value in _indices(case) for atom in _symbols(value)}, key=lambda symbol: symbol.name)


def holds_at(condition: Compare, values: Values) -> bool:
    """Return whether a condition holds at known values."""
    try:
        gap = _number(condition.right, values) - _number(condition.left, values)
    except Refused:
        return False
    return {"<": gap > 0, "<=": gap >= 0, "==": gap == 0, "!=": gap != 0}[condition.operator]


def _models(conditions: Sequence[Compare], symbols: Sequence[Symbol], random: Random) -> Iterator[Values]:
    """Yield small and then larger values of the symbols that satisfy the conditions; numbers vary around earlier ones on both sides."""
    smallest = small_values(conditions, symbols)
    if smallest is None:
        return
    yield smallest
    tight = [each for each in conditions if each.operator == "<=" and holds_at(replace(each, operator="=="), smallest)]
    for each in tight[:MOST_TIGHT]:  # the smallest values are at ends of ranges; differences may be inside
        look()
        if (model := small_values([*conditions, replace(each, operator="<")], symbols)) is not None:
            yield model
    ends = {atom: [value] for atom, value in smallest.items() if isinstance(atom, RealSymbol)}
    for attempt in range(MOST):
        look()
        share, bounds = SHARES[attempt % len(SHARES)], LARGER[attempt % len(LARGER)]
        larger = [Compare(index(random.choice(bounds)), "<=", index(symbol)) for symbol in symbols if random.random() < share]
        for number, values in ends.items():
            if random.random() < share:
                end = Fraction(random.choice(values))
                sides = index(number) * end.denominator, index(end.numerator)
                larger.append(Compare(*random.choice(((sides[0], "<", sides[1]), (sides[1], "<", sides[0])))))
        if (model := small_values([*conditions, *larger], symbols)) is not None:
            for number, values in ends.items():
                if (value := model.get(number, values[0])) not in values:
                    values.append(value)
            yield model


def _indices(case: Case) -> Iterator[Index]:
    """Yield every index that an instance of a case needs."""
    for shape in case.shapes.values():
        yield from map(index, shape)
    for bundle in case.bundles.values():
        for value in bundle.values():
            yield from _indices_in(value)
    for value in case.numbers.values():
        yield from _indices_in(value)
    for condition in case.assumptions.conditions:
        yield from (condition.left, condition.right)


def _indices_in(value: Any) -> Iterator[Index]:
    match value:
        case Index():
            yield value
        case Ideal(above, below):
            yield above
            yield below
        case tuple():
            for each in value:
                yield from _indices_in(each)


def _symbols(value: Index) -> Iterator[Symbol]:
    for atom in atoms(value):
        match atom:
            case Symbol():
                yield atom
            case Floor(numerator, divisor) | Modulo(numerator, divisor):
                yield from _symbols(numerator)
                yield from _symbols(divisor)


def bindings_at(rule: Rule | MergeRule, case: Case, values: Values) -> Sequence[Binding]:
    """Return the bindings of an instance of a case."""
    sizes = {name: tuple(value_at(index(size), values) for size in shape) for name, shape in case.shapes.items()}
    types = {name: TensorType(case.types[name], shape) for name, shape in sizes.items()}
    given = {name: {key: _concrete(value, values) for key, value in bundle.items()} for name, bundle in case.bundles.items()}
    bundles = {name: attributes(**bundle) for name, bundle in given.items()}
    numbers = {name: float(_concrete(value, values)) for name, value in case.numbers.items()}
    if isinstance(rule, Rule):
        return (Binding(types, bundles, numbers),)
    own_names = [variable.name for variable in rule.member.variables if variable.name not in rule.shared]
    shared = {name: types[name] for name in rule.shared if name in types}
    members = sum(f"{own_names[0]}{position + 1}" in types for position in range(len(types)))
    return [
        Binding(
            shared | {name: types[f"{name}{position + 1}"] for name in own_names}, bundles,
            {name: numbers[name] for name in shared if name in numbers}
            | {name: numbers[f"{name}{position + 1}"] for name in own_names if f"{name}{position + 1}" in numbers},
        )
        for position in range(members)
    ]  # fmt: skip


def _concrete(value: Any, values: Values) -> Any:
    match value:
        case Index():
            return value_at(value, values)
        case Ideal(above, below):
            return float(_number(above, values) / _number(below, values))
        case tuple():
            return tuple(_concrete(each, values) for each in value)
    return value


def value_at(value: Index, values: Values) -> int:
    """Return the value of an index at known values; raises Refused if it is not an integer."""
    number = _number(value, values)
    if number.denominator != 1:
        raise Refused("a size that is not whole")
    return int(number)


def _number(value: Index, values: Values) -> Fraction:
    total = Fraction(0)
    for monomial, coefficient in value.terms:
        product = Fraction(coefficient)
        for atom in monomial:
            match atom:
                case Symbol():
                    product *= values.get(atom, max(atom.minimum, 1))
                case RealSymbol():
                    product *= values.get(atom, 1)
                case Floor(numerator, divisor):
                    product *= _number(numerator, values) // _number(divisor, values)
                case Modulo(numerator, divisor):
                    product *= _number(numerator, values) % _number(divisor, values)
                case _:
                    raise Refused(f"{atom} in a size")
        total += product
    return total

