"""Divide once a row where that loses nothing: e / s = e * (1 / s) for s = sum exp(x - max x), which is at least one.

A quotient of vectors takes as long as ten products. Where the divisor may be tiny or huge, its reciprocal may be
infinite or lose digits, and the quotient stays.
"""

from __future__ import annotations

from egraph.tensor.expr.index import Iterator, Size, Symbol, index, known, length
from lower.eoperator.terms import Term, Terms, subterms


def with_reciprocals(table: Terms, root: Term) -> Term:
    """Return a term with products by reciprocals for quotients by such sums."""
    known: dict[Term, Term] = {}
    for term in subterms((root,)):
        if term.kind == "apply" and term.data == "div" and _is_at_least_one(table, term.children[1]):
            known[term] = table.apply("mul", (term.children[0], table.apply("reciprocal", (term.children[1],))))
    return table.exchange(root, known) if known else root


def _is_at_least_one(table: Terms, term: Term) -> bool:
    """Return whether a term is sum_k exp(x[k] - max_j x[j]): the largest x contributes one."""
    if term.kind != "reduce" or term.data[0] != "sum":
        return False
    summed, power = term.data[1], term.children[0]
    if power.kind != "apply" or power.data != "exp":
        return False
    difference = power.children[0]
    if difference.kind != "apply" or difference.data != "sub":
        return False
    x, largest = difference.children
    if largest.kind != "reduce" or largest.data[0] != "max" or largest.free & frozenset(summed):
        return False
    over = largest.data[1]
    if [(known(i.low), length(i)) for i in over] != [(known(i.low), length(i)) for i in summed]:
        return False
    same: dict[Iterator | Symbol, Size] = {j: index(k) for j, k in zip(over, summed, strict=True)}
    return table.substitute(largest.children[0], same) is x
