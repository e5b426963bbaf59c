"""The entries of a corpus: their statements, the corpus's own verdicts, and how they read as rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias

from bench.corpora.statements import Guard, Statement, rules_of
from bench.corpora.terms import substitute
from egraph.rule import Mismatch, Rule
from verify.random_binding import Refused

Expected: TypeAlias = Literal["sound", "unsound"]
Names: TypeAlias = Mapping[str, str]
"""The new names of variables."""


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
    """The statements of which the rules are made, if they are made of nothing else."""

    def meaning(self, names: Names) -> str:
        """Return a text that is equal for readings that say the same, with variables renamed; '' if it is unknown."""
        if not self.statements or any(statement.guards for statement in self.statements):
            return ""
        said = [
            (
                [str(substitute(side, names)) for side in (*s.lefts, *s.rights)],
                sorted((names.get(v, v), rank) for v, rank in s.ranks.items()), sorted(s.parameters.items()), s.typed,
            )
            for s in self.statements
        ]  # fmt: skip
        return repr((said, [renamed(guard.text, names) for guard in self.candidates], self.note, renamed(self.given, names)))


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
    section: str = ""
    """The part of the corpus that it stands in."""
    conditional: bool = False
    """False as it stands; it may be accepted under a precondition, such as finite numbers or well-typed right sides."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the variables in order of appearance if all statements have the same ones, else nothing."""
        orders = {tuple(statement.ranks) for reading in self.readings for statement in reading.statements}
        return orders.pop() if len(orders) == 1 else ()

    @property
    def meaning(self) -> str:
        """Return a text that is equal for entries that say the same up to the names of variables; '' if it is unknown."""
        numbered = {name: f"?{number}" for number, name in enumerate(self.names)}
        meanings = [reading.meaning(numbered) for reading in self.readings]
        return repr((meanings, self.open)) if meanings and all(meanings) else ""


def renamed(text: str, names: Names) -> str:
    """Return a text with whole words replaced."""
    return re.sub(r"[^\s(),]+", lambda word: names.get(word[0], word[0]), text)


def reading_of(statements: tuple[Statement, ...], candidates: tuple[Guard, ...] = (), note: str = "") -> Reading:
    """Return the reading that takes all the statements together."""

    def rules(typed: bool, guards: tuple[Guard, ...]) -> tuple[Rule, ...]:
        return tuple(rule for statement in statements for rule in rules_of(statement.restricted(typed, guards)))

    return Reading(rules, candidates, note, statements=statements)


def tried(rule: Rule) -> None:
    """Build both sides of a rule on a few draws; raises ``RuleError`` if a statement omits something that no reading supplies."""
    random = Random(0)
    for _ in range(8):
        try:
            assert rule.draw is not None
            rule.apply(rule.draw(random))
        except (Refused, Mismatch, ValueError, IndexError):
            continue
        return
