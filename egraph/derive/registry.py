"""The derivation rules, as one explicit tuple."""

from __future__ import annotations

from egraph.derive.derivation import DerivationRule

DERIVATIONS: tuple[DerivationRule, ...] = ()
