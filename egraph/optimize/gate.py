"""The gate of the e-graph: rules enter with a proof, and apply where it reaches or where they are proved on the spot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from egraph.errors import RuleError
from egraph.rule import Binding, MergeRule, Rule
from verify.certificates import certify
from verify.proof import Proof
from verify.scope import Tree, outside

PROVED = ("proved", "proved for these sizes")
Tell = Callable[[str], None]


@dataclass
class Admission:
    """A rule's pass: yes where its certificate reaches, else by proving the application at its own sizes.

    Every kind of match is asked about once, as the right side is built once for it.
    """

    rule: Rule | MergeRule
    covers: Tree
    proved_here: int = 0
    """Kinds of matches outside the certificate that were proved at their own sizes."""
    _known: dict[object, str] = field(default_factory=dict)

    def __call__(self, bindings: Sequence[Binding]) -> str:
        reason = outside(self.covers, self.rule, bindings)
        if not reason:
            return ""
        key = tuple((tuple(b.types.items()), tuple(b.attributes.items()), tuple(b.numbers.items())) for b in bindings)
        if key not in self._known:
            self._known[key] = self._validated(reason, bindings)
        return self._known[key]

    def _validated(self, reason: str, bindings: Sequence[Binding]) -> str:
        from verify.application import objection  # heavy, and seldom needed

        open_text = objection(self.rule, bindings)
        self.proved_here += not open_text
        return f"{reason}; at these sizes alone it could not be proved either: {open_text}" if open_text else ""


def _prove(rule: Rule | MergeRule) -> Proof:
    from verify.prove import prove  # half a second, and seldom needed

    return prove(rule)


def admitted(rules: Iterable[Rule | MergeRule], *, unsafe: bool, where: Mapping[str, Path], tell: Tell) -> tuple[Rule | MergeRule, ...]:
    """Return the rules that may be used, with their verdicts; ``where``: the files of those that do not ship.

    A shipped rule without a proof is left out, a user's raises RuleError, unless ``unsafe``.
    """
    rules = tuple(rules)
    found = certify(rules, _prove, tell=tell)
    chosen: list[Rule | MergeRule] = []
    for rule in rules:
        certificate = found[rule.name]
        judged = replace(rule, verdict=certificate.verdict)
        if certificate.is_proved:
            chosen.append(replace(judged, admits=Admission(rule, certificate.covers["tree"])))
        elif unsafe:
            chosen.append(judged)
        elif rule.name in where:
            fix = "python -m verify FILE says more; --unsafe-rules uses the rule all the same"
            what = f"rule {rule.name} is not proved ({certificate.verdict}): {certificate.reason}"
            raise RuleError(what, where=str(where[rule.name]), fix=fix)
    return tuple(chosen)
