"""Error models: how far a kernel that rounds the operands of its products moves the outputs.

A sum of n products a b, with both operands rounded to the unit roundoff u and summed in float32, is off by at most

    ((1 + u)^2 (1 + v)^n - 1) sum |a b|,  with v = 2^-24.

This bound holds for all data, and usual errors are far below it: roundings are independent and as often up as down, so the usual error is
c u sqrt(2 sum (a b)^2). If summands have random signs, this is c u sqrt(2) of the result's own size, however long the sum is. If they
cancel, it is larger by a factor that follows from the magnitudes seen in the model.

Kernels' errors are independent, too, so their squares add up. How far an error of a kernel moves the outputs is measured
(:mod:`egraph.optimize.precision`); until then, errors are assumed to reach the outputs unchanged.
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
spaced: half a step, of 127 up to the largest number, relative to a quarter of that number. A number is the sum of two bfloat16 numbers up
to 2^-16 of it. Of the four products of two such sums the least, of 2^-16, is omitted, which counts half for either operand."""
EXPECTED_SHARE: Mapping[str, float] = {"tf32": 0.5, "bf16": 0.5, "bf16x3": 0.6, "fp16": 0.5, "int8": 0.3}
"""The expected ratio of a product's time in a precision to its time in float32, before some are measured in it."""
USUAL_PART = math.sqrt(1 / (8 * math.log(2)))
"""The root mean square of rounding errors over the largest, for numbers whose logarithms are evenly distributed."""
MEASURED_IN = "bf16"
"""The precision to which products are rounded, one after another, to measure how far outputs move; for others it is scaled."""
NEARLY_EXACT = frozenset({"bf16x3"})
"""Precisions that simulations treat as exact, because their errors are negligible beside those that are simulated."""
ROUNDED_OPERATORS = ("MatMul", "Conv", "ConvTranspose")
"""Operators whose operands kernels of a lower precision round."""
LEAST_TOLERANCE = 1e-12
"""The tolerance that stands for a tolerance of zero: no error fits into it."""
HOPELESS = 4.0
"""Kernels whose own expected error exceeds so many tolerances are discarded from the start; expectations are coarse."""
DERIVED_UNIT = UNIT_ROUNDOFF[PLAIN] * USUAL_PART
"""The unit of the errors of derivations, which are those of float32."""


def largest_error(precision: str, length: int) -> float:
    """Return the bound on the error of a sum of so many products, relative to the sum of their magnitudes."""
    return math.expm1(2 * math.log1p(UNIT_ROUNDOFF[precision]) + length * math.log1p(UNIT_ROUNDOFF[PLAIN]))


def usual_error(precision: str) -> float:
    """Return the root mean square error of sums of products, relative to the root of the sum of the products' squares."""
    return math.sqrt(2) * USUAL_PART * UNIT_ROUNDOFF[precision]


def stored_error(precision: str, read_in: Iterable[str]) -> float:
    """Return the root mean square error, relative to a value, of storing it in a precision that its readers may round it to anyway.

    Rounding twice to the same precision is rounding once: if all readers do, storing the value adds no error.
    """
    return 0.0 if all(reader == precision for reader in read_in) else USUAL_PART * UNIT_ROUNDOFF[precision]


def rounded_node(candidate: Candidate) -> ENode | None:
    """Return the product or convolution inside of a kernel whose operands it may round; None if there is none."""
    return next((node for node in candidate.covered if node.op in ROUNDED_OPERATORS), None)


@dataclass
class ErrorModel:
    """The contribution of kernels that round their operands to the error of the outputs, by what is known so far."""

    tolerance: Tolerance
    scale: float = 0.0
    """The factor by which programs are farther off than their kernels' errors together; 0 until a program was found too far off."""
    measured: dict[ENode, float] = field(default_factory=dict)
    """How far the outputs move if this product's operands alone are rounded to ``MEASURED_IN``, relative to the largest output."""
    derived: Callable[[], Mapping[str, float]] = dict
    """The usual relative error of each derivation in float32, by its name."""

    def __post_init__(self) -> None:
        self._derived: Mapping[str, float] = {}

    def look_up(self) -> None:
        """Look up which derivations there are by now."""
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
        """Return the part of the tolerance that a kernel uses up, squared: the parts of a program add up to 1 at most.

        Before any program was too far off, only kernels that are expected to exceed the tolerance by far count.
        """
        return self.part_of(self.error(candidate))

    def part_of(self, error: float) -> float:
        """Return the squared part of the tolerance that an error uses up."""
        if not error:
            return 0.0
        part = ((self.scale or 1.0) * error / max(self.tolerance.relative, LEAST_TOLERANCE)) ** 2
        return part if self.scale or part > HOPELESS**2 else 0.0
