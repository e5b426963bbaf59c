"""Prove that two scopes are the same tensor for all sizes that the assumptions allow; never claim that they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import lcm, prod

from egraph.tensor.expr.bodies import walked
from egraph.tensor.expr.index import Index, Iterator, Modulo, Size, atoms, index
from egraph.tensor.expr.laws import iterators_of
from egraph.tensor.expr.scope import Compare, Guarded, Scalar, Scope
from verify.assumptions import Assumptions
from verify.bijection import equal_values, unpaired
from verify.definedness import differences, is_partial
from verify.forms import Summand
from verify.normal import Need, Value, beyond, normalise
from verify.normal.context import TooLarge
from verify.outcome import Equal, Open, Outcome

__all__ = ["Equal", "Open", "Outcome", "prove_equal"]

MOST_PHASES = 64
"""Most phases of the output that are compared one by one."""
Output = tuple[Index, ...]
Phases = Mapping[int, tuple[int, int]]
"""For some axes of the output: base and phase of the positions ``base * o + phase`` that are compared."""
Residue = tuple[Summand, ...] | None


def prove_equal(left: Scope, right: Scope, assumptions: Assumptions) -> Outcome:
    """Normalise both sides at one generic output index and pair their terms."""
    if len(left.shape) != len(right.shape):
        return Open(f"the left side has {len(left.shape)} axes, the right side {len(right.shape)}", assumptions.conditions)
    for axis, (size, right_size) in enumerate(zip(left.shape, right.shape, strict=True)):
        if not assumptions.equal(size, right_size):
            return Open(f"axis {axis}: {index(size)} == {index(right_size)}", assumptions.conditions)
    output = output_positions(left, assumptions, assumptions.is_seen_to_be_one)
    outcome = _equal_at(left, right, output, assumptions)
    if isinstance(outcome, Equal):
        return outcome
    thorough = output_positions(left, assumptions)
    return outcome if thorough == output else _equal_at(left, right, thorough, assumptions)


def _equal_at(left: Scope, right: Scope, output: Output, assumptions: Assumptions) -> Outcome:
    seen = _Seen(is_partial(right))
    try:
        outcome = _compared(left, right, output, assumptions, seen)
    except TooLarge as reason:
        return Open(str(reason), assumptions.conditions)
    if not isinstance(outcome, Equal):
        return outcome
    return Equal(outcome.facts | seen.facts | differences(left, right))


def output_positions(side: Scope, assumptions: Assumptions, is_one: Callable[[Size], bool] | None = None) -> Output:
    """Return the generic position of the output: 0 along axes that ``is_one`` recognises as having one element, else an iterator."""
    is_one = is_one or (lambda size: assumptions.equal(size, 1))
    return tuple(index(0 if is_one(size) else Iterator(f"o{axis}", 0, size)) for axis, size in enumerate(side.shape))


@dataclass
class _Seen:
    """The facts that the laws used rest on, and the needs of the partial functions of each side."""

    asking: bool
    """Whether the right side has partial functions."""
    facts: set[str] = field(default_factory=set)
    left: list[Need] = field(default_factory=list)
    right: list[Need] = field(default_factory=list)


def _compared(left: Scope, right: Scope, output: Output, assumptions: Assumptions, seen: _Seen) -> Outcome:
    for phases, values in _parts(left, right, output, assumptions, seen):
        outcome = _agreeing(values, assumptions, seen)
        if isinstance(outcome, Open):
            at = dict(outcome.at) | {f"o{axis}": base * outcome.at.get(f"o{axis}", 0) + phase for axis, (base, phase) in phases.items()}
            return replace(outcome, at=at)
    return Equal()


def residues(left: Scope, right: Scope, assumptions: Assumptions) -> Iterable[tuple[Phases, Residue]]:
    """Yield the unpaired terms of left minus right over the whole output, or over each phase; None if any element may differ."""
    output = output_positions(left, assumptions)
    seen = _Seen(is_partial(right))
    for phases, values in _parts(left, right, output, assumptions, seen):
        beyond_left = bool(seen.right) and bool(beyond(seen.right, seen.left, assumptions, lambda first, second: first == second))
        yield phases, None if beyond_left else unpaired(*values, assumptions)


def _parts(
    left: Scope, right: Scope, output: Output, assumptions: Assumptions, seen: _Seen
) -> Iterable[tuple[Phases, tuple[Value, Value]]]:  # fmt: skip
    """Yield both sides, normalised over the whole output, or at o = base * o' + phase for every phase of some axes."""
    bases: Mapping[int, int] = {}
    if assumptions.facts.at_sizes:
        left_bases, right_bases = (_bases(_choices(side.body), tuple(map(index, side.traversal))) for side in (left, right))
        bases = {axis: lcm(left_bases.get(axis, 1), right_bases.get(axis, 1)) for axis in sorted({*left_bases, *right_bases})}
    if not bases:
        values = _normalised(left, right, output, assumptions, seen)
        if assumptions.facts.at_sizes:
            bases = _bases((c for value in values for term in value.terms for c in term.conditions), output)
        if not bases:
            yield {}, values
            return
    for chosen in product(*(range(base) for base in bases.values())):
        phases = dict(zip(bases, zip(bases.values(), chosen, strict=True), strict=True))
        moved = _moved(output, phases)
        if moved is not None:
            yield phases, _normalised(left, right, moved, assumptions, seen)


