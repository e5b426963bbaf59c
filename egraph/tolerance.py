"""The accepted error of an output."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """The largest accepted error of an output: ``absolute + relative * (the output's largest magnitude)``."""

    relative: float = 1e-4
    absolute: float = 1e-6


ROUNDED_TOLERANCE = Tolerance(1e-2)
"""The default tolerance if products may round their operands."""
