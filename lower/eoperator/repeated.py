"""Count what loops compute again: a reduction inside of another one is computed for each term of that, for each of its results.

    y[c] = sum_t layer_norm(x)[t, c]   as one kernel computes the mean and the deviation of row t for every c
"""

from __future__ import annotations

import math
from functools import lru_cache

from egraph.errors import EinsatError
from egraph.tensor import Node, walk
from egraph.tensor.expr.index import Iterator, length
from egraph.tensor.ops import OPS
from lower.eoperator.request import KernelRequest, kernel_of
from lower.eoperator.tabled import has_tables
from lower.eoperator.terms import Term

REDUCING = ("contraction", "reduction", "normalization")


@lru_cache(maxsize=1 << 14)
def repeated_operations(fragment: Node) -> float:
    """Return how many scalar operations a fragment's loops compute again; 0 of one with tables, whose sums are computed apart."""
    if sum(node.op in OPS and OPS[node.op].category in REDUCING for node in walk((fragment,))) < 2:
        return 0.0
    try:
        root = kernel_of(KernelRequest(fragment)).root
    except EinsatError:
        return 0.0
    return 0.0 if has_tables(root) else sum(_repeated(root))


def _repeated(root: Term) -> list[float]:
    """Return the operations that are repeated of each reduction below others."""
    counts: list[float] = []
    seen: set[tuple[Term, tuple[Term, ...]]] = set()
    stack: list[tuple[Term, tuple[Term, ...]]] = [(root, ())]
    while stack:
        term, around = stack.pop()
        if (term, around) in seen:
            continue
        seen.add((term, around))
        if term.kind == "reduce":
            while around and not term.free & frozenset(around[-1].data[1]):
                around = around[:-1]  # it varies with none of those terms, and is computed before them
            if around:
                summed = frozenset(i for each in around for i in each.data[1])
                again = _count(around[0].free | summed) - _count(term.free)
                counts.append(max(0, again) * _count(frozenset(term.data[1])) * _operations(term))
            around = (*around, term)
        stack += [(child, around) for child in term.children]
    return counts


def _operations(reduction: Term) -> int:
    """Return the scalar operations of one term of a reduction, those of reductions inside of it apart."""
    inside, stack = set[Term](), list(reduction.children)
    while stack:
        term = stack.pop()
        if term not in inside and term.kind != "reduce":
            inside.add(term)
            stack += term.children
    return 1 + sum(term.kind == "apply" for term in inside)


def _count(iterators: frozenset[Iterator]) -> int:
    return math.prod(map(length, iterators))
