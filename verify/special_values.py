"""Check that a rule keeps its rounding class on special operands: zeros of both signs, infinities, NaN, subnormal and huge numbers.

Both sides are evaluated in float64 by the operators' meanings. Each class permits these differences (docs/proofs.md has the table):

* *exact*: none, on any operands. A sum within one operator may be added in any order. If an operator sums, last bits, the sign of
  zero and intermediate overflows are therefore not compared.
* *reassociates*: last bits, the sign of zero, intermediate overflows and underflows. Finite values stay finite, and other values stay
  infinite or NaN.
* *assumes finite*: also all infinite values and NaN on operands that are not finite. If the left side has a finite value on
  finite operands, the right side has the same value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from random import Random
from typing import Literal, TypeAlias

import numpy as np

from egraph.errors import EinsatError
from egraph.rule import MergeRule, Mismatch, Rounding, Rule
from egraph.tensor import Node, TensorType, format_fragment
from egraph.tensor.expr.evaluate import Evaluator
from egraph.tensor.expr.functions import FUNCTIONS
from egraph.tensor.expr.index import Size, Symbol, has_reals, index, substitute
from egraph.tensor.expr.scope import Apply, Guarded, IndexNumber, Read, Scalar, Scope, Tensor
from egraph.tensor.ops import OPS
from egraph.tensor.ops.dtypes import FLOATS
from egraph.tensor.ops.reference import evaluate
from verify.random_binding import Refused
from verify.random_testing import CRASHES, SUMMING, Instance, draw, instantiate

Array = np.ndarray
Kind: TypeAlias = Literal["zeros", "not finite", "subnormal", "huge"]
KINDS: Mapping[Kind, tuple[float, ...]] = {
    "zeros": (0.0, -0.0, 1.0, -1.0),
    "not finite": (np.inf, -np.inf, np.nan, 0.0, -0.0),
    "subnormal": (5e-324, -5e-324, 3e-310, -2.5e-309),
    "huge": (1e300, -1e300, 1.6e308, -1.6e308),
}
"""Special values that are mixed into operands, by kind."""
NUMBERS = (0.0, -0.0, np.inf, -np.inf, np.nan)
"""Special values of a constant of one number; the guard decides whether the rule applies."""
USUAL = (0.75, -2.5)
"""Usual numbers that are combined with the special ones when operands meet in every combination."""
MOST_FREE = 4
"""Most operands of which every combination of values is tried."""
SHARES = (0.03, 0.15, 0.5)
"""Shares of special values in an operand."""
MOST_ELEMENTS = 1 << 22
"""Most elements of an operand or a result of a case that is evaluated, because a guard may require a size of billions."""
TOLERANCE = 1e-9
"""Largest difference that float64 rounding explains, relative to the largest finite magnitude of an operand or a result."""


@dataclass(frozen=True)
class Broken:
    """Operands on which both sides differ more than the class allows."""

    kind: Kind
    shown: str
    left: float
    right: float

    def __str__(self) -> str:
        return f"{self.shown} is {self.left:.6g} on the left side and {self.right:.6g} on the right, on operands with {NAMES[self.kind]}"


NAMES: Mapping[Kind, str] = {
    "zeros": "zeros of both signs", "not finite": "infinities and NaN", "subnormal": "subnormal numbers", "huge": "huge numbers",
}  # fmt: skip


def held(rounding: Rounding, *, sums: bool) -> tuple[Kind, ...]:
    """Return the kinds of operands on which a class makes promises; ``sums``: an operator adds, in any order."""
    match rounding:
        case "exact":
            return ("zeros", "not finite", "subnormal") if sums else ("zeros", "not finite", "subnormal", "huge")
        case "reassociates":
            return "zeros", "not finite"
    return ("zeros",)


def broken(rule: Rule | MergeRule, seed: int = 0, count: int = 6, draws: int = 3, drawn: Sequence[Instance] = ()) -> Broken | None:
    """Return operands on which a rule does not keep its class; None if none are found. ``drawn``: see ``instances``."""
    for number, instance in enumerate(instances(rule, seed, count, drawn=drawn)):
        wide = all_at_once(rule, instance)
        for kind in held(rule.rounding, sums=bool(instance.operators & SUMMING)):
            if wide is not None and (breach := broken_on(wide, rule.rounding, kind, every(wide, kind))) is not None:
                return breach
            for each in range(draws):
                generator = np.random.default_rng((seed, number, each))
                breach = broken_at(instance, rule.rounding, kind, SHARES[each % len(SHARES)], generator)
                if breach is not None:
                    return breach
    return None


def instances(rule: Rule | MergeRule, seed: int, count: int, tries: int = 2000, drawn: Sequence[Instance] = ()) -> Iterator[Instance]:
    """Yield random instances, each followed by variants with special constants of one number that the guard accepts.

    ``drawn``: instances that were drawn for another test; others are drawn only if there are none.
    """
    random = Random(f"{rule.name} special {seed}")
    for instance in islice(drawn or _drawn(rule, random, tries), count):
        yield instance
        names = sorted(instance.bindings[0].numbers)
        if isinstance(rule, MergeRule) or not names:
            continue
        for numbers in random.sample(list(product(NUMBERS, repeat=len(names))), 5):
            special = dict(zip(names, numbers, strict=True))
            try:
                yield instantiate(rule, (replace(instance.bindings[0], numbers=special),))
            except (*CRASHES, Refused, Mismatch, EinsatError):
                continue


def _drawn(rule: Rule | MergeRule, random: Random, tries: int) -> Iterator[Instance]:
    for _ in range(tries):
        try:
            yield draw(rule, random)
        except (*CRASHES, Refused, Mismatch, EinsatError):
            continue


def all_at_once(rule: Rule | MergeRule, instance: Instance) -> Instance | None:
    """Return an instance of an elementwise rule with long vectors as operands, so that these meet in every combination; else None."""
    free = [leaf for leaf in instance.leaves if leaf.integer("index") not in instance.numbers]
    elementwise = all(op not in OPS or OPS[op].category == "elementwise" for op in instance.operators)
    if isinstance(rule, MergeRule) or not elementwise or not 0 < len(free) <= MOST_FREE:
        return None
    binding = instance.bindings[0]
    count = (max(map(len, KINDS.values())) + len(USUAL)) ** len(free)
    types = {name: TensorType(each.dtype, () if name in binding.numbers else (count,)) for name, each in binding.types.items()}
    try:
        return instantiate(rule, (replace(binding, types=types),))
    except (*CRASHES, Refused, Mismatch, EinsatError):
        return None


def every(instance: Instance, kind: Kind) -> dict[Node, Array]:
    """Return operands that contain every combination of special and usual numbers."""
    numbers = np.array((*KINDS[kind], *USUAL))
    free = [leaf for leaf in instance.leaves if leaf.integer("index") not in instance.numbers]
    values: dict[Node, Array] = {}
    for position, leaf in enumerate(free):
        chosen = np.arange(math.prod(leaf.type.sizes)) // len(numbers) ** position % len(numbers)
        values[leaf] = (numbers[chosen] if leaf.type.dtype in FLOATS else chosen % 2.0).reshape(leaf.type.sizes)
    return values


def broken_at(instance: Instance, rounding: Rounding, kind: Kind, share: float, generator: np.random.Generator) -> Broken | None:
    """Compare an instance's sides on one draw of operands."""
    values: dict[Node, Array] = {}
    for leaf in instance.leaves:
        if leaf.integer("index") not in instance.numbers:
            values[leaf] = mixed(leaf.type.sizes, leaf.type.dtype, kind, share, generator)
    return broken_on(instance, rounding, kind, values)


