"""Iterator mapping tables: for each iterator of a scope the tensors it occurs in, and its strides in them when they are flat.

``sum(k) A[m,k] * B[n,k]`` with A 224x16, B 8x16 has the rows (strides in A, B and the output, which is 224x8):

    iterator   occurs in     A   B   output
    m          A, output    16   0        8
    n          B, output     0  16        1
    k          A, B          1   1        0

Two scopes are the same operator up to layouts when the same numbers of iterators occur in the same sets of tensors; the distance
of a derivation to an operator is counted over these groups.
"""

from __future__ import annotations

from collections.abc import Iterator as Iterable
from dataclasses import dataclass

from egraph.expr.index import Index, Iterator, atoms, index, length
from egraph.expr.scope import Apply, Guarded, Read, Scalar, Scope

Mask = int
"""The set of tensors that an iterator occurs in: bit k is the k-th read, the bit after the last read is the output."""


@dataclass(frozen=True, slots=True)
class Row:
    """One iterator: the tensors it occurs in, and its stride in each of them, the reads first, the output last.

    A stride is None where the iterator occurs under a division, or times another one, so that no stride exists.
    """

    iterator: Iterator
    mask: Mask
    strides: tuple[int | None, ...]

    @property
    def length(self) -> int:
        """The number of values; ValueError where the range is symbolic."""
        return length(self.iterator)


@dataclass(frozen=True, slots=True)
class IteratorTable:
    """The rows of all iterators, those of the traversal first, and for each read the flat position where all iterators are 0."""

    reads: tuple[Read, ...]
    rows: tuple[Row, ...]
    offsets: tuple[int | None, ...]

    @property
    def output(self) -> Mask:
        """The bit of the output."""
        return 1 << len(self.reads)

    def group(self, mask: Mask) -> tuple[Row, ...]:
        """Return the rows of the iterators that occur in exactly these tensors."""
        return tuple(row for row in self.rows if row.mask == mask)

    def groups(self) -> dict[Mask, tuple[Row, ...]]:
        """Return the rows by the tensors they occur in, masks ascending."""
        return {mask: self.group(mask) for mask in sorted({row.mask for row in self.rows})}


def iterator_table(scope: Scope) -> IteratorTable:
    """Return the table of a scope; its reads are in the order of the body, equal ones once."""
    reads = tuple(dict.fromkeys(reads_of(scope.body)))
    flat = tuple(flat_position(read) for read in reads)
    output = index(0)
    for iterator in scope.traversal:
        output = output * length(iterator) + (index(iterator) - iterator.low)
    rows: list[Row] = []
    for iterator in scope.traversal + scope.summation:
        occurs = [any(iterator in atoms(place) for place in read.indices) for read in reads] + [iterator in scope.traversal]
        strides = tuple(_stride(place, iterator) if there else 0 for place, there in zip((*flat, output), occurs, strict=True))
        rows.append(Row(iterator, sum(1 << k for k, there in enumerate(occurs) if there), strides))
    return IteratorTable(reads, tuple(rows), tuple(_offset(place) for place in flat))


def reads_of(body: Scalar) -> Iterable[Read]:
    """Yield the reads of tensors and inner scopes in a body, from left to right."""
    match body:
        case Read():
            yield body
        case Apply(_, arguments):
            for argument in arguments:
                yield from reads_of(argument)
        case Guarded(_, then, otherwise):
            yield from reads_of(then)
            yield from reads_of(otherwise)
        case _:
            pass


def flat_position(read: Read) -> Index:
    """Return where a read stands in its tensor in row-major order."""
    flat = index(0)
    for size, place in zip(read.source.shape, read.indices, strict=True):
        flat = flat * size + place
    return flat


def _stride(flat: Index, iterator: Iterator) -> int | None:
    stride = 0
    for monomial, coefficient in flat.terms:
        if monomial == (iterator,):
            stride = coefficient
        elif any(iterator in atoms(index(atom)) for atom in monomial):
            return None
    return stride


def _offset(flat: Index) -> int | None:
    """Return the constant part of an affine position."""
    if any(len(monomial) > 1 or not isinstance(monomial[0], Iterator) for monomial, _ in flat.terms if monomial):
        return None
    return next((coefficient for monomial, coefficient in flat.terms if not monomial), 0)
