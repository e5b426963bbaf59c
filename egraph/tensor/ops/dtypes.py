"""Element types that operators accept, and the rules from operand types to result type."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from egraph.tensor.ops.sizes import refuse

FLOATS = frozenset({"float32", "float64"})
BOOLEANS = frozenset({"bool"})
BYTES = frozenset({"int8", "uint8"})
"""Types of quantised numbers; their products are summed in int32."""
RING = FLOATS | {"int32"}
"""Types of sums and products; int32 wraps around, and a sum is right if its final value fits."""
INDICES = frozenset({"int32", "int64"})
INTEGERS = frozenset({f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)})
RANGES = {
    "bool": (0, 1),
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}
"""The least and the greatest value of each type of whole numbers."""
EVERY = INTEGERS | {"bool", "float16", "bfloat16", "float32", "float64"}
"""Types whose elements can be moved one by one; strings and packed types stay opaque."""


def same_dtype(dtypes: Sequence[str]) -> str:
    """Return the one type that all operands have."""
    if len(set(dtypes)) != 1:
        refuse(f"operands must have one element type, got {', '.join(dtypes)}")
    return dtypes[0]


def contracted(dtypes: Sequence[str]) -> str:
    """Return the type of sums of products: int32 for bytes, signed or unsigned on either side, else the operands' own type."""
    if dtypes[0] not in BYTES:
        return same_dtype(dtypes)
    if dtypes[1] not in BYTES:
        refuse(f"operands must be both of {' or '.join(sorted(BYTES))}, got {', '.join(dtypes)}")
    return "int32"


def boolean(dtypes: Sequence[str]) -> str:
    """Return ``bool``, the type of a comparison of operands of one type."""
    same_dtype(dtypes)
    return "bool"


def selected(dtypes: Sequence[str]) -> str:
    """Return the type of the two values that a condition chooses from."""
    if dtypes[1] not in FLOATS:
        refuse(f"operand 1 must be one of {', '.join(sorted(FLOATS))}, got {dtypes[1]}")
    return same_dtype(dtypes[1:])


def indexed(dtypes: Sequence[str]) -> str:
    """Return the type of the data that integer indices choose from."""
    if dtypes[1] not in INDICES:
        refuse(f"indices must be {' or '.join(sorted(INDICES))}, got {dtypes[1]}")
    return dtypes[0]


DtypeRule = Callable[[Sequence[str]], str]
