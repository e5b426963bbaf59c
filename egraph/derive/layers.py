"""Apply rules below layers that only read: the results of rules on a traversal are such layers."""

from __future__ import annotations

from collections.abc import Callable

from egraph.derive.rules.bodies import Refusal
from egraph.derive.rules.summation import inner_read
from egraph.tensor.expr.scope import Guarded, Read, Scope


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
