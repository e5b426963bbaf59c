"""Which rounding class a rule needs: what its proof used, and whether sums and products keep their structure.

Floating-point addition and multiplication commute, keep zero, one, signs and powers of two, and do not associate or
distribute. An algebra over F_p with just these laws tells rules that keep every rounding from those that do not: a rule
that calls itself exact has to hold there. Within one sum the order is free there as it is in every kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from egraph.expr.evaluate import Evaluator
from egraph.expr.functions import PRIME, prime_inverse, prime_power
from egraph.expr.index import Iterator
from egraph.expr.scope import Scalar, Scope
from egraph.ir import Node, format_fragment, walk
from egraph.ops.reference import meaning
from egraph.rule import MergeRule, Rounding, Rule
from verify.random_testing import RATIONAL, Instance, draws

Array = np.ndarray
ORDER: Mapping[Rounding, int] = {"exact": 0, "reassociates": 1, "assumes finite": 2}
_ADD, _MULTIPLY, _DIVIDE = 48_271, 69_621, 39_373
"""Weights of the deviations from a field; any other numbers would do."""


ONLY_ROUNDING = ("constants are rounded",)
"""Laws that change nothing but rounding; all others ask for finite values, or for divisors other than zero."""
INSTANCES = 8
"""Random instances on which a rule that calls itself exact is held to it."""


def objection(rule: Rule | MergeRule, facts: frozenset[str], seed: int = 0) -> str:
    """Return why a rule may not state the rounding class that it states; '' when it may."""
    wanted: Rounding = "assumes finite" if facts - set(ONLY_ROUNDING) else "reassociates" if facts else "exact"
    if ORDER[rule.rounding] < ORDER[wanted]:
        told = ", ".join(sorted(facts))
        return f"it says {rule.rounding!r}, but its proof uses {told}: state rounding=\"{wanted}\""
    if rule.rounding == "exact":
        for instance in islice(draws(rule, seed, 10 * INSTANCES), INSTANCES):
            if keeps_rounding(instance, seed) is False:
                shown = format_fragment(instance.left[0])
                return f"it says 'exact', but rounds differently, for one in {shown}: state rounding=\"reassociates\""
    return ""


def keeps_rounding(instance: Instance, seed: int = 0) -> bool | None:
    """Return whether both sides are equal where addition and multiplication do not associate; None where that says nothing."""
    if not instance.operators <= RATIONAL:
        return None
    generator = np.random.default_rng(seed)
    values: dict[Node, Array] = {}
    for leaf in instance.leaves:
        number = instance.numbers.get(leaf.integer("index"))
        shape = leaf.type.sizes
        if number is not None and (number != int(number)):
            return None
        values[leaf] = generator.integers(2, PRIME, shape) if number is None else np.full(shape, int(number) % PRIME)
    sides = [_evaluate(side, values) for side in (instance.left, instance.right)]
    return all(np.array_equal(left, right) for left, right in zip(*sides, strict=True))


def _evaluate(roots: Sequence[Node], values: Mapping[Node, Array]) -> list[Array]:
    known: dict[Node, Array] = dict(values)
    for node in walk(roots):
        if node not in known:
            operands = {str(i): known[operand] for i, operand in enumerate(node.inputs)}
            known[node] = _Rounding(operands, "prime", {}).tensor(meaning(node))
    return [known[root] for root in roots]


class _Rounding(Evaluator):
    """Evaluates scopes in the algebra."""

    def call(self, name: str, arguments: Sequence[Scalar], env: Mapping[Iterator, Array], mask: Array | None) -> Array:
        values = [self.scalar(argument, env, mask) for argument in arguments]
        match name, values:
            case "add", [a, b]:
                return total(*_sums(a, b))
            case "sub", [a, b]:
                return total(*_sums(a, -b % PRIME))
            case "mul", [a, b]:
                return product(a, b)
            case "div", [a, b]:
                return quotient(a, b)
            case "reciprocal", [a]:
                return quotient(np.ones_like(a), a)
        return super().call(name, arguments, env, mask)

    def _block(self, scope: Scope, iterators: Sequence[Iterator], ranges: Sequence[range]) -> Array:
        if not scope.summation or scope.reduction != "sum":
            return super()._block(scope, iterators, ranges)
        values = self.scalar(scope.body, self._axes(iterators, ranges), None)
        full = np.broadcast_to(values, [len(r) for r in ranges]) % PRIME
        axes = tuple(range(len(scope.traversal), len(ranges)))
        return total(np.sum(full, axis=axes) % PRIME, np.sum(full * full % PRIME, axis=axes) % PRIME)


def _sums(a: Array, b: Array) -> tuple[Array, Array]:
    return (a + b) % PRIME, (a * a + b * b) % PRIME


def total(first: Array, second: Array) -> Array:
    """Return the sum of numbers whose sum and whose sum of squares are given.

    Odd, homogeneous, blind to zeros, right for one number and for two equal or opposite ones; not associative.
    """
    half = (PRIME + 1) // 2
    pairs = (first * first - second) % PRIME * half % PRIME
    apart = (2 * second - first * first) % PRIME
    weight = prime_inverse((second + pairs) % PRIME)
    deviation = pairs * apart % PRIME * (weight * weight % PRIME) % PRIME
    return np.asarray((first + _ADD * (first * deviation % PRIME)) % PRIME)


def product(a: Array, b: Array) -> Array:
    """Return a product: right for zero, for powers of two and their negatives; not associative, not distributive."""
    deviation = (1 + _MULTIPLY * (_odd_part(a) * _odd_part(b) % PRIME)) % PRIME
    return np.asarray(a * b % PRIME * deviation % PRIME)


def quotient(a: Array, b: Array) -> Array:
    """Return a quotient: right for a power of two as the divisor."""
    deviation = (1 + _DIVIDE * (_odd_part(b) * (1 + _odd_part(a)) % PRIME)) % PRIME
    return np.asarray(a * prime_inverse(b) % PRIME * deviation % PRIME)


def _odd_part(a: Array) -> Array:
    """Return zero for plus and minus powers of two (2 has the order 31), and what scaling by them leaves as it is."""
    return np.asarray((prime_power(np.asarray(a) % PRIME, 62) - 1) % PRIME)
