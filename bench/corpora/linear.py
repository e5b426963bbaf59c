"""Solve linear equations between sizes at random, so that test draws meet a left side's constraints at once.

Sizes are affine in unknowns. Every equation removes an unknown with coefficient one; if several could be removed,
one is chosen at random, so that different draws explore different solutions. Nonlinear constraints are left to rejection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from verify.random_binding import Refused


@dataclass(slots=True, unsafe_hash=True)
class Affine:
    """constant + sum of coefficient * unknown; never changed, but not frozen, because draws make them by the hundred thousand"""

    constant: int
    terms: tuple[tuple[int, int], ...] = ()

    def __add__(self, other: Affine | int) -> Affine:
        if not isinstance(other, Affine):
            return Affine(self.constant + other, self.terms)
        if not other.terms or not self.terms:
            return Affine(self.constant + other.constant, self.terms or other.terms)
        total = dict(self.terms)
        for unknown, coefficient in other.terms:
            total[unknown] = total.get(unknown, 0) + coefficient
        return Affine(self.constant + other.constant, tuple(sorted((u, c) for u, c in total.items() if c)))

    def __sub__(self, other: Affine | int) -> Affine:
        return self + (other * -1 if isinstance(other, Affine) else -other)

    def __mul__(self, by: int) -> Affine:
        return Affine(self.constant * by, tuple((u, c * by) for u, c in self.terms) if by else ())


Sizes: TypeAlias = tuple[Affine, ...]


@dataclass
class System:
    """Unknowns with their smallest values, and their solutions so far."""

    random: Random
    minimum: list[int] = field(default_factory=list)
    choices: list[tuple[int, ...]] = field(default_factory=list)
    solved: dict[int, Affine] = field(default_factory=dict)

    def unknown(self, choices: tuple[int, ...], minimum: int = 1) -> Affine:
        """Return a new unknown that is drawn from ``choices`` unless an equation decides it."""
        self.minimum.append(minimum)
        self.choices.append(choices)
        return Affine(0, ((len(self.minimum) - 1, 1),))

    def simplify(self, value: Affine) -> Affine:
        """Return the size over the unknowns that are still free."""
        solved = self.solved
        for unknown, _ in value.terms:
            if unknown in solved:
                break
        else:
            return value
        constant, total = value.constant, dict[int, int]()
        for unknown, coefficient in value.terms:
            form = self._free(unknown)
            if form is None:
                total[unknown] = total.get(unknown, 0) + coefficient
                continue
            constant += form.constant * coefficient
            for inner, times in form.terms:
                total[inner] = total.get(inner, 0) + times * coefficient
        return Affine(constant, tuple(sorted((u, c) for u, c in total.items() if c)))

    def _free(self, unknown: int) -> Affine | None:
        """Return a solved unknown in terms of free ones, and remember it; None for a free one."""
        form = self.solved.get(unknown)
        if form is None:
            return None
        free = self.simplify(form)
        if free is not form:
            self.solved[unknown] = free
        return free

    def equate(self, left: Affine, right: Affine) -> None:
        """Add an equation; raises ``Refused`` if it cannot hold."""
        difference = self.simplify(left - right)
        if not difference.terms:
            if difference.constant:
                raise Refused("sizes that must be equal differ")
            return
        ones = [unknown for unknown, coefficient in difference.terms if abs(coefficient) == 1]
        if not ones:
            self._scale(difference)
            return
        pivot = self.random.choice(ones)
        sign = dict(difference.terms)[pivot]
        remainder = Affine(difference.constant, tuple(t for t in difference.terms if t[0] != pivot))
        self.solved[pivot] = remainder * -sign

    def _scale(self, difference: Affine) -> None:
        """a x = b y: x = b t, y = a t"""
        if len(difference.terms) != 2 or difference.constant or difference.terms[0][1] * difference.terms[1][1] > 0:
            raise Refused("sizes stand in a relation that the draw does not solve")
        (x, a), (y, b) = difference.terms
        common = self.unknown(self.choices[x])
        self.solved[x], self.solved[y] = common * abs(b), common * abs(a)

    def draw(self) -> Mapping[int, int]:
        """Return a value for every unknown; raises ``Refused`` if an equation makes one too small."""
        values: dict[int, int] = {}
        for unknown, choices in enumerate(self.choices):
            if unknown not in self.solved:
                values[unknown] = self.random.choice(choices)
        for unknown in self.solved:
            expression = self.simplify(self.solved[unknown])
            values[unknown] = expression.constant + sum(c * values[u] for u, c in expression.terms)
            if values[unknown] < self.minimum[unknown]:
                raise Refused("an equation makes a size too small")
        return values

    def value(self, size: Affine, values: Mapping[int, int]) -> int:
        """Return a size for the ``values`` of the unknowns."""
        expression = self.simplify(size)
        return expression.constant + sum(c * values[u] for u, c in expression.terms)
