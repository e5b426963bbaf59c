"""Bilinear algorithms: convolutions and products with fewer multiplications, as derived programs."""

from __future__ import annotations

from egraph.derive.bilinear.convolutions import winograd_programs
from egraph.derive.bilinear.rearranged import rearranged_programs
from egraph.derive.bilinear.strassen import strassen_programs
from egraph.derive.derivation import DerivationRule

RULES: tuple[DerivationRule, ...] = (
    DerivationRule("winograd", ("Conv", "ConvTranspose"), winograd_programs),
    DerivationRule("rearranged convolution", ("Conv",), rearranged_programs),
    DerivationRule("strassen", ("MatMul",), strassen_programs),
)
