"""Test a rule on random shapes, attributes and data: exactly in F_p where it is rational, always in float64.

A guard that refuses everything proves nothing, so a rule that never applies fails. A failure is a concrete
counterexample, printed as numpy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from egraph.errors import EinsatError
from egraph.ir import Node, attributes, format_fragment, walk
from egraph.ops.reference import evaluate
from egraph.rule import Binding, MergeRule, Mismatch, Rule, Variable, WrongAttribute, WrongNumber
from verify.random_binding import Refused, draw_binding

RATIONAL = frozenset({
    "Add", "Sub", "Mul", "Div", "Neg", "Reciprocal", "MatMul", "Conv", "ConvTranspose", "ReduceSum", "ReduceMean", "ReduceProd",
    "AveragePool", "Reshape", "Transpose", "Concat", "Slice", "Pad", "Expand", "Placeholder",
})
"""Operators that rational arithmetic computes, so that the prime field tests them exactly."""
SUMMING = frozenset({
    "MatMul", "Conv", "ConvTranspose", "AveragePool", "ReduceSum", "ReduceMean", "Softmax", "LogSoftmax", "LayerNormalization",
    "InstanceNormalization",
})
"""Operators whose order of summation the reference chooses: only without them is "exact" compared bit for bit."""
TOLERANCE = 1e-9
"""Largest difference, relative to the largest magnitude of either side, that float64 rounding explains."""


@dataclass(frozen=True)
class RuleTest:
    """What a random test found: cases compared, how many of them exactly, refusals by reason, counterexamples."""

    rule: str
    cases: int
    exact_cases: int
    refused: Mapping[str, int]
    failures: tuple[str, ...]

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


@dataclass(frozen=True)
class _Case:
    """Both sides for one draw; a merge rule has several roots a side."""

    left: tuple[Node, ...]
    right: tuple[Node, ...]
    numbers: Mapping[int, float]
    """Placeholders all of whose elements are one number."""


def check_rule(rule: Rule | MergeRule, seed: int = 0, cases: int = 8, tries: int = 3000) -> RuleTest:
    """Compare both sides of ``rule`` on ``cases`` random draws; give up after ``tries`` draws."""
    random = Random(f"{rule.name} {seed}")
    refused: Counter[str] = Counter()
    failures: list[str] = []
    done = exact = 0
    for _ in range(tries):
        if done == cases or failures:
            break
        try:
            case = _case(rule, random)
            data = ("signed", "positive", "signed", "special" if rule.rounding == "exact" else "positive")[done % 4]
            with np.errstate(all="ignore"):  # infinities are compared, not feared
                outcome = _compare(case, np.random.default_rng(random.getrandbits(32)), data, bits=rule.rounding == "exact")
        except (IndexError, ZeroDivisionError, ValueError) as crash:
            failures.append(f"  the rule itself failed on a well-typed left side: {type(crash).__name__}: {crash}")
            continue
        except (Refused, Mismatch, EinsatError) as refusal:
            refused[getattr(refusal, "what", None) or str(refusal)] += 1
            continue
        done += 1
        exact += outcome.exact
        failures += [f"  {outcome.counterexample}"] if outcome.counterexample else []
    return RuleTest(rule.name, done, exact, dict(refused), tuple(failures))


def _case(rule: Rule | MergeRule, random: Random) -> _Case:
    if isinstance(rule, Rule):
        binding = draw_binding(rule, random)
        for _ in range(len(rule.variables) + 5):
            try:
                left, right = rule.apply(binding)
                break
            except WrongNumber as wrong:
                binding = replace(binding, numbers={**binding.numbers, wrong.variable: wrong.number})
            except WrongAttribute as wrong:
                bundle = attributes(**{**dict(binding.attributes[wrong.variable]), wrong.attribute: wrong.value})
                binding = replace(binding, attributes={**binding.attributes, wrong.variable: bundle})
        else:
            raise Refused("the rule asks for two values of one constant or attribute")
        return _Case((left,), (right,), _numbers(rule.variables, binding, 0))
    bindings = [draw_binding(rule.member, random)]
    for _ in range(random.randint(1, 3)):
        first = bindings[0]
        common = Binding({name: first.types[name] for name in rule.shared if name in first.types}, first.attributes)
        bindings.append(draw_binding(rule.member, random, common))
    lefts, rights = rule.apply(bindings)
    return _Case(lefts, rights, {})


def _numbers(variables: Sequence[Variable], binding: Binding, offset: int) -> dict[int, float]:
    return {offset + i: binding.numbers[v.name] for i, v in enumerate(variables) if v.name in binding.numbers}


def _position(leaf: Node) -> int:
    return int(str(leaf.attribute("index")))


@dataclass(frozen=True)
class _Outcome:
    exact: bool
    counterexample: str = ""


def _compare(case: _Case, generator: np.random.Generator, data: str, *, bits: bool) -> _Outcome:
    leaves = sorted({node for node in walk((*case.left, *case.right)) if node.op == "Placeholder"}, key=_position)
    operators = {node.op for node in walk((*case.left, *case.right))}
    tolerance = 0.0 if bits and not operators & SUMMING else TOLERANCE
    values: dict[Node, np.ndarray] = {}
    for leaf in leaves:
        number = case.numbers.get(_position(leaf))
        shape = leaf.type.sizes
        drawn = generator.standard_normal(shape) * generator.choice((0.3, 1.0, 3.0))
        if number is not None:
            drawn = np.full(shape, number)
        elif data == "positive":
            drawn = np.abs(drawn) + 0.01
        elif data == "special" and not leaf.attribute("constant") and not operators & SUMMING:
            drawn = np.where(generator.random(shape) < 0.3, generator.choice((np.inf, -np.inf, np.nan), shape), drawn)
        values[leaf] = drawn
    count = len(case.left)
    results = evaluate((*case.left, *case.right), values, field="float64")
    finite = False
    for position, (left, right) in enumerate(zip(results[:count], results[count:], strict=True)):
        known = left[np.isfinite(left)]
        finite = finite or known.size > 0
        scale = max(1.0, float(np.abs(known).max(initial=0.0)))
        if not np.allclose(left, right, rtol=0.0, atol=tolerance * scale, equal_nan=True):
            return _Outcome(False, _show(case, position, values, left, right))
    if not finite:
        raise Refused("every element of the result is infinite or no number")
    if not operators <= RATIONAL or any(number != int(number) for number in case.numbers.values()):
        return _Outcome(False)
    integers = {leaf: value if _position(leaf) in case.numbers else generator.integers(1, 2**31 - 1, value.shape)
                for leaf, value in values.items()}
    results = evaluate((*case.left, *case.right), integers, field="prime")
    for position, (left, right) in enumerate(zip(results[:count], results[count:], strict=True)):
        if not np.array_equal(left, right):
            return _Outcome(True, _show(case, position, integers, left, right))
    return _Outcome(True)


def _show(case: _Case, position: int, values: Mapping[Node, np.ndarray], left: np.ndarray, right: np.ndarray) -> str:
    """Return a counterexample that can be pasted into Python."""
    lines = [f"left  = {format_fragment(case.left[position])}", f"right = {format_fragment(case.right[position])}"]
    for leaf, value in values.items():
        lines.append(f"operand {_position(leaf)} = np.{np.array2string(value, separator=', ', threshold=60, prefix=' ' * 12)}")
    where = tuple(int(i) for i in np.unravel_index(int(np.argmax(np.abs(np.nan_to_num(left - right, nan=np.inf)))), left.shape))
    lines.append(f"at {where}: left {left[where]!r}, right {right[where]!r}")
    return "\n  ".join(lines)
