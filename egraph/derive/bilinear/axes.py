"""One spatial axis of a convolution as a bilinear algorithm: the inputs of a tile, the taps of the weights, the places of the outputs.

    y[o] = sum_xi A[p,xi] sum_c M,  M = V U,  V = sum_i B[xi,i] x[position(tile, inner, i)],  U = sum_q G[xi,q] w[tap(inner, outer, q)]

``inner`` counts the summands of the product beside the channels (taps that are not transformed, phases of a stride).
``outer`` counts the results of the product beside the output channels (phases of a transposed convolution).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from egraph.derive.bilinear.cook_toom import CookToom, cook_toom
from egraph.tensor.expr.index import Index, index

DIRECT = cook_toom(1, 1)


@dataclass(frozen=True, slots=True)
class Axis(ABC):
    """An axis of ``size`` inputs and ``outputs`` outputs. The first output reads from ``before`` positions ahead of the first input."""

    size: int
    outputs: int
    taps: int
    before: int
    algorithm: CookToom

    @property
    @abstractmethod
    def tiles(self) -> int:
        """The number of tiles that cover the outputs."""

    @property
    def inner(self) -> int:
        """The number of summands of the product beside the channels."""
        return 1

    @property
    def outer(self) -> int:
        """The number of results of the product beside the output channels."""
        return 1

    @abstractmethod
    def position(self, tile: Index, inner: Index, i: Index) -> Index:
        """Return the input that a tile reads at its position ``i``; it may lie outside the data."""

    @abstractmethod
    def tap(self, inner: Index, outer: Index, q: Index) -> Index:
        """Return the tap of the weights at position ``q`` of a transform; it may lie outside the weights."""

    @abstractmethod
    def source(self, output: Index) -> tuple[Index, Index, Index]:
        """Return the tile, the phase (of ``outer``) and the position within the tile of an output."""


@dataclass(frozen=True, slots=True)
class Gathered(Axis):
    """y[o] = sum_r w[r] x[o s + r d - before]: the matrix product sums the taps."""

    stride: int
    dilation: int

    @property
    def tiles(self) -> int:
        return self.outputs

    @property
    def inner(self) -> int:
        return self.taps

    def position(self, tile: Index, inner: Index, i: Index) -> Index:
        return tile * self.stride + inner * self.dilation + i - self.before

    def tap(self, inner: Index, outer: Index, q: Index) -> Index:
        return inner + outer + q

    def source(self, output: Index) -> tuple[Index, Index, Index]:
        return output, index(0), index(0)


@dataclass(frozen=True, slots=True)
class Strided(Axis):
    """y[o] = sum_r w[r] x[s o + r - before] by tiles; stride 1 is the plain case.

    Each phase of a stride is a correlation of its own. Either every phase has ceil(taps / s) taps, zeros added, and the matrix product
    sums the phases (``inner``); or each phase has its own length, and one algorithm has the products of all phases (``separate``).
    """

    stride: int
    separate: bool = False

    @property
    def tiles(self) -> int:
        return -(-self.outputs // self.algorithm.outputs)

    @property
    def inner(self) -> int:
        return 1 if self.separate else self.stride

    def position(self, tile: Index, inner: Index, i: Index) -> Index:
        return tile * self.algorithm.outputs * self.stride + i * self.inner + inner - self.before

    def tap(self, inner: Index, outer: Index, q: Index) -> Index:
        return q * self.inner + inner + outer

    def source(self, output: Index) -> tuple[Index, Index, Index]:
        m = self.algorithm.outputs
        return output // m, index(0), output % m


@dataclass(frozen=True, slots=True)
class Dilated(Axis):
    """y[d t + ph] = sum_r w[r] x[d (t + r) + ph - before]: every phase of the output is a plain correlation of its own tiles."""

    dilation: int

    @property
    def in_phase(self) -> int:
        """The number of tiles of one phase."""
        return -(-self.outputs // (self.dilation * self.algorithm.outputs))

    @property
    def tiles(self) -> int:
        return self.dilation * self.in_phase

    def position(self, tile: Index, inner: Index, i: Index) -> Index:
        phase, tile_in_phase = tile // self.in_phase, tile % self.in_phase
        return (tile_in_phase * self.algorithm.outputs + i) * self.dilation + phase + inner - self.before

    def tap(self, inner: Index, outer: Index, q: Index) -> Index:
        return inner + outer + q

    def source(self, output: Index) -> tuple[Index, Index, Index]:
        m = self.algorithm.outputs
        phase, position = output % self.dilation, output // self.dilation
        return phase * self.in_phase + position // m, index(0), position % m


@dataclass(frozen=True, slots=True)
class Transposed(Axis):
    """y[s t + ph - before] = sum_j w[s j + ph] x[t - j]: the phases of the output read the same tiles with other taps.

    The taps are reversed to make a correlation of r = ceil(taps / s): j = r - 1 - q.
    """

    stride: int

    @property
    def outer(self) -> int:
        return self.stride

    @property
    def first(self) -> int:
        """The first t."""
        return self.before // self.stride

    @property
    def tiles(self) -> int:
        return -(-((self.before + self.outputs - 1) // self.stride + 1 - self.first) // self.algorithm.outputs)

    def position(self, tile: Index, inner: Index, i: Index) -> Index:
        return tile * self.algorithm.outputs + i + inner + self.first - (self.algorithm.taps - 1)

    def tap(self, inner: Index, outer: Index, q: Index) -> Index:
        return (self.algorithm.taps - 1 - q) * self.stride + outer + inner

    def source(self, output: Index) -> tuple[Index, Index, Index]:
        shifted = output + self.before
        position = shifted // self.stride - self.first
        return position // self.algorithm.outputs, shifted % self.stride, position % self.algorithm.outputs
