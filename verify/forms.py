"""Normal forms over polynomials, used for pairing: the counterpart of ``verify.normal.terms``.

Bound iterators get unique names (``l0, l1, ...`` and ``r0, r1, ...``), so that two forms share only the output's iterators.
Index factors and reciprocals of positive sizes become a coefficient, which is a quotient of polynomials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias, assert_never

from egraph.tensor.expr.index import Iterator
from verify.facts import Facts
from verify.literals import Literal0, closure, literal
from verify.normal.terms import Alternative, Call, Element, Extremum, IndexFactor, Kind, Product, Term, Value
from verify.polynomials import ONE, ZERO, DataAtom, Polynomial, Replacement, constant, entry, number_of, replaced, to_polynomial


@dataclass(frozen=True)
class Read:
    """tensor[indices]"""

    tensor: str
    shape: tuple[Polynomial, ...]
    indices: tuple[Polynomial, ...]


@dataclass(frozen=True)
class Function:
    """name(arguments), uninterpreted"""

    name: str
    arguments: tuple[Sum, ...]


@dataclass(frozen=True)
class Choice:
    """A value for each value of the iterators at which the conditions hold."""

    iterators: tuple[int, ...]
    conditions: tuple[Literal0, ...]
    value: Sum


@dataclass(frozen=True)
class Best:
    """The largest (smallest) of all choices."""

    kind: Kind
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class Multiplied:
    """The product over one choice."""

    choice: Choice


Part: TypeAlias = Read | Function | Best | Multiplied


@dataclass(frozen=True)
class Summand:
    """numerator / denominator * sum over the iterators, where the conditions hold, of the product of the parts; denominator >= 1"""

    numerator: Polynomial
    denominator: Polynomial
    iterators: tuple[int, ...]
    conditions: tuple[Literal0, ...]
    parts: tuple[Part, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The kinds and names of the parts, in order."""
        return tuple(sorted(map(name_of, self.parts)))


@dataclass(frozen=True)
class Sum:
    """The sum of the terms."""

    terms: tuple[Summand, ...]


class Unsupported(Exception):
    """A form that pairing does not understand; the proof stays open."""


@dataclass
class Names:
    """Fresh names of bound iterators: ``prefix`` and a number."""

    prefix: str
    count: int = 0
    renamed: dict[Iterator, Iterator] = field(default_factory=dict)

    def fresh(self, atom: int) -> int:
        """Return a new iterator with an iterator's range."""
        iterator = bound(atom)
        self.count += 1
        return number_of(Iterator(f"{self.prefix}{self.count}", iterator.low, iterator.high))


def bound(atom: int) -> Iterator:
    """Return the iterator that an atom is."""
    kind = entry(atom).kind
    assert isinstance(kind, Iterator), "only iterators are bound"
    return kind


def form_of(value: Value, facts: Facts, names: Names) -> Sum:
    """Return a value in this form, with its bound iterators renamed; raises ``Unsupported``."""
    return _value(value, facts, names, {})


def _value(value: Value, facts: Facts, names: Names, replace: Replacement) -> Sum:
    return Sum(tuple(_term(term, facts, names, replace) for term in value.terms))


def _bind(iterators: tuple[Iterator, ...], names: Names, replace: Replacement) -> tuple[tuple[int, ...], Replacement]:
    bound, extended = [], dict(replace)
    for iterator in iterators:
        atom = number_of(iterator)
        for end in (entry(atom).low, entry(atom).high):
            if end is not None and any(isinstance(entry(a).kind, Iterator | DataAtom) for a in closure(end)):
                raise Unsupported(f"the range of {iterator.name} depends on another iterator")
        fresh = names.fresh(atom)
        bound.append(fresh)
        extended[atom] = Polynomial({(fresh,): 1})
    return tuple(bound), extended


