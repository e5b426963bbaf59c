"""Values of small constants, so that constants computed in different ways are one class.

Without this, (a + b) + c and a + (b + c), or a bias reshaped along two paths, stay different classes, and every
rule that gathers constants multiplies them. A value is kept twice: exactly, modulo the prime p = 2^31 - 1 (a float
is a dyadic rational, so it has an exact residue), and in float64. Two constants are one when all residues are equal
and the floats agree to 1e-9 of their size: equal as rational numbers unless a difference is a multiple of p in
every element. Functions without a meaning in the field (square roots) are uninterpreted there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from egraph.errors import EinsatError
from egraph.tensor import Attributes, Node, TensorType, placeholder
from egraph.tensor.expr.functions import PRIME
from egraph.tensor.ops import OPS, apply
from egraph.tensor.ops.reference import evaluate

LIMIT_ELEMENTS = 1 << 15
"""Larger constants (weights) are told apart by how they are computed: evaluating them would cost more than it saves."""

DIRECT: Mapping[str, Callable[..., np.ndarray]] = {
    "Reshape": lambda attributes, x: x.reshape(attributes["shape"]),
    "Transpose": lambda attributes, x: x.transpose(attributes["perm"]),
    "Add": lambda attributes, x, y: np.asarray(x + y),
    "Sub": lambda attributes, x, y: np.asarray(x - y),
    "Mul": lambda attributes, x, y: np.asarray(x * y),
}
"""The most frequent operators on constants, the same for residues (below 2^31) and floats: their meanings, without the detour."""


@dataclass(frozen=True, eq=False)
class ConstantValue:
    """A small constant: residues modulo p, and float64."""

    prime: np.ndarray
    real: np.ndarray
    digest: str

    def agrees(self, other: ConstantValue) -> bool:
        """Return whether two values with one digest are also close as floats."""
        return bool(np.allclose(self.real, other.real, rtol=1e-9, atol=1e-30))


def _value(prime: np.ndarray, real: np.ndarray) -> ConstantValue | None:
    if not np.isfinite(real).all():
        return None
    return ConstantValue(prime, real, hashlib.sha256(np.ascontiguousarray(prime).tobytes()).hexdigest())


def value_of_array(array: np.ndarray) -> ConstantValue | None:
    """Return the value of a small float array; None for large ones, other types, and infinities."""
    if array.size > LIMIT_ELEMENTS or array.size == 0 or array.dtype.kind != "f":
        return None
    real = np.asarray(array, np.float64)
    if not np.isfinite(real).all():
        return None
    mantissa, exponent = np.frexp(real)
    scaled = np.rint(mantissa * 2.0**53)  # exact: a float64 has 53 bits
    residue = scaled.astype(np.int64) % PRIME
    shift = np.left_shift(np.int64(1), (exponent.astype(np.int64) - 53) % 31)  # 2^31 = 1 modulo p
    return _value(residue * shift % PRIME, real)


def value_of_term(
    op: str, attributes: Attributes, types: Sequence[TensorType], values: Sequence[ConstantValue | None]
) -> ConstantValue | None:
    """Return the value of an operator applied to known constants; None where it is large or an operand is unknown."""
    known = [value for value in values if value is not None]
    if op not in OPS or len(known) < len(values) or not known:
        return None
    if op in DIRECT and all(type.dtype in ("float32", "float64") for type in types):
        real, prime = (DIRECT[op](dict(attributes), *parts) for parts in ([v.real for v in known], [v.prime for v in known]))
        return _value(prime % PRIME, real) if 0 < real.size <= LIMIT_ELEMENTS else None
    leaves: list[Node] = [placeholder(i, type, constant=True) for i, type in enumerate(types)]
    try:
        root = apply(op, *leaves, attributes=attributes)
        if root.type.elements > LIMIT_ELEMENTS or not root.type.elements or root.type.dtype not in ("float32", "float64"):
            return None
        prime = evaluate([root], {leaf: value.prime for leaf, value in zip(leaves, known, strict=True)}, "prime")[0]
        real = evaluate([root], {leaf: value.real for leaf, value in zip(leaves, known, strict=True)})[0]
    except EinsatError:
        return None
    return _value(prime, real)
