"""Normal forms of tensor programs: sums of products over iterators, with guards; see ``terms`` for the data."""

from __future__ import annotations

from egraph.expr.index import Index
from egraph.expr.scope import Scope
from verify.assumptions import Assumptions
from verify.normal.algebra import ordered
from verify.normal.context import Context, TooLarge
from verify.normal.naming import unique
from verify.normal.scopes import Instantiation, chooses, rebuild
from verify.normal.terms import Alternative, Call, Element, Extremum, IndexFactor, Product, Term, Value

__all__ = [
    "Alternative", "Call", "Element", "Extremum", "IndexFactor", "Product", "Term", "TooLarge", "Value", "normalise",
]  # fmt: skip


def normalise(scope: Scope, output: tuple[Index, ...], assumptions: Assumptions, facts: set[str] | None = None) -> Value:
    """Return scope[output] in normal form; the facts about data that its laws rest on are added to ``facts``.

    Raises ``TooLarge`` where the form would have too many terms.
    """
    context = Context(assumptions)
    value = Instantiation(context).at(scope, output)
    if chooses(value):
        context.resolving = True
        value = rebuild(context, value, {})
    if facts is not None:
        facts |= context.facts
    return unique(context, ordered(value, context))