def _term(term: Term, facts: Facts, names: Names, replace: Replacement) -> Summand:
    iterators, replace = _bind(term.iterators, names, replace)
    conditions = tuple(replaced_literal(literal(c), replace) for c in term.conditions)
    numerator, denominator = constant(term.coefficient.numerator), constant(term.coefficient.denominator)
    parts: list[Part] = []
    for factor in term.factors:
        if isinstance(factor, IndexFactor):
            numerator = numerator * replaced(to_polynomial(factor.value), replace)
            continue
        part = _part(factor, facts, names, replace)
        divisor = _divisor(part, facts)
        if divisor is None:
            parts.append(part)
        else:
            denominator = denominator * divisor
    return Summand(numerator, denominator, iterators, conditions, tuple(parts))


def _divisor(part: Part, facts: Facts) -> Polynomial | None:
    """Return p for ``reciprocal(p)`` of a polynomial that is certainly at least 1, else None."""
    if not (isinstance(part, Function) and part.name == "reciprocal"):
        return None
    total = ZERO
    for term in part.arguments[0].terms:
        if term.parts or term.iterators or term.conditions or term.denominator != ONE:
            return None
        total = total + term.numerator
    total = facts.canonical(total)
    return total if facts.nonnegative(total - ONE) else None


def _choice(alternative: Alternative | Product, facts: Facts, names: Names, replace: Replacement) -> Choice:
    iterators, replace = _bind(alternative.iterators, names, replace)
    conditions = tuple(replaced_literal(literal(c), replace) for c in alternative.conditions)
    return Choice(iterators, conditions, _value(alternative.value, facts, names, replace))


def _part(factor: Element | Call | Extremum | Product, facts: Facts, names: Names, replace: Replacement) -> Part:
    match factor:
        case Element(tensor, shape, indices):
            return Read(tensor, tuple(to_polynomial(s) for s in shape), tuple(replaced(to_polynomial(i), replace) for i in indices))
        case Call(function, arguments):
            return Function(function, tuple(_value(a, facts, names, replace) for a in arguments))
        case Extremum(kind, alternatives):
            return Best(kind, tuple(_choice(a, facts, names, replace) for a in alternatives))
        case Product():
            return Multiplied(_choice(factor, facts, names, replace))
        case _:
            assert_never(factor)


def choices_of(part: Part) -> tuple[Choice, ...]:
    """Return the choices of a part; arguments count as choices without iterators."""
    match part:
        case Read():
            return ()
        case Function(_, arguments):
            return tuple(Choice((), (), argument) for argument in arguments)
        case Best(_, choices):
            return choices
        case Multiplied(choice):
            return (choice,)
        case _:
            assert_never(part)


Renaming: TypeAlias = Mapping[int, int]
"""New names of bound iterators; other iterators keep theirs. Names are unique, so no iterator is captured."""
KEPT: Renaming = {}


def replaced_literal(condition: Literal0, replace: Replacement) -> Literal0:
    value = replaced(condition.value, replace)
    return condition if value is condition.value else Literal0(value, condition.relation)


def replaced_part(part: Part, replace: Replacement, bound: Renaming = KEPT) -> Part:
    """Return a part with atoms replaced."""
    if not replace:
        return part
    match part:
        case Read(tensor, shape, indices):
            return Read(tensor, shape, tuple(replaced(i, replace) for i in indices))
        case Function(name, arguments):
            return Function(name, tuple(replaced_sum(a, replace, bound) for a in arguments))
        case Best(kind, choices):
            return Best(kind, tuple(replaced_choice(c, replace, bound) for c in choices))
        case Multiplied(choice):
            return Multiplied(replaced_choice(choice, replace, bound))
        case _:
            assert_never(part)


def replaced_choice(choice: Choice, replace: Replacement, bound: Renaming = KEPT) -> Choice:
    conditions = tuple(replaced_literal(c, replace) for c in choice.conditions)
    return Choice(tuple(bound.get(a, a) for a in choice.iterators), conditions, replaced_sum(choice.value, replace, bound))