def _choices(body: Scalar) -> Iterable[Compare]:
    """Yield the conditions of a scalar, without those of inner scopes."""
    return (condition for part in walked(body) if isinstance(part, Guarded) for condition in part.conditions)


def _normalised(left: Scope, right: Scope, output: Output, assumptions: Assumptions, seen: _Seen) -> tuple[Value, Value]:
    seen.left, seen.right = [], []
    return (normalise(left, output, assumptions, seen.facts, seen.left if seen.asking else None),
            normalise(right, output, assumptions, seen.facts, seen.right if seen.asking else None))


def _agreeing(values: tuple[Value, Value], assumptions: Assumptions, seen: _Seen) -> Outcome:
    """Return whether the values just normalised are equal, and the right side is defined wherever the left side is."""
    def equal(first: Value, second: Value) -> bool:
        return isinstance(equal_values(first, second, assumptions), Equal)

    outcome = equal_values(*values, assumptions)
    if isinstance(outcome, Equal) and (asked := beyond(seen.right, seen.left, assumptions, equal)):
        return Open(asked, assumptions.conditions)
    return outcome


def _bases(conditions: Iterable[Compare], output: Output) -> Mapping[int, int]:
    """Return, for each axis of the output whose remainder the conditions test, the base of its interleaved phases."""
    axes = {atom: axis for axis, position in enumerate(output) for atom in iterators_of(position)}
    bases: dict[int, int] = {}
    choosing = {condition for condition in conditions if condition.operator in ("==", "!=")}
    for atom in {atom for condition in choosing for atom in atoms(condition.left - condition.right)}:
        if not isinstance(atom, Modulo) or atom.divisor.constant is None:
            continue
        inside = iterators_of(atom.numerator)
        if len(inside) == 1 and inside <= axes.keys():
            axis = axes[next(iter(inside))]
            bases[axis] = lcm(bases.get(axis, 1), atom.divisor.constant)
    return dict(sorted(bases.items())) if prod(bases.values()) <= MOST_PHASES else {}


def _moved(output: Sequence[Index], phases: Phases) -> Output | None:
    """Return the output's positions within a phase of some axes; None if it has none."""
    result = list(output)
    for axis, (base, phase) in phases.items():
        (iterator,) = iterators_of(output[axis])
        count = -(-((index(iterator.high).constant or 0) - phase) // base)
        if count < 1:
            return None
        result[axis] = index(0 if count == 1 else Iterator(f"o{axis}", 0, count)) * base + phase
    return tuple(result)
