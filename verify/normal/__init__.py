"""Normal forms of tensor programs: sums of products over iterators, with guards; see ``terms`` for the data."""

from __future__ import annotations

from egraph.tensor.expr.index import Index
from egraph.tensor.expr.scope import Scope
from verify.assumptions import Assumptions
from verify.normal.algebra import ordered
from verify.normal.context import Context, TooLarge
from verify.normal.domains import Need
from verify.normal.naming import unique
from verify.normal.needs import beyond
from verify.normal.scopes import Instantiation, chooses, rebuild
from verify.normal.terms import Alternative, Call, Element, Extremum, IndexFactor, Product, Term, Value

__all__ = [
    "Alternative", "Call", "Element", "Extremum", "IndexFactor", "Need", "Product", "Term", "TooLarge", "Value", "beyond",
    "normalise",
]  # fmt: skip


def normalise(
    scope: Scope, output: tuple[Index, ...], assumptions: Assumptions, facts: set[str] | None = None, needs: list[Need] | None = None
) -> Value:
    """Return scope[output] in normal form.

    If given, ``facts`` receives the facts about data that the laws rest on, and ``needs`` the needs of partial functions.

    Raises ``TooLarge`` if the form would have too many terms.
    """
    context = Context(assumptions, ways=None if needs is None else (frozenset(),))
    value = Instantiation(context).at(scope, output)
    if chooses(value):
        context.resolving = True
        value = rebuild(context, value, {})
    if facts is not None:
        facts |= context.facts
    if needs is not None:
        needs += context.needs
    return unique(context, ordered(value, context))
