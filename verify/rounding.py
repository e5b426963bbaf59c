"""Determine which rounding class a rule needs, from the facts of its proof and the structure of its sums and products.

Floating-point addition and multiplication commute, keep zero, one, signs and powers of two, and do not associate or
distribute. An algebra over F_p with just these laws distinguishes rules that keep every rounding from those that do not. A rule
of the class "exact" has to hold there. Within one sum the order is free in this algebra, as in every kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from egraph.errors import EinsatError
from egraph.rule import MergeRule, Rounding, Rule
from egraph.tensor import Node, format_fragment, walk
from egraph.tensor.expr.evaluate import Evaluator, Field
from egraph.tensor.expr.functions import FUNCTIONS, PRIME, prime_inverse, prime_power
from egraph.tensor.expr.index import Iterator, Symbol
from egraph.tensor.expr.scope import Scalar, Scope
from egraph.tensor.ops.dtypes import INTEGERS
from egraph.tensor.ops.reference import meaning
from verify.random_testing import RATIONAL, Instance, draws
from verify.readings import applies
from verify.special_values import broken, broken_case, scopes_of

Array = np.ndarray
ORDER: Mapping[Rounding, int] = {"exact": 0, "reassociates": 1, "assumes finite": 2}
_ADD, _MULTIPLY, _DIVIDE = 48_271, 69_621, 39_373
"""Weights of the deviations from a field; the values are arbitrary."""


ONLY_ROUNDING = ("constants are rounded",)
"""Laws that change only rounding; all others need finite values or nonzero divisors."""
ROUNDED = ("add", "sub", "mul", "div", "reciprocal")
"""Functions that are slightly wrong in the inexact floats."""
INSTANCES = 8
"""Number of random instances on which a rule of the class "exact" is checked; four times as many if a result may hide last bits."""
HIDING = frozenset({"Quantize", "Saturate", "Floor", "Ceil", "Round"})
"""Operators that round to integers or clip."""


def objection(rule: Rule | MergeRule, facts: frozenset[str], seed: int = 0, drawn: Sequence[Instance] = ()) -> str:
    """Return why a rule may not state its rounding class; '' if it may. ``drawn``: instances to try, if some are drawn already."""
    required: Rounding = "assumes finite" if facts - set(ONLY_ROUNDING) else "reassociates" if facts else "exact"
    if ORDER[rule.rounding] < ORDER[required]:
        laws = ", ".join(sorted(facts))
        return f"it says {rule.rounding!r}, but its proof uses {laws}: state rounding=\"{required}\""
    if breach := broken(rule, seed, count=4, draws=3, drawn=drawn):
        kept = (each for each in _weaker(rule.rounding) if not broken(replace(rule, rounding=each), seed, count=4, draws=3, drawn=drawn))
        return f"it says {rule.rounding!r}, but {breach}{_advice(kept)}"
    if rule.rounding == "exact":
        for number, instance in enumerate(islice(drawn or draws(rule, seed, 400 * INSTANCES), 4 * INSTANCES)):
            if number >= INSTANCES and not instance.operators & HIDING:
                break
            if keeps_rounding(instance, seed) is False:
                shown = format_fragment(instance.left[0])
                return f"it says 'exact', but rounds differently, for one in {shown}: state rounding=\"reassociates\""
    return ""


def case_objection(rounding: Rounding, left: Scope, right: Scope, sizes: Mapping[Symbol, int]) -> str:
    """Return why a symbolic case, at the given sizes, does not keep the class that its rule states; '' if it does.

    Random instances seldom have the sizes at which a guard takes another branch.
    """
    try:
        breach = broken_case(left, right, sizes, rounding)
        if breach is None and rounding == "exact" and (_computes(left) or _computes(right)):
            breach = broken_case(left, right, sizes, rounding, _Inaccurate)
        kept = (each for each in _weaker(rounding) if not broken_case(left, right, sizes, each))
        return f"it says {rounding!r}, but {breach}{_advice(kept)}" if breach else ""
    except EinsatError:
        return ""


def _computes(side: Scope) -> bool:
    """Return whether a side has operations that are slightly wrong in the inexact floats; other sides have their usual values there."""
    return applies(side, ROUNDED) or any(scope.summation and scope.reduction == "sum" for scope in scopes_of(side))


def _weaker(rounding: Rounding) -> tuple[Rounding, ...]:
    return tuple(each for each, rank in ORDER.items() if rank > ORDER[rounding])


def _advice(kept: Iterable[Rounding]) -> str:
    """Return a text that names the first class that a rule keeps."""
    first = next(iter(kept), None)
    return f': state rounding="{first}"' if first else ""


def keeps_rounding(instance: Instance, seed: int = 0) -> bool | None:
    """Return whether both sides are equal in the algebra without associativity; None if it does not apply."""
    if not instance.operators <= RATIONAL:
        return keeps_inaccuracy(instance, seed)
    generator = np.random.default_rng(seed)
    values: dict[Node, Array] = {}
    for leaf in instance.leaves:
        number = instance.numbers.get(leaf.integer("index"))
        shape = leaf.type.sizes
        if number is not None and not (math.isfinite(number) and number == int(number)):
            return None
        values[leaf] = generator.integers(2, PRIME, shape) if number is None else np.full(shape, int(number) % PRIME)
    sides = [_evaluate(side, values, _Rounding, "prime") for side in (instance.left, instance.right)]
    return all(np.array_equal(left, right) for left, right in zip(*sides, strict=True))


def _evaluate(roots: Sequence[Node], values: Mapping[Node, Array], algebra: type[Evaluator], field: Field) -> list[Array]:
    computed: dict[Node, Array] = dict(values)
    for node in walk(roots):
        if node not in computed:
            operands = {str(i): computed[operand] for i, operand in enumerate(node.inputs)}
            computed[node] = algebra(operands, field, {}).tensor(meaning(node))
    return [computed[root] for root in roots]


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

    The sum is odd, homogeneous and independent of zeros. It is correct for one number and for two equal or opposite ones, and not
    associative.
    """
    half = (PRIME + 1) // 2
    pairs = (first * first - second) % PRIME * half % PRIME
    apart = (2 * second - first * first) % PRIME
    weight = prime_inverse((second + pairs) % PRIME)
    deviation = pairs * apart % PRIME * (weight * weight % PRIME) % PRIME
    return np.asarray((first + _ADD * (first * deviation % PRIME)) % PRIME)


