"""Factors that choose between tensors, as in merged expressions, written as one read of the tensors stacked or concatenated.

    [j == 0 ? A[i] : j == 1 ? B[i] : ...]  =  (A | B | ...)[j, i]        a new axis
    [x < m ? A[x] : B[x - m]]              =  (A ++ B)[x]                the axis that x walks along
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from egraph.derive.matching.conditions import Piece, pieces_of
from egraph.derive.matching.form import Form
from egraph.derive.matching.movements import moved
from egraph.derive.matching.views import reshaped, sliced
from egraph.tensor import Node
from egraph.tensor.expr.bodies import applied, flattened, used
from egraph.tensor.expr.index import Index, Iterator, index, length
from egraph.tensor.expr.laws import affine
from egraph.tensor.expr.scope import Guarded, Read, Reduction, Scalar, Tensor
from egraph.tensor.ops import apply


def gathered(form: Form, leaves: Sequence[Node]) -> tuple[Form, tuple[Node, ...]]:
    """Return a form whose factors are reads wherever a choice can be one, and the leaves with the tensors added for that."""
    parts = flattened("mul", form.inner)
    nodes, factors = list(leaves), list[Scalar]()
    for part in parts:
        joined = _joined(form, part, nodes) if isinstance(part, Guarded) and len(parts) > 1 else None
        if joined is None:
            factors.append(part)
            continue
        node, indices = joined
        factors.append(Read(Tensor(str(len(nodes)), node.type.sizes, node.type.dtype), indices))
        nodes.append(node)
    return (form, tuple(leaves)) if len(nodes) == len(leaves) else (replace(form, inner=applied("mul", factors)), tuple(nodes))


def _joined(form: Form, part: Guarded, leaves: Sequence[Node]) -> tuple[Node, tuple[Index, ...]] | None:
    choice = pieces_of(part)
    if choice is not None and all(isinstance(p.value, Read) and isinstance(p.value.source, Tensor) for p in choice[1]):
        node = _stack(*choice, leaves) or _concatenation(*choice, leaves)
        if node is not None:
            return node
    iterators = tuple(i for i in form.digits + form.sums if i in used(part))
    form_of_choice = Form(tuple(map(length, iterators)), iterators, (), Reduction.SUM, (), part, None)
    moved_node = moved(form_of_choice, leaves)
    return None if moved_node is None else (moved_node, tuple(map(index, iterators)))


def _stack(iterator: Iterator, pieces: Sequence[Piece], leaves: Sequence[Node]) -> tuple[Node, tuple[Index, ...]] | None:
    """Stack tensors of one shape, read at the same coordinates, along a new first axis."""
    first = _read(pieces[0])
    if any(piece.high - piece.low != 1 or _read(piece).indices != first.indices for piece in pieces):
        return None
    nodes = [_leaf(piece, leaves) for piece in pieces]
    if len({node.type for node in nodes}) != 1:
        return None
    parts = [reshaped(node, (1, *node.type.sizes)) for node in nodes]
    return apply("Concat", *parts, axis=0), (index(iterator), *first.indices)


def _concatenation(iterator: Iterator, pieces: Sequence[Piece], leaves: Sequence[Node]) -> tuple[Node, tuple[Index, ...]] | None:
    """Concatenate tensors along the one axis in which their coordinates differ, each cut to the part that is read."""
    first = _read(pieces[0])
    if any(len(_read(piece).indices) != len(first.indices) for piece in pieces):
        return None
    axes = {k for piece in pieces for k, coordinate in enumerate(_read(piece).indices) if coordinate != first.indices[k]}
    if len(axes) != 1:
        return None
    (axis,) = axes
    parts: list[Node] = []
    for piece in pieces:
        node, coordinate = _leaf(piece, leaves), affine(_read(piece).indices[axis])
        if coordinate is None or coordinate[1] != {iterator: 1}:
            return None
        start, end = piece.low + coordinate[0], piece.high + coordinate[0]
        sizes = node.type.sizes
        if start < 0 or end > sizes[axis]:
            return None
        starts = [start if k == axis else 0 for k in range(len(sizes))]
        parts.append(sliced(node, starts, [end if k == axis else size for k, size in enumerate(sizes)], [1] * len(sizes)))
    if len({(*n.type.sizes[:axis], *n.type.sizes[axis + 1 :], n.type.dtype) for n in parts}) != 1:
        return None
    return apply("Concat", *parts, axis=axis), tuple(index(iterator) if k == axis else p for k, p in enumerate(first.indices))


def _read(piece: Piece) -> Read:
    assert isinstance(piece.value, Read)
    return piece.value


def _leaf(piece: Piece, leaves: Sequence[Node]) -> Node:
    source = _read(piece).source
    assert isinstance(source, Tensor)
    return leaves[int(source.name)]
