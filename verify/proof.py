"""The outcome of proving a rule: the verdict with its scope, and the open obligations if there is no proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from egraph.rule import Rounding, Verdict
from verify.counterexamples import Counterexample

Failure: TypeAlias = Literal[
    "", "difference", "vacuous", "same sides", "missing guard", "raises", "contradiction", "rounding", "outside", "time",
    "language",
]  # fmt: skip
"""Why a rule fails, in the order of the values: no failure; its sides differ; nothing passes its guard; its right side is its left
side; its guard lets a shape pass whose right side has another type or none; it raises; random testing contradicts a proof, which is
a defect of the prover; the rounding class it states is weaker than its proof needs; its operators are outside the prover's reach; its
time is up; its text is not in the rule language."""


@dataclass(frozen=True)
class Obligation:
    """A condition that must hold and could not be proved."""

    case: str
    text: str
    conditions: tuple[str, ...] = ()

    def lines(self) -> tuple[str, ...]:
        assumed = (f"  where {', '.join(self.conditions)}",) if self.conditions else ()
        return (f"open: {self.text}", f"  in the case {self.case}", *assumed)


@dataclass(frozen=True)
class Proof:
    """The outcome of proving one rule. ``paths``: symbolic cases proved; ``cases``: random instances compared as well."""

    rule: str
    verdict: Verdict
    scope: str
    seconds: float
    cases: int
    exact_cases: int
    paths: int
    rounding: Rounding
    facts: frozenset[str] = frozenset()
    failure: Failure = ""
    reason: str = ""
    obligations: tuple[Obligation, ...] = ()
    counterexample: Counterexample | None = None
    suggestion: str = ""
    where: str = ""
    """Where the sides differ, if they are equal elsewhere: for all sizes if that is known, else at some sizes."""
    boxes: tuple[Mapping[str, Any], ...] = ()
    """The same as data: the boxes of the first cases, with ends in terms of sizes and attributes; or the boxes at some sizes."""
    covers: Mapping[str, Any] | None = None
    """What the proof covers, as the gate of the e-graph reads it (``verify.scope``)."""

    @property
    def is_proved(self) -> bool:
        return self.verdict in ("proved", "proved for these sizes")

    @property
    def duration(self) -> str:
        return f"{1e3 * self.seconds:.0f} ms" if self.seconds < 10 else f"{self.seconds:.0f} s"

    @property
    def verdict_text(self) -> str:
        """Return the verdict with its scope."""
        match self.verdict:
            case "proved":
                return f"proved for {self.scope}"
            case "proved for these sizes":
                return "proved for these sizes"
        return self.verdict

    @property
    def tests(self) -> str:
        """Return ``also tested on 64 shapes, exact in F_p``."""
        if not self.cases:
            return "never applied in a random test"
        exact = "" if not self.exact_cases else ", exact in F_p" if self.exact_cases == self.cases else f", {self.exact_cases} exact in F_p"
        return f"{'also ' if self.is_proved else ''}tested on {self.cases} shapes{exact}"

    @property
    def brief_verdict(self) -> str:
        """Return why there is no proof, in one line; '' if there is one."""
        if self.is_proved:
            return ""
        return self.reason or next((obligation.text for obligation in self.obligations), "")

    def explanation(self) -> tuple[str, ...]:
        """Return the lines that help to repair the rule; none for a proved one."""
        lines: list[str] = [self.scope] if self.verdict == "proved for these sizes" else []
        lines += [self.reason] if self.reason else []
        if self.counterexample:
            lines += [*self.counterexample.lines(), "", *self.counterexample.script().splitlines()]
        for obligation in self.obligations[:SHOWN]:
            lines += obligation.lines()
        if len(self.obligations) > SHOWN:
            lines.append(f"and {len(self.obligations) - SHOWN} more open cases")
        lines += [self.where] if self.where else []
        if self.suggestion:
            lines.append(self.suggestion)
        return tuple(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints for the rule."""
        return {
            "name": self.rule, "verdict": self.verdict, "scope": self.scope, "seconds": round(self.seconds, 4), "tests": self.cases,
            "exact_tests": self.exact_cases, "paths": self.paths, "rounding": self.rounding, "facts": sorted(self.facts),
            "failure": self.failure, "reason": self.reason, "suggestion": self.suggestion, "where": self.where,
            "boxes": [dict(each) for each in self.boxes],
            "obligations": [{"case": o.case, "text": o.text, "conditions": list(o.conditions)} for o in self.obligations],
            "counterexample": self.counterexample.script() if self.counterexample else "",
        }  # fmt: skip


SHOWN = 3
"""Most open obligations that an explanation spells out."""
