"""Integer polynomials in the prover's own form: interned atoms, remainders as floor-divisions, quick arithmetic.

Programs are written in ``egraph.tensor.expr.index``; proofs compute with these polynomials. An atom is a number in
a table (an iterator, a symbol, a floor-division of two polynomials, a data index). ``e % d`` is ``e - d * (e // d)``,
so that ``(e // d) * d + e % d = e`` is an identity of polynomials.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from egraph.tensor.expr.index import Atom, DataIndex, Floor, Index, Iterator, Modulo, RealSymbol, Symbol, over, polynomial
from egraph.tensor.expr.scope import Read, Scope, Tensor

Monomial = tuple[int, ...]
Replacement: TypeAlias = "Mapping[int, Polynomial]"
_STEPS = 200
"""Most steps of one division. Every intermediate result is correct, so stopping early only leaves more in the remainder."""


class Polynomial:
    """An immutable polynomial over atoms: monomial (sorted atom numbers) -> integer coefficient, without zeros."""

    __slots__ = ("_atoms", "_hash", "_leading", "terms")

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = terms
        self._hash: int | None = None
        self._atoms: frozenset[int] | None = None
        self._leading: tuple[Monomial, int] | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is Polynomial and self.terms == other.terms)

    def __add__(self, other: Polynomial) -> Polynomial:
        return self.plus(other, 1)

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self.plus(other, -1)

    def plus(self, addend: Polynomial, times: int) -> Polynomial:
        """self + times * other"""
        if not addend.terms or not times:
            return self
        terms = dict(self.terms)
        for monomial, coefficient in addend.terms.items():
            total = terms.get(monomial, 0) + times * coefficient
            if total:
                terms[monomial] = total
            else:
                terms.pop(monomial, None)
        return Polynomial(terms)

    def __neg__(self) -> Polynomial:
        return Polynomial({m: -c for m, c in self.terms.items()})

    def __mul__(self, other: Polynomial) -> Polynomial:
        if len(other.terms) == 1:
            ((n, d),) = other.terms.items()
            if not n:
                return self if d == 1 else Polynomial({m: c * d for m, c in self.terms.items()})
        terms: dict[Monomial, int] = {}
        for m, c in self.terms.items():
            for n, d in other.terms.items():
                key = tuple(sorted(m + n)) if m and n else m or n
                total = terms.get(key, 0) + c * d
                if total:
                    terms[key] = total
                else:
                    del terms[key]
        return Polynomial(terms)

    def __repr__(self) -> str:
        return str(to_index(self))

    @property
    def constant(self) -> int | None:
        """Return the value if no atom occurs, else None."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    def atoms(self) -> frozenset[int]:
        """Return the atoms of the monomials (not those inside floor-divisions)."""
        if self._atoms is None:
            self._atoms = frozenset(chain.from_iterable(self.terms))
        return self._atoms

    def collect(self, atom: int) -> list[Polynomial]:
        """Return [c0, c1, ...] with self = c0 + c1 * atom + c2 * atom^2 + ..."""
        parts: list[dict[Monomial, int]] = [{}]
        for m, c in self.terms.items():
            degree = m.count(atom)
            if not degree:
                parts[0][m] = c
                continue
            while len(parts) <= degree:
                parts.append({})
            parts[degree][tuple([a for a in m if a != atom]) if len(m) > 1 else ()] = c
        return [Polynomial(part) for part in parts]


@dataclass(frozen=True)
class FloorAtom:
    """numerator // divisor"""

    numerator: Polynomial
    divisor: Polynomial


@dataclass(frozen=True)
class DataAtom:
    """source[indices], an unknown integer"""

    source: Tensor | Scope
    indices: tuple[Polynomial, ...]


Kind = Iterator | Symbol | RealSymbol | DataAtom | FloorAtom


@dataclass(frozen=True)
class AtomEntry:
    """The meaning of an atom number; ``level`` is above that of every atom it depends on; ``key`` orders atoms."""

    kind: Kind
    level: int
    key: str
    low: Polynomial | None = None
    high: Polynomial | None = None