def broken_on(instance: Instance, rounding: Rounding, kind: Kind, drawn: Mapping[Node, Array]) -> Broken | None:
    """Compare an instance's sides on these operands."""
    values: dict[Node, Array] = {}
    for leaf in instance.leaves:
        number = instance.numbers.get(leaf.integer("index"))
        values[leaf] = drawn[leaf] if number is None else np.full(leaf.type.sizes, number)
    try:
        with np.errstate(all="ignore"):
            results = evaluate((*instance.left, *instance.right), values)
    except EinsatError:
        return None
    count, sums = len(instance.left), bool(instance.operators & SUMMING)
    for position, (left, right) in enumerate(zip(results[:count], results[count:], strict=True)):
        if (at := first_difference(left, right, list(values.values()), rounding, sums=sums)) is not None:
            return Broken(kind, format_fragment(instance.left[position]), float(left.flat[at]), float(right.flat[at]))
    return None


def mixed(shape: Sequence[int], dtype: str, kind: Kind, share: float, generator: np.random.Generator) -> Array:
    """Return random values with a share of special ones."""
    if not dtype.startswith("float"):
        return generator.integers(0, 2, shape).astype(np.float64)
    return np.where(generator.random(shape) < share, generator.choice(KINDS[kind], shape), generator.standard_normal(shape))


