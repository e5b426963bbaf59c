"""Say why a rule did not apply: the answer behind ``inspect --why-not RULE [--at NODE]``."""

from __future__ import annotations

from egraph.errors import RuleError
from egraph.ir import Node
from egraph.saturate import Saturation


def why_not(saturation: Saturation, rule: str, at: Node | None = None) -> tuple[str, ...]:
    """Return the reasons, most frequent first, why ``rule`` refused matches (``at`` one node of the input program)."""
    found = [statistics for statistics in saturation.statistics if statistics.rule == rule]
    if not found:
        raise RuleError(f"rule {rule!r} took no part in the search", fix="--list-rules prints all names")
    (statistics,) = found
    refusals = [refusal for refusal in statistics.refusals if at is None or at in refusal.nodes]
    if refusals:
        return tuple(f"{refusal.reason} ({refusal.count} times; first at {refusal.example})" for refusal in refusals)
    if at is None and statistics.unions:
        return (f"it applied {statistics.unions} times",)
    return ("its left side was found nowhere",) if at is None else ("its left side was not found there, or it applied",)
