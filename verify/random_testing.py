"""Test a rule on random shapes, attributes and data: always in float64, and exactly in F_p if it is rational.

A guard that refuses everything proves nothing, so a rule that never applies fails. A failure is a concrete
counterexample, printed as numpy code.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, TypeAlias

import numpy as np

from egraph.errors import EinsatError, RuleError
from egraph.rewrite.clock import OutOfTime, look
from egraph.rewrite.operations import TooLong
from egraph.rewrite.refusals import WrongAttribute, WrongNumber
from egraph.rewrite.terms import Pattern, Variable
from egraph.rule import Binding, MergeRule, Mismatch, Rule
from egraph.tensor import Node, attributes, format_fragment, placeholders, walk
from egraph.tensor.ops import OPS
from egraph.tensor.ops.dtypes import BYTES, FLOATS, RANGES
from egraph.tensor.ops.lookup import fewest_entries
from egraph.tensor.ops.reference import evaluate
from verify.random_binding import Refused, draw_binding

RATIONAL = frozenset({
    "Add", "Sub", "Mul", "Div", "Neg", "Reciprocal", "MatMul", "Conv", "ConvTranspose", "ReduceSum", "ReduceMean", "ReduceProd",
    "AveragePool", "Reshape", "Transpose", "Concat", "Slice", "Pad", "Expand", "Placeholder",
})
"""Operators that rational arithmetic computes, so that the prime field tests them exactly."""
SUMMING = frozenset({
    "MatMul", "Conv", "ConvTranspose", "AveragePool", "ReduceSum", "ReduceMean", "Softmax", "LogSoftmax", "LayerNormalization",
    "InstanceNormalization", "LRN", "ReduceProd",
})
"""Operators whose order of summation the reference chooses. Rules of the class "exact" are compared bit for bit only without them."""
STEPPING = frozenset({"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Sign", "Floor", "Ceil", "Round"})
"""Operators that jump when operands are equal or integers; they are also tested on small integers."""
OTHERS = (1, 1, 2, 2, 2, 3, 3, 5, 8)
"""Numbers of members of a merge besides the first, to draw from; some exceed the numbers that its proof covers."""
TOLERANCE = 1e-9
"""Largest difference that float64 rounding explains, relative to the largest magnitude of the left side (at least 1)."""
CRASHES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)
"""Exceptions that a mistake in a rule's own code raises."""

Data: TypeAlias = Literal["integers", "signed", "positive", "special", "zeros"]
"""Small integers; normally distributed numbers; their magnitudes; normally distributed numbers with infinities, NaN and far smaller and
larger numbers among them; small integers with many zeros."""
SPECIAL = (np.inf, -np.inf, np.nan)
EXTREME = (2.0**-60, -(2.0**-60), 2.0**60, -(2.0**60))


@dataclass(frozen=True)
class Instance:
    """Both sides of a rule for one binding (several for a merge rule, which has several roots per side)."""

    bindings: tuple[Binding, ...]
    left: tuple[Node, ...]
    right: tuple[Node, ...]
    numbers: Mapping[int, float]
    """For placeholders whose elements all equal one number, by index: that number."""

    @property
    def leaves(self) -> tuple[Node, ...]:
        return tuple(placeholders(*self.left, *self.right))

    @property
    def operators(self) -> frozenset[str]:
        return frozenset(node.op for node in walk((*self.left, *self.right)))

    @property
    def elements(self) -> int:
        return sum(leaf.type.elements for leaf in self.leaves)


