"""The derivation rules, as one explicit tuple."""

from __future__ import annotations

from egraph.derive.bilinear import RULES as BILINEAR
from egraph.derive.derivation import DerivationRule, GroupRule
from egraph.derive.matching.proposals import RULES as GROUPED
from egraph.derive.search import RULES as SEARCHED

DERIVATIONS: tuple[DerivationRule | GroupRule, ...] = (*BILINEAR, *SEARCHED, *GROUPED)
