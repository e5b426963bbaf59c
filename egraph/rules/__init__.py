"""The rules, family by family, as one explicit tuple."""

from __future__ import annotations

import difflib

from egraph.errors import RuleError
from egraph.rule import MergeRule, Rule
from egraph.rules import activations, conv, elementwise, layout, matmul, merges, movement, normalization, pooling, transposes

RULES: tuple[Rule | MergeRule, ...] = (
    *elementwise.RULES, *activations.RULES, *matmul.RULES, *conv.RULES, *pooling.RULES, *normalization.RULES,
    *transposes.RULES, *movement.RULES, *layout.RULES, *merges.RULES,
)
"""Every rule that ships; names are unique (a test checks)."""


def rule_named(name: str) -> Rule | MergeRule:
    """Return the rule with this name; raise ``RuleError`` with close matches otherwise."""
    for candidate in RULES:
        if candidate.name == name:
            return candidate
    close = difflib.get_close_matches(name, [r.name for r in RULES], n=3)
    fix = f"did you mean {' or '.join(close)}?" if close else "`--list-rules` prints all names"
    raise RuleError(f"there is no rule named {name!r}", where="the rule names given", fix=fix)
