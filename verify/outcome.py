"""Outcomes of an attempt to prove two values equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from egraph.tensor.expr.scope import Compare


@dataclass(frozen=True)
class Equal:
    """The values are equal; ``facts`` are the laws used that need more than real arithmetic on defined values."""

    facts: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Open:
    """No proof: the obligation that stayed open, and the conditions under which it arose. It may still be true."""

    obligation: str
    conditions: tuple[Compare, ...] = ()
    at: Mapping[str, int] = field(default_factory=dict)
    """A guess of values of iterators, by name, at which the sides may differ."""


Outcome: TypeAlias = Equal | Open