@dataclass(frozen=True)
class Difference:
    """Operands on which both sides of an instance differ: result ``position`` of the left and of the right."""

    instance: Instance
    values: Mapping[Node, np.ndarray]
    position: int
    left: np.ndarray
    right: np.ndarray
    field: Literal["float64", "prime"] = "float64"

    @property
    def index(self) -> tuple[int, ...]:
        """Return the first index at which the sides differ by more than rounding."""
        apart = ~np.isclose(self.left, self.right, rtol=0.0, atol=_slack(self.left, TOLERANCE), equal_nan=True)
        if not apart.any():
            with np.errstate(invalid="ignore"):
                apart = (self.left != self.right) & ~(np.isnan(self.left) & np.isnan(self.right))
        return tuple(int(i) for i in np.unravel_index(int(np.argmax(apart)), self.left.shape))

    def __str__(self) -> str:
        """Return a counterexample that can be pasted into Python."""
        at, case = self.index, self.instance
        lines = [f"left  = {format_fragment(case.left[self.position])}", f"right = {format_fragment(case.right[self.position])}"]
        for leaf, value in self.values.items():
            lines.append(f"operand {leaf.integer('index')} = np.{np.array2string(value, separator=', ', threshold=60, prefix=' ' * 12)}")
        lines.append(f"at {at}: left {self.left[at]!r}, right {self.right[at]!r}")
        return "\n  ".join(lines)


@dataclass(frozen=True)
class RuleTest:
    """The result of a random test: cases compared, how many of them exactly, refusals by reason, counterexamples.

    ``identical``: number of cases whose right side is their left side; ``instances``: those that were compared.
    """

    rule: str
    cases: int
    exact_cases: int
    refused: Mapping[str, int]
    failures: tuple[str, ...]
    differences: tuple[Difference, ...] = ()
    identical: int = 0
    instances: tuple[Instance, ...] = ()

    @property
    def passed(self) -> bool:
        return self.cases > 0 and not self.failures

    def __str__(self) -> str:
        if self.failures:
            return f"{self.rule}: refuted\n" + "\n".join(self.failures)
        if not self.cases:
            reasons = "".join(f"\n  {count:5} x {reason}" for reason, count in Counter(self.refused).most_common(8))
            return f"{self.rule}: never applied, so nothing was tested; refusals:{reasons}"
        return f"{self.rule}: {self.cases} cases equal, {self.exact_cases} of them exactly"


SELDOM = 8
"""Refused draws per accepted one beyond which constants that had one element in all matches get one element in every second draw."""


REPEATED = 4
"""A rule's function is applied twice in one of this many cases: its sides may depend on nothing but its arguments."""


def check_rule(rule: Rule | MergeRule, seed: int = 0, cases: int = 8, tries: int = 3000) -> RuleTest:
    """Compare both sides of ``rule`` on ``cases`` random draws; stop after ``tries`` draws."""
    random = Random(f"{rule.name} {seed}")
    refused: Counter[str] = Counter()
    failures: list[str] = []
    differences: list[Difference] = []
    done = exact = identical = 0
    compared: list[Instance] = []
    single: tuple[str, ...] = ()
    for _ in range(tries):
        if done == cases or failures:
            break
        look()
        try:
            seldom = single and refused.total() > SELDOM * (done + 1)
            instance = draw(rule, random, single if seldom and random.random() < 0.5 else ())
            again = instance if done % REPEATED else instantiate(rule, instance.bindings)
            if (again.left, again.right) != (instance.left, instance.right):
                failures.append("  the rule gives other sides for the same match: its function depends on more than its arguments")
                continue
            kinds: tuple[Data, ...] = (
                "signed", "positive", "zeros" if done % 8 == 2 else "signed", "special" if rule.rounding == "exact" else "positive",
            )  # fmt: skip
            whole = done % 2 and instance.operators & STEPPING and kinds[done % 4] not in ("special", "zeros")
            data: Data = "integers" if whole else kinds[done % 4]
            defined = data == "zeros" or rule.rounding == "assumes finite"
            alike = rule.rounding == "reassociates"
            is_exact, difference = compare(
                instance, random.getrandbits(32), data, bits=rule.rounding == "exact", defined=defined, alike=alike
            )
        except RuleError:
            raise
        except TooLong as long:
            raise OutOfTime(str(long)) from long
        except (Refused, Mismatch, EinsatError) as refusal:
            refused[getattr(refusal, "what", None) or str(refusal)] += 1
            continue
        except CRASHES as crash:
            failures.append(f"  the rule itself failed on a well-typed left side: {type(crash).__name__}: {crash}")
            continue
        done += 1
        compared.append(instance)
        ones = one_element_constants(rule, instance.bindings[0])
        single = ones if done == 1 else tuple(name for name in single if name in ones)
        exact += is_exact
        identical += instance.left == instance.right
        if difference:
            failures.append(f"  {difference}")
            differences.append(difference)
    return RuleTest(rule.name, done, exact, dict(refused), tuple(failures), tuple(differences), identical, tuple(compared))