ZERO = Polynomial({})
ONE = Polynomial({(): 1})
_numbers: dict[Kind, int] = {}
_entries: list[AtomEntry] = []
_converted: dict[Index, Polynomial] = {}


def entry(atom: int) -> AtomEntry:
    """Return the meaning of an atom number."""
    return _entries[atom]


def range_of(iterator: int) -> tuple[Polynomial, Polynomial]:
    """Return (low, high) of an atom that is an iterator."""
    low, high = entry(iterator).low, entry(iterator).high
    assert low is not None and high is not None, "an iterator has a range"
    return low, high


def constant(value: int) -> Polynomial:
    return Polynomial({(): value}) if value else ZERO


def number_of(kind: Kind) -> int:
    """Return the number of an atom; a new atom gets a new number."""
    registered = _numbers.get(kind)
    if registered is not None:
        return registered
    match kind:
        case Iterator(name, low, high):
            bottom, top = to_polynomial(low), to_polynomial(high)
            made = AtomEntry(kind, 1 + level((bottom, top)), f"i{name}", bottom, top)
        case FloorAtom(numerator, divisor):
            made = AtomEntry(kind, 1 + level((numerator, divisor)), f"f({key(numerator)})//({key(divisor)})")
        case Symbol(name, _) | RealSymbol(name):
            made = AtomEntry(kind, 0, f"s{name}")
        case DataAtom(source, indices):
            text = source.name if isinstance(source, Tensor) else repr(source)
            made = AtomEntry(kind, 1 + level(indices), f"d{text}[{','.join(map(key, indices))}]")
    _numbers[kind] = number = len(_entries)
    _entries.append(made)
    return number


def level(values: Iterable[Polynomial]) -> int:
    """Return the highest level of any atom, 0 if there is none."""
    return max((entry(a).level for value in values for a in value.atoms()), default=0)


def key(value: Polynomial) -> str:
    """Return a text that is the same for equal polynomials, independent of the numbering of atoms."""
    return "+".join(sorted(f"{c}*{'*'.join(sorted(entry(a).key for a in m))}" for m, c in value.terms.items()))


def variable(kind: Kind) -> Polynomial:
    """Return the polynomial that is one atom."""
    return Polynomial({(number_of(kind),): 1})


def to_polynomial(value: int | Index) -> Polynomial:
    """Return a size or an index as a polynomial, with remainders rewritten as floor-divisions; nothing is simplified."""
    if isinstance(value, int):
        return constant(value)
    converted = _converted.get(value)
    if converted is None:
        converted = ZERO
        for monomial, coefficient in value.terms:
            product = constant(coefficient)
            for atom in monomial:
                product = product * _atom(atom)
            converted = converted + product
        _converted[value] = converted
    return converted


def _atom(atom: Atom) -> Polynomial:
    match atom:
        case Floor(numerator, divisor):
            return floor_of(to_polynomial(numerator), to_polynomial(divisor))
        case Modulo(numerator, divisor):
            above, below = to_polynomial(numerator), to_polynomial(divisor)
            return above - below * floor_of(above, below)
        case DataIndex(read):
            return variable(DataAtom(read.source, tuple(map(to_polynomial, read.indices))))
        case _:
            return variable(atom)