def first_difference(left: Array, right: Array, operands: Sequence[Array], rounding: Rounding, *, sums: bool) -> int | None:
    """Return the position at which two results first differ more than a class allows; None if they do not."""
    finite = [each[np.isfinite(each)] for each in (*operands, left)]
    slack = TOLERANCE * max(1.0, *(float(np.abs(each).max(initial=0.0)) for each in finite))
    with np.errstate(all="ignore"):
        near = np.isfinite(left) & np.isfinite(right) & (np.abs(left - right) <= slack)
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        match rounding:
            case "exact" if sums:
                wrong = ~(same | near)
            case "exact":
                wrong = ~(same & ((np.signbit(left) == np.signbit(right)) | np.isnan(left)))
            case "reassociates":
                wrong = ~(near | ~(np.isfinite(left) | np.isfinite(right)))
            case _:
                wrong = np.isfinite(left) & ~near
    return int(np.argmax(wrong)) if wrong.any() else None


def broken_case(
    left: Scope, right: Scope, sizes: Mapping[Symbol, int], rounding: Rounding, algebra: type[Evaluator] = Evaluator
) -> Broken | None:
    """Compare two sides of a symbolic case at the given sizes, on one draw of operands of each kind.

    Raises ``EinsatError`` if something in the case has no value: a number known only by name, or a function left open.
    """
    scopes = [*scopes_of(left), *scopes_of(right)]
    sums = any(scope.summation and scope.reduction in ("sum", "prod") for scope in scopes)
    tensors = {read.source.name: read.source for scope in scopes for read in reads_of(scope.body) if isinstance(read.source, Tensor)}
    shapes = [left.shape, right.shape, *(tensor.shape for tensor in tensors.values())]
    if max(math.prod(concrete(size, sizes) for size in shape) for shape in shapes) > MOST_ELEMENTS:
        raise EinsatError("the case is too large to be evaluated")
    generator = np.random.default_rng(0)
    for kind in held(rounding, sums=sums):
        values = {
            name: mixed(tuple(concrete(size, sizes) for size in tensor.shape), tensor.dtype, kind, SHARES[-1], generator)
            for name, tensor in tensors.items()
        }
        try:
            with np.errstate(all="ignore"):
                algebra_of_case = algebra(values, "float64", sizes)
                results = [algebra_of_case.tensor(side) for side in (left, right)]
        except KeyError as error:
            raise EinsatError(f"{error} is read as an index, which is not drawn here") from error
        if (at := first_difference(results[0], results[1], list(values.values()), rounding, sums=sums)) is not None:
            shown = ", ".join(f"{name} of shape {value.shape}" for name, value in values.items())
            return Broken(kind, f"the result for {shown}", float(results[0].flat[at]), float(results[1].flat[at]))
    return None


def concrete(value: Size, sizes: Mapping[Symbol, int]) -> int:
    """Return a size as a number."""
    number = index(substitute(value, sizes)).constant
    if number is None:
        raise Unnamed(f"{value} is no number")
    return number


class Unnamed(EinsatError):
    """Something in a case has no value: a number known only by name, or a function left open."""


def scopes_of(scope: Scope) -> Iterator[Scope]:
    """Yield a scope and those inside it, each once."""
    seen: set[int] = set()
    pending = [scope]
    while pending:
        inner = pending.pop()
        if id(inner) not in seen:
            seen.add(id(inner))
            yield inner
            pending += [read.source for read in reads_of(inner.body) if isinstance(read.source, Scope)]


def reads_of(body: Scalar) -> Iterator[Read]:
    """Yield the reads of a scalar; raises ``Unnamed`` if it has a number known only by name."""
    match body:
        case Read():
            yield body
        case IndexNumber(value) if has_reals(value):
            raise Unnamed(f"{value} is no number")
        case Apply(function, arguments):
            if function not in FUNCTIONS:
                raise Unnamed(f"{function} is any function")
            for argument in arguments:
                yield from reads_of(argument)
        case Guarded(conditions, then, otherwise):
            if any(has_reals(side) for condition in conditions for side in (condition.left, condition.right)):
                raise Unnamed("a condition on a number")
            yield from reads_of(then)
            yield from reads_of(otherwise)
