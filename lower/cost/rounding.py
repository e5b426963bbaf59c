"""Error models: how far a kernel moves outputs that rounds the operands of its products.

A sum of n products a b, with both operands rounded to the unit roundoff u and summed in float32, is off by at most
((1 + u)^2 (1 + v)^n - 1) sum |a b|, with v = 2^-24. That holds for all data, and is far from what data have: roundings are independent
and as often up as down, so what is usual is c u sqrt(2 sum (a b)^2). Where summands have random signs, this is c u sqrt(2) of the result's
own size, however long the sum is; where they cancel, by so much more as the magnitudes say that are seen in the model.

Kernels' errors are independent, too, so their squares add up. How far an error of a kernel moves the outputs is measured
(:mod:`egraph.optimize.precision`); until it is, errors are taken to arrive there as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from egraph.tensor import PLAIN, Candidate, ENode
from egraph.tolerance import Tolerance

UNIT_ROUNDOFF: Mapping[str, float] = {
    PLAIN: 2.0**-24, "tf32": 2.0**-11, "bf16": 2.0**-8, "bf16x3": 1.5 * 2.0**-16, "fp16": 2.0**-11, "int8": 2.0**-6,
}  # fmt: skip
"""The largest relative error of rounding to nearest, by precision: half of the distance between 1 and the next number. Bytes are evenly
spaced: half a step, of 127 up to the largest number, relative to a quarter of that number. A number is the sum of two of bfloat16 but for
2^-16 of it, and of the products of two such sums the least one, of 2^-16, is left out, which counts half for either operand."""
EXPECTED_SHARE: Mapping[str, float] = {"tf32": 0.5, "bf16": 0.5, "bf16x3": 0.6, "fp16": 0.5, "int8": 0.3}
"""The part of the time in float32 that a product is expected to take in a precision, before some are measured in it."""
USUAL_PART = math.sqrt(1 / (8 * math.log(2)))
"""The root mean square of rounding errors over the largest, for numbers whose logarithms are evenly distributed."""
MEASURED_IN = "bf16"
"""The precision that products are rounded to, one after another, to see how far outputs move; in others they move in proportion."""
NEARLY_EXACT = frozenset({"bf16x3"})
"""Precisions that simulations take to be exact: beside errors that are simulated, theirs are not seen."""
ROUNDED_OPERATORS = ("MatMul", "Conv", "ConvTranspose")
"""Operators whose operands kernels of a lower precision round."""
LEAST_TOLERANCE = 1e-12
"""What a tolerance of nothing counts as: no error fits into it."""
HOPELESS = 4.0
"""Kernels that alone are expected to be off by so many tolerances are left out from the start: expectations are coarse."""
DERIVED_UNIT = UNIT_ROUNDOFF[PLAIN] * USUAL_PART
"""What the errors of derivations, which are those of float32, are multiples of."""


def largest_error(precision: str, length: int) -> float:
    """Return the bound on the error of a sum of so many products, relative to the sum of their magnitudes."""
    return math.expm1(2 * math.log1p(UNIT_ROUNDOFF[precision]) + length * math.log1p(UNIT_ROUNDOFF[PLAIN]))


def usual_error(precision: str) -> float:
    """Return the root mean square error of sums of products, relative to the root of the sum of the products' squares."""
    return math.sqrt(2) * USUAL_PART * UNIT_ROUNDOFF[precision]


def stored_error(precision: str, read_in: Iterable[str]) -> float:
    """Return the root mean square error, relative to a value, of storing it in a precision that its readers may round it to anyway.

    Rounding twice to the same precision is rounding once: where all readers do, storing the value adds nothing to what they are off by.
    """
    return 0.0 if all(reader == precision for reader in read_in) else USUAL_PART * UNIT_ROUNDOFF[precision]


def rounded_node(candidate: Candidate) -> ENode | None:
    """Return the product or convolution inside of a kernel whose operands it may round, None where there is none."""
    return next((node for node in candidate.covered if node.op in ROUNDED_OPERATORS), None)


@dataclass
class ErrorModel:
    """What kernels that round their operands add to the error of the outputs, by what is known so far."""

    tolerance: Tolerance
    scale: float = 0.0
    """By how much programs are farther off than their kernels' errors say together; 0 until one was found to be too far off."""
    measured: dict[ENode, float] = field(default_factory=dict)
    """How far the outputs move where this product's operands alone are rounded to ``MEASURED_IN``, relative to the largest output."""
    derived: Callable[[], Mapping[str, float]] = dict
    """The usual relative error of each derivation in float32, by its name."""

    def __post_init__(self) -> None:
        self._derived: Mapping[str, float] = {}

    def look_up(self) -> None:
        """Learn which derivations there are by now."""
        self._derived = self.derived()

    def error(self, candidate: Candidate) -> float:
        """Return how far a kernel alone moves the outputs, relative to the largest."""
        precision = candidate.implementation.precision
        if precision == PLAIN:
            return 0.0
        node = rounded_node(candidate)
        if node is not None and node in self.measured:
            return self.measured[node] * UNIT_ROUNDOFF[precision] / UNIT_ROUNDOFF[MEASURED_IN]
        rules = (rule for each in candidate.covered for rule in each.rules)
        amplified = max((self._derived[rule] / DERIVED_UNIT for rule in rules if rule in self._derived), default=1.0)
        return usual_error(precision) * max(1.0, amplified)

    def part(self, candidate: Candidate) -> float:
        """Return which part of what the user accepts a kernel uses up, as a square: those of a program add up to 1 at most.

        Before any program was too far off, only those kernels are left out of which that can be expected.
        """
        return self.part_of(self.error(candidate))

    def part_of(self, error: float) -> float:
        """Return which part of what the user accepts an error uses up."""
        if not error:
            return 0.0
        part = ((self.scale or 1.0) * error / max(self.tolerance.relative, LEAST_TOLERANCE)) ** 2
        return part if self.scale or part > HOPELESS**2 else 0.0
