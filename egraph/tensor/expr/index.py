"""Integer index expressions: polynomials over iterators, symbolic sizes, floor-divisions and remainders.

``2*h + r - 1``, ``i // 4``, ``i % n`` with the laws that hold for all integers built in, so that equal
polynomials are equal values. Divisions are floor divisions (Python's), divisors positive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    from egraph.tensor.expr.scope import Read

Size: TypeAlias = "int | Index"
"""A size or an index: a plain integer if it is known, an expression if it is symbolic."""


Kept = TypeVar("Kept", "Iterator", "Symbol", "RealSymbol")
_ATOMS: dict[tuple[object, ...], Any] = {}
"""Every iterator and symbol by its parts. Equal ones are one object, so that comparing and hashing them costs almost nothing."""


def _interned(kind: type[Kept], *parts: object) -> Kept:
    """Return the only atom of a kind with these parts; create it if there is none yet."""
    key = (kind, *parts)
    made = _ATOMS.get(key)
    if made is None:
        made = object.__new__(kind)
        for name, part in zip(kind.__match_args__, parts, strict=True):
            object.__setattr__(made, name, part)
        made = _ATOMS.setdefault(key, made)
    return cast("Kept", made)


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Iterator:
    """A bound variable with the half-open range [low, high). Identity is the name, unique in a term."""

    name: str
    low: Size
    high: Size

    def __new__(cls, name: str, low: Size, high: Size) -> Iterator:
        return _interned(cls, name, low if isinstance(low, Index) else int(low), high if isinstance(high, Index) else int(high))

    def __reduce__(self) -> tuple[type[Iterator], tuple[object, ...]]:
        return Iterator, (self.name, self.low, self.high)


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Symbol:
    """A size or attribute known only by name (at least ``minimum``): proofs hold for all its values."""

    name: str
    minimum: int = 1

    def __new__(cls, name: str, minimum: int = 1) -> Symbol:
        return _interned(cls, name, minimum)

    def __reduce__(self) -> tuple[type[Symbol], tuple[object, ...]]:
        return Symbol, (self.name, self.minimum)


@dataclass(frozen=True, slots=True, eq=False, init=False)
class RealSymbol:
    """A number known only by name (a float attribute): proofs hold for all its finite values. Never a size or a position."""

    name: str

    def __new__(cls, name: str) -> RealSymbol:
        return _interned(cls, name)

    def __reduce__(self) -> tuple[type[RealSymbol], tuple[object, ...]]:
        return RealSymbol, (self.name,)


@dataclass(frozen=True, slots=True)
class Floor:
    """numerator // divisor"""

    numerator: Index
    divisor: Index


@dataclass(frozen=True, slots=True)
class Modulo:
    """numerator % divisor"""

    numerator: Index
    divisor: Index


@dataclass(frozen=True, slots=True)
class DataIndex:
    """An index read from a tensor (gather): uninterpreted in proofs."""

    read: Read


Factor = TypeVar("Factor")
Value = TypeVar("Value")
Atom: TypeAlias = Iterator | Symbol | RealSymbol | Floor | Modulo | DataIndex
Monomial: TypeAlias = tuple[Atom, ...]
"""A product of atoms, sorted; the empty product is one."""
Replacement: TypeAlias = "Mapping[Iterator, Size | Iterator] | Mapping[Symbol, Size] | Mapping[Iterator | Symbol, Size]"
"""Replacements of iterators, of symbols, or of both."""


def hashed_once(cls: type[Value]) -> type[Value]:
    """Make a frozen dataclass with a slot ``_hash`` compute its hash once: values are keys of memos, and hashing one visits all of it."""
    compute, hold = cls.__hash__, cls.__dict__["_hash"].__set__

    def hashed(self: Any) -> int:
        try:
            value: int = self._hash
        except AttributeError:
            value = compute(self)
            hold(self, value)
        return value

    def reduced(self: Any) -> tuple[type[Value], tuple[object, ...]]:
        return cls, tuple(getattr(self, name) for name in self.__match_args__)  # a hash differs between processes

    for name, method in (("__hash__", hashed), ("__reduce__", reduced)):
        setattr(cls, name, method)
    return cls


