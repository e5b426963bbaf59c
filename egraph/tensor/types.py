"""Element types, shapes and attributes: the vocabulary that every stage shares."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TypeAlias, cast

import ml_dtypes
import numpy as np

Dim: TypeAlias = int | str
"""A size: a known integer, or the name of a dynamic dimension."""

AttributeValue: TypeAlias = int | float | str | bytes | bool | tuple["AttributeValue", ...]
Attributes: TypeAlias = tuple[tuple[str, AttributeValue], ...]
"""Attributes sorted by name; absent means absent, so defaults are always written out."""
PLAIN_DIM = re.compile(r"(?:[^\W\d]|/)(?:[\w .:+*/-]*[\w.])?")
"""Names of dynamic dimensions that texts write without quotes, as ``batch`` and ``past + 1``."""


def attributes(**values: AttributeValue) -> Attributes:
    """Return keyword arguments as canonical (sorted) attributes."""
    return tuple(sorted(values.items()))


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape. ``shape`` is None when even the rank is unknown (opaque values only)."""

    dtype: str
    shape: tuple[Dim, ...] | None

    @property
    def is_static(self) -> bool:
        return self.shape is not None and str not in map(type, self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the shape of a static tensor; raise ValueError when a size is unknown."""
        if self.shape is None or str in map(type, self.shape):
            raise ValueError(f"{self} has unknown sizes")
        return cast(tuple[int, ...], self.shape)

    @property
    def rank(self) -> int:
        if self.shape is None:
            raise ValueError(f"{self} has an unknown rank")
        return len(self.shape)

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    @property
    def size_bytes(self) -> int:
        return self.elements * numpy_dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{'[?]' if self.shape is None else '[' + ','.join(map(_format_dim, self.shape)) + ']'}"


def _format_dim(dim: Dim) -> str:
    return repr(dim) if isinstance(dim, str) and not PLAIN_DIM.fullmatch(dim) else str(dim)


def numpy_dtype(name: str) -> np.dtype:
    """Return the numpy dtype of an element type name (``bfloat16`` and the float8s through ml_dtypes)."""
    return np.dtype(np.object_) if name == "string" else np.dtype(getattr(ml_dtypes, name, name))
