"""A convolution as V, U, M, Y: transformed tiles times transformed weights, one matrix product for every place of the transform.

    V[xi, tile, c] = sum_i B[xi,i] x[tile's position i, c]        U[xi, c, k] = sum_q G[xi,q] w[k, c, q]  (weights alone)
    M = MatMul(V, U)                                              Y[o, k] = sum_xi A[place of o, xi] M[xi, tile of o, k]

One index xi counts the products of all axes, one index the tiles of batch and axes; groups stand before xi. All data is NHWC.

If there are many tiles and few weights, the tiles are divided into parts, which are the first axis:

    V[part, xi, tile, c]        M[part, xi, tile, k] = MatMul(V[part, xi, tile, c], U[xi, c, k])

Threads then divide all three stages by parts. Without parts, they divide the product by places, and half of V and of M passes from one
core to another, each cache line taken away before it is written again: on two cores V took up to ten times as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from egraph.derive.bilinear.axes import Axis
from egraph.derive.bilinear.cook_toom import Matrix
from egraph.derive.derivation import Step
from egraph.tensor import Node
from egraph.tensor.expr.bodies import guarded
from egraph.tensor.expr.index import Index, Iterator, index
from egraph.tensor.expr.scope import ZERO, Reduction, Scalar, Scope, Tensor, inside, table
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.reference import meaning
from egraph.tensor.ops.scopes import grid, multiply, read

LARGEST_SHARED_BYTES = 4 << 20
"""The bytes of weights up to which parts pay off: the weights are read for each part."""
GOOD_ROWS, LEAST_ROWS = 14, 4
"""The rows of a matrix product that fill a library's kernel, and the fewest with which a part still pays off."""
ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Bilinear:
    """A bilinear algorithm: the axes, the groups, channels of one group, and whether weights are [C, K, ...] as ConvTranspose has them."""

    axes: tuple[Axis, ...]
    group: int
    channels: int
    outputs: int
    transposed: bool = False

    @property
    def products(self) -> int:
        """The number of products of one tile."""
        return math.prod(axis.algorithm.products for axis in self.axes)

    @property
    def growth(self) -> float:
        """The expected error relative to the direct sum's: those of the axes multiply."""
        return math.prod(axis.algorithm.typical_growth for axis in self.axes)

    def counts(self, batch: int) -> tuple[int, ...]:
        """Return the number of images, and of tiles along each axis, of a part."""
        divided, parts = self.division(batch)
        sizes = (batch, *(axis.tiles for axis in self.axes))
        return tuple(size // parts if k == divided else size for k, size in enumerate(sizes))

    def staged(self, batch: int, columns: int) -> tuple[int, ...]:
        """Return the shape of V or M: parts if there are several, places, tiles, columns."""
        parts = self.division(batch)[1]
        shape = (self.group * self.products, math.prod(self.counts(batch)), columns)
        return (parts, *shape) if parts > 1 else shape

    def tiles(self, batch: int) -> int:
        return batch * math.prod(axis.tiles for axis in self.axes)

    def division(self, batch: int) -> tuple[int, int]:
        """Return which of batch and axes is divided (the first with several tiles), and into how many parts; 1 if parts do not pay off."""
        sizes = (batch, *(axis.tiles for axis in self.axes))
        divided = next((k for k, size in enumerate(sizes) if size > 1), 0)
        if ELEMENT_BYTES * self.group * self.products * self.depth * self.width > LARGEST_SHARED_BYTES:
            return divided, 1
        divisors = [d for d in range(2, sizes[divided] + 1) if sizes[divided] % d == 0 and self.tiles(batch) // d >= LEAST_ROWS]
        good = [d for d in divisors if self.tiles(batch) // d >= GOOD_ROWS]
        return divided, max(good, default=min(divisors, default=1))

    @property
    def depth(self) -> int:
        """The number of summands of the matrix product."""
        return self.channels * math.prod(axis.inner for axis in self.axes)

    @property
    def width(self) -> int:
        """The number of columns of the matrix product."""
        return self.outputs * math.prod(axis.outer for axis in self.axes)


def program(x: Node, w: Node, bilinear: Bilinear) -> Node:
    """Return Y over the nodes of the data and the weights."""
    v, u, y = _texts(x.type.sizes, w.type.sizes, bilinear)
    product = apply("MatMul", apply("Expression", x, text=v), apply("Expression", w, text=u))
    return apply("Expression", product, text=y)


@lru_cache(maxsize=256)
def _texts(x: tuple[int, ...], w: tuple[int, ...], bilinear: Bilinear) -> tuple[str, str, str]:
    """Return V, U and Y as attributes, from the sizes of the data and the weights: equal blocks share them."""
    scopes = transformed_data(x, bilinear), transformed_weights(w, bilinear), transformed_product(x[0], bilinear)
    v, u, y = map(text_of, scopes)
    return v, u, y


def steps(x: Node, w: Node, bilinear: Bilinear) -> tuple[Step, ...]:
    """Return the derivation steps of the program, as expressions."""
    names = "x".join(f"F({axis.algorithm.outputs},{axis.algorithm.taps})" for axis in bilinear.axes)
    return stages(program(x, w, bilinear), names)


def stages(y: Node, algorithm: str) -> tuple[Step, ...]:
    """Return the expressions of V, U, M and Y = f(M), M = MatMul(V, U); ``algorithm`` names the algorithm."""
    (m,) = y.inputs
    v, u = m.inputs
    named = ((f"bilinear algorithm {algorithm}: V", v), ("expression splitting: U", u), ("operator matching: M is MatMul", m))
    return tuple(Step(rule, text_of(meaning(node))) for rule, node in (*named, ("expression splitting: Y", y)))


def transformed_data(sizes: tuple[int, ...], bilinear: Bilinear) -> Scope:
    """V[group xi, tile, inner c] = sum_i B[xi,i] x[n, position, group c]"""
    source = Tensor("0", sizes)
    divided, _ = bilinear.division(sizes[0])
    traversal, (*part, product, tile, deep) = _grid(bilinear.staged(sizes[0], bilinear.depth))
    group, *xi = _digits(product, (bilinear.group, *(axis.algorithm.products for axis in bilinear.axes)))
    counts = bilinear.counts(sizes[0])
    tile_digits = _digits(tile, counts)
    if part:
        tile_digits[divided] = part[0] * counts[divided] + tile_digits[divided]
    n, *tiles = tile_digits
    *inner, c = _digits(deep, (*(axis.inner for axis in bilinear.axes), bilinear.channels))
    sums, at = grid("k", [axis.algorithm.window for axis in bilinear.axes])
    positions = [axis.position(*where) for axis, *where in zip(bilinear.axes, tiles, inner, at, strict=True)]
    value = multiply(read(source, (n, *positions, group * bilinear.channels + c)), *_tables([a.algorithm.b for a in bilinear.axes], xi, at))
    conditions = [c for axis, position in zip(bilinear.axes, positions, strict=True) for c in inside(position, 0, axis.size)]
    return Scope(traversal, sums, Reduction.SUM, guarded(conditions, value, ZERO))


def transformed_weights(sizes: tuple[int, ...], bilinear: Bilinear) -> Scope:
    """U[group xi, inner c, outer k] = sum_q G[xi,q] w[group k, c, tap]"""
    source = Tensor("0", sizes)
    traversal, (product, deep, wide) = _grid((bilinear.group * bilinear.products, bilinear.depth, bilinear.width))
    group, *xi = _digits(product, (bilinear.group, *(axis.algorithm.products for axis in bilinear.axes)))
    *inner, c = _digits(deep, (*(axis.inner for axis in bilinear.axes), bilinear.channels))
    *outer, k = _digits(wide, (*(axis.outer for axis in bilinear.axes), bilinear.outputs))
    sums, q = grid("k", [axis.algorithm.taps for axis in bilinear.axes])
    taps = [axis.tap(*where) for axis, *where in zip(bilinear.axes, inner, outer, q, strict=True)]
    channels = (group * bilinear.channels + c, k) if bilinear.transposed else (group * bilinear.outputs + k, c)
    value = multiply(read(source, (*channels, *taps)), *_tables([a.algorithm.g for a in bilinear.axes], xi, q))
    conditions = [c for axis, tap in zip(bilinear.axes, taps, strict=True) for c in inside(tap, 0, axis.taps)]
    return Scope(traversal, sums, Reduction.SUM, guarded(conditions, value, ZERO))


def transformed_product(batch: int, bilinear: Bilinear) -> Scope:
    """Y[n, o, group k] = sum_xi A[place,xi] M[group xi, tile, outer k]"""
    source = Tensor("0", bilinear.staged(batch, bilinear.width))
    divided, parts = bilinear.division(batch)
    traversal, (n, *outputs, wide) = _grid((batch, *(axis.outputs for axis in bilinear.axes), bilinear.group * bilinear.outputs))
    group, k = _digits(wide, (bilinear.group, bilinear.outputs))
    sums, xi = grid("k", [axis.algorithm.products for axis in bilinear.axes])
    tiles, outer, rows = zip(*(axis.source(output) for axis, output in zip(bilinear.axes, outputs, strict=True)), strict=True)
    counts = bilinear.counts(batch)
    part: list[Index] = []
    digits = [n, *tiles]
    if parts > 1:
        part, digits[divided] = [digits[divided] // counts[divided]], digits[divided] % counts[divided]
    tile = _number(digits, counts)
    product = _number((group, *xi), (bilinear.group, *(axis.algorithm.products for axis in bilinear.axes)))
    column = _number((*outer, k), (*(axis.outer for axis in bilinear.axes), bilinear.outputs))
    value = multiply(read(source, (*part, product, tile, column)), *_tables([a.algorithm.a for a in bilinear.axes], rows, xi))
    return Scope(traversal, sums, Reduction.SUM, value)


def _grid(sizes: Sequence[int]) -> tuple[tuple[Iterator, ...], tuple[Index, ...]]:
    """Return iterators over the sizes and the same as indices, which are 0 for a size of 1."""
    iterators, indices = grid("i", sizes)
    return iterators, tuple(index(0) if size == 1 else i for size, i in zip(sizes, indices, strict=True))


def _tables(matrices: Sequence[Matrix], rows: Sequence[Index], columns: Sequence[Index]) -> list[Scalar]:
    """Return matrix[row, column] for every axis whose matrix is not 1 x 1."""
    read = zip(matrices, rows, columns, strict=True)
    return [table(matrix, row, column) for matrix, row, column in read if (len(matrix), len(matrix[0])) != (1, 1)]


def _digits(value: Index, sizes: Sequence[int]) -> list[Index]:
    """Return the digits of a number in a mixed base, the highest first; a size of 1 has the digit 0."""
    digits: list[Index] = []
    weight = math.prod(sizes)
    for size in sizes:
        weight //= size
        digits.append(index(0) if size == 1 else (value // weight) % size)
    return digits


def _number(digits: Sequence[Index], sizes: Sequence[int]) -> Index:
    """Return the number with these digits."""
    total = index(0)
    for digit, size in zip(digits, sizes, strict=True):
        total = total * size + digit
    return total
