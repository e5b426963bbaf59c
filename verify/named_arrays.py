"""Arrays with numbered axes, and their products and sums: in float64, or exactly modulo a prime that fits float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from egraph.errors import EinsatError

PRIME = 1_048_583
"""A prime so small that float64 holds sums of 8192 products exactly, so that native matrix products can be used."""
LARGEST = 1 << 22
"""Most elements of an intermediate array; larger ones are not computed."""
CHUNK = 4096
"""Number of products that are added before the sum is reduced modulo the prime."""
Array = np.ndarray


class Untestable(EinsatError):
    """The expression cannot be evaluated at single positions, or only at too high a cost."""


@dataclass(frozen=True, eq=False)
class Named:
    """An array with an axis for each of ``axes``, in ascending order."""

    axes: tuple[int, ...]
    values: Array

    def spread(self, axes: Sequence[int]) -> Array:
        """Return the array with axes of size 1 inserted for the missing ones."""
        if not self.axes:
            return self.values
        sizes = dict(zip(self.axes, self.values.shape, strict=True))
        return self.values.reshape([sizes.get(axis, 1) for axis in axes])

    def ordered(self, axes: Sequence[int]) -> Array:
        return self.values.transpose([self.axes.index(axis) for axis in axes])


def single(value: float) -> Named:
    """Return one number."""
    return Named((), np.asarray(value, np.float64))


def whole(value: int) -> Named:
    """Return one integer."""
    return Named((), np.asarray(value, np.int64))


def combined(function: Callable[..., Array], *values: Named) -> Named:
    """Return function(values), with axes aligned by number."""
    longest = max((v.axes for v in values), key=len)
    if all(v.axes == longest or not v.axes for v in values):
        return Named(longest, np.asarray(function(*(v.values for v in values))))
    axes = tuple(sorted(set().union(*(v.axes for v in values))))
    arrays = [v.spread(axes) for v in values]
    if math.prod(np.broadcast_shapes(*(a.shape for a in arrays))) > LARGEST:
        raise Untestable("too many elements")
    return Named(axes, np.asarray(function(*arrays)))


def reduced(values: Array) -> Array:
    """Return integers below 2^53 in magnitude modulo the prime."""
    remainder = values - np.floor(values * (1.0 / PRIME)) * PRIME
    return np.asarray(np.where(remainder < 0, remainder + PRIME, np.where(remainder >= PRIME, remainder - PRIME, remainder)))


def inverse(values: Array) -> Array:
    """Return 1 / values modulo the prime; the inverse of zero is zero."""
    result, square, exponent = np.ones_like(values), np.asarray(values), PRIME - 2
    while exponent:
        if exponent & 1:
            result = reduced(result * square)
        square, exponent = reduced(square * square), exponent >> 1
    return result


@dataclass(frozen=True)
class Algebra:
    """Products and sums, ``exact``: modulo the prime."""

    exact: bool

    def kept(self, values: Array) -> Array:
        return reduced(values) if self.exact else np.asarray(values)

    def product(self, factors: Sequence[Named]) -> Named:
        """Return the product of the factors, with small ones multiplied first."""
        total = single(1.0)
        for factor in sorted(factors, key=lambda f: f.values.size):
            total = combined(lambda a, b: self.kept(a * b), total, factor)
        return total

    def contracted(self, factors: list[Named], lengths: Mapping[int, int]) -> Named:
        """Return the sum over axes of the product of the factors, two factors at a time."""
        present = {axis for factor in factors for axis in factor.axes}
        repeated = math.prod(n for axis, n in lengths.items() if axis not in present)
        pending = [axis for axis in lengths if axis in present]
        while pending:
            axis = min(pending, key=lambda a: _size(factors, a))
            with_axis = sorted((f for f in factors if axis in f.axes), key=lambda f: f.values.size)
            factors = [f for f in factors if axis not in f.axes]
            while len(with_axis) > 2:
                with_axis = sorted([self.product(with_axis[:2]), *with_axis[2:]], key=lambda f: f.values.size)
            elsewhere = {a for f in factors for a in f.axes}
            over = [a for a in pending if a not in elsewhere and any(a in f.axes for f in with_axis)]
            pending = [a for a in pending if a not in over]
            factors.append(self._summed(with_axis, over))
        if repeated != 1:
            factors.append(single(repeated % PRIME if self.exact else repeated))
        return self.product(factors)

    def _summed(self, factors: Sequence[Named], over: Sequence[int]) -> Named:
        """Return the sum over axes of the product of at most two factors."""
        if len(factors) == 1:
            (only,) = factors
            positions = tuple(k for k, axis in enumerate(only.axes) if axis in over)
            return Named(tuple(a for a in only.axes if a not in over), self.kept(only.values.sum(axis=positions)))
        first, second = factors
        inner = [a for a in first.axes if a in second.axes and a in over]
        for summed, kept in ((first, second), (second, first)):
            alone = [a for a in summed.axes if a in over and a not in inner]
            if alone:
                return self._summed([self._summed([summed], alone), kept], [a for a in over if a not in alone])
        return self._matrices(first, second, inner)

    def _matrices(self, first: Named, second: Named, inner: Sequence[int]) -> Named:
        """Return the sum over common axes, computed as matrix products."""
        shared = [a for a in first.axes if a in second.axes and a not in inner]
        mine, theirs = ([a for a in f.axes if a not in shared and a not in inner] for f in (first, second))
        sizes = dict(zip(first.axes, first.values.shape, strict=True)) | dict(zip(second.axes, second.values.shape, strict=True))
        batch, rows, length, columns = (math.prod(sizes[a] for a in axes) for axes in (shared, mine, inner, theirs))
        if batch * rows * columns > LARGEST:
            raise Untestable("too many elements")
        left = first.ordered([*shared, *mine, *inner]).reshape(batch, rows, length)
        right = second.ordered([*shared, *inner, *theirs]).reshape(batch, length, columns)
        total: Array = np.zeros((batch, rows, columns))
        for start in range(0, length, CHUNK):
            total = self.kept(total + self.kept(left[:, :, start : start + CHUNK] @ right[:, start : start + CHUNK]))
        result = [*shared, *mine, *theirs]
        values = total.reshape([sizes[a] for a in result])
        return Named(tuple(sorted(result)), values.transpose([result.index(a) for a in sorted(result)]))


def _size(factors: Sequence[Named], axis: int) -> int:
    sizes: dict[int, int] = {}
    for factor in factors:
        if axis in factor.axes:
            sizes |= {a: n for a, n in zip(factor.axes, factor.values.shape, strict=True) if n > 1}
    return math.prod(sizes.values())