def draws(rule: Rule | MergeRule, seed: int, tries: int) -> Iterator[Instance]:
    """Yield the instances that result from ``tries`` random draws."""
    random = Random(f"{rule.name} {seed}")
    for _ in range(tries):
        try:
            yield draw(rule, random)
        except (*CRASHES, Refused, Mismatch, EinsatError):
            continue


def one_element_constants(rule: Rule | MergeRule, binding: Binding) -> tuple[str, ...]:
    """Return the constants of a match that have one element and are read only by pointwise operators."""
    if isinstance(rule, MergeRule):
        return ()
    constants = {variable.name for variable in rule.variables if variable.constant and binding.types[variable.name].elements == 1}
    for term in _terms(rule.pattern):
        if term.op not in OPS or OPS[term.op].category != "elementwise":  # other systems' operators have no category
            constants -= {operand.name for operand in term.operands if isinstance(operand, Variable)}
    return tuple(variable.name for variable in rule.variables if variable.name in constants)


def _terms(term: Pattern | Variable) -> Iterator[Pattern]:
    if isinstance(term, Pattern):
        yield term
        for operand in term.operands:
            yield from _terms(operand)


def draw(rule: Rule | MergeRule, random: Random, single: Sequence[str] = ()) -> Instance:
    """Draw an instance in which the constants of ``single`` have one element.

    Raises ``Refused``, ``Mismatch`` or an error of the rule itself if the draw fails.
    """
    if isinstance(rule, Rule):
        return instantiate(rule, (draw_binding(rule, random, single=single),))
    bindings = [draw_binding(rule.member, random)]
    alike = random.random() < 0.3
    for _ in range(random.choice(OTHERS)):
        first = bindings[0]
        if alike:
            bindings.append(first)
            continue
        common = Binding({name: first.types[name] for name in rule.shared if name in first.types}, first.attributes)
        bindings.append(draw_binding(rule.member, random, common))
    return instantiate(rule, tuple(bindings))


def instantiate(rule: Rule | MergeRule, bindings: Sequence[Binding]) -> Instance:
    """Return both sides for bindings; constants and attributes for which the rule asks for a number become that number."""
    if isinstance(rule, MergeRule):
        lefts, rights = rule.apply(bindings)
        return Instance(tuple(bindings), lefts, rights, {})
    binding = bindings[0]
    for _ in range(len(rule.variables) + 5):
        try:
            left, right = rule.apply(binding)
            return Instance((binding,), (left,), (right,), _numbers(rule.variables, binding))
        except WrongNumber as wrong:
            binding = replace(binding, numbers={**binding.numbers, wrong.variable: wrong.number})
        except WrongAttribute as wrong:
            bundle = attributes(**{**dict(binding.attributes[wrong.variable]), wrong.attribute: wrong.value})
            binding = replace(binding, attributes={**binding.attributes, wrong.variable: bundle})
    raise Refused("the rule asks for two values of one constant or attribute")


def _numbers(variables: Sequence[Variable], binding: Binding) -> dict[int, float]:
    return {i: binding.numbers[v.name] for i, v in enumerate(variables) if v.name in binding.numbers}


