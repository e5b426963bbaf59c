"""What a corpus holds: entries with their statements, what the corpus says about them, and how they read as rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias

from egraph.rule import Mismatch, Rule
from verify.corpora.statements import Guard, Statement, rules_of
from verify.random_binding import Refused

Expected: TypeAlias = Literal["sound", "unsound"]


@dataclass(frozen=True)
class Reading:
    """One way to read an entry: rules for a choice of guards, ``typed`` where the right side must be well-typed to apply."""

    rules: Callable[[bool, tuple[Guard, ...]], tuple[Rule, ...]]
    candidates: tuple[Guard, ...] = ()
    """Preconditions that may make a false entry true, the most likely first."""
    note: str = ""
    """What the reading adds to the statement."""
    given: str = ""
    """A precondition that the rules themselves hold."""
    statements: tuple[Statement, ...] = ()
    """What the rules are made of, where that is all they are made of."""

    @property
    def meaning(self) -> str:
        """Return a text that readings have in common which say the same under other names of entries; '' where that is unknown."""
        if not self.statements or any(statement.guards for statement in self.statements):
            return ""
        said = [(s.lefts, s.rights, sorted(s.ranks.items()), sorted(s.parameters.items()), s.typed) for s in self.statements]
        return repr((said, [guard.text for guard in self.candidates], self.note, self.given))


@dataclass(frozen=True)
class Entry:
    """One rule of a corpus. Without readings it is not expressible, for the stated reason."""

    name: str
    text: str
    readings: tuple[Reading, ...]
    expected: Expected | None = None
    claim: str = ""
    """The corpus's own verdict."""
    reason: str = ""
    open: bool = False
    """The statement leaves attributes and preconditions out: it holds where a reading does under one of its candidates."""
    conditional: bool = False
    """False as it stands; it may be accepted under a precondition, among which finite numbers and well-typed right sides."""


def reading_of(statements: tuple[Statement, ...], candidates: tuple[Guard, ...] = (), note: str = "") -> Reading:
    """Return the reading that takes all the statements together."""

    def rules(typed: bool, guards: tuple[Guard, ...]) -> tuple[Rule, ...]:
        return tuple(rule for statement in statements for rule in rules_of(statement.restricted(typed, guards)))

    return Reading(rules, candidates, note, statements=statements)


def tried(rule: Rule) -> None:
    """Build both sides of a rule on a few draws; raises ``RuleError`` where a statement leaves out what no reading gives."""
    random = Random(0)
    for _ in range(8):
        try:
            assert rule.draw is not None
            rule.apply(rule.draw(random))
        except (Refused, Mismatch, ValueError, IndexError):
            continue
        return
