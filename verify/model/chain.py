"""The chain of certificates from a model to the model made from it: the same input, rules with proofs, checked kernels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from egraph.optimize.original import digest
from egraph.rules import RULES
from verify.certificates import shipped
from verify.model.sides import Side


@dataclass(frozen=True)
class Chain:
    """The record that one model was made from the other. ``rules``: the rules that made its nodes, each with its verdict.

    ``unsafe_rules``: rules that were used without a proof. They include rules that made no node, because such a rule may have equated two
    values.
    """

    made_from_this: bool
    rules: tuple[tuple[str, str], ...]
    unsafe_rules: tuple[str, ...] = ()

    @property
    def is_proved(self) -> bool:
        return self.made_from_this and not self.unsafe_rules and all(verdict.startswith("proved") for _, verdict in self.rules)

    def __str__(self) -> str:
        if not self.made_from_this:
            return "the artefact was made from another file than this one: its rules say nothing here"
        open_ = [f"{name} ({verdict})" for name, verdict in self.rules if not verdict.startswith("proved")]
        origin = f"made from this file; of {len(self.rules)} rules that made its nodes {len(self.rules) - len(open_)} are proved"
        origin += f"; not proved: {', '.join(open_)}" if open_ else ""
        return origin + (f"; in use without a proof: {', '.join(self.unsafe_rules)}" if self.unsafe_rules else "")


def chain(source: Path, made: Side) -> Chain | None:
    """Return the chain that an artefact records; None if it records none."""
    run = made.manifest
    if "model_digest" not in run:
        return None
    current = shipped()
    certificates = {rule.name: current.current(rule) for rule in RULES}
    rules = []
    for use in run["rules"]:
        certificate = certificates.get(use["name"])
        rules.append((str(use["name"]), certificate.verdict if certificate is not None else str(use["verdict"])))
    return Chain(run["model_digest"] == digest(source), tuple(rules), tuple(run.get("unsafe_rules", ())))
