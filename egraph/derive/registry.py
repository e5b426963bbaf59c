"""The derivation rules, as one explicit tuple."""

from __future__ import annotations

from egraph.derive.bilinear import RULES as BILINEAR
from egraph.derive.derivation import DerivationRule
from egraph.derive.search import RULES as SEARCHED

DERIVATIONS: tuple[DerivationRule, ...] = (*BILINEAR, *SEARCHED)
