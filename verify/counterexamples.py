"""Make a counterexample small and show it: as a program that needs only numpy, or in a few lines.

The search starts from the smallest of many failing draws. It reduces numbers, one or several equal ones at a
time, as long as the sides still differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, TypeAlias

from egraph.errors import EinsatError
from egraph.rule import Binding, MergeRule, Mismatch, Rule
from egraph.tensor import TensorType, attributes, format_fragment
from egraph.tensor.boxes import axis_names
from egraph.tensor.ops.reference import fragment_expression
from verify.disagreement import LITTLE_WORK, disagreement
from verify.numpy_script import script
from verify.random_binding import Refused
from verify.random_testing import CRASHES, Data, Difference, Instance, compare, draws, instantiate

DRAWS = 300
"""Random draws from which the smallest failing one is taken."""
STEPS = 400
"""Most smaller bindings that are tried."""
KINDS: tuple[Data, ...] = ("integers", "signed", "special")
Place: TypeAlias = tuple[int, str, str, str, int]
"""A number in bindings: (binding, 'shape' or 'attribute', variable, attribute's name, position)."""


@dataclass(frozen=True)
class Counterexample:
    """Operands on which the two sides of a rule differ."""

    rule: str
    difference: Difference

    def script(self) -> str:
        """Return a program that needs only numpy and shows the difference."""
        difference = self.difference
        left, right = difference.instance.left[difference.position], difference.instance.right[difference.position]
        heading = [f"{self.rule}: the two sides differ", f"left:  {format_fragment(left)}", f"right: {format_fragment(right)}"]
        return script(left, right, difference.values, heading)

    def lines(self) -> tuple[str, ...]:
        """Return sizes, attributes, and the first index at which the sides differ."""
        difference = self.difference
        at = difference.index
        shown = [f"left:  {format_fragment(difference.instance.left[difference.position])}"]
        shown.append(f"right: {format_fragment(difference.instance.right[difference.position])}")
        shown += [f"operand {leaf.integer('index')} {leaf.type} = {_flat(value)}" for leaf, value in difference.values.items()]
        shown += [f"left  {_flat(difference.left)}", f"right {_flat(difference.right)}"]
        modulo = " in the integers modulo 2^31 - 1" if difference.field == "prime" else ""
        shown.append(f"first difference at {at}: left {difference.left[at]}, right {difference.right[at]}{modulo}")
        return (*shown, *_where(difference))


def _where(difference: Difference) -> tuple[str, ...]:
    """Return outside of which positions the sides of a counterexample are equal for all operands, unless they may differ everywhere."""
    left, right = difference.instance.left[difference.position], difference.instance.right[difference.position]
    try:
        first, second = (fragment_expression(side, difference.instance.numbers) for side in (left, right))
        where = disagreement(first, second, LITTLE_WORK)
    except EinsatError:
        return ()
    return (where.describe(axis_names(left)),) if where is not None and where.boxes and not where.is_total else ()


def _flat(value: Any) -> str:
    text = " ".join(str(value.tolist()).split())
    return text if len(text) <= 400 else f"{text[:400]} ..."


def smallest(rule: Rule | MergeRule, first: Difference, seed: int = 0) -> Counterexample:
    """Return a small counterexample, starting from a difference that random testing found."""
    bits = rule.rounding == "exact"
    best = first
    instances = sorted(draws(rule, seed, DRAWS), key=_cost)
    for instance in instances:
        if _cost(instance) >= _cost(best.instance):
            break
        if smaller := _difference(instance, bits):
            best = smaller
            break
    return Counterexample(rule.name, _shrunk(rule, best, bits))


def _shrunk(rule: Rule | MergeRule, best: Difference, bits: bool) -> Difference:
    left = STEPS
    changed = True
    while changed and left > 0:
        changed = False
        for bindings in _smaller(best.instance.bindings):
            left -= 1
            if left <= 0:
                break
            try:
                instance = instantiate(rule, bindings)
            except (*CRASHES, Refused, Mismatch, EinsatError):
                continue
            if _cost(instance) < _cost(best.instance) and (failing := _difference(instance, bits)):
                best, changed = failing, True
                break
    return _difference(best.instance, bits) or best


def _cost(instance: Instance) -> tuple[int, int]:
    """Return a key that orders instances by elements, then by numbers."""
    numbers = [abs(value) for _, value in _numbers(instance.bindings)]
    return instance.elements + sum(node.type.elements for node in instance.left), sum(numbers)


def _difference(instance: Instance, bits: bool) -> Difference | None:
    """Return a difference on small integers if there is one, else on other numbers, in the prime field last."""
    last: Difference | None = None
    for kind in KINDS if bits else KINDS[:2]:
        for seed in range(3):
            try:
                _, difference = compare(instance, seed, kind, bits=bits)
            except (*CRASHES, Refused, EinsatError):
                continue
            if difference and difference.field == "float64":
                return difference
            last = last or difference
    return last


def _numbers(bindings: Sequence[Binding]) -> Iterator[tuple[Place, int]]:
    for number, binding in enumerate(bindings):
        for name, type_ in binding.types.items():
            for position, size in enumerate(type_.sizes):
                yield (number, "shape", name, "", position), size
        for name, bundle in binding.attributes.items():
            for key, value in bundle:
                for position, entry in enumerate(value if isinstance(value, tuple) else (value,)):
                    if isinstance(entry, int) and not isinstance(entry, bool):
                        yield (number, "attribute", name, key, position), entry


def _smaller(bindings: tuple[Binding, ...]) -> Iterator[tuple[Binding, ...]]:
    """Yield bindings with some equal numbers replaced by a smaller one: all of them first, then fewer and fewer."""
    places: dict[int, list[Place]] = {}
    for slot, value in _numbers(bindings):
        if value > 0:
            places.setdefault(value, []).append(slot)
    for value in sorted(places, reverse=True):
        for count in sorted({len(places[value]), 3, 2, 1}, reverse=True):
            if count > len(places[value]):
                continue
            for chosen in combinations(places[value], count):
                for smaller in dict.fromkeys((1, 2, value - 1, 0)):
                    if smaller < value and (smaller > 0 or all(slot[1] == "attribute" for slot in chosen)):
                        yield _replaced(bindings, chosen, smaller)


def _replaced(bindings: tuple[Binding, ...], slots: Sequence[Place], value: int) -> tuple[Binding, ...]:
    changed = list(bindings)
    for number, kind, name, key, position in slots:
        binding = changed[number]
        if kind == "shape":
            sizes = list(binding.types[name].sizes)
            sizes[position] = value
            types = {**binding.types, name: TensorType(binding.types[name].dtype, tuple(sizes))}
            changed[number] = replace(binding, types=types)
            continue
        values: dict[str, Any] = dict(binding.attributes[name])
        if isinstance(values[key], tuple):
            values[key] = tuple(value if i == position else entry for i, entry in enumerate(values[key]))
        else:
            values[key] = value
        changed[number] = replace(binding, attributes={**binding.attributes, name: attributes(**values)})
    return tuple(changed)
