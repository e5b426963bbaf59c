"""Where the sides of a rule differ, for all sizes: boxes whose ends are linear in the sizes of its variables.

The ends are guessed from the boxes at several sizes. A proof then shows that the sides are equal outside of the guessed boxes, for
all sizes of the case. At every drawn instance the boxes hold all positions that differ; ``exact`` counts the instances at which they
hold nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice, product
from math import lcm, prod
from random import Random
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from egraph.errors import EinsatError
from egraph.rewrite.clock import look
from egraph.rule import Mismatch, Rule
from egraph.tensor.boxes import Box, Mask, axis_names, boxes_of, mask_of, widened
from egraph.tensor.expr.compose import at
from egraph.tensor.expr.conditions import negation
from egraph.tensor.expr.index import Floor, Index, Modulo, Symbol, atoms, index, simplify
from egraph.tensor.expr.scope import Compare, Scope
from egraph.tensor.ops.reference import fragment_expression
from egraph.tensor.ops.scopes import grid
from verify.budget import Exhausted, at_most
from verify.cases import Case, cases
from verify.disagreement import seen_to_differ
from verify.equality import output_positions, prove_equal
from verify.models import small_values
from verify.open_cases import MOST_ELEMENTS, Values, bindings_at, holds_at, symbols_of, value_at
from verify.outcome import Equal
from verify.random_binding import Refused
from verify.random_testing import CRASHES, Instance, instantiate

MOST_CASES = 12
"""Number of cases of a rule that are examined: the first ones, which have the lowest ranks."""
ATTEMPTS, MOST_INSTANCES, LEAST_INSTANCES = 60, 32, 4
"""Models of a case that are asked for; most instances whose boxes are computed; least instances of one pattern to fit ends of boxes."""
LARGER, PADS, SHARE = ((2, 3, 4), (4, 5, 6, 7)), (1, 2), 0.9
"""Lower bounds of sizes; lower bounds of symbols that may be 0, such as pads; the share of symbols that get a bound."""
MOST_TERMS, FACTORS, MAJORITY = 2, (1, -1, 2, -2), 0.7
"""Most sizes in the end of a box; their possible factors; the least share of the instances that an end has to fit."""
LEAST_SHARE = 0.25
"""Least share of the instances at which the boxes are exactly the differing positions. At small sizes the sides may agree by chance."""
MOST_PATTERNS = 4
"""Most patterns of boxes that are fitted. Several exist because at some sizes boxes meet or are empty."""
MOST_BOXES = 8
"""Most boxes of one instance; an instance with more is not used."""
MOST_PHASES = 16
"""Most phases of positions that are proved one by one, if boxes have steps."""
MOST_WORK = 20_000
"""Most units of work of one proof for all sizes."""
Numbers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Run:
    """The positions ``first, first + step, ..., last`` that lie on an axis."""

    first: Index
    last: Index
    step: Index

    def conditions(self, position: Index) -> tuple[Compare, ...]:
        """Return the conditions under which a position lies in the run."""
        bounds = (Compare(self.first, "<=", position), Compare(position, "<=", self.last))
        return bounds if self.step.constant == 1 else (*bounds, Compare((position - self.first) % self.step, "==", index(0)))

    def at(self, values: Values, size: int) -> range:
        """Return the positions at known sizes."""
        first, last, step = (value_at(each, values) for each in (self.first, self.last, self.step))
        if first < 0:
            first %= step
        return range(first, min(last + 1, size), step)


Runs: TypeAlias = tuple[Run | None, ...]
"""A box: one run per axis, None for the whole axis."""


@dataclass(frozen=True)
class Parametric:
    """The sides of a case are equal outside of ``boxes`` for all sizes; ``shape`` is that of the result.

    Boxes may overlap at some sizes. For example, the first row of an image of one row is its last row.
    """

    case: str
    boxes: tuple[Runs, ...]
    shape: tuple[Index, ...]
    axes: tuple[str, ...]
    sizes: Mapping[object, tuple[str, int]]
    """For each symbol, an expression of the rule's function and the factor between them: ``x.shape[0]`` may be twice a symbol."""
    given: tuple[Compare, ...]
    """Further conditions under which the statement holds."""
    exact: int
    drawn: int
    """``drawn``: number of drawn instances that satisfy ``given``; at all of them the boxes contain the positions that differ.
    ``exact``: number of those at which the boxes are exactly these positions."""

    def at(self, values: Values) -> tuple[Box, ...]:
        """Return disjoint boxes at known sizes."""
        sizes = tuple(value_at(size, values) for size in self.shape)
        return boxes_of(self.mask(values, sizes))

    def is_exact(self, values: Values, sizes: Sequence[int], boxes: Sequence[Box]) -> bool:
        """Return whether the boxes equal ``boxes`` at known sizes."""
        return bool((self.mask(values, sizes) == mask_of(boxes, sizes)).all())

    def holds(self, values: Values, sizes: Sequence[int], boxes: Sequence[Box]) -> bool:
        """Return whether ``boxes`` lie in the boxes at known sizes."""
        return bool((self.mask(values, sizes) | ~mask_of(boxes, sizes)).all())

    def mask(self, values: Values, sizes: Sequence[int]) -> Mask:
        """Return the positions in any of the boxes at known sizes."""
        runs = [[range(n) if r is None else r.at(values, n) for r, n in zip(box, sizes, strict=True)] for box in self.boxes]
        return mask_of([tuple(box) for box in runs], sizes)

    def describe(self) -> str:
        """Return ``equal except where axis 0 < p.before[0] or axis 0 >= x.shape[0] + p.before[0]``."""
        texts = (", ".join(self._run_text(axis, run) for axis, run in enumerate(box) if run is not None) for box in self.boxes)
        given = " and ".join(f"{self.text(each.left)} = {self.text(each.right)}" for each in self.given)
        return f"equal except {'' if self.exact == self.drawn else 'at most '}where {' or '.join(dict.fromkeys(texts))}" + (
            f", if {given}" if given else "")  # fmt: skip

    def empty(self) -> tuple[str, ...]:
        """Return conditions under which all boxes are empty, if each is a run along a single axis, otherwise ()."""
        conditions: dict[str, None] = {}
        for box in self.boxes:
            runs = [run for run in box if run is not None]
            if len(runs) != 1 or runs[0].step.constant != 1:
                return ()
            count = runs[0].last - runs[0].first + 1
            if count.constant is not None or count.constant_part:
                return ()
            is_natural = isinstance(count.atom, Symbol) and count.atom.minimum == 0
            conditions[f"{self.text(count)} {'==' if is_natural else '<='} 0"] = None
        return tuple(conditions)

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return {
            "case": self.case, "sizes": "all",
            "given": [f"{self.text(each.left)} == {self.text(each.right)}" for each in self.given],
            "shape": [self.text(size) for size in self.shape], "exact": self.exact, "drawn": self.drawn,
            "boxes": [
                {
                    name: {"first": self.text(run.first), "last": self.text(run.last), "step": self.text(run.step)}
                    for name, run in zip(self.axes, box, strict=True) if run is not None
                }
                for box in self.boxes
            ],
        }  # fmt: skip

    def _run_text(self, axis: int, run: Run) -> str:
        name, first, last = self.axes[axis], self.text(run.first), self.text(run.last)
        beyond, before = (run.last + run.step - self.shape[axis]).constant, (run.step - run.first).constant
        to_the_end = beyond is not None and beyond >= 0
        if run.step.constant != 1:
            congruent = f"{name} = {first} mod {self.text(run.step)}"
            whole = to_the_end and before is not None and before > 0
            return congruent if whole else f"{congruent}, {first} <= {name} <= {last}"
        if run.first == run.last:
            return f"{name} = {first}"
        if to_the_end:
            return f"{name} >= {first}"
        return f"{name} < {self.text(run.last + 1)}" if run.first.constant == 0 else f"{first} <= {name} <= {last}"

    def text(self, value: Index) -> str:
        """Return an index in the words of the rule's function, with subtracted terms last."""
        written = ""
        for monomial, coefficient in sorted(value.terms, key=lambda term: (not term[0], term[1] < 0)):
            size = self.sizes.get(monomial[0]) if len(monomial) == 1 else None
            if size is not None and coefficient % size[1] == 0:
                coefficient, factors = coefficient // size[1], [size[0]]
            else:
                factors = [self._atom(atom) for atom in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            sign = ("-" if coefficient < 0 else "") if not written else " - " if coefficient < 0 else " + "
            written += sign + " * ".join(factors)
        return written or "0"

    def _atom(self, atom: object) -> str:
        match atom:
            case Symbol(name):
                size, factor = self.sizes.get(atom, (name, 1))
                return size if factor == 1 else f"({size} // {factor})"
            case Floor(above, below):
                return f"(({self.text(above)}) // ({self.text(below)}))"
            case Modulo(above, below):
                return f"(({self.text(above)}) % ({self.text(below)}))"
        return str(atom)


def parametric(rule: Rule) -> Iterator[Parametric]:
    """Yield where the sides differ, for those of a rule's first cases for which boxes are proved for all sizes."""
    for case in islice(cases(rule), MOST_CASES):
        look()
        if len(case.left) == 1 and not (case.left_out or case.ill_typed or case.failure or case.is_opaque):
            located = _of_case(rule, case)
            if located is not None:
                yield located


@dataclass(frozen=True)
class _Drawn:
    """An instance: values of the case's symbols, sizes of the result, and the boxes in which its sides differ."""

    values: Values
    sizes: tuple[int, ...]
    boxes: tuple[Box, ...]
    wide: tuple[Box, ...]
    """The same positions as boxes that span whole axes if possible."""

    @property
    def pattern(self) -> tuple[tuple[bool, ...], ...]:
        """Return which axes each box spans entirely. Instances of one pattern may have boxes with the same symbolic ends."""
        return tuple(tuple(r == range(size) for r, size in zip(box, self.sizes, strict=True)) for box in self.wide)


def _of_case(rule: Rule, case: Case) -> Parametric | None:
    """Return the boxes of one case."""
    drawn: list[_Drawn] = []
    axes: tuple[str, ...] = ()
    for instance, values in _spread(rule, case):
        (left,), (right,) = instance.left, instance.right
        try:
            sides = fragment_expression(left, instance.numbers), fragment_expression(right, instance.numbers)
            mask = seen_to_differ(*sides)
        except EinsatError:
            return None
        boxes = () if mask is None else boxes_of(mask)
        if mask is not None and len(boxes) <= MOST_BOXES:
            drawn.append(_Drawn(values, left.type.sizes, boxes, widened(boxes, left.type.sizes)))
            axes = axis_names(left)
    shape = tuple(index(size) for size in case.left[0].shape)
    sums = _Sums(_basis(case, shape), drawn)
    guesses: list[tuple[int, Parametric, Sequence[_Drawn]]] = []
    for runs, alike in _fitted(drawn, shape, sums):
        guess = Parametric(case.scope_note, runs, shape, axes, _sizes_of(case), (), 0, len(drawn))
        guesses.append((sum(guess.is_exact(instance.values, instance.sizes, instance.boxes) for instance in drawn), guess, alike))
    for exact, guess, alike in sorted(guesses, key=lambda each: -each[0]):
        for given in dict.fromkeys(((), _alike(case, alike), _alike(case, drawn))) if exact else ():
            if _fits(case, guess, drawn, given):
                for condition in given:
                    fewer = tuple(each for each in given if each != condition)
                    given = fewer if _fits(case, guess, drawn, fewer) else given
                meeting = [instance for instance in drawn if _meets(instance, given)]
                exact = sum(guess.is_exact(instance.values, instance.sizes, instance.boxes) for instance in meeting)
                return replace(guess, given=given, exact=exact, drawn=len(meeting))
    return None


def _fits(case: Case, guess: Parametric, drawn: Sequence[_Drawn], given: Sequence[Compare]) -> bool:
    """Return whether, under more conditions, the boxes hold all differences at the instances, are exact at enough of them, and are proved.
    """
    meeting = [instance for instance in drawn if _meets(instance, given)]
    exact = sum(guess.is_exact(instance.values, instance.sizes, instance.boxes) for instance in meeting)
    holds = all(guess.holds(instance.values, instance.sizes, instance.boxes) for instance in meeting)
    if exact < max(LEAST_INSTANCES, LEAST_SHARE * len(meeting)) or not holds:
        return False
    return proved_outside(replace(case, assumptions=case.assumptions.assume(*given)), guess.boxes)


def _meets(instance: _Drawn, conditions: Sequence[Compare]) -> bool:
    return all(holds_at(condition, instance.values) for condition in conditions)


def _alike(case: Case, drawn: Sequence[_Drawn]) -> tuple[Compare, ...]:
    """Return equations between symbols and the values that they have at most of some instances, as conditions to try."""
    conditions: list[Compare] = []
    for symbol in symbols_of(case):
        ((value, count),) = Counter(instance.values[symbol] for instance in drawn).most_common(1)
        if count >= MAJORITY * len(drawn):
            conditions.append(Compare(index(symbol), "==", index(int(value))))
    return tuple(conditions)


def _spread(rule: Rule, case: Case) -> Iterator[tuple[Instance, Values]]:
    """Yield instances of a case with various sizes, because at small sizes boxes meet."""
    sizes = {atom for shape in case.shapes.values() for size in shape for atom in atoms(index(size)) if isinstance(atom, Symbol)}
    random = Random(case.scope_note)
    conditions = case.assumptions.conditions
    seen: set[str] = set()
    count = 0
    for attempt in range(ATTEMPTS):
        look()
        larger: list[Compare] = []
        for symbol in symbols_of(case):
            bounds = LARGER[attempt % len(LARGER)] if symbol in sizes else PADS if symbol.minimum == 0 else ()
            if bounds and random.random() < SHARE:
                larger.append(Compare(index(random.choice(bounds)), "<=", index(symbol)))
        values = small_values([*conditions, *larger], symbols_of(case))
        try:
            bindings = bindings_at(rule, case, values) if values is not None else ()
            if values is None or repr(bindings) in seen:
                continue
            seen.add(repr(bindings))
            instance = instantiate(rule, bindings)
        except (Mismatch, Refused, EinsatError, *CRASHES):
            continue
        if instance.elements <= MOST_ELEMENTS and all(holds_at(condition, values) for condition in conditions):
            count += 1
            yield instance, values
        if count >= MOST_INSTANCES:
            return


def _fitted(drawn: Sequence[_Drawn], shape: Sequence[Index], sums: _Sums) -> Iterator[tuple[tuple[Runs, ...], Sequence[_Drawn]]]:
    """Yield, for each of the most frequent patterns, boxes that fit most of its instances, and these instances."""
    patterns = Counter(instance.pattern for instance in drawn if instance.boxes)
    for pattern, count in patterns.most_common(MOST_PATTERNS):
        if count < LEAST_INSTANCES or all(map(all, pattern)):
            continue
        at = [k for k, instance in enumerate(drawn) if instance.pattern == pattern]
        alike = [drawn[k] for k in at]
        boxes: list[Runs] = []
        for number, whole in enumerate(pattern):
            runs: list[Run | None] = []
            for axis, size in enumerate(shape):
                if not whole[axis]:
                    ranges = [instance.wide[number][axis] for instance in alike]
                    runs.append(_run(ranges, [instance.sizes[axis] for instance in alike], size, sums, at))
                else:
                    runs.append(None)
            if any(run is None and not whole[axis] for axis, run in enumerate(runs)):
                break
            boxes.append(tuple(runs))
        else:
            yield tuple(boxes), alike


def _run(ranges: Sequence[range], sizes: Sequence[int], size: Index, sums: _Sums, at: Sequence[int]) -> Run | None:
    """Return a run that equals most of these ranges at the instances' sizes."""
    long = [k for k, r in enumerate(ranges) if len(r) > 1]
    step: Index | None = index(1)
    if any(ranges[k].step != 1 for k in long):
        step = sums.fit([ranges[k].step for k in long], [at[k] for k in long])
    first = sums.fit([r[0] for r in ranges], at)
    ends = sum(r[-1] + r.step >= n for r, n in zip(ranges, sizes, strict=True))
    to_the_end = bool(long) and ends >= MAJORITY * len(ranges)
    last = size - 1 if to_the_end else sums.fit([r[-1] for r in ranges], at)
    return None if first is None or step is None or last is None else Run(first, last, step)


class _Sums:
    """Sums of few sizes, each once or twice and of either sign, with their values at all instances: the possible ends of boxes, up to a
    constant."""

    def __init__(self, basis: Sequence[Index], drawn: Sequence[_Drawn]) -> None:
        values = [[value_at(value, instance.values) for instance in drawn] for value in basis]
        columns = np.array(values, np.int64).reshape(len(basis), len(drawn))
        self.sums: list[Index] = []
        rows: list[Numbers] = []
        terms: list[int] = []
        for count in range(MOST_TERMS + 1):
            for chosen in combinations(range(len(basis)), count):
                for factors in product(FACTORS, repeat=count):
                    self.sums.append(sum((basis[k] * f for f, k in zip(factors, chosen, strict=True)), index(0)))
                    rows.append(np.array(factors, np.int64) @ columns[list(chosen)] if count else np.zeros(len(drawn), np.int64))
                    terms.append(count)
        self.rows, self.terms = np.stack(rows), np.array(terms, np.int64)

    def fit(self, targets: Sequence[int], at: Sequence[int]) -> Index | None:
        """Return a sum plus a constant that has these values at most of some instances, with few sizes and a small constant; else None."""
        if not targets:
            return None
        differences = np.array(targets, np.int64) - self.rows[:, list(at)]
        number = np.sort(differences, axis=1)[:, len(targets) // 2]
        fitting = (differences == number[:, None]).sum(axis=1)
        score = 1_000 * (fitting - 2 * self.terms) - np.minimum(np.abs(number), 999)
        best = int(np.argmax(score))
        return self.sums[best] + int(number[best]) if fitting[best] >= MAJORITY * len(targets) else None


def _basis(case: Case, shape: Sequence[Index]) -> tuple[Index, ...]:
    """Return the parts of ends of boxes: the case's symbols, those of shapes first, and products that occur in its sizes."""
    given = [index(size) for sizes in case.shapes.values() for size in sizes]
    bundles = [each for bundle in case.bundles.values() for value in bundle.values() for each in _indices(value)]
    conditions = [side for condition in case.assumptions.conditions for side in (condition.left, condition.right)]
    single = [index(atom) for value in (*given, *bundles, *shape) for atom in sorted(atoms(value), key=repr) if isinstance(atom, Symbol)]
    products = [
        Index(((monomial, 1),)) for value in (*shape, *conditions) for monomial, _ in value.terms
        if len(monomial) > 1 and all(isinstance(atom, Symbol) for atom in monomial)
    ]  # fmt: skip
    return tuple(dict.fromkeys((*single, *(size for size in shape if size.constant is None), *products)))


def _indices(value: object) -> Iterable[Index]:
    match value:
        case Index():
            yield value
        case tuple():
            for each in value:
                yield from _indices(each)


def _sizes_of(case: Case) -> dict[object, tuple[str, int]]:
    """Return the texts of symbols in the rule's function: ``x.shape[0]``, ``p.before[1]``."""
    named: dict[object, tuple[str, int]] = {}
    for name, sizes in case.shapes.items():
        for axis, size in enumerate(map(index, sizes)):
            if len(size.terms) == 1 and len(size.terms[0][0]) == 1 and size.terms[0][1] > 0:
                named.setdefault(size.terms[0][0][0], (f"{name}.shape[{axis}]", size.terms[0][1]))
    for name, bundle in case.bundles.items():
        for key, value in bundle.items():
            for position, each in enumerate(value if isinstance(value, tuple) else (value,)):
                if isinstance(each, Index) and each.atom is not None:
                    named.setdefault(each.atom, (f"{name}.{key}[{position}]" if isinstance(value, tuple) else f"{name}.{key}", 1))
    return named


def proved_outside(case: Case, boxes: Sequence[Runs]) -> bool:
    """Return whether both sides are proved equal outside of the boxes, for all sizes of the case."""
    steps = [[run.step.constant for box in boxes if (run := box[axis]) is not None] for axis in range(len(case.left[0].shape))]
    bases = [lcm(*(step for step in each if step is not None)) for each in steps]
    try:
        with at_most(MOST_WORK):
            return prod(bases) <= MOST_PHASES and all(_proved_at(case, boxes, bases, phases) for phases in product(*map(range, bases)))
    except (Exhausted, EinsatError, RecursionError):
        return False


def _proved_at(case: Case, boxes: Sequence[Runs], bases: Sequence[int], phases: Sequence[int]) -> bool:
    """Return whether the sides are proved equal outside of the boxes at the positions that are ``phase`` modulo ``base``."""
    left, right = (_phase_of(side, bases, phases) for side in (case.left[0], case.right[0]))
    positions = output_positions(left, case.assumptions)
    output = [base * position + phase for base, position, phase in zip(bases, positions, phases, strict=True)]
    outside: list[list[Compare]] = []
    for box in boxes:
        inside: list[Compare] = []
        for position, run, base, phase in zip(output, box, bases, phases, strict=True):
            if run is None:
                continue
            lag, step = run.first - phase, run.step.constant
            if step is not None and base % step == 0 and (remainder := (lag % step).constant) is not None:
                if remainder:
                    break  # the box has no position of this phase
                inside += Run(run.first, run.last, index(1)).conditions(position)
            else:
                inside += run.conditions(position)
        else:
            outside.append([negation(condition) for condition in inside if not case.assumptions.entails(condition)])
    for chosen in product(*outside):
        assumptions = case.assumptions.assume(*chosen)
        if not isinstance(prove_equal(left, right, assumptions), Equal) and assumptions.consistent():
            return False
    return True


def _phase_of(side: Scope, bases: Sequence[int], phases: Sequence[int]) -> Scope:
    """Return an expression at the positions ``base * o + phase``."""
    counts = [simplify((index(n) - phase + base - 1) // base) for n, base, phase in zip(side.shape, bases, phases, strict=True)]
    iterators, places = grid("phase", counts)
    moved = tuple(base * position + phase for position, base, phase in zip(places, bases, phases, strict=True))
    body = at(Scope(side.traversal, (), side.reduction, side.body), moved)
    return Scope(iterators, side.summation, side.reduction, body)
