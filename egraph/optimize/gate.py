"""The gate of the e-graph: rules enter with a proof, and apply where it reaches or where they are proved on the spot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from egraph.errors import RuleError
from egraph.rule import Binding, MergeRule, Rule

SAFE_VERDICTS = ("proved", "proved for these sizes")
Tell = Callable[[str], None]


@dataclass
class Admission:
    """A rule's pass: yes where its certificate reaches, else by proving the application at its own sizes.

    Every kind of match is asked about once, as the right side is built once for it.
    """

    rule: Rule | MergeRule
    covers: Mapping[str, Any]
    proved_here: int = 0
    """Kinds of matches outside the certificate that were proved at their own sizes."""
    _known: dict[object, str] = field(default_factory=dict)

    def __call__(self, bindings: Sequence[Binding]) -> str:
        from verify.scope import outside

        reason = outside(self.covers["tree"], self.rule, bindings)
        if not reason:
            return ""
        key = tuple((tuple(b.types.items()), tuple(b.attributes.items()), tuple(b.numbers.items())) for b in bindings)
        if key not in self._known:
            self._known[key] = self._validated(reason, bindings)
        return self._known[key]

    def _validated(self, reason: str, bindings: Sequence[Binding]) -> str:
        from verify.application import objection

        open_text = objection(self.rule, bindings)
        self.proved_here += not open_text
        return f"{reason}; at these sizes alone it could not be proved either: {open_text}" if open_text else ""


def admitted(rules: Iterable[Rule | MergeRule], *, unsafe: bool, where: Mapping[str, Path], tell: Tell) -> tuple[Rule | MergeRule, ...]:
    """Return the rules that may be used, with their verdicts; ``where``: the files of those that do not ship.

    A shipped rule without a proof is left out, a user's raises RuleError, unless ``unsafe``.
    """
    from verify.certificates import certify
    from verify.prove import prove

    rules = tuple(rules)
    found = certify(rules, prove, tell=tell)
    chosen: list[Rule | MergeRule] = []
    for rule in rules:
        certificate = found[rule.name]
        judged = replace(rule, verdict=certificate.verdict)
        if certificate.is_proved:
            chosen.append(replace(judged, admits=Admission(rule, certificate.covers)))
        elif unsafe:
            chosen.append(judged)
        elif rule.name in where:
            fix = "python -m verify FILE says more; --unsafe-rules uses the rule all the same"
            what = f"rule {rule.name} is not proved ({certificate.verdict}): {certificate.reason}"
            raise RuleError(what, where=str(where[rule.name]), fix=fix)
    return tuple(chosen)
