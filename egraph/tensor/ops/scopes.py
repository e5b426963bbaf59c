"""Building blocks of meanings: iterator grids and broadcast reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from egraph.tensor.expr.bodies import applied, guarded
from egraph.tensor.expr.index import Index, Iterator, Size, index, simplify
from egraph.tensor.expr.scope import Compare, IndexNumber, Number, Read, Scalar, Scope, Tensor
from egraph.tensor.expr.scope import apply as call
from egraph.tensor.ops.dtypes import BYTES
from egraph.tensor.ops.sizes import equal, is_one, known


def grid(prefix: str, sizes: Sequence[Size]) -> tuple[tuple[Iterator, ...], tuple[Index, ...]]:
    """Return iterators ``prefix0, prefix1, ...`` over the sizes from 0, and the same as indices."""
    iterators = tuple(Iterator(f"{prefix}{axis}", 0, simplify(size)) for axis, size in enumerate(sizes))
    return iterators, tuple(index(iterator) for iterator in iterators)


def pointwise(prefix: str, shape: Sequence[Size], body: Callable[[tuple[Index, ...]], Scalar]) -> Scope:
    """{i0, i1, ...}  body(i0, i1, ...)"""
    iterators, indices = grid(prefix, shape)
    return Scope.pointwise(iterators, body(indices))


def read(source: Tensor | Scope, indices: Sequence[Size]) -> Read:
    """source[indices]"""
    return Read(source, tuple(index(i) for i in indices))


def read_broadcast(source: Tensor | Scope, indices: Sequence[Index]) -> Read:
    """Read the element that numpy broadcasting puts at ``indices``: axes align at the end, size 1 stays at 0."""
    shape = source.shape
    return Read(source, broadcast_places(shape, indices[len(indices) - len(shape) :]))


def broadcast_places(shape: Sequence[Size], indices: Sequence[Index]) -> tuple[Index, ...]:
    """Return the position at which broadcasting reads an operand for an output position.

    A symbolic size that may be 1 or the output's size n is read at i % size, which is 0 or i.
    """
    return tuple(_broadcast_place(size, position) for size, position in zip(shape, indices, strict=True))


def _broadcast_place(size: Size, position: Index) -> Index:
    if is_one(size):
        return index(0)
    if known(size) is not None:
        return position
    atom = position.atom
    return position if isinstance(atom, Iterator) and equal(atom.high, size) else position % size


def as_number(size: Size) -> Scalar:
    """Return a size as a scalar."""
    value = known(size)
    return IndexNumber(index(size)) if value is None else Number(Fraction(value))


def clamped_read(source: Tensor | Scope, indices: Sequence[Index], axis: int) -> Scalar:
    """source[..., min(max(i, 0), size - 1), ...] along one axis"""
    last = index(source.shape[axis]) - 1
    position = indices[axis]

    def at(value: Index) -> Read:
        return Read(source, (*indices[:axis], value, *indices[axis + 1 :]))

    above = guarded((Compare(position, "<=", last),), at(position), at(last))
    return guarded((Compare(index(0), "<=", position),), above, at(index(0)))


def factor(source: Tensor | Scope, indices: Sequence[Size]) -> Scalar:
    """source[indices] as a factor of a sum of products; a byte becomes an int32"""
    element = read(source, indices)
    return call("to_int32", element) if isinstance(source, Tensor) and source.dtype in BYTES else element


def add(*terms: Scalar) -> Scalar:
    """terms[0] + terms[1] + ..."""
    return applied("add", terms)


def multiply(*factors: Scalar) -> Scalar:
    """factors[0] * factors[1] * ..."""
    return applied("mul", factors)