@dataclass(frozen=True, slots=True, init=False)
class Index:
    """A polynomial: sorted (monomial, coefficient) pairs without zeros."""

    terms: tuple[tuple[Monomial, int], ...]
    _hash: int | None = field(init=False, repr=False, compare=False)
    _atoms: frozenset[Atom] = field(init=False, repr=False, compare=False)
    _divides: bool = field(init=False, repr=False, compare=False)

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        _set_terms(self, terms)
        _set_hash(self, None)

    @property
    def atoms(self) -> frozenset[Atom]:
        """Return every atom, including those inside divisions; collected once."""
        try:
            return self._atoms
        except AttributeError:
            collected = frozenset(atoms(self))
            _set_atoms(self, collected)
            return collected

    @property
    def divides(self) -> bool:
        """Return whether a floor-division or a remainder is among the atoms."""
        try:
            return self._divides
        except AttributeError:
            divides = any(isinstance(atom, Floor | Modulo) for atom in self.atoms)
            _set_divides(self, divides)
            return divides

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is Index and self.terms == other.terms)

    def __hash__(self) -> int:  # what ``hashed_once`` would make, in one call instead of two
        value = self._hash
        if value is None:
            value = hash(self.terms)
            _set_hash(self, value)
        return value

    def __reduce__(self) -> tuple[type[Index], tuple[object, ...]]:
        return Index, (self.terms,)

    def __add__(self, other: object) -> Index:
        return _sum(self, index(other), 1)

    __radd__ = __add__

    def __neg__(self) -> Index:
        return Index(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: object) -> Index:
        return _sum(self, index(other), -1)

    def __rsub__(self, other: object) -> Index:
        return _sum(index(other), self, -1)

    def __mul__(self, other: object) -> Index:
        right = index(other)
        by = right.constant
        if by is not None:  # the order of the terms stays
            return self if by == 1 else Index(tuple((m, c * by) for m, c in self.terms) if by else ())
        products: dict[Monomial, int] = {}
        for m, c in self.terms:
            for n, d in right.terms:
                key = tuple(sorted(m + n, key=_text)) if m and n else m or n
                products[key] = products.get(key, 0) + c * d
        return polynomial(products)

    __rmul__ = __mul__

    def __floordiv__(self, other: object) -> Index:
        return floor_divide(self, index(other))

    def __rfloordiv__(self, other: object) -> Index:
        return floor_divide(index(other), self)

    def __mod__(self, other: object) -> Index:
        return modulo(self, index(other))

    def __rmod__(self, other: object) -> Index:
        return modulo(index(other), self)

    @property
    def constant(self) -> int | None:
        """Return the value when it is a known integer, else None."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and self.terms[0][0] == () else None

    @property
    def constant_part(self) -> int:
        """The term without an atom."""
        return self.terms[0][1] if self.terms and not self.terms[0][0] else 0

    @property
    def atom(self) -> Atom | None:
        """The atom that makes up the whole index, None if the index is anything else."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            return self.terms[0][0][0]
        return None

    def __str__(self) -> str:
        return format_index(self)


_set_terms, _set_hash, _set_atoms, _set_divides = (Index.__dict__[name].__set__ for name in ("terms", "_hash", "_atoms", "_divides"))
"""Setters of an index's slots: a proof builds millions of indices, and attributes of a frozen object are slow to set otherwise."""


def polynomial(products: Mapping[Monomial, int]) -> Index:
    """Return the sum of coefficient * monomial."""
    terms = [(m, c) for m, c in products.items() if c]
    if len(terms) > 1:
        terms.sort(key=_place)
    return Index(tuple(terms))


def _place(term: tuple[Monomial, int]) -> str:
    return _text(term[0])


_text = lru_cache(maxsize=1 << 16)(repr)


