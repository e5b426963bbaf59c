"""Why a rule does not apply: refusals are values with a reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mismatch(Exception):
    """Why a rule did not apply: ``k must be 1, got 3``."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class WrongNumber(Mismatch):
    """A constant is not the number that the rule needs; tests read which number it is."""

    variable: str
    number: float


@dataclass(frozen=True)
class WrongAttribute(Mismatch):
    """An attribute has not the one value that the rule needs; tests read which value it is."""

    variable: str
    attribute: str
    value: float
