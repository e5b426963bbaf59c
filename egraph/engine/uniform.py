"""Find constants whose elements are all one number: rules such as ``x * 1 = x`` ask for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from egraph.errors import TypeMismatch
from egraph.tensor import Attributes, TensorType, placeholder
from egraph.tensor.ops import OPS, apply
from egraph.tensor.ops.reference import evaluate

PROBES = 16


def number_of_array(array: np.ndarray) -> float | None:
    """Return the number that all elements are; a few are looked at first, so that mapped weights stay unread."""
    if array.size == 0 or array.dtype.kind in "OSUc":
        return None
    flat = array.reshape(-1)
    first = flat[0]
    if not bool(np.all(flat[:: max(1, flat.size // PROBES)] == first)) or not bool(np.all(flat == first)):
        return None
    return float(first)


def number_of_term(op: str, attributes: Attributes, types: Sequence[TensorType], numbers: Sequence[float | None]) -> float | None:
    """Return the number of an operator over uniform constants: the operand's for a view, computed for elementwise."""
    spec = OPS.get(op)
    known = [number for number in numbers if number is not None]
    if spec is None or not known or len(known) < len(numbers):
        return None
    if spec.category == "view":
        return known[0]
    if spec.category != "elementwise" or {type.dtype for type in types} - {"float32", "float64"}:
        return None
    leaves = [placeholder(i, TensorType(type.dtype, (1,)), constant=True) for i, type in enumerate(types)]
    try:
        root = apply(op, *leaves, attributes=attributes)
    except TypeMismatch:
        return None
    values = {leaf: np.array([number], type.dtype) for leaf, number, type in zip(leaves, known, types, strict=True)}
    result = float(np.asarray(evaluate([root], values)[0]).reshape(-1)[0])
    return None if math.isnan(result) else result
