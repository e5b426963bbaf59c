"""Instantiation: inner scopes become nodes of their own, and scopes that no operator computes become Expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from egraph.derive.matching.bodies import merged
from egraph.derive.matching.form import simpler
from egraph.errors import EinsatError
from egraph.tensor import Node
from egraph.tensor.expr.bodies import mapped, reads_of, with_reads
from egraph.tensor.expr.compose import inline
from egraph.tensor.expr.index import Index
from egraph.tensor.expr.laws import tidy
from egraph.tensor.expr.scope import Read, Scalar, Scope, Tensor
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of

Instance = Callable[[Scope, Sequence[Node]], Node | None]
"""A function that returns a program for a scope over operands."""


@dataclass(frozen=True, slots=True)
class Flat:
    """A scope without inner scopes; the values of its former inner scopes are additional operands."""

    scope: Scope
    operands: tuple[Node, ...]


def flattened(scope: Scope, operands: Sequence[Node], instance: Instance) -> Flat | None:
    """Compute every inner scope by a node of its own; None if an inner scope has no program, or depends on iterators around it."""
    scope = merged(scope.with_body(simpler(scope.body)))
    inner: dict[Scope, Node] = {}
    for source in (read.source for read in reads_of(scope.body) if isinstance(read.source, Scope)):
        node = instance(source, operands)
        if node is None:
            return None
        inner[source] = node
    names = {source: Tensor(str(len(operands) + k), source.shape, node.type.dtype) for k, (source, node) in enumerate(inner.items())}
    flat = scope.with_body(_named(scope.body, names))
    return Flat(flat, (*operands, *inner.values()))


def expression(flat: Flat) -> Node | None:
    """Return the Expression that computes a flat scope; None if there is none."""
    tensors = {read.source.name for read in reads_of(flat.scope.body) if isinstance(read.source, Tensor)}
    used = [position for position in range(len(flat.operands)) if str(position) in tensors]
    nodes = [flat.operands[position] for position in used]
    names = {str(old): Tensor(str(new), flat.operands[old].type.sizes, flat.operands[old].type.dtype) for new, old in enumerate(used)}
    try:
        scope = inline(flat.scope, names)
        return apply("Expression", *nodes, text=text_of(scope.with_body(mapped(scope.body, tidy, opened=True))))
    except EinsatError:
        return None


def _named(body: Scalar, names: dict[Scope, Tensor]) -> Scalar:
    def named(read: Read) -> Read:
        return Read(names[read.source], _lowered(read.source, read.indices)) if isinstance(read.source, Scope) else read

    return with_reads(body, named)


def _lowered(source: Scope, indices: Sequence[Index]) -> tuple[Index, ...]:
    """Return positions that count from 0, as a node's axes do."""
    return tuple(coordinate - i.low for coordinate, i in zip(indices, source.traversal, strict=True))
