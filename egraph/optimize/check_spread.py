"""How much outputs tell: the part of an output's values that other inputs change by more than the accepted error.

A saturated softmax, or a signal that fades on its way, gives the same output for all inputs; that two programs agree on
such an output proves little, however small the error is. So it is measured, and said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from egraph.tolerance import Tolerance

LITTLE = 0.01
"""An output of which less changes tells little."""


class Spread:
    """The outputs of the first inputs, compared with those of all others."""

    def __init__(self, names: Sequence[str], tolerance: Tolerance) -> None:
        self._names, self._tolerance = names, tolerance
        self._first: Sequence[Any] = ()
        self._moved: dict[str, float] = {}

    def add(self, outputs: Sequence[Any]) -> None:
        """Take the outputs of one more input."""
        if not self._first:
            self._first = outputs
            return
        for name, one, other in zip(self._names, self._first, outputs, strict=True):
            self._moved[name] = max(self._moved.get(name, 0.0), moved(one, other, self._tolerance))

    @property
    def weak(self) -> tuple[str, ...]:
        """The outputs that tell little."""
        return tuple(name for name, part in self._moved.items() if part < LITTLE)

    def notes(self) -> tuple[str, ...]:
        """Return what to say about outputs that tell little."""
        return tuple(
            f"the check tells little about output {name!r}: other inputs change {self._moved[name]:.2g} of its values by more than "
            "the accepted error (it is saturated, or nearly the same for every input)"
            for name in self.weak
        )


def moved(one: Any, other: Any, tolerance: Tolerance) -> float:
    """Return the part of the values that differ by more than the accepted error; 1 where outputs are of different kinds."""
    if one is None and other is None:
        return 0.0
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return max((moved(a, b, tolerance) for a, b in zip(one, other, strict=True)), default=0.0)
    if one is None or other is None or isinstance(one, list) or isinstance(other, list):
        return 1.0
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape:
        return 1.0
    if not one.size:
        return 1.0  # nothing to tell
    if one.dtype.kind in "OSUTb" or np.issubdtype(one.dtype, np.integer):
        return float(np.mean(one != other))
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    one, other = one.astype(wide), other.astype(wide)
    finite = np.isfinite(one) & np.isfinite(other)
    magnitude = max(float(np.max(np.abs(value), where=finite, initial=0.0)) for value in (one, other))
    with np.errstate(invalid="ignore"):
        same = np.abs(one - other) <= tolerance.absolute + tolerance.relative * magnitude
    return float(np.mean(np.where(finite, ~same, np.isfinite(one) != np.isfinite(other))))
