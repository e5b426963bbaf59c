"""Trees of scopes: find the contractions in them, and exchange one scope for another, merging layers that only read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations

from egraph.derive.rules.bodies import Refusal, every, pulled, replaced
from egraph.derive.rules.summation import inner_read, merge_traversal
from egraph.tensor.expr.bodies import flattened, operations, reads_of, used, with_reads
from egraph.tensor.expr.canonical import canonical
from egraph.tensor.expr.index import Iterator, known, length
from egraph.tensor.expr.scope import Compare, Guarded, Read, Reduction, Scalar, Scope

BALANCE = 4
"""Operations per byte above which a scope is bound by arithmetic; generated kernels are not meant for such scopes."""
BYTES = 4


@dataclass(frozen=True, slots=True)
class Contraction:
    """A scope that sums products: the factors, at least two of which read tensors at summed iterators, and the guards of all."""

    scope: Scope
    conditions: tuple[Compare, ...]
    operands: tuple[Scalar, ...]

    def group(self, iterator: Iterator) -> tuple[bool, ...]:
        """Return in which operands an iterator occurs, and whether in the output."""
        return (*(iterator in used(o) for o in self.operands), iterator in self.scope.traversal)


def contraction_of(scope: Scope) -> Contraction | None:
    """Return a scope as a contraction; None unless it sums a product with two factors that read tensors at a common summed iterator."""
    if scope.reduction != "sum" or not scope.summation:
        return None
    conditions, value = pulled(scope.body, Reduction.SUM)
    operands = flattened("mul", value)
    summed = [used(o) & frozenset(scope.summation) for o in operands if any(True for _ in reads_of(o))]
    shared = any(first & second for first, second in combinations(summed, 2))
    return Contraction(scope, conditions, operands) if shared else None


def contractions(scope: Scope) -> tuple[Contraction, ...]:
    """Return the contractions of a tree, outer ones first."""
    by_identity: dict[int, Contraction] = {}
    for inner in scopes(scope):
        contraction = contraction_of(inner)
        if contraction is not None:
            by_identity.setdefault(id(inner), contraction)
    return tuple(by_identity.values())


def scopes(scope: Scope) -> Iterable[Scope]:
    """Yield a scope and all scopes that it reads, outer ones first; a scope that is read twice is yielded twice."""
    yield scope
    for read in reads_of(scope.body):
        if isinstance(read.source, Scope):
            yield from scopes(read.source)


def exchanged(root: Scope, changes: Iterable[tuple[Scope, Scope]]) -> Scope:
    """Return the canonical tree with scopes (compared by identity) exchanged; layers that only read the one below are merged with it."""
    for old, new in changes:
        root = _exchanged(root, old, new)
    return canonical(_at_zero(root))


def normal(root: Scope) -> Scope:
    """Return the canonical tree, with iterators of one value replaced by the value."""
    return canonical(_at_zero(root))


def _exchanged(scope: Scope, old: Scope, new: Scope) -> Scope:
    if scope is old:
        return _flat(new)
    body = with_sources(scope.body, lambda source: _exchanged(source, old, new))
    return scope if body is scope.body else _flat(scope.with_body(body))


def with_sources(body: Scalar, change: Callable[[Scope], Scope]) -> Scalar:
    """Return a body with every inner scope exchanged, read at the same indices."""

    def changed(read: Read) -> Scalar:
        inner = change(read.source) if isinstance(read.source, Scope) else read.source
        return read if inner is read.source else Read(inner, read.indices)

    return with_reads(body, changed)


def _flat(scope: Scope) -> Scope:
    """Merge a layer with the inner scope that it only reads, if that scope reads another in turn or does not reduce; likewise below."""
    body = with_sources(scope.body, _flat)
    if not scope.summation:
        body = with_reads(body, _inlined)
    scope = scope if body is scope.body else scope.with_body(body)
    inner = inner_read(scope)
    if inner is None or (inner[0].summation and inner_read(inner[0]) is None) or contraction_of(inner[0]) is not None:
        return scope
    merged = merge_traversal(scope)
    return _flat(merged) if isinstance(merged, Scope) else scope


def _inlined(read: Read) -> Scalar:
    """Replace a read of an inner scope that does not reduce by what that scope computes."""
    if not isinstance(read.source, Scope) or read.source.summation:
        return read
    return with_reads(replaced(read.source.body, dict(zip(read.source.traversal, read.indices, strict=True))), _inlined)


def _at_zero(scope: Scope) -> Scope:
    """Write 0 for iterators of one value, in inner scopes too, and drop the axes of one value of inner scopes."""
    body = replaced(scope.body, {i: i.low for i in every(scope) if length(i) == 1})  # even if there is none: it joins nested guards
    return scope.with_body(with_reads(body, _without_axes))


def _without_axes(read: Read) -> Read:
    if not isinstance(read.source, Scope):
        return read
    inner = _at_zero(read.source)
    kept = [k for k, i in enumerate(inner.traversal) if length(i) > 1] or [0] * bool(inner.traversal)
    traversal = tuple(inner.traversal[k] for k in kept)
    return Read(Scope(traversal, inner.summation, inner.reduction, inner.body), tuple(read.indices[k] for k in kept))


def estimate(tree: Scope, constants: frozenset[str], seen: set[int] | None = None) -> int:
    """Return the cost of a tree in operations: its arithmetic, and 4 per byte moved; scopes that read constants alone are free."""
    seen = set() if seen is None else seen
    inner = [read.source for read in reads_of(tree.body) if isinstance(read.source, Scope)]
    total = sum(estimate(scope, constants, seen) for scope in inner if id(scope) not in seen)
    seen |= {id(tree)}
    return total if is_constant(tree, constants) else total + operations(tree) + round(operations_to_move(tree))


def is_constant(tree: Scope, constants: frozenset[str]) -> bool:
    """Return whether a tree reads constants alone."""
    sources = [read.source for read in reads_of(tree.body)]
    return all(is_constant(s, constants) if isinstance(s, Scope) else s.name in constants for s in sources)


def operations_to_move(scope: Scope) -> int:
    """Return the number of operations that take as long as moving a scope's operands and its result."""
    sources = {id(read.source) if isinstance(read.source, Scope) else read.source.name: read.source for read in reads_of(scope.body)}
    elements = math.prod(length(i) for i in scope.traversal) + sum(math.prod(map(known, s.shape)) for s in sources.values())
    return elements * BYTES * BALANCE


def intensity(scope: Scope) -> float:
    """Return the operations per byte if operands are read once and the result is written once."""
    return BALANCE * operations(scope) / operations_to_move(scope)


def within(outside: Scope, change: Callable[[Scope], Scope | Refusal]) -> Scope | Refusal:
    """Apply a rule to the scope that ``outside`` reads, alone or under guards."""
    inner = inner_read(outside)
    if inner is None:
        return change(outside)
    result = change(inner[0])
    if isinstance(result, Refusal):
        return result
    read = Read(result, inner[1])
    body = Guarded(outside.body.conditions, read, outside.body.otherwise) if isinstance(outside.body, Guarded) else read
    return outside.with_body(body)


def innermost(outside: Scope, change: Callable[[Scope], Scope | Refusal]) -> Scope | Refusal:
    """Apply a rule to the scope below all layers that only read."""
    read = inner_read(outside)
    return change(outside) if read is None else within(outside, lambda inner: innermost(inner, change))
