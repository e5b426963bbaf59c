"""The rules, family by family, as one explicit tuple."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from egraph.errors import RuleError
from egraph.rule import MergeRule, Rule
from egraph.rules import (
    activations,
    conv,
    conv_transpose,
    elementwise,
    layout,
    matmul,
    merges,
    normalization,
    padding,
    pooling,
    quantisation,
    reductions,
    reshapes,
    slices,
    transposes,
)

FAMILIES: Mapping[str, tuple[Rule | MergeRule, ...]] = MappingProxyType({
    "elementwise": elementwise.RULES,
    "activations": activations.RULES,
    "matmul": matmul.RULES,
    "conv": conv.RULES,
    "conv_transpose": conv_transpose.RULES,
    "pooling": pooling.RULES,
    "normalization": normalization.RULES,
    "transposes": transposes.RULES,
    "reshapes": reshapes.RULES,
    "slices": slices.RULES,
    "padding": padding.RULES,
    "reductions": reductions.RULES,
    "layout": layout.RULES,
    "merges": merges.RULES,
    "quantisation": quantisation.RULES,
})
"""The rules of each family module."""

RULES: tuple[Rule | MergeRule, ...] = tuple(each for family in FAMILIES.values() for each in family)
"""Every rule that ships; names are unique."""


def rule_named(name: str) -> Rule | MergeRule:
    """Return the rule with this name; raise ``RuleError`` with close matches otherwise."""
    for candidate in RULES:
        if candidate.name == name:
            return candidate
    close = difflib.get_close_matches(name, [each.name for each in RULES], n=3)
    fix = f"did you mean {' or '.join(close)}?" if close else "`--list-rules` prints all names"
    raise RuleError(f"there is no rule named {name!r}", where="the rule names given", fix=fix)