def replaced_sum(value: Sum, replace: Replacement, bound: Renaming = KEPT) -> Sum:
    return Sum(tuple(replaced_term(term, replace, bound) for term in value.terms)) if replace else value


def replaced_term(term: Summand, replace: Replacement, bound: Renaming = KEPT) -> Summand:
    return Summand(
        replaced(term.numerator, replace), replaced(term.denominator, replace), tuple(bound.get(a, a) for a in term.iterators),
        tuple(replaced_literal(c, replace) for c in term.conditions), tuple(replaced_part(p, replace, bound) for p in term.parts),
    )  # fmt: skip


def renamed_term(term: Summand, names: Names) -> Summand:
    """Return a term with new names for everything bound in it."""
    return replaced_term(term, *_renaming(_bound(term), names))


def anonymous(part: Part, prefix: str) -> Part:
    """Return a part with its bound iterators numbered consecutively, so that parts that differ only in these names become equal."""
    return replaced_part(part, *_renaming(_bound_in(part), Names(prefix)))


def _renaming(atoms: list[int], names: Names) -> tuple[Replacement, Renaming]:
    fresh = {a: names.fresh(a) for a in atoms}
    return {a: Polynomial({(b,): 1}) for a, b in fresh.items()}, fresh


def _bound(term: Summand) -> list[int]:
    return [*term.iterators, *(a for part in term.parts for a in _bound_in(part))]


def _bound_in(part: Part) -> list[int]:
    return [a for c in choices_of(part) for a in (*c.iterators, *(b for inner in c.value.terms for b in _bound(inner)))]


def mentions(part: Part, atom: int) -> bool:
    """Return whether a factor depends on an iterator."""
    if isinstance(part, Read):
        return any(atom in closure(i) for i in part.indices)
    return any(
        any(atom in closure(c.value) for c in choice.conditions) or any(_term_mentions(t, atom) for t in choice.value.terms)
        for choice in choices_of(part)
    )


def _term_mentions(term: Summand, atom: int) -> bool:
    conditions = any(atom in closure(c.value) for c in term.conditions)
    return conditions or atom in closure(term.numerator) | closure(term.denominator) or any(mentions(p, atom) for p in term.parts)


def signature(term: Summand) -> tuple[str, ...]:
    """Return the kinds and names of a term's parts; only terms with equal signatures pair."""
    return term.names


def name_of(part: Part) -> str:
    match part:
        case Read(tensor, _, _):
            return f"read {tensor}"
        case Function(name, arguments):
            return f"function {name} {len(arguments)}"
        case Best(kind, _):
            return kind
        case Multiplied():
            return "product"
        case _:
            assert_never(part)


def describe(term: Summand) -> str:
    """Return a term for readers."""
    binder = ", ".join(f"{entry(a).low}<={bound(a).name}<{entry(a).high}" for a in term.iterators)
    conditions = ", ".join(f"{c.value}{c.relation}0" for c in term.conditions)
    parts = " * ".join(describe_part(part) for part in term.parts)
    number = f"{term.numerator}" + ("" if term.denominator == ONE else f"/({term.denominator})")
    return " ".join(filter(None, (f"sum({binder})" if binder else "", f"[{conditions}]" if conditions else "", number, parts)))


def describe_part(part: Part) -> str:
    match part:
        case Read(tensor, _, indices):
            return f"{tensor}[{', '.join(map(str, indices))}]"
        case Function(name, arguments):
            return f"{name}({'; '.join(describe_sum(a) for a in arguments)})"
        case Best(kind, choices):
            return f"{kind}({'; '.join(describe_sum(c.value) for c in choices)})"
        case Multiplied(choice):
            return f"prod({describe_sum(choice.value)})"
        case _:
            assert_never(part)


def describe_sum(value: Sum) -> str:
    return " + ".join(describe(term) for term in value.terms) or "0"