def product(a: Array, b: Array) -> Array:
    """Return a product that is correct for zero, powers of two and their negatives; it is neither associative nor distributive."""
    deviation = (1 + _MULTIPLY * (_odd_part(a) * _odd_part(b) % PRIME)) % PRIME
    return np.asarray(a * b % PRIME * deviation % PRIME)


def quotient(a: Array, b: Array) -> Array:
    """Return a quotient that is correct if the divisor is a power of two."""
    deviation = (1 + _DIVIDE * (_odd_part(b) * (1 + _odd_part(a)) % PRIME)) % PRIME
    return np.asarray(a * prime_inverse(b) % PRIME * deviation % PRIME)


def _odd_part(a: Array) -> Array:
    """Return a value that is zero for powers of two of either sign (2 has the order 31) and unchanged by scaling with them."""
    return np.asarray((prime_power(np.asarray(a) % PRIME, 62) - 1) % PRIME)


INACCURACY = 2.0**-20
INTEGRAL = ("floor", "ceil", "round")
"""Functions that hide last bits. A small part of the fraction that they round away is kept, unless the argument was already rounded."""
KEPT = 2.0**-20
"""The share that is kept. It is small, because a number this close to an integer is treated as already rounded."""


def keeps_inaccuracy(instance: Instance, seed: int = 0) -> bool:
    """Return whether both sides are equal, bit for bit, in floats whose operations are all slightly wrong, each in its own way.

    Unlike a prime field, these floats have all functions, and keep the order of numbers, which maxima and monotone functions need.
    """
    generator = np.random.default_rng(seed)
    values: dict[Node, Array] = {}
    for leaf in instance.leaves:
        number = instance.numbers.get(leaf.integer("index"))
        shape = leaf.type.sizes
        if leaf.type.dtype == "bool":
            values[leaf] = generator.integers(0, 2, shape).astype(np.float64)
        elif number is not None:
            values[leaf] = np.full(shape, number)
        elif leaf.type.dtype in INTEGERS:
            values[leaf] = generator.integers(0, 100, shape).astype(np.float64)
        else:
            values[leaf] = generator.standard_normal(shape)
    with np.errstate(all="ignore"):
        sides = [_evaluate(side, values, _Inaccurate, "float64") for side in (instance.left, instance.right)]
    return all(np.array_equal(left, right, equal_nan=True) for left, right in zip(*sides, strict=True))


