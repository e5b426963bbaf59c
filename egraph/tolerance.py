"""How much an output may differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """The largest accepted error of an output: ``absolute + relative * (the output's largest magnitude)``."""

    relative: float = 1e-4
    absolute: float = 1e-6


ROUNDED_TOLERANCE = Tolerance(1e-2)
"""What is accepted where products may round their operands, unless the user says something else."""
