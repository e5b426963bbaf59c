"""Assumptions over symbolic sizes and iterators, and entailment.

Iterators are implicitly in their ranges, and symbols are implicitly at least their minimum. Divisors
are positive if this can be shown; nothing is concluded about a division by any other divisor.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from egraph.tensor.expr.index import Atom, Index, Size, Symbol
from egraph.tensor.expr.scope import Compare
from verify.facts import Facts
from verify.literals import Literal0, literal, negation
from verify.models import satisfied, small_model
from verify.polynomials import to_index, to_polynomial
from verify.solver import holds, possible
from verify.witnesses import values_of


class Assumptions:
    """A persistent conjunction of conditions; every answer about it is cached.

    ``facts`` are the conditions in solved form. They are solved when a question is first asked, because most cases of a rule are
    equivalent to an earlier one and no question is asked about them.
    """

    __slots__ = ("_before", "_facts", "conditions")

    def __init__(self, conditions: tuple[Compare, ...] = (), facts: Facts | None = None, *, before: Assumptions | None = None) -> None:
        self.conditions = conditions
        self._before = before
        """The assumptions that these extend; their conditions are solved first."""
        self._facts = Facts() if facts is None and before is None else facts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Assumptions) and self.conditions == other.conditions

    def __hash__(self) -> int:
        return hash(self.conditions)

    def __repr__(self) -> str:
        return f"Assumptions({self.conditions!r})"

    @property
    def facts(self) -> Facts:
        """Return the conditions in solved form."""
        if self._facts is None:
            before = self._before
            assert before is not None, "facts are given or follow from those before"
            self._facts = before.facts.extended(map(literal, self.conditions[len(before.conditions) :]))
            self._before = None
        return self._facts

    def assume(self, *conditions: Compare) -> Assumptions:
        """Return the assumptions with more conditions."""
        new = tuple(dict.fromkeys(c for c in conditions if c not in self.conditions))
        return Assumptions((*self.conditions, *new), before=self) if new else self

    def entails(self, condition: Compare) -> bool:
        """Return whether the condition follows; False also if that stays open."""
        return holds(self.facts, literal(condition))

    def decide(self, condition: Compare) -> bool | None:
        """Return True if the condition follows, False if its negation follows, None if neither is shown."""
        goal = literal(condition)
        if holds(self.facts, goal):
            return True
        return False if holds(self.facts, negation(goal)) else None

    def consistent(self) -> bool:
        """Return False only if the conditions certainly contradict each other."""
        start = self
        while start._before is not None:
            start = start._before
        if self._facts is not None or start.facts.literals or start.facts.at_sizes:
            return possible(self.facts)
        return all(map(_are_possible, _independent(self.conditions)))

    def simplify(self, value: Size) -> Index:
        """Return the index with equalities applied, and with floor-divisions and remainders simplified if ranges allow it."""
        return to_index(self.facts.canonical(to_polynomial(value)))

    def equal(self, left: Size, right: Size) -> bool:
        """Return whether left == right follows."""
        return holds(self.facts, Literal0(to_polynomial(right) - to_polynomial(left), "=="))

    def is_seen_to_be_one(self, size: Size) -> bool:
        """Return whether a size is 1 in solved form; False also if only the solver can show it."""
        return self.facts.canonical(to_polynomial(size)).constant == 1

    def model(self, symbols: Iterable[Symbol]) -> dict[Symbol, int] | None:
        """Return small values of the symbols that satisfy every condition; None if none are found."""
        return small_model(self.conditions, tuple(symbols))

    def example(self, symbols: Iterable[Symbol]) -> dict[Symbol, int] | None:
        """Return any values of the symbols that satisfy every condition: a drawn instance if there is one, else a model."""
        required = tuple(symbols)
        drawn = values_of(self.facts, required)
        return drawn if drawn is not None and satisfied(self.conditions, drawn) else self.model(required)


def _independent(conditions: Iterable[Compare]) -> list[tuple[Compare, ...]]:
    """Return the conditions in groups that share no unknown. They contradict each other only if a group does."""
    groups: list[tuple[frozenset[Atom], tuple[Compare, ...]]] = []
    for condition in conditions:
        named = condition.left.atoms | condition.right.atoms
        joined = [group for group in groups if not named.isdisjoint(group[0])]
        together = *(each for _, group in joined for each in group), condition
        groups = [group for group in groups if group not in joined]
        groups.append((named.union(*(atoms for atoms, _ in joined)), together))
    return [together for _, together in groups]


@lru_cache(maxsize=1 << 12)
def _are_possible(conditions: tuple[Compare, ...]) -> bool:
    """Return False only if the conditions certainly contradict each other. The paths of a rule have many groups of them in common."""
    return possible(Facts().extended(map(literal, conditions)))
