"""Terms over variables, which are enumerated, typed and compared before they become rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import TypeAlias

from egraph.tensor import Attributes, Node, TensorType, attributes, make
from egraph.tensor.ops import apply
from verify.generate.contexts import Context
from verify.generate.dimensions import Size, Sizes, Unifier, canonical, instantiate, match
from verify.generate.productions import Length, Production


@dataclass(frozen=True, slots=True)
class Application:
    """A production applied to terms."""

    production: Production
    operands: tuple[Term, ...]


Term: TypeAlias = int | Application
"""A variable, by its position in the context, or an application."""


def operators(term: Term) -> int:
    """Return the number of operators of a term, written out as a tree."""
    return 0 if isinstance(term, int) else 1 + sum(map(operators, term.operands))


def variables(term: Term) -> tuple[int, ...]:
    """Return the variables of a term in the order in which they occur."""
    return tuple(dict.fromkeys(_leaves(term)))


def _leaves(term: Term) -> Iterator[int]:
    if isinstance(term, int):
        yield term
    else:
        for operand in term.operands:
            yield from _leaves(operand)


def applications(term: Term) -> Iterator[Application]:
    """Yield the applications of a term, operands first."""
    if isinstance(term, Application):
        for operand in term.operands:
            yield from applications(operand)
        yield term


def subterms(term: Term) -> Iterator[Term]:
    """Yield the proper subterms of a term."""
    if isinstance(term, Application):
        for operand in term.operands:
            yield operand
            yield from subterms(operand)


def renamed(term: Term, names: Mapping[int, int]) -> Term:
    """Return a term with its variables renamed."""
    if isinstance(term, int):
        return names[term]
    return Application(term.production, tuple(renamed(operand, names) for operand in term.operands))


def describe(term: Term) -> str:
    """Return a term as canonical text, for ordering and comparison."""
    if isinstance(term, int):
        return f"x{term}"
    values = ",".join(f"{key}={value!r}" for key, value in term.production.values)
    part = f"{values}{term.production.part or ''}"
    return f"{term.production.op}{{{part}}}({', '.join(map(describe, term.operands))})"


def shape_of(term: Term, context: Context) -> Sizes | None:
    """Return the shape of a term whose variables have the shapes of the context; None if it is not well-typed."""
    if isinstance(term, int):
        return context[term]
    bound = bindings(term, context)
    return None if bound is None else instantiate(term.production.shapes[1], bound)


def bindings(term: Application, context: Context) -> dict[str, Size] | None:
    """Return the sizes that the names of a production's signature stand for in this application; None if it is not well-typed."""
    bound: dict[str, Size] = {}
    for operand, expected in zip(term.operands, term.production.shapes[0], strict=True):
        shape = shape_of(operand, context)
        if shape is None or not match(expected, shape, bound):
            return None
    return bound


def joint_context(terms: Sequence[Term], count: int, *, loose: bool = False) -> Context | None:
    """Return the most general shapes of ``count`` variables under which the terms are well-typed and have the same type.

    ``loose``: without the assumption that equal sums of extents have equal parts.
    """
    unifier = Unifier(loose)
    sizes_of: dict[int, Sizes] = {}

    def visit(term: Term) -> Sizes | None:
        if isinstance(term, int):
            return sizes_of.get(term)
        *expected, made = unifier.instance((*term.production.shapes[0], term.production.shapes[1]))
        for operand, shape in zip(term.operands, expected, strict=True):
            operand_shape = visit(operand)
            if operand_shape is None and isinstance(operand, int):
                sizes_of[operand] = operand_shape = shape
            if operand_shape is None or not unifier.unify_shapes(operand_shape, shape):
                return None
        return made

    shapes = [visit(term) for term in sorted(terms, key=lambda term: isinstance(term, int))]
    if len(sizes_of) < count or any(shape is None for shape in shapes):
        return None
    for shape in shapes[1:]:
        if shape is not None and shapes[0] is not None and not unifier.unify_shapes(shapes[0], shape):
            return None
    return canonical([unifier.shape(sizes_of[i]) for i in range(count)])


def length_in(lengths: Mapping[str, int]) -> Length:
    """Return the function that adds up the extents of a size."""
    return lambda size: sum(int(name) if name.isdigit() else lengths[name] for name in size)


def leaves(context: Context, lengths: Mapping[str, int], prefix: str = "x") -> tuple[Node, ...]:
    """Return an input node for every variable of a context."""
    length = length_in(lengths)
    types = [TensorType("float32", tuple(map(length, shape))) for shape in context]
    return tuple(make("Input", (), attributes(name=f"{prefix}{i}"), type) for i, type in enumerate(types))


def to_node(term: Term, context: Context, lengths: Mapping[str, int], inputs: Sequence[Node]) -> Node:
    """Return a term as a node, typed by the operators' own shape rules."""
    if isinstance(term, int):
        return inputs[term]
    operands = [to_node(operand, context, lengths, inputs) for operand in term.operands]
    return apply(term.production.op, *operands, attributes=attributes_of(term, context, lengths))


def attributes_of(term: Application, context: Context, lengths: Mapping[str, int]) -> Attributes:
    """Return the attributes of an application in a context whose extents are known."""
    bound = bindings(term, context)
    assert bound is not None, "an enumerated term is well-typed in its context"
    return term.production.attributes(bound, length_in(lengths))


@dataclass(frozen=True)
class Equation:
    """Two terms that agree in a context; ``left`` has no fewer operators than ``right``."""

    left: Term
    right: Term
    context: Context

    @property
    def operators(self) -> int:
        return operators(self.left) + operators(self.right)

    def __str__(self) -> str:
        return f"{describe(self.left)} = {describe(self.right)}"


@lru_cache(maxsize=1 << 14)
def settled(equation: Equation) -> Equation:
    """Return the equation with its variables in canonical order."""

    def rename(order: tuple[int, ...]) -> Equation:
        names = {old: new for new, old in enumerate(order)}
        return Equation(renamed(equation.left, names), renamed(equation.right, names), canonical([equation.context[i] for i in order]))

    def key(candidate: Equation) -> tuple[str, str]:
        return describe(candidate.left), describe(candidate.right)

    return min(map(rename, permutations(range(len(equation.context)))), key=key)
