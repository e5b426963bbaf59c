"""Signs of index polynomials, from ranges of symbols and polynomials known to be >= 0.

The reasoning is cheap on purpose: a question costs microseconds and may stay open. ``verify.assumptions`` decides open ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd, prod

from egraph.tensor.expr.index import Atom, Floor, Index, Modulo, Monomial, RealSymbol, Symbol, has_reals, index, over, polynomial

Interval = tuple[int | None, int | None]


@dataclass
class Bounds:
    """Ranges of symbols that are narrower than the symbols' own, and polynomials >= 0, > 0 (over reals) and != 0."""

    low: dict[Atom, int] = field(default_factory=dict)
    high: dict[Atom, int] = field(default_factory=dict)
    positive: list[tuple[Index, bool, frozenset[Monomial]]] = field(default_factory=list)
    """Known polynomials, whether each is > 0, and its terms that may rise when it is subtracted from a value."""
    nonzero: set[Index] = field(default_factory=set)
    _signs: dict[tuple[Index, bool], bool] = field(default_factory=dict)
    """Known signs; more facts do not change them."""
    _open: set[tuple[Index, bool]] = field(default_factory=set)
    """Signs that are open under the facts so far."""
    _zeros: dict[Index, bool | None] = field(default_factory=dict)
    """Whether values are zero, under the facts so far."""
    _ranges: dict[tuple[Atom, bool], Interval] = field(default_factory=dict)
    """Ranges of divisions under the facts so far."""
    _products: dict[Monomial, Interval] = field(default_factory=dict)
    """Ranges of products of symbols under the facts so far."""
    _nested: bool = False

    def copy(self) -> Bounds:
        """Return an independent copy."""
        return Bounds(
            dict(self.low), dict(self.high), list(self.positive), set(self.nonzero), dict(self._signs), set(self._open), dict(self._zeros),
            dict(self._ranges),
        )

    def restart(self) -> None:
        """Forget everything."""
        self.low.clear()
        self.high.clear()
        self.positive.clear()
        self.nonzero.clear()
        self._signs.clear()
        self._learn()

    def _learn(self) -> None:
        """Forget the memos whose answers more facts may narrow."""
        self._open.clear()
        self._zeros.clear()
        self._ranges.clear()
        self._products.clear()

    # Questions

    def sign(self, value: Index, *, strict: bool) -> bool | None:
        """Return whether value >= 0 (> 0 if strict); None if that is open."""
        constant = value.constant
        if constant is not None:
            return constant > 0 if strict else constant >= 0
        key = (value, strict)
        sign = self._signs.get(key)
        if sign is None and key not in self._open:
            reduced = without_content(value, self)
            holds, fails = (self._positive, self._nonnegative) if strict else (self._nonnegative, self._positive)
            sign = True if holds(reduced) else False if fails(-reduced) else None
            if sign is None:
                self._open.add(key)
            else:
                self._signs[key] = sign
        return sign

    def zero(self, value: Index) -> bool | None:
        """Return whether value == 0; None if that is open."""
        constant = value.constant
        if constant is not None:
            return constant == 0
        if value not in self._zeros:
            self._zeros[value] = self._zero(value)
        return self._zeros[value]

    def _zero(self, value: Index) -> bool | None:
        reduced = without_content(value, self)
        if _normal(reduced) in self.nonzero or self._positive(reduced) or self._positive(-reduced):
            return False
        factors = [c for m, c in reduced.terms if m]
        offset = reduced.constant_part
        if not has_reals(reduced) and offset % gcd(*factors):
            return False
        return None

    def _nonnegative(self, value: Index) -> bool:
        return self._reaches(value, 0, strict=False, facts=2)

    def _positive(self, value: Index) -> bool:
        return self._reaches(value, 0, strict=True, facts=2) if has_reals(value) else self._reaches(value - 1, 0, strict=False, facts=2)

    def _reaches(self, value: Index, least: int, *, strict: bool, facts: int) -> bool:
        """Return whether the value minus some known polynomials is at least (more than) ``least`` by its range."""
        low = self._least(value.terms)
        if low is not None and (low > least or (low == least and not strict)):
            return True
        if not facts or not self.positive:
            return False
        falling = {m for m, c in value.terms if m and (self._end(m, c) is None or (strict and isinstance(m[0], RealSymbol)))}
        if not falling:
            return False
        terms = dict(value.terms)
        for fact, is_strict, raised in self.positive:
            if falling.isdisjoint(raised):
                continue
            remains = strict and not is_strict
            if facts > 1:
                if self._reaches(value - fact, least, strict=remains, facts=facts - 1):
                    return True
                continue
            difference = terms.copy()  # its order does not matter to its least value
            for monomial, coefficient in fact.terms:
                difference[monomial] = difference.get(monomial, 0) - coefficient
            low = self._least(difference.items())
            if low is not None and (low > least or (low == least and not remains)):
                return True
        return False

    def _end(self, monomial: Monomial, coefficient: int) -> int | None:
        """Return the least value of a term; None if it is unbounded."""
        low, high = self._product(monomial)
        return low if coefficient > 0 else high

    def _least(self, terms: Iterable[tuple[Monomial, int]]) -> int | None:
        """Return the least value of a sum of terms that the ranges of the atoms imply; None if it is unbounded."""
        total = 0
        for monomial, coefficient in terms:
            if not coefficient:
                continue
            low, high = self._product(monomial)
            end = low if coefficient > 0 else high
            if end is None:
                return None
            total += coefficient * end
        return total

    def interval(self, value: Index) -> Interval:
        """Return the interval that the ranges of the atoms imply, None for an open end."""
        low: int | None = 0
        high: int | None = 0
        for monomial, coefficient in value.terms:
            a, b = self._product(monomial)
            if coefficient < 0:
                a, b = b, a
            low = None if low is None or a is None else low + coefficient * a
            high = None if high is None or b is None else high + coefficient * b
        return low, high

    def _product(self, monomial: Monomial) -> Interval:
        known = self._products.get(monomial)
        if known is None:
            known = self._range_of_product(monomial)
            if _is_plain(monomial):  # else the range depends on the question being asked
                self._products[monomial] = known
        return known

    def _range_of_product(self, monomial: Monomial) -> Interval:
        ranges = [self.range_of(atom) for atom in monomial]
        if len(ranges) == 1:
            return ranges[0]
        lows = [low for low, _ in ranges]
        if all(low is not None and low >= 0 for low in lows):
            highs = [high for _, high in ranges]
            return prod(low for low in lows if low is not None), (
                None if None in highs else prod(high for high in highs if high is not None))
        if len(set(monomial)) == 1 and len(monomial) % 2 == 0:
            return 0, None
        return None, None

    def range_of(self, atom: Atom) -> Interval:
        """Return the least and greatest value of an atom, None for an open end."""
        if isinstance(atom, Symbol):
            return self.low.get(atom, atom.minimum), self.high.get(atom)
        if isinstance(atom, RealSymbol):
            return self.low.get(atom), self.high.get(atom)
        if isinstance(atom, Modulo | Floor):
            key = (atom, self._nested)
            if key not in self._ranges:
                self._ranges[key] = self._range_of_division(atom)
            return self._ranges[key]
        return None, None

    def _range_of_division(self, atom: Modulo | Floor) -> Interval:
        match atom:
            case Modulo(_, divisor):
                _, most = self.interval(divisor)
                return 0, None if most is None else most - 1
            case Floor(numerator, divisor):
                (least, most), (low, high) = self.interval(numerator), self.interval(divisor)
                if low is None or low < 1:
                    return None, None
                if least is None and not self._nested:
                    self._nested = True
                    least = 0 if self._reaches(numerator, 0, strict=False, facts=1) else None
                    self._nested = False
                return (
                    None if least is None else least // low if least < 0 else 0 if high is None else least // high,
                    None if most is None else most // low if most >= 0 else -1 if high is None else most // high,
                )

    # Facts

    def at_least_zero(self, value: Index, *, strict: bool) -> bool:
        """Record value >= 0 (> 0 if strict); return False if that contradicts the ranges."""
        fits = self._at_least_zero(value, strict=strict)
        self._learn()
        return fits

    def _at_least_zero(self, value: Index, *, strict: bool) -> bool:
        reals = has_reals(value)
        value = without_content(value, self)
        if strict and not reals:
            value = value - 1
        if value.constant is None:
            self.positive.append((value, strict and reals, _raised(value)))
            self._ranges.clear()
        _, high = self.interval(value)
        if high is not None and (high < 0 or (high == 0 and strict and reals)):
            return False
        single = _single_atom(value)
        if single is not None and (not reals or value.terms[-1][1] == 1):
            atom, factor, offset = single
            if factor > 0:  # atom >= -rest / factor
                bound = -(offset // factor)
                low, _ = self.range_of(atom)
                if not reals or abs(factor) == 1:
                    self.low[atom] = bound if low is None else max(low, bound)
            elif not reals or abs(factor) == 1:
                bound = offset // -factor
                _, most = self.range_of(atom)
                self.high[atom] = bound if most is None else min(most, bound)
            least, most = self.range_of(atom)
            return least is None or most is None or least <= most
        return True

    def differs(self, value: Index) -> bool:
        """Record value != 0; return False if the value is zero."""
        fits = self._differs(value)
        self._learn()
        return fits

    def _differs(self, value: Index) -> bool:
        if value.constant is not None:
            return value.constant != 0
        value = without_content(value, self)
        self.nonzero.add(_normal(value))
        single = _single_atom(value)
        if single is not None and not has_reals(value) and single[2] % single[1] == 0:
            atom, factor, offset = single
            low, high = self.range_of(atom)
            if low is not None and low == -offset // factor:
                self.low[atom] = low + 1
            if high is not None and high == -offset // factor:
                self.high[atom] = high - 1
        return True

    def pinned(self) -> list[tuple[Atom, int]]:
        """Return the symbols that have only one possible value, with it."""
        return [(atom, low) for atom, low in self.low.items() if self.high.get(atom) == low] + [
            (atom, high) for atom, high in self.high.items()
            if atom not in self.low and isinstance(atom, Symbol) and atom.minimum == high
        ]  # fmt: skip

    def extreme_parts(self, value: Index) -> list[tuple[Atom, int]] | None:
        """Return the values of atoms that value == 0 forces, if zero is an end of the value's range, else None."""
        low, high = self.interval(value)
        if low != 0 and high != 0:
            return None
        extremes: list[tuple[Atom, int]] = []
        for monomial, coefficient in value.terms:
            if not monomial:
                continue
            lowest = (coefficient > 0) == (low == 0)
            ranges = [self.range_of(atom) for atom in monomial]
            ends = [a if lowest else b for a, b in ranges]
            if len(monomial) > 1 and any(end is None or end < 1 for end in (a for a, _ in ranges)):
                continue
            parts = zip(monomial, ends, strict=True)
            extremes += [(atom, end) for atom, end in parts if end is not None and isinstance(atom, Symbol | RealSymbol)]
        return extremes


@lru_cache(maxsize=1 << 14)
def _is_plain(monomial: Monomial) -> bool:
    """Return whether all factors of a product are symbols."""
    return all(isinstance(atom, Symbol | RealSymbol) for atom in monomial)


@lru_cache(maxsize=1 << 14)
def _raised(fact: Index) -> frozenset[Monomial]:
    """Return the terms of a known polynomial that may rise when it is subtracted: negative ones and those of either sign."""
    return frozenset(m for m, c in fact.terms if c < 0 or any(not isinstance(atom, Symbol) for atom in m))


def _single_atom(value: Index) -> tuple[Atom, int, int] | None:
    """Return (atom, factor, rest) for factor * atom + rest with a symbol, else None."""
    factors = [(m, c) for m, c in value.terms if m]
    if len(factors) != 1 or len(factors[0][0]) != 1 or not isinstance(factors[0][0][0], Symbol | RealSymbol):
        return None
    return factors[0][0][0], factors[0][1], value.constant_part


def _normal(value: Index) -> Index:
    """Return value or -value, the same result for both."""
    return value if not value.terms or value.terms[0][1] > 0 else -value


def positive_content(value: Index, bounds: Bounds) -> tuple[int, Monomial]:
    """Return the greatest number and product of positive atoms that divide every term."""
    terms = value.terms
    number = gcd(*[c for _, c in terms]) if terms else 1
    common: list[Atom] = []
    if terms and () not in [m for m, _ in terms]:
        remaining = [list(m) for m, _ in terms]
        for atom in list(remaining[0]):
            low, _ = bounds.range_of(atom)
            if low is not None and low > 0 and all(atom in m for m in remaining):
                common.append(atom)
                for m in remaining:
                    m.remove(atom)
    return number, tuple(common)


def without_content(value: Index, bounds: Bounds) -> Index:
    """Return a value divided by its positive common factors, which keeps its sign and its zeros."""
    number, common = positive_content(value, bounds)
    if number == 1 and not common:
        return value
    terms: dict[Monomial, int] = {}
    for monomial, coefficient in value.terms:
        remaining = list(monomial)
        for atom in common:
            remaining.remove(atom)
        terms[tuple(remaining)] = coefficient // number
    return polynomial(terms)


def divide_terms(value: Index, divisor: Index) -> tuple[Index, Index]:
    """Return (quotient, rest) with value = divisor * quotient + rest, term by term."""
    if value == divisor:
        return index(1), Index(())
    if len(divisor.terms) != 1:
        if len(value.terms) == len(divisor.terms) > 1:  # a multiple of the whole divisor
            top, by = value.terms[0], divisor.terms[0]
            factor = over(top[0], by[0])
            if factor is not None and top[1] % by[1] == 0:
                quotient = Index(((factor, top[1] // by[1]),))
                if quotient * divisor == value:
                    return quotient, Index(())
        return Index(()), value
    head, unit = divisor.terms[0]
    quotients: dict[Monomial, int] = {}
    rests: dict[Monomial, int] = {}
    for monomial, coefficient in value.terms:
        left = over(monomial, head)
        if left is None:
            rests[monomial] = coefficient
            continue
        q, r = divmod(coefficient, unit)
        if r and (head or monomial):
            q, r = 0, coefficient
        if q:
            quotients[left] = q
        if r:
            rests[monomial] = r
    return polynomial(quotients), polynomial(rests)