def draw_values(instance: Instance, seed: int, data: Data) -> dict[Node, np.ndarray]:
    """Return random operands for an instance."""
    generator = np.random.default_rng(seed)
    others = np.random.default_rng(seed + 2)
    special = data == "special" and not instance.operators & SUMMING
    values: dict[Node, np.ndarray] = {}
    for leaf in instance.leaves:
        number = instance.numbers.get(leaf.integer("index"))
        shape = leaf.type.sizes
        drawn = generator.standard_normal(shape) * generator.choice((0.3, 1.0, 3.0))
        if leaf.type.dtype == "bool":
            drawn = generator.integers(0, 2, shape).astype(np.float64)
        elif leaf.type.dtype in BYTES and number is None:
            low, high = RANGES[leaf.type.dtype]
            drawn = generator.integers(low, high + 1, shape).astype(np.float64)
        elif leaf.type.dtype not in FLOATS and number is None:
            bound = _most(leaf, instance)
            drawn = generator.integers(-bound, bound, shape).astype(np.float64)
        elif number is not None:
            drawn = np.full(shape, number)
        elif data == "zeros":
            drawn = np.where(generator.random(shape) < 0.4, 0.0, generator.integers(-2, 3, shape).astype(np.float64))
        elif data == "integers":
            drawn = generator.integers(-3, 4, shape).astype(np.float64)
        elif data == "positive":
            drawn = np.abs(drawn) + 0.01
        elif special and not leaf.attribute("constant"):
            drawn = np.where(generator.random(shape) < 0.3, generator.choice(SPECIAL, shape), drawn)
            drawn = np.where(np.isfinite(drawn) & (others.random(shape) < 0.2), others.choice(EXTREME, shape), drawn)
        values[leaf] = drawn
    return values


def _most(leaf: Node, instance: Instance) -> int:
    """Return the fewest entries of an axis that an operand indexes; its indices may be negative, counting from the end."""
    extents = [
        entries for node in walk((*instance.left, *instance.right))
        if (entries := fewest_entries(node)) is not None and leaf in walk((node.inputs[1],))
    ]  # fmt: skip
    return min(extents, default=4)


def compare(
    instance: Instance, seed: int, data: Data, *, bits: bool, defined: bool = False, alike: bool = False
) -> tuple[bool, Difference | None]:
    """Evaluate both sides on random operands; return whether F_p was used, and the difference if there is one.

    ``defined``: where the left side is not finite, the right side may have any value; ``alike``: any value that is not finite.
    Raises ``Refused`` if no element of the result is finite, because that compares nothing.
    """
    values = draw_values(instance, seed, data)
    difference = difference_on(instance, values, bits=bits, defined=defined, alike=alike)
    if difference:
        return False, difference
    rational = instance.operators <= RATIONAL and all(leaf.type.dtype in FLOATS for leaf in instance.leaves)
    if not rational or not all(math.isfinite(n) and n == int(n) for n in instance.numbers.values()):
        return False, None
    generator = np.random.default_rng(seed + 1)
    integers = {leaf: value if leaf.integer("index") in instance.numbers else generator.integers(1, 2**31 - 1, value.shape)
                for leaf, value in values.items()}
    count = len(instance.left)
    results = evaluate((*instance.left, *instance.right), integers, field="prime")
    for position, (left, right) in enumerate(zip(results[:count], results[count:], strict=True)):
        if not np.array_equal(left, right):
            return True, Difference(instance, integers, position, left, right, "prime")
    return True, None


def difference_on(
    instance: Instance, values: Mapping[Node, np.ndarray], *, bits: bool, defined: bool = False, alike: bool = False
) -> Difference | None:
    """Return how the sides differ on given operands in float64; ``bits``: rounding errors count as differences if nothing is summed."""
    tolerance = 0.0 if bits and not instance.operators & SUMMING else TOLERANCE
    count = len(instance.left)
    with np.errstate(all="ignore"):  # infinities are compared as values
        results = evaluate((*instance.left, *instance.right), values, field="float64")
    finite = False
    for position, (left, right) in enumerate(zip(results[:count], results[count:], strict=True)):
        finite = finite or bool(np.isfinite(left).any())
        if defined:
            right = np.where(np.isfinite(left), right, left)
        if alike:
            right = np.where(np.isfinite(left) | np.isfinite(right), right, left)
        if not np.allclose(left, right, rtol=0.0, atol=_slack(left, tolerance), equal_nan=True):
            return Difference(instance, values, position, left, right)
    if not finite:
        raise Refused("every element of the result is infinite or no number")
    return None


def _slack(left: np.ndarray, tolerance: float) -> float:
    return tolerance * max(1.0, float(np.abs(left[np.isfinite(left)]).max(initial=0.0)))
