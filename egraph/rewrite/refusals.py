"""Refusals: exceptions that carry the reason why a rule does not apply."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mismatch(Exception):
    """The reason why a rule does not apply, such as ``k must be 1, got 3``."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class WrongNumber(Mismatch):
    """A constant is not the number that the rule needs; tests read the needed number."""

    variable: str
    number: float


@dataclass(frozen=True)
class WrongAttribute(Mismatch):
    """An attribute does not have the one value that the rule needs; tests read the needed value."""

    variable: str
    attribute: str
    value: float
