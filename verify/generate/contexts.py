"""The typings under which terms are compared: as general as the operators allow, and all different.

TASO fills one pool of tensors with equal extents, so terms that are well-typed only by chance are compared. Here
every composition of operators is first typed by unification. The most general types of the variables are a
*context*, and terms are enumerated context by context, over tensors whose extents differ unless an operator requires equality.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import TypeAlias

from verify.generate.dimensions import Sizes, Unifier, canonical
from verify.generate.productions import IMAGES, Production

Context: TypeAlias = tuple[Sizes, ...]
"""The shapes of the variables, with extents named ``d0, d1, ...``."""


@dataclass(frozen=True, slots=True)
class _Scheme:
    """The most general type of some terms: the shapes of their variables, their own shape, and whether they need tensors of rank 4."""

    variables: Context
    result: Sizes
    needs_images: bool


def contexts(productions: Sequence[Production], depth: int, most_variables: int) -> tuple[Context, ...]:
    """Return every most general typing of a term of up to ``depth`` operators, with few variables and general ones first."""
    ranks = sorted({len(shape) for production in productions for shape in production.shapes[0]})
    leaves = [canonical([tuple((f"d{i}",) for i in range(rank))]) for rank in ranks]
    levels = [sorted({_Scheme(leaf, leaf[0], False) for leaf in leaves}, key=repr)]
    ordered: dict[Context, None] = {}
    for level in range(1, depth + 1):
        new: dict[_Scheme, None] = {}
        for production in productions:
            for parts in _parts(levels, level - 1, production.arity):
                for scheme in _compose(production, parts, most_variables):
                    new[scheme] = None
        derived = {scheme for before in levels for scheme in before}
        levels.append(sorted((scheme for scheme in new if scheme not in derived), key=repr))
        for scheme in new:
            if scheme.needs_images or all(len(shape) < 4 for shape in scheme.variables):
                ordered[scheme.variables] = None
    return tuple(sorted(ordered, key=lambda c: (len(c), -_freedom(c), repr(c))))


def settle(shapes: Sequence[Sizes]) -> tuple[Context, tuple[int, ...]]:
    """Return a typing with its variables in canonical order, and that order."""
    orders = permutations(sorted(range(len(shapes)), key=lambda i: (len(shapes[i]), i)))
    ordered = [order for order in orders if all(len(shapes[a]) <= len(shapes[b]) for a, b in pairwise(order))]
    return min((canonical([shapes[i] for i in order]), order) for order in ordered)


def _freedom(context: Context) -> int:
    return len({name for shape in context for size in shape for name in size if not name.isdigit()})


def _parts(levels: Sequence[Sequence[_Scheme]], total: int, arity: int) -> Iterator[tuple[_Scheme, ...]]:
    if arity == 1:
        yield from ((scheme,) for scheme in levels[total])
        return
    for first in range(total + 1):
        for variable in levels[first]:
            yield from ((variable, *following) for following in _parts(levels, total - first, arity - 1))


def _compose(production: Production, parts: Sequence[_Scheme], most: int) -> Iterator[_Scheme]:
    """Yield the schemes of an operator over terms of the schemes, for every way in which their variables may coincide."""
    needs = production.op in IMAGES or any(part.needs_images for part in parts)
    for shared in _sharings([len(part.variables) for part in parts], most):
        unifier = Unifier()
        variables: dict[int, Sizes] = {}
        operands, result = production.shapes
        *expected, made = unifier.instance((*operands, result))
        fits = True
        for part, names, shape in zip(parts, shared, expected, strict=True):
            *types, part_result = unifier.instance((*part.variables, part.result))
            for name, type in zip(names, types, strict=True):
                fits = fits and unifier.unify_shapes(variables.setdefault(name, type), type)
            fits = fits and unifier.unify_shapes(part_result, shape)
        if fits:
            shapes = [unifier.shape(variables[name]) for name in sorted(variables)]
            _, order = settle(shapes)
            *context, part_result = canonical([*(shapes[i] for i in order), unifier.shape(made)])
            yield _Scheme(tuple(context), part_result, needs)


def _sharings(counts: Sequence[int], most: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield all namings of the variables of each part: different within a part, possibly shared between parts."""

    def extend(done: tuple[tuple[int, ...], ...], used: int) -> Iterator[tuple[tuple[int, ...], ...]]:
        if len(done) == len(counts):
            yield done
            return

        def choose(chosen: tuple[int, ...], free: int) -> Iterator[tuple[int, ...]]:
            if len(chosen) == counts[len(done)]:
                yield chosen
                return
            for name in range(min(free + 1, most)):
                if name not in chosen:
                    yield from choose((*chosen, name), max(free, name + 1))

        for chosen in choose((), used):
            yield from extend((*done, chosen), max(used, max(chosen, default=-1) + 1))

    yield from extend((), 0)
