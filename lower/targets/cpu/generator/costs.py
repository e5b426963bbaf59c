"""Rough costs of scalar work in vector code, to decide what is worth threads and what is worth keeping."""

from __future__ import annotations

import math

from egraph.tensor.expr.index import length
from lower.eoperator.terms import Term, subterms

_COST_NS = {
    "exp": 0.35,
    "log": 0.5,
    "pow": 1.0,
    "tanh": 0.4,
    "erf": 0.4,
    "sin": 0.5,
    "cos": 0.5,
    "div": 0.15,
    "sqrt": 0.2,
    "reciprocal": 0.15,
}


def cost_ns(root: Term) -> float:
    """Estimate the time of one element with vector code, in nanoseconds."""
    total = 0.1
    for term in subterms((root,)):
        if term.kind == "apply":
            total += _COST_NS.get(term.data, 0.03)
        elif term.kind == "read":
            total += 0.1
        elif term.kind == "reduce":
            total += math.prod(length(i) for i in term.data[1]) * 0.08
    return total


def dear(term: Term) -> bool:
    """Return whether a term takes long enough that computing it twice should be avoided."""
    return any(t.kind == "apply" and t.data in ("exp", "log", "tanh", "erf", "pow", "sin", "cos") for t in subterms((term,)))
