"""Unroll kernels that read tables: over the iterators that index them, so that every table becomes numbers in the code.

The sum over tables is taken apart one iterator at a time (a transform in two dimensions becomes rows, then columns), and
every product with a matrix of numbers is a short program of its own (``linear``). What is left is a *tile*: the elements
at all places of the unrolled iterators, to be computed together at each place of the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from egraph.tensor.expr.index import Index, Iterator, Size, Symbol, index, known, length
from egraph.tensor.expr.laws import iterators_of
from egraph.tensor.expr.scope import Compare, Reduction
from lower.eoperator.linear import LinearProgram, linear_program
from lower.eoperator.partial_digits import Cut, cut_digits
from lower.eoperator.terms import Replacement, Term, Terms, subterms
from lower.eoperator.transforms import split_digits

MOST_PLACES = 300
"""Places of the unrolled output iterators, and of the unrolled summation iterators, at most: 17 x 17 for 7 x 7 taps with stride 2."""
MOST_CHOICES = 16
"""The largest number of table entries that are written as choices where they cannot be unrolled."""
Places: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Store:
    """``root`` goes to ``offset`` where the conditions hold; ``parts`` are worth computing outside of them."""

    conditions: tuple[Compare, ...]
    root: Term
    offset: Index
    parts: tuple[Term, ...]


@dataclass(frozen=True)
class Tile:
    """Elements that are computed together. ``stages``: values that several of them share, in an order that keeps few alive."""

    stages: tuple[Term, ...]
    stores: tuple[Store, ...]

    @property
    def roots(self) -> list[Term]:
        return [*self.stages, *(store.root for store in self.stores)]


def has_tables(root: Term) -> bool:
    return any(term.kind == "table" for term in subterms((root,)))


def tabled_digits(table: Terms, iterators: Sequence[Iterator], root: Term) -> tuple[tuple[Iterator, ...], Replacement, tuple[Cut, ...]]:
    """Split iterators by the digits that index tables."""
    coordinates = [coordinate for term in subterms((root,)) if term.kind == "table" for coordinate in term.data[2]]
    cuts = {iterator: cut_digits(table, iterator, coordinates) for iterator in iterators}
    divided = {iterator: cut for iterator, cut in cuts.items() if cut is not None}
    kept = tuple(digit for iterator in iterators for digit in (divided[iterator].digits if iterator in divided else (iterator,)))
    return kept, {iterator: cut.value for iterator, cut in divided.items()}, tuple(divided.values())


def unrolled(iterators: Sequence[Iterator], root: Term) -> tuple[Iterator, ...] | None:
    """Return the output iterators to unroll so that every table is read at known places; None where they would be too many."""
    summed: set[Iterator] = set()
    table_iterators: set[Iterator] = set()
    for term in subterms((root,)):
        if term.kind == "table":
            table_iterators |= term.free
        elif term.kind == "reduce" and has_tables(term.children[0]):
            within = [t for t in subterms(term.children) if t.kind == "reduce" and has_tables(t)]
            if within or math.prod(length(i) for i in term.data[1]) > MOST_PLACES:
                return None
            summed |= set(term.data[1])
    chosen = tuple(i for i in iterators if i in table_iterators)
    if not table_iterators <= summed | set(chosen) or math.prod(map(length, chosen)) > MOST_PLACES:
        return None
    return chosen


def refusal(table: Terms, iterators: tuple[Iterator, ...], root: Term, offset: Index) -> str | None:
    """Return why a kernel's tables make it too slow: they are large and no short loop reads them."""
    length = sum(len(term.data[1]) for term in subterms((root,)) if term.kind == "table")
    if length <= MOST_CHOICES:
        return None
    iterators, root, _ = split_digits(table, iterators, root, offset)
    iterators, replace, _ = tabled_digits(table, iterators, root)
    chosen = unrolled(iterators, table.substitute(root, replace))
    return None if chosen is not None else f"tables of {length} numbers are read at places that no short loop runs over"


def spelled_out(table: Terms, root: Term) -> Term:
    """Return a term with every table as choices between its values."""
    replacements: dict[Term, Term] = {}
    for term in subterms((root,)):
        if term.kind != "table":
            continue
        shape, values, indices = term.data
        chosen = table.number(values[-1])
        for position, value in reversed(list(enumerate(values[:-1]))):
            conditions = []
            for size, coordinate in zip(reversed(shape), reversed(indices), strict=True):
                position, digit = divmod(position, size)
                conditions.append(Compare(coordinate, "==", index(digit)))
            chosen = table.guard(reversed(conditions), table.number(value), chosen)
        replacements[term] = chosen
    return table.exchange(root, replacements)


