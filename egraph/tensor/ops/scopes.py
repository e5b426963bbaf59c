"""Building blocks of meanings: iterator grids, broadcast reads, guards that drop what is provably true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from egraph.tensor.expr.index import Index, Iterator, Size, bounds, index, simplify
from egraph.tensor.expr.scope import Compare, Guarded, IndexNumber, Number, Read, Scalar, Scope, Tensor, apply
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
    """Return where broadcasting reads an operand at an output position.

    A symbolic size that may be 1 or the output's size n is read at i % size, which is 0 or i.
    """
    return tuple(_broadcast_place(size, position) for size, position in zip(shape, indices, strict=True))


def _broadcast_place(size: Size, position: Index) -> Index:
    if is_one(size):
        return index(0)
    if known(size) is not None:
        return position
    whole = len(position.terms) == 1 and position.terms[0][1] == 1 and len(position.terms[0][0]) == 1
    atom = position.terms[0][0][0] if whole else None
    return position if isinstance(atom, Iterator) and equal(atom.high, size) else position % size


def as_number(size: Size) -> Scalar:
    """Return a size as a scalar."""
    value = known(size)
    return IndexNumber(index(size)) if value is None else Number(Fraction(value))


def guarded(conditions: Sequence[Compare], then: Scalar, otherwise: Scalar) -> Scalar:
    """``then`` where the conditions hold, else ``otherwise``; conditions that hold by their ranges are dropped."""
    needed = tuple(condition for condition in conditions if not always(condition))
    return Guarded(needed, then, otherwise) if needed else then


def always(condition: Compare) -> bool:
    """Return whether a condition holds by the ranges of its iterators."""
    limits = bounds(condition.right - condition.left)
    if limits is None:
        return False
    match condition.operator:
        case "<":
            return limits[0] > 0
        case "<=":
            return limits[0] >= 0
        case "==":
            return limits == (0, 0)
        case "!=":
            return limits[0] > 0 or limits[1] < 0


def clamped_read(source: Tensor | Scope, indices: Sequence[Index], axis: int) -> Scalar:
    """source[..., min(max(i, 0), size - 1), ...] along one axis"""
    last = index(source.shape[axis]) - 1
    position = indices[axis]

    def at(value: Index) -> Read:
        return Read(source, (*indices[:axis], value, *indices[axis + 1 :]))

    above = guarded((Compare(position, "<=", last),), at(position), at(last))
    return guarded((Compare(index(0), "<=", position),), above, at(index(0)))


def add(*terms: Scalar) -> Scalar:
    """terms[0] + terms[1] + ..."""
    total = terms[0]
    for term in terms[1:]:
        total = apply("add", total, term)
    return total


def multiply(*factors: Scalar) -> Scalar:
    """factors[0] * factors[1] * ..."""
    total = factors[0]
    for factor in factors[1:]:
        total = apply("mul", total, factor)
    return total