class _Inaccurate(Evaluator):
    """Evaluates scopes in such floats. Operations that no rounding changes are correct: sums with zero, products with powers of two.

    Rounding to integers must not hide differences, because whether it does depends on the drawn numbers. Sums of numbers that were
    rounded to integers are correct.
    """

    def call(self, name: str, arguments: Sequence[Scalar], env: Mapping[Iterator, Array], mask: Array | None) -> Array:
        if name in INTEGRAL:
            argument = np.asarray(self.scalar(arguments[0], env, mask), np.float64)
            rounded = FUNCTIONS[name].real(argument)
            return np.asarray(np.where(_is_integral(argument), argument, rounded + KEPT * (argument - rounded)))
        if name not in ROUNDED:
            return super().call(name, arguments, env, mask)
        values = [np.asarray(self.scalar(argument, env, mask), np.float64) for argument in arguments]
        match name, values:
            case "add" | "sub", [a, b]:
                result = a + b if name == "add" else a - b
                return np.asarray(np.where(_is_integral(a) & _is_integral(b), result, _inaccurate_sum(result, a * a + b * b)))
            case "mul", [a, b]:
                first, second = (np.abs(np.frexp(each)[0]) for each in (a, b))
                return _off(a * b, (first - 0.5) * (second - 0.5), 1 / first + 1 / second)
            case _:
                a, b = (np.ones_like(values[0]), values[0]) if name == "reciprocal" else values
                first, second = (np.abs(np.frexp(each)[0]) for each in (a, b))
                return _off(a / b, second - 0.5, 3 * first + 1 / second)

    def _tensor(self, scope: Scope) -> Array:
        if not scope.summation or scope.reduction != "sum":
            return super()._tensor(scope)
        iterators = scope.traversal + scope.summation
        ranges = [range(self.size(i.low), self.size(i.high)) for i in iterators]
        values = self.scalar(scope.body, self._axes(iterators, ranges), None)
        outer = [len(r) for r in ranges[: len(scope.traversal)]]
        full = np.sort(np.broadcast_to(values, [len(r) for r in ranges]).reshape([*outer, -1]), axis=-1)
        return _inaccurate_sum(np.sum(full, axis=-1), np.sum(np.sort(full * full, axis=-1), axis=-1))


def _is_integral(values: Array) -> Array:
    """Return where numbers are integers up to the share that is kept in rounding."""
    return np.asarray(np.abs(values - np.rint(values)) <= KEPT)


def _inaccurate_sum(first: Array, second: Array) -> Array:
    """Return the inexact sum for a correct sum and sum of squares; it is correct for one number and for two equal ones."""
    ratio = second / (first * first)
    return _off(first, np.where(first == 0, 0.0, (ratio - 1) * (2 * ratio - 1)), ratio)


def _off(value: Array, scale: Array, kind: Array) -> Array:
    """Return a value that is slightly wrong unless ``scale`` is zero."""
    wrong = np.sin(1e4 * kind + 1.0)
    return np.asarray(np.where(np.isfinite(wrong) & (scale != 0), value * (1 + INACCURACY * wrong), value))
