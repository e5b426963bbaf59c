"""Names of bound iterators: canonical orders and names, so that values equal up to renaming are equal as data.

A nested value (an argument, an alternative) is *closed*: its iterators are named after a digest of the term that binds
them, in which the iterators of enclosing terms have no names. So equal terms get equal names, even if the enclosing
iterators are renamed later, and a term never shares a name with a term inside it. The terms of an open value have fresh
names. Values are compared by their texts, which do not depend on the order of terms and factors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b

from egraph.tensor.expr.index import DataIndex, Floor, Index, Iterator, Modulo, RealSymbol, Size, Symbol, index, substitute
from egraph.tensor.expr.laws import iterators_of
from egraph.tensor.expr.scope import Compare, Read
from verify.normal.context import Context
from verify.normal.terms import Alternative, Call, Element, Extremum, Factor, IndexFactor, Product, Term, Value

Labels = Mapping[Iterator, str]
NO_LABELS: Labels = {}


def index_text(value: Size, labels: Labels = NO_LABELS) -> str:
    """Return an index as text that does not depend on the names of labelled iterators."""
    if type(value) is int:
        return str(value)
    given = index(value)
    if not labels:
        return _labelled(given, ())
    return _labelled(given, tuple((i, labels[i]) for i in _iterators(given) if i in labels))


_iterators = lru_cache(maxsize=1 << 16)(iterators_of)


@lru_cache(maxsize=1 << 16)
def _labelled(value: Index, labelled: tuple[tuple[Iterator, str], ...]) -> str:
    labels = dict(labelled)
    parts = []
    for monomial, coefficient in value.terms:
        if len(monomial) == 1:
            text = _atom_text(monomial[0], labels)
        else:
            text = "*".join(sorted(_atom_text(atom, labels) for atom in monomial))
        parts.append(text if coefficient == 1 and text else f"{coefficient}*{text}" if text else str(coefficient))
    if len(parts) > 1:
        parts.sort()
    return "+".join(parts) or "0"


def _atom_text(atom: object, labels: Labels) -> str:
    match atom:
        case Iterator():
            return labels.get(atom) or atom.name
        case Floor(a, b):
            return f"({index_text(a, labels)}//{index_text(b, labels)})"
        case Modulo(a, b):
            return f"({index_text(a, labels)}%{index_text(b, labels)})"
        case DataIndex(Read(source, indices)):
            return f"{getattr(source, 'name', source)}[{','.join(index_text(i, labels) for i in indices)}]"
        case Symbol() | RealSymbol():  # may have the name of an iterator
            return f"'{atom.name}"
    return str(atom)


def condition_text(condition: Compare, labels: Labels = NO_LABELS) -> str:
    """Return a condition as text."""
    return f"[{index_text(condition.left, labels)}{condition.operator}{index_text(condition.right, labels)}]"


def factor_text(context: Context, factor: Factor, labels: Labels = NO_LABELS) -> str:
    """Return a factor as text, by which factors are ordered; closed inner values have their own names."""
    if labels and not free_iterators(context, factor) & labels.keys():
        labels = NO_LABELS
    if labels:
        return _factor_text(context, factor, labels)
    cached = context.texts.get(id(factor))
    if cached is None:
        cached = context.texts[id(factor)] = factor, _factor_text(context, factor, labels)
    return cached[1]


def _factor_text(context: Context, factor: Factor, labels: Labels) -> str:
    match factor:
        case Element(tensor, _, indices):
            return f"{tensor}[{','.join([index_text(i, labels) for i in indices])}]"
        case Call(function, arguments):
            return f"{function}({','.join(value_text(context, a, labels) for a in arguments)})"
        case IndexFactor(value):
            return f"<{index_text(value, labels)}>"
        case Product(iterators, conditions, value):
            return f"prod{{{_binder_text(iterators, conditions, labels)}{value_text(context, value, labels)}}}"
        case Extremum(kind, alternatives):
            inner = ";".join(
                _binder_text(a.iterators, a.conditions, labels) + value_text(context, a.value, labels) for a in alternatives
            )
            return f"{kind}{{{inner}}}"


def _binder_text(iterators: tuple[Iterator, ...], conditions: tuple[Compare, ...], labels: Labels) -> str:
    names = ",".join(f"{labels.get(i) or i.name}:{range_text(i)}" for i in iterators)
    return f"({names}){''.join(sorted(condition_text(c, labels) for c in conditions))}"


def value_text(context: Context, value: Value, labels: Labels = NO_LABELS) -> str:
    """Return a closed value as text."""
    return "+".join(sorted(_term_text(context, term, labels) for term in value.terms))


def _term_text(context: Context, term: Term, labels: Labels) -> str:
    factors = "*".join(sorted(factor_text(context, factor, labels) for factor in term.factors))
    return f"{term.coefficient}{_binder_text(term.iterators, term.conditions, labels)}{factors}"


def range_text(iterator: Iterator) -> str:
    """Return a range as text."""
    return f"{index_text(iterator.low)}:{index_text(iterator.high)}"


def free_iterators(context: Context, part: Factor | Compare | Value) -> frozenset[Iterator]:
    """Return the iterators that a part mentions and does not bind."""
    cached = context.free.get(id(part))
    if cached is None:
        cached = context.free[id(part)] = part, _free(context, part)
    return cached[1]


def _free(context: Context, part: Factor | Compare | Value) -> frozenset[Iterator]:
    match part:
        case Element(_, _, indices):
            return iterators_of(*indices)
        case IndexFactor(value):
            return iterators_of(value)
        case Compare(left, _, right):
            return iterators_of(left, right)
        case Call(_, arguments):
            return _unbound(context, (), arguments)
        case Product(iterators, conditions, value):
            return _unbound(context, iterators, (*conditions, value))
        case Extremum(_, alternatives):
            return frozenset().union(*(_unbound(context, a.iterators, (*a.conditions, a.value)) for a in alternatives))
        case Value(terms):
            return frozenset().union(*(_unbound(context, t.iterators, (*t.conditions, *t.factors)) for t in terms))


def _unbound(context: Context, bound: tuple[Iterator, ...], parts: tuple[Factor | Compare | Value, ...]) -> frozenset[Iterator]:
    return frozenset().union(*(free_iterators(context, part) for part in parts)).difference(bound)


def part_text(context: Context, part: Factor | Compare, labels: Labels) -> str:
    return condition_text(part, labels) if isinstance(part, Compare) else factor_text(context, part, labels)


def blind_key(context: Context, term: Term) -> str:
    """Return a text shared by all terms that are equal up to their coefficients and the names of their iterators."""
    cached = context.keys.get(id(term))
    if cached is None:
        labels = {i: f"?{range_text(i)}" for i in term.iterators}
        parts = sorted(part_text(context, part, labels) for part in (*term.conditions, *term.factors))
        cached = context.keys[id(term)] = term, "|".join((*sorted(labels.values()), *parts))
    return cached[1]


def labelled(
    context: Context, iterators: tuple[Iterator, ...], parts: tuple[Factor | Compare, ...], enclosing: Labels = NO_LABELS
) -> dict[Iterator, str]:
    """Return a label for every iterator, by its role in the parts; iterators of equal roles keep their order."""
    labels = {i: f"?{range_text(i)}" for i in iterators}
    if len(iterators) == 1:
        return {iterators[0]: f"?0:{range_text(iterators[0])}"}
    labels.update(enclosing)
    mentions = {i: [p for p in parts if i in free_iterators(context, p)] for i in iterators}
    texts = {id(p): part_text(context, p, labels) for p in parts}
    roles: dict[Iterator, object] = {i: (labels[i], sorted(texts[id(p)] for p in mentions[i])) for i in iterators}
    for _ in range(3):
        groups = sorted({repr(role) for role in roles.values()})
        labels = {i: f"?{groups.index(repr(roles[i]))}:{range_text(i)}" for i in iterators} | dict(enclosing)
        if len(groups) == len(iterators):
            break
        roles = {
            i: (labels[i], sorted(part_text(context, p, {**labels, i: "!" + labels[i]}) for p in mentions[i])) for i in iterators
        }
    ordered = sorted(iterators, key=labels.__getitem__)
    return {i: f"?{rank}:{range_text(i)}" for rank, i in enumerate(ordered)}


def named(
    context: Context,
    iterators: tuple[Iterator, ...],
    parts: tuple[Factor | Compare, ...],
    prefix: str = "",
) -> tuple[tuple[Iterator, ...], dict[Iterator, Iterator], str]:
    """Return canonical iterators, the map from the given ones onto them, and a key that does not depend on the given names."""
    if not iterators:
        return (), {}, prefix + "|".join(sorted(part_text(context, p, NO_LABELS) for p in parts))
    free = {i for p in parts for i in free_iterators(context, p) if i.name[0] in "~@"} - set(iterators)
    enclosing = {i: f"!{range_text(i)}" for i in free}
    labels = labelled(context, iterators, parts, enclosing)
    ranges = ",".join(sorted(labels.values()))
    key = blind = prefix + "|".join(sorted(part_text(context, p, labels) for p in parts)) + "|" + ranges
    if enclosing:
        blind = prefix + "|".join(sorted(part_text(context, p, labels | enclosing) for p in parts)) + "|" + ranges
    digest = blake2b(blind.encode(), digest_size=8).hexdigest()
    ordered = sorted(iterators, key=labels.__getitem__)
    mapping = {i: Iterator(f"@{digest}.{rank}", i.low, i.high) for rank, i in enumerate(ordered)}
    return tuple(mapping[i] for i in ordered), mapping, key


def close_term(context: Context, term: Term) -> tuple[Term, str]:
    """Return a term with canonical names and its key (without the coefficient)."""
    iterators, mapping, key = named(context, term.iterators, (*term.conditions, *term.factors))
    renamed = rename_term(context, term, mapping) if mapping else term
    conditions = tuple(sorted(renamed.conditions, key=condition_text))
    factors = tuple(sorted(renamed.factors, key=lambda f: factor_text(context, f)))
    return Term(term.coefficient, iterators, conditions, factors), key


def close(context: Context, value: Value) -> Value:
    """Return a value with canonical names and orders, for use inside a factor."""
    terms = sorted((close_term(context, term) for term in value.terms), key=lambda pair: pair[1])
    return Value(tuple(term for term, _ in terms))


def open_term(context: Context, term: Term) -> Term:
    """Return a term with fresh names."""
    return rename_term(context, term, {i: context.fresh(i) for i in term.iterators}) if term.iterators else term


def rename_term(context: Context, term: Term, mapping: Mapping[Iterator, Iterator]) -> Term:
    """Return a term with iterators, bound or free, renamed."""
    return Term(
        term.coefficient,
        tuple(mapping.get(i, i) for i in term.iterators),
        tuple(rename_condition(context, c, mapping) for c in term.conditions),
        tuple(rename_factor(context, f, mapping) for f in term.factors),
    )


def rename_index(value: Index, mapping: Mapping[Iterator, Iterator]) -> Index:
    """Return an index with iterators renamed."""
    match value.terms:
        case ((((Iterator() as only),), 1),):
            return index(mapping.get(only, only))

    def read(inner: Read) -> Read:
        return Read(inner.source, tuple(rename_index(i, mapping) for i in inner.indices))

    return substitute(value, mapping, read) if iterators_of(value) & mapping.keys() else value


def rename_condition(context: Context, condition: Compare, mapping: Mapping[Iterator, Iterator]) -> Compare:
    if not free_iterators(context, condition) & mapping.keys():
        return condition
    return Compare(rename_index(condition.left, mapping), condition.operator, rename_index(condition.right, mapping))


def rename_factor(context: Context, factor: Factor, mapping: Mapping[Iterator, Iterator]) -> Factor:
    """Return a factor with free iterators renamed; bound iterators keep their names."""
    if not free_iterators(context, factor) & mapping.keys():
        return factor
    return map_factor(
        factor,
        lambda i: rename_index(i, mapping),
        lambda c: rename_condition(context, c, mapping),
        lambda v: Value(tuple(rename_term(context, t, mapping) for t in v.terms)),
    )


def map_factor(
    factor: Factor, map_index: Callable[[Index], Index], condition: Callable[[Compare], Compare], value: Callable[[Value], Value]
) -> Factor:
    """Return a factor of the same kind over mapped parts."""
    match factor:
        case Element(tensor, shape, indices):
            return Element(tensor, shape, tuple(map_index(i) for i in indices))
        case IndexFactor(number):
            return IndexFactor(map_index(number))
        case Call(function, arguments):
            return Call(function, tuple(value(a) for a in arguments))
        case Product(iterators, conditions, inner):
            return Product(iterators, tuple(condition(c) for c in conditions), value(inner))
        case Extremum(kind, alternatives):
            return Extremum(
                kind,
                tuple(Alternative(a.iterators, tuple(condition(c) for c in a.conditions), value(a.value)) for a in alternatives),
            )


def unique(context: Context, value: Value) -> Value:
    """Return a value in which no two binders share a name."""
    return Value(tuple(_unique_term(context, term) for term in value.terms))


def _unique_term(context: Context, term: Term) -> Term:
    renamed = open_term(context, term)
    return replace(renamed, factors=tuple(_unique_factor(context, f) for f in renamed.factors))


def _unique_factor(context: Context, factor: Factor) -> Factor:
    match factor:
        case Element() | IndexFactor():
            return factor
        case Call(function, arguments):
            return Call(function, tuple(unique(context, a) for a in arguments))
        case Product(iterators, conditions, value):
            mapping = {i: context.fresh(i) for i in iterators}
            renamed = Value(tuple(rename_term(context, t, mapping) for t in value.terms))
            return Product(
                tuple(mapping.values()), tuple(rename_condition(context, c, mapping) for c in conditions), unique(context, renamed)
            )
        case Extremum(kind, alternatives):
            return Extremum(kind, tuple(_unique_alternative(context, a) for a in alternatives))


def _unique_alternative(context: Context, alternative: Alternative) -> Alternative:
    mapping = {i: context.fresh(i) for i in alternative.iterators}
    renamed = Value(tuple(rename_term(context, t, mapping) for t in alternative.value.terms))
    conditions = tuple(rename_condition(context, c, mapping) for c in alternative.conditions)
    return Alternative(tuple(mapping.values()), conditions, unique(context, renamed))
