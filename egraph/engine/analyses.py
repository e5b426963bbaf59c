"""Analyses of constant e-classes: the number that all elements are, and the value of a small constant.

An analysis is one as in egg: ``make`` derives a fact about an e-node from the facts about its operands; if classes are joined, the facts
about either hold for both; and two classes with equal facts are one class. Rules such as ``x * 1 = x`` need the number. Without the values,
(a + b) + c and a + (b + c), or a bias reshaped along two paths, would remain different classes, and every rule that gathers constants would
multiply them.

A value is stored twice: exactly, modulo the prime p = 2^31 - 1 (a float is a dyadic rational, so it has an exact residue), and in float64.
Two constants are considered equal if all residues are equal and the floats agree to 1e-9 of their size: they are then equal as rational
numbers unless a difference is a multiple of p in every element. Functions without a meaning in the field (square roots) are uninterpreted
there.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from egraph.errors import EinsatError, TypeMismatch
from egraph.tensor import Attributes, Node, TensorType, placeholder
from egraph.tensor.expr.functions import PRIME
from egraph.tensor.ops import OPS, apply
from egraph.tensor.ops.reference import evaluate

Fact = TypeVar("Fact")


class Analysis(Protocol[Fact]):
    """An analysis of constants."""

    def of_array(self, array: np.ndarray) -> Fact | None: ...

    def make(self, op: str, attributes: Attributes, types: Sequence[TensorType], facts: Sequence[Fact | None]) -> Fact | None:
        """Return the fact about an operator over constants with these ``facts``, or None."""

    def key(self, fact: Fact) -> str:
        """Return a text that is the same for equal facts."""

    def agree(self, left: Fact, right: Fact) -> bool:
        """Return whether constants of one type and key are equal."""


PROBES = 16


def number_of_array(array: np.ndarray) -> float | None:
    """Return the number that all elements are, or None. A few elements are compared first, so that memory-mapped weights stay unread."""
    if array.size == 0 or array.dtype.kind in "OSUc":
        return None
    flat = array.reshape(-1)
    first = flat[0]
    if not bool(np.all(flat[:: max(1, flat.size // PROBES)] == first)) or not bool(np.all(flat == first)):
        return None
    return float(first)


def number_of_term(op: str, attributes: Attributes, types: Sequence[TensorType], numbers: Sequence[float | None]) -> float | None:
    """Return the number of an operator over uniform constants: the operand's for a view, a computed one for elementwise operators."""
    spec = OPS.get(op)
    constants = [number for number in numbers if number is not None]
    if spec is None or not constants or len(constants) < len(numbers):
        return None
    if spec.category == "view":
        return constants[0]
    if spec.category != "elementwise" or {type.dtype for type in types} - {"float32", "float64"}:
        return None
    leaves = [placeholder(i, TensorType(type.dtype, (1,)), constant=True) for i, type in enumerate(types)]
    try:
        root = apply(op, *leaves, attributes=attributes)
    except TypeMismatch:
        return None
    values = {leaf: np.array([number], type.dtype) for leaf, number, type in zip(leaves, constants, types, strict=True)}
    result = float(np.asarray(evaluate([root], values)[0]).reshape(-1)[0])
    return None if math.isnan(result) else result


LIMIT_ELEMENTS = 1 << 15
"""Largest number of elements of a constant that is evaluated; larger ones (weights) are distinguished by how they are computed."""

DIRECT: Mapping[str, Callable[..., np.ndarray]] = {
    "Reshape": lambda attributes, x: x.reshape(attributes["shape"]),
    "Transpose": lambda attributes, x: x.transpose(attributes["perm"]),
    "Add": lambda attributes, x, y: np.asarray(x + y),
    "Sub": lambda attributes, x, y: np.asarray(x - y),
    "Mul": lambda attributes, x, y: np.asarray(x * y),
}
"""Direct implementations of the most frequent operators on constants, valid for residues (below 2^31) and floats."""


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
    """Return the value of a small float array, or None for large ones, other types, NaN and infinities."""
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
    """Return the value of an operator applied to known constants, or None if it is large or an operand is unknown."""
    constants = [value for value in values if value is not None]
    if op not in OPS or len(constants) < len(values) or not constants:
        return None
    if op in DIRECT and all(type.dtype in ("float32", "float64") for type in types):
        real, prime = (DIRECT[op](dict(attributes), *parts) for parts in ([v.real for v in constants], [v.prime for v in constants]))
        return _value(prime % PRIME, real) if 0 < real.size <= LIMIT_ELEMENTS else None
    leaves: list[Node] = [placeholder(i, type, constant=True) for i, type in enumerate(types)]
    try:
        root = apply(op, *leaves, attributes=attributes)
        if root.type.elements > LIMIT_ELEMENTS or not root.type.elements or root.type.dtype not in ("float32", "float64"):
            return None
        prime = evaluate([root], {leaf: value.prime for leaf, value in zip(leaves, constants, strict=True)}, "prime")[0]
        real = evaluate([root], {leaf: value.real for leaf, value in zip(leaves, constants, strict=True)})[0]
    except EinsatError:
        return None
    return _value(prime, real)


class UniformNumber:
    """The number that all elements of a constant are."""

    of_array = staticmethod(number_of_array)
    make = staticmethod(number_of_term)
    key = staticmethod(repr)

    def agree(self, left: float, right: float) -> bool:
        return True


class SmallValue:
    """The elements of a small constant."""

    of_array = staticmethod(value_of_array)
    make = staticmethod(value_of_term)

    def key(self, fact: ConstantValue) -> str:
        return fact.digest

    def agree(self, left: ConstantValue, right: ConstantValue) -> bool:
        return left.agrees(right)