def _sum(value: Index, other: Index, times: int) -> Index:
    """value + times * other, for 1 and -1"""
    if not other.terms:
        return value
    if not value.terms:
        return other if times == 1 else -other
    if len(other.terms) == 1 and not other.terms[0][0]:
        return _shifted(value, times * other.terms[0][1])
    if len(value.terms) == 1 and not value.terms[0][0]:
        return _shifted(other if times == 1 else -other, value.terms[0][1])
    if len(value.terms) == len(other.terms) == 1:
        return _sum_of_two(*value.terms[0], other.terms[0][0], times * other.terms[0][1])
    total = dict(value.terms)
    for m, c in other.terms:
        total[m] = total.get(m, 0) + times * c
    return polynomial(total)


def _sum_of_two(first: Monomial, coefficient: int, second: Monomial, other: int) -> Index:
    """coefficient * first + other * second"""
    if first == second:
        total = coefficient + other
        return Index(((first, total),)) if total else Index(())
    terms = (first, coefficient), (second, other)
    return Index(terms if _text(first) < _text(second) else terms[::-1])


def _shifted(value: Index, by: int) -> Index:
    """value + by; the number is the first term, because its empty product sorts first."""
    if value.terms[0][0]:
        return Index((((), by), *value.terms))
    number = value.terms[0][1] + by
    return Index((((), number), *value.terms[1:]) if number else value.terms[1:])


def index(value: object) -> Index:
    """Return an integer, atom or index as an ``Index``."""
    if type(value) is Index:
        return value
    if type(value) is int:
        return _NUMBERS.get(value) or Index((((), value),))
    match value:
        case Iterator() | Symbol() | RealSymbol() | Floor() | Modulo() | DataIndex():
            return Index((((value,), 1),))
        case _ if hasattr(value, "__index__"):
            number = int(value.__index__())
            return Index((((), number),)) if number else Index(())
    raise TypeError(f"not an index: {value!r}")


def has_reals(value: Index) -> bool:
    """Return whether a value is a real number rather than an integer; for reals, ``<`` is not ``<=`` of one less."""
    for monomial, _ in value.terms:
        for atom in monomial:
            if type(atom) is RealSymbol:
                return True
    return False


def over(monomial: tuple[Factor, ...], factors: tuple[Factor, ...]) -> tuple[Factor, ...] | None:
    """Return monomial / factors, None when it is not a multiple."""
    quotient = list(monomial)
    for factor in factors:
        if factor not in quotient:
            return None
        quotient.remove(factor)
    return tuple(quotient)


def simplify(value: Size) -> Size:
    """Return a plain integer when the index is one."""
    if isinstance(value, Index):
        constant = value.constant
        return value if constant is None else constant
    return value


def known(value: Size) -> int:
    """Return the integer that a size is; raise ValueError if it is symbolic."""
    number = index(value).constant
    if number is None:
        raise ValueError(f"{format_index(value)} is no known integer")
    return number


def length(iterator: Iterator) -> int:
    """high - low, which must be known"""
    if type(iterator.low) is int and type(iterator.high) is int:
        return iterator.high - iterator.low
    return known(index(iterator.high) - iterator.low)


def bounds(value: Size) -> tuple[int, int] | None:
    """Return an interval [low, high] that holds the index, or None when a range is symbolic."""
    expression = index(value)
    low = high = 0
    for monomial, coefficient in expression.terms:
        a, b = 1, 1
        for atom in monomial:
            limits = _atom_bounds(atom)
            if limits is None:
                return None
            corners = [x * y for x in (a, b) for y in limits]
            a, b = min(corners), max(corners)
        corners = [coefficient * a, coefficient * b]
        low, high = low + min(corners), high + max(corners)
    return low, high