def tile(table: Terms, chosen: Sequence[Iterator], root: Term, offset: Index, cuts: Sequence[Cut]) -> Tile:
    """Return the elements at all positions of the ``chosen`` iterators, with reductions over tables factored."""
    sums = [term for term in subterms((root,)) if term.kind == "reduce" and has_tables(term.children[0])]
    stages: list[Term] = []
    contracted = {term: _contract(table, term, frozenset(chosen), cuts, stages) for term in sums}
    order = _order(chosen, list(contracted.values()))
    stores = []
    for position in order:
        replace: dict[Iterator | Symbol, Size] = dict(zip(chosen, position, strict=True))
        replacements = {term: values.at(replace) for term, values in contracted.items()}
        element = table.substitute(table.exchange(root, replacements), replace)
        limits = [Compare(table.index(c.left, replace), c.operator, table.index(c.right, replace)) for cut in cuts for c in cut.conditions]
        holds = table.guard(limits, table.number(Fraction(1)), table.number(Fraction(0)))
        if holds.kind == "number" and not holds.data:
            continue
        left = holds.data if holds.kind == "guard" else ()
        stores.append(Store(left, element, table.index(offset, replace), tuple(replacements.values())))
    return Tile(tuple(stages), tuple(stores))


@dataclass
class _Values:
    """Terms by positions along ``axes``."""

    axes: tuple[Iterator, ...]
    terms: dict[Places, Term]

    def at(self, replace: Mapping[Iterator | Symbol, Size]) -> Term:
        return self.terms[tuple(known(replace[i]) for i in self.axes)]


def _order(chosen: Sequence[Iterator], values: list[_Values]) -> list[Places]:
    """Return all positions of the chosen iterators, in the order in which the values are computed."""
    axes = values[0].axes if len(values) == 1 else ()
    remaining = [i for i in chosen if i not in axes]
    first = list(values[0].terms) if axes else [()]
    kept = []
    for position in first:
        for remaining_position in itertools.product(*map(_range, remaining)):
            at = dict(zip([*axes, *remaining], [*position, *remaining_position], strict=True))
            kept.append(tuple(at[i] for i in chosen))
    return kept


def _range(iterator: Iterator) -> range:
    return range(known(iterator.low), known(iterator.low) + length(iterator))


def _contract(table: Terms, term: Term, chosen: frozenset[Iterator], cuts: Sequence[Cut], stages: list[Term]) -> _Values:
    """Return a reduction's values at all positions of the chosen iterators that it depends on."""
    reduction, iterators = term.data
    tables, core = _factors(table, term.children[0]) if reduction == "sum" else ([], term.children[0])
    # What no store takes may be anything, but nothing may be read for it where the operand ends.
    core = table.guard([c for cut in cuts for c in cut.reached(core.free)], core, table.number(Fraction(0)))
    outputs = tuple(i for i in iterators if i in core.free or any(i in t.free for t in tables))
    axes = (*outputs, *sorted(core.free & chosen, key=lambda i: i.name))
    data = _Values(axes, {})
    for position in itertools.product(*map(_range, axes)):
        data.terms[position] = table.substitute(core, dict(zip(axes, position, strict=True)))
    repeated = math.prod(length(i) for i in iterators if i not in outputs)
    remaining = list(outputs)
    while remaining:
        along = min(remaining, key=lambda i: (_size_without(data.axes, tables, i), remaining.index(i)))
        remaining.remove(along)
        tables_along = [t for t in tables if along in t.free]
        tables = [t for t in tables if along not in t.free]
        data = _sum_along(table, data, along, tables_along, reduction)
        if remaining:
            stages += [value for value in data.terms.values() if value.kind != "number"]
    if tables or repeated > 1:
        data = _scaled(table, data, tables, Fraction(repeated), reduction)
    return data


def _factors(table: Terms, term: Term) -> tuple[list[Term], Term]:
    """Return the tables that a scalar is a product of, and the rest; guards that are zero where they fail move inwards."""
    if term.kind == "table":
        return [term], table.number(Fraction(1))
    if term.kind == "apply" and term.data == "mul":
        (left, a), (right, b) = (_factors(table, child) for child in term.children)
        return [*left, *right], combination(table, [(a, b.data)]) if b.kind == "number" and isinstance(b.data, Fraction) else (
            combination(table, [(b, a.data)]) if a.kind == "number" and isinstance(a.data, Fraction) else table.apply("mul", (a, b))
        )
    if term.kind == "guard" and term.children[1] is table.number(Fraction(0)):
        factors, core = _factors(table, term.children[0])
        return factors, table.guard(term.data, core, term.children[1])
    return [], term


def _size_without(axes: Sequence[Iterator], tables: Sequence[Term], along: Iterator) -> int:
    """Return how many values are left when an iterator has been summed over."""
    after = set(axes).union(*(t.free for t in tables if along in t.free)) - {along}
    return math.prod(map(length, after))


