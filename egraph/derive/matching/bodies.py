"""Rewrites of bodies that hold for every scope: move conditions outward, order choices, merge or open inner scopes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from egraph.derive.matching.conditions import pieces_of
from egraph.derive.rules.bodies import hoisted
from egraph.derive.rules.summation import merge_traversal
from egraph.tensor.expr.bodies import mapped, reads_of, rebuilt
from egraph.tensor.expr.conditions import tightest
from egraph.tensor.expr.index import Iterator, Size, Symbol, index, length, substitute
from egraph.tensor.expr.scope import Compare, Guarded, Number, Read, Scalar, Scope


def replaced(body: Scalar, names: Mapping[Iterator, Size]) -> Scalar:
    """Return a body with iterators replaced, in open inner scopes too."""
    replacements = dict[Iterator | Symbol, Size](names.items())
    return mapped(body, lambda coordinate: substitute(coordinate, replacements), opened=True)


def ordered(body: Scalar) -> Scalar:
    """Write the conditions of all choices in one normal form."""
    match body:
        case Guarded(conditions, then, otherwise):
            kept = tightest(conditions)
            if not kept:
                return ordered(otherwise if kept is None else then)
            choice = None if isinstance(otherwise, Number) else pieces_of(body)
            if choice is not None:
                iterator, pieces = choice
                values = [replaced(p.value, {iterator: p.low}) if p.high - p.low == 1 else p.value for p in pieces]
                value = ordered(values[-1])
                for piece, inner in reversed(list(zip(pieces, values, strict=True))[:-1]):
                    value = Guarded((Compare(index(0), "<=", -index(iterator) + (piece.high - 1)),), ordered(inner), value)
                return value
            return Guarded(kept, ordered(then), ordered(otherwise))
        case _:
            return rebuilt(body, ordered)


def merged(scope: Scope) -> Scope:
    """Return a scope that only reads another scope, or reduces as it does, as one scope (traversal merging)."""
    conditions, inner, otherwise = hoisted(scope.body)
    if not isinstance(inner, Read) or not isinstance(inner.source, Scope):
        return scope
    read = Read(merged(inner.source), inner.indices)
    body = Guarded(conditions, read, otherwise) if conditions and otherwise is not None else read
    result = merge_traversal(replace(scope, body=body))
    return merged(result) if isinstance(result, Scope) else scope


def opened(scope: Scope) -> Scope:
    """Return a scope whose inner scopes are open: they have no traversal, and their bodies use the iterators around them.

    Splitting or joining an iterator then affects everything that depends on it.
    """
    prefix = "u"
    while any(i.name.startswith(prefix) for i in _bound(scope)):
        prefix += "u"
    names = itertools.count()

    def of(body: Scalar) -> Scalar:
        match body:
            case Read(Scope() as source, indices):
                fresh = tuple(Iterator(f"{prefix}{next(names)}", 0, length(i)) for i in source.summation)
                replacements: dict[Iterator, Size] = dict(zip(source.traversal, indices, strict=True))
                replacements |= {old: index(new) + old.low for old, new in zip(source.summation, fresh, strict=True)}
                return Read(Scope((), fresh, source.reduction, of(replaced(source.body, replacements))), ())
            case _:
                return rebuilt(body, of)

    return replace(scope, body=of(scope.body))


def _bound(scope: Scope) -> list[Iterator]:
    inner = [read.source for read in reads_of(scope.body) if isinstance(read.source, Scope)]
    return [*scope.traversal, *scope.summation, *(i for source in inner for i in _bound(source))]