def _atom_bounds(atom: Atom) -> tuple[int, int] | None:
    match atom:
        case Iterator(_, low, high):
            first = low if type(low) is int else index(low).constant
            last = high if type(high) is int else index(high).constant
            return None if first is None or last is None else (first, max(first, last - 1))
        case Floor(numerator, divisor):
            limits, by = bounds(numerator), divisor.constant
            return None if limits is None or by is None else (limits[0] // by, limits[1] // by)
        case Modulo(numerator, divisor):
            limits, by = bounds(numerator), divisor.constant
            if by is None:
                return None
            if limits is not None and limits[0] // by == limits[1] // by:
                return limits[0] % by, limits[1] % by
            return 0, by - 1
    return None


def _split(value: Index, divisor: int) -> tuple[Index, Index]:
    """Return (quotient part, rest) with value = divisor * quotient part + rest, term by term."""
    quotient: dict[Monomial, int] = {}
    remainder: dict[Monomial, int] = {}
    for m, c in value.terms:
        q, r = divmod(c, divisor) if m == () or c % divisor == 0 else (0, c)
        quotient[m], remainder[m] = q, r
    return polynomial(quotient), polynomial(remainder)


def floor_divide(value: Index, divisor: Index) -> Index:
    """value // divisor, by ``quotient of a sum``, ``quotient by range`` and ``quotient of a quotient``."""
    by = divisor.constant
    if by == 1:
        return value
    if by is not None and by > 0:
        quotient, remainder = _split(value, by)
        limits = bounds(remainder)
        if limits is not None and limits[0] // by == limits[1] // by:
            return quotient + limits[0] // by
        inner = remainder.atom
        if isinstance(inner, Floor) and inner.divisor.constant is not None:
            return quotient + floor_divide(inner.numerator, inner.divisor * by)
        return quotient + index(Floor(remainder, divisor))
    return index(Floor(value, divisor))


def modulo(value: Index, divisor: Index) -> Index:
    """value % divisor, by ``remainder of a sum`` and ``remainder by range``."""
    by = divisor.constant
    if by == 1:
        return Index(())
    if by is not None and by > 0:
        _, remainder = _split(value, by)
        limits = bounds(remainder)
        if limits is not None and limits[0] // by == limits[1] // by:
            return remainder - (limits[0] // by) * by
        return index(Modulo(remainder, divisor))
    return index(Modulo(value, divisor))


def substitute(value: Size, replace: Replacement, read: Callable[[Read], Read] | None = None) -> Index:
    """Return the index with iterators and symbols replaced; ``read`` maps the reads inside data indices."""
    total: dict[Monomial, int] = {}
    for monomial, coefficient in index(value).terms:
        product = _ONE
        for atom in monomial:
            part = _substituted(atom, replace, read)
            product = part if product is _ONE else product * part
        for m, c in product.terms:
            total[m] = total.get(m, 0) + c * coefficient
    return polynomial(total)


_NUMBERS = {number: Index((((), number),) if number else ()) for number in range(-64, 1025)}
_ONE = _NUMBERS[1]


def _substituted(atom: Atom, replace: Mapping[Any, Size | Iterator], read: Callable[[Read], Read] | None) -> Index:
    match atom:
        case Iterator() | Symbol():
            return index(replace.get(atom, atom))
        case RealSymbol():
            return index(atom)
        case Floor(a, b):
            return floor_divide(substitute(a, replace, read), substitute(b, replace, read))
        case Modulo(a, b):
            return modulo(substitute(a, replace, read), substitute(b, replace, read))
        case DataIndex(inner):
            return index(DataIndex(read(inner) if read else inner))


def atoms(value: Size) -> set[Atom]:
    """Return every atom of an index, including those inside divisions."""
    collected: set[Atom] = set()
    for monomial, _ in index(value).terms:
        for atom in monomial:
            collected.add(atom)
            if isinstance(atom, Floor | Modulo):
                collected |= atom.numerator.atoms | atom.divisor.atoms
    return collected


def format_index(value: Size) -> str:
    """Return the usual notation, iterators first: ``2*h+r-1``."""
    text = ""
    terms = index(value).terms
    for monomial, coefficient in [t for t in terms if t[0]] + [t for t in terms if not t[0]]:
        factors = [_format_atom(atom) for atom in monomial]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        sign = "-" if coefficient < 0 else ("+" if text else "")
        text += sign + "*".join(factors)
    return text or "0"


def _format_atom(atom: Atom) -> str:
    match atom:
        case Iterator(name, _, _) | Symbol(name, _) | RealSymbol(name):
            return name
        case Floor(a, b):
            return f"(({format_index(a)})//{_factor(b)})"
        case Modulo(a, b):
            return f"(({format_index(a)})%{_factor(b)})"
        case DataIndex(read):
            return str(read)


def _factor(value: Index) -> str:
    text = format_index(value)
    return text if text.isalnum() else f"({text})"