def floor_of(numerator: Polynomial, divisor: Polynomial) -> Polynomial:
    """numerator // divisor, not simplified"""
    by, above = divisor.constant, numerator.constant
    if by == 1:
        return numerator
    if by is not None and above is not None and by > 0:
        return constant(above // by)
    return variable(FloorAtom(numerator, divisor))


def to_index(value: Polynomial) -> Index:
    """Return a polynomial in the language of programs; ``e - d * (e // d)`` becomes ``e % d``."""
    value, remainders = _remainders(value)
    terms: dict[tuple[Atom, ...], int] = {}
    for monomial, coefficient in value.terms.items():
        names = tuple(sorted((_back(a) for a in monomial), key=repr))
        terms[names] = terms.get(names, 0) + coefficient
    for atom, coefficient in remainders:
        terms[(atom,)] = terms.get((atom,), 0) + coefficient
    return polynomial(terms)


def _remainders(value: Polynomial) -> tuple[Polynomial, list[tuple[Modulo, int]]]:
    """Extract ``c * (e - d * (e // d))`` from a polynomial if all terms of the product are present."""
    remainders: list[tuple[Modulo, int]] = []
    for atom in sorted(value.atoms(), key=lambda a: entry(a).key):
        kind = entry(atom).kind
        if not isinstance(kind, FloorAtom):
            continue
        whole = kind.divisor * Polynomial({(atom,): 1})
        first, by = next(iter(whole.terms.items()))
        coefficient, inexact = divmod(-value.terms.get(first, 0), by)
        if not coefficient or inexact:
            continue
        part = kind.numerator - whole
        if all(abs(value.terms.get(m, 0)) >= abs(coefficient * c) and value.terms[m] * coefficient * c > 0 for m, c in part.terms.items()):
            value = value.plus(part, -coefficient)
            remainders.append((Modulo(to_index(kind.numerator), to_index(kind.divisor)), coefficient))
    return value, remainders


def _back(atom: int) -> Atom:
    match entry(atom).kind:
        case FloorAtom(numerator, divisor):
            return Floor(to_index(numerator), to_index(divisor))
        case DataAtom(source, indices):
            return DataIndex(Read(source, tuple(map(to_index, indices))))
        case kind:
            return kind


def inside(atom: int) -> tuple[Polynomial, ...]:
    """Return the polynomials inside an atom."""
    match entry(atom).kind:
        case FloorAtom(numerator, divisor):
            return numerator, divisor
        case DataAtom(_, indices):
            return indices
    return ()


def leading(value: Polynomial) -> tuple[Monomial, int]:
    """Return the term of the highest degree; among equal degrees, the one whose atoms' names come first."""
    if value._leading is None:
        monomial = min(value.terms, key=lambda m: (-len(m), sorted(entry(a).key for a in m)))
        value._leading = monomial, value.terms[monomial]
    return value._leading


def divide(value: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return (q, r) with value = q * divisor + r, where r is the same for all values that differ by multiples of the divisor."""
    head, by = leading(divisor)
    if not head:
        quotient = Polynomial({m: c // by for m, c in value.terms.items() if c // by})
        return quotient, Polynomial({m: c % by for m, c in value.terms.items() if c % by})
    quotient, remainder = ZERO, value
    for _ in range(_STEPS):
        multiples = [m for m, c in remainder.terms.items() if c // by and over(m, head) is not None]
        if not multiples:
            break
        highest = max(multiples, key=len)  # the first of equal length
        part = Polynomial({over(highest, head) or (): remainder.terms[highest] // by})
        quotient, remainder = quotient + part, remainder - part * divisor
    return quotient, remainder


def replaced(value: Polynomial, replace: Replacement) -> Polynomial:
    """Return a polynomial with atoms replaced, also inside floor-divisions; nothing is simplified."""
    images = {a: image for a in value.atoms() if (image := _image(a, replace)) is not None}
    if not images:
        return value
    result = ZERO
    for monomial, coefficient in value.terms.items():
        product = constant(coefficient)
        for atom in monomial:
            product = product * images.get(atom, Polynomial({(atom,): 1}))
        result = result + product
    return result


def _image(atom: int, replace: Replacement) -> Polynomial | None:
    if atom in replace:
        return replace[atom]
    before = inside(atom)
    if not before:
        return None
    after = tuple(replaced(part, replace) for part in before)
    if all(a is b for a, b in zip(before, after, strict=True)):
        return None
    kind = entry(atom).kind
    if isinstance(kind, DataAtom):
        return variable(DataAtom(kind.source, after))
    return floor_of(*after)
