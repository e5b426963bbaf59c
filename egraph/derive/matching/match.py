"""Match a scope as one core operator between layout operators, and check that the program means the scope.

Every program is composed back into a scope and compared, as a form, with the original scope; a program that differs is no match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from egraph.derive.matching.choices import gathered
from egraph.derive.matching.convolutions import convolutions, products_as_convolutions
from egraph.derive.matching.form import Form, form
from egraph.derive.matching.instances import expression, flattened
from egraph.derive.matching.movements import boxed, movements
from egraph.derive.matching.pointwise import elementwise
from egraph.derive.matching.products import products
from egraph.derive.matching.transposed import transposed_convolutions
from egraph.derive.matching.views import is_constant, moved_elements, reshaped
from egraph.derive.matching.windows import averages, normalizations, reductions
from egraph.tensor import Node, format_fragment, make, placeholder, rewrite
from egraph.tensor.expr.scope import Scope
from egraph.tensor.ops.reference import fragment_expression

Matcher = Callable[[Form, Sequence[Node]], Iterable[Node]]
MATCHERS: tuple[tuple[Matcher, bool], ...] = (
    (products, False), (convolutions, False), (transposed_convolutions, True), (reductions, False), (averages, False),
    (normalizations, False), (movements, False), (elementwise, False), (products_as_convolutions, False),
)  # fmt: skip
"""Matchers of forms, each with whether iterators that a remainder selects must stay whole."""


def match(scope: Scope, operands: Sequence[Node]) -> tuple[Node, ...]:
    """Return programs that compute ``scope``: programs of one core operator each, if there are any, then the Expression.

    Tensors of the scope are named by operand position. The operators determine the element type of a result. Inner scopes that no
    operator takes in are computed first, each by the first of its own matches.
    """
    programs = dict.fromkeys(operators(scope, operands))
    flat = flattened(scope, operands, instance)
    if flat is not None and len(flat.operands) > len(operands):
        programs |= dict.fromkeys(operators(flat.scope, flat.operands))
    general = None if flat is None else expression(flat)
    return (*programs, *([] if general is None or general in programs else [general]))


def instance(scope: Scope, operands: Sequence[Node]) -> Node | None:
    """Return the first match of a scope: the operator with the fewest movements, else the Expression."""
    return next(iter(match(scope, operands)), None)


def operators(scope: Scope, operands: Sequence[Node]) -> tuple[Node, ...]:
    """Return programs of one core operator each between layout operators; those that move the fewest elements come first.

    A matrix product written as a convolution comes last.
    """
    leaves = [placeholder(position, node.type, constant=is_constant(node)) for position, node in enumerate(operands)]
    normal = form(scope)
    ranks: dict[Node, tuple[object, ...]] = {}
    for program, matcher in proposed(scope, normal, leaves):
        if program not in ranks and means(program, normal):
            text = format_fragment(program)
            ranks[program] = (matcher is products_as_convolutions, moved_elements(program), len(text), text)
    ranked = sorted(ranks, key=lambda program: ranks[program])
    return tuple(over(program, leaves, operands) for program in ranked)


def proposed(
    scope: Scope, normal: Form, leaves: Sequence[Node], matchers: Sequence[tuple[Matcher, bool]] = MATCHERS
) -> Iterator[tuple[Node, Matcher]]:
    """Yield the programs that matchers propose for a scope of form ``normal``, over placeholders; their meaning is not yet checked."""
    for matcher, keep_strides in matchers:
        part = boxed(form(scope, keep_strides=True) if keep_strides else normal)
        for node in matcher(*gathered(part.form, leaves)):
            yield reshaped(part.around(node), normal.shape), matcher


def means(program: Node, normal: Form) -> bool:
    """Return whether a program over placeholders has the given form."""
    return form(fragment_expression(program)).text == normal.text


def over(program: Node, leaves: Sequence[Node], operands: Sequence[Node]) -> Node:
    """Return a program over placeholders as a program over operands."""
    names = dict(zip(leaves, operands, strict=True))
    built = rewrite((program,), lambda old, new: names[old] if old in names else make(old.op, new, old.attributes, old.type))
    return built[program]


__all__ = ["MATCHERS", "Matcher", "instance", "match", "means", "moved_elements", "operators", "over", "proposed"]
