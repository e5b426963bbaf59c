"""Rules of XLA's algebraic simplifier with their guards, and the same rules with something wrong."""

from __future__ import annotations

from egraph.rule import Rule
from tests.xla_rules import arithmetic, choice, movement, normalization, padding, products, reductions, windows
from tests.xla_rules.claims import Claim, Truth

CLAIMS: tuple[Claim, ...] = (
    *arithmetic.CLAIMS, *choice.CLAIMS, *reductions.CLAIMS, *normalization.CLAIMS, *movement.CLAIMS, *padding.CLAIMS, *products.CLAIMS,
    *windows.CLAIMS,
)  # fmt: skip


def claimed(truth: Truth) -> tuple[Rule, ...]:
    return tuple(each.rule for each in CLAIMS if each.truth == truth)


TRUE, FALSE, NOT_EXACT = claimed("true"), claimed("false"), claimed("not exact")
