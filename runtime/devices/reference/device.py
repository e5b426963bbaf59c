"""A device that evaluates fragments: slow, exact to float64, and the same on every machine.

Its own library is ``egraph.tensor``, the meanings of the operators. Like any device's library it is imported when a plan needs it, and
nothing else in ``runtime`` depends on it. A second evaluator here would be a second meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from runtime.devices.host import Compute, HostDevice
from runtime.errors import ArtefactError, KernelError, LibraryMissing
from runtime.plan import COPY_STEP, Plan, Step

if TYPE_CHECKING:
    from egraph.tensor import Node

REFERENCE_STEP = "reference"
"""The kind of steps that evaluate a fragment, ``fragment`` in their recipe, as ``egraph.tensor.format_fragment`` writes it."""
MOST_EXACT = 1 << 53
"""Integers below this are exact in float64; a larger one is refused, not rounded."""


def evaluator(plan: Plan, native: frozenset[int]) -> Compute:
    """Return the function that evaluates the plan's fragments."""
    fragments = {index: _fragment(plan.steps[index]) for index in native if plan.steps[index].kind != COPY_STEP}

    def compute(index: int, operands: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
        return _evaluated(fragments[index], operands, plan.steps[index]).astype(dtype)

    return compute


def _evaluated(fragment: Node, operands: Sequence[np.ndarray], step: Step) -> np.ndarray:
    from egraph.errors import EinsatError
    from egraph.tensor import placeholders
    from egraph.tensor.ops.reference import evaluate

    for operand in operands:
        _refuse_inexact(operand, step)
    leaves = {leaf: operands[leaf.integer("index")] for leaf in placeholders(fragment)}
    try:
        with np.errstate(all="ignore"):  # infinities and NaN are values, as in every kernel
            return evaluate((fragment,), leaves)[0]
    except EinsatError as error:
        raise KernelError(f"a fragment cannot be evaluated: {error}", where=step.name) from error


def _fragment(step: Step) -> Node:
    """Return a step's fragment, as a node over placeholders."""
    if step.kind != REFERENCE_STEP:
        fix = "optimise the model for this device: --device reference"
        raise ArtefactError(f"the reference device knows no steps of kind {step.kind!r}", where=step.name, fix=fix)
    try:
        from egraph.tensor.text import TextError, parse_fragment
    except ImportError as error:
        what = "this program runs by the meanings of its operators, and the package that holds them is not installed"
        raise LibraryMissing(what, fix="pip install einsat") from error
    try:
        return parse_fragment(step.spec["fragment"])
    except (TextError, KeyError) as error:
        raise ArtefactError(f"a step cannot be read: {error}", where=step.name, fix="optimise the model again") from error


def _refuse_inexact(operand: np.ndarray, step: Step) -> None:
    is_wide = operand.dtype.kind in "iu" and operand.dtype.itemsize == 8 and operand.size > 0
    if is_wide and max(int(operand.max()), -int(operand.min())) >= MOST_EXACT:
        raise KernelError("an integer of 2^53 or more is not exact in float64, in which this device computes", where=step.name)


DEVICE = HostDevice("reference", evaluator)