def _sum_along(table: Terms, data: _Values, along: Iterator, tables: Sequence[Term], reduction: Reduction) -> _Values:
    """Sum products of values and tables over one iterator: for each position of the others, a matrix times a vector."""
    axes = tuple(i for i in data.axes if i is not along)
    new = tuple(sorted(frozenset().union(*(t.free for t in tables)) - set(data.axes), key=lambda i: i.name))
    result = _Values((*axes, *new), {})
    position = data.axes.index(along)
    indexed = [i for i in axes if any(i in t.free for t in tables)]
    programs: dict[tuple[int, ...], LinearProgram] = {}
    for position_of_others in itertools.product(*map(_range, axes)):
        vector = [data.terms[(*position_of_others[:position], k, *position_of_others[position:])] for k in _range(along)]
        if reduction != "sum":
            total = vector[0]
            for value in vector[1:]:
                total = table.apply(reduction.combine, (total, value))
            result.terms[position_of_others] = total
            continue
        rows = list(itertools.product(*map(_range, new)))
        at = dict(zip(axes, position_of_others, strict=True))
        key = tuple(at[i] for i in indexed)
        if key not in programs:
            position_of = [{**at, **dict(zip(new, row, strict=True))} for row in rows]
            programs[key] = linear_program(
                tuple(tuple(_coefficient(table, tables, {**each, along: k}) for k in _range(along)) for each in position_of)
            )
        values = programs[key].run(vector, lambda pairs: combination(table, pairs))
        result.terms |= {(*position_of_others, *row): value for row, value in zip(rows, values, strict=True)}
    return result


def _coefficient(table: Terms, tables: Sequence[Term], position: Mapping[Iterator, int]) -> Fraction:
    product = Fraction(1)
    for each in tables:
        value = table.substitute(each, {i: position[i] for i in each.free})
        assert value.kind == "number"
        product *= Fraction(value.data)
    return product


def _scaled(table: Terms, data: _Values, tables: Sequence[Term], repeated: Fraction, reduction: Reduction) -> _Values:
    """Multiply by tables that no summation iterator indexes, and by how often equal terms are added."""
    new = tuple(sorted(frozenset().union(*(t.free for t in tables)) - set(data.axes), key=lambda i: i.name))
    result = _Values((*data.axes, *new), {})
    for position, value in data.terms.items():
        for row in itertools.product(*map(_range, new)):
            at = dict(zip(result.axes, (*position, *row), strict=True))
            factor = _coefficient(table, tables, at)
            if reduction == "sum":
                result.terms[(*position, *row)] = combination(table, [(value, factor * repeated)])
            else:
                result.terms[(*position, *row)] = table.apply("pow", (value, table.number(repeated))) if reduction == "prod" else value
    return result


def combination(table: Terms, pairs: Sequence[tuple[Term, Fraction]]) -> Term:
    """Return a sum of values times numbers: nothing for zeros, no multiplication by one or minus one."""
    zero = table.number(Fraction(0))
    terms = [(value, c) for value, c in pairs if c and value is not zero]
    if not terms:
        return zero
    # What needs no multiplication comes first, so that each of the others is one multiply-add.
    terms.sort(key=lambda pair: (pair[1] != 1, pair[1] != -1))
    total, c = terms[0]
    if c == -1:
        total = table.apply("neg", (total,))
    elif c != 1:
        total = table.apply("mul", (total, table.number(c)))
    for value, c in terms[1:]:
        if abs(c) == 1:
            total = table.apply("add" if c == 1 else "sub", (total, value))
        else:
            total = table.apply("add", (total, table.apply("mul", (value, table.number(c)))))
    return total


def assumed(table: Terms, tile: Tile, conditions: Sequence[Compare]) -> Tile:
    """Return a tile where these conditions hold: without the guards that consist of them."""
    dropped = frozenset(conditions)
    memo: dict[Term, Term] = {}
    for term in subterms([*tile.roots, *(part for store in tile.stores for part in store.parts)]):
        children = tuple(memo[child] for child in term.children)
        if term.kind == "guard":
            memo[term] = table.guard([c for c in term.data if c not in dropped], *children)
        else:
            memo[term] = term if children == term.children else table.rebuilt(term, children)
    stores = [
        Store(tuple(c for c in s.conditions if c not in dropped), memo[s.root], s.offset, tuple(memo[p] for p in s.parts))
        for s in tile.stores
    ]
    return Tile(tuple(memo[stage] for stage in tile.stages), tuple(stores))


def tests_of(tile: Tile, bound: frozenset[Iterator]) -> tuple[Compare, ...]:
    """Return every condition in a tile over ``bound`` iterators alone."""
    tests: dict[Compare, None] = {}
    for term in subterms(tile.roots):
        if term.kind == "guard":
            tests |= dict.fromkeys(term.data)
    for store in tile.stores:
        tests |= dict.fromkeys(store.conditions)
    return tuple(c for c in tests if iterators_of(c.left - c.right) <= bound and "DataIndex" not in repr(c))


def strongest(conditions: Sequence[Compare]) -> tuple[Compare, ...] | None:
    """Return conditions that hold exactly where all given ones do, one for each linear form; None where they never do."""
    least: dict[Index, int] = {}
    equations: dict[Compare, None] = {}
    for c in conditions:
        if c.operator not in ("<", "<="):
            equations[c] = None
            continue
        slack = c.right - c.left - (1 if c.operator == "<" else 0)  # not negative where the condition holds
        constant = slack.constant_part
        form = slack - constant
        least[form] = min(constant, least.get(form, constant))
    for form, constant in least.items():
        if constant + least.get(-form, -constant) < 0:
            return None
    return (*(Compare(index(0), "<=", form + constant) for form, constant in least.items()), *equations)

