"""Concrete instances of facts: a literal that fails at one does not follow, and facts that have one are consistent.

Instances are drawn by a fixed generator and stored with the facts. They answer most questions whose answer is no,
at a fraction of a solver's cost; they never answer yes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from random import Random

from egraph.tensor.expr.index import Iterator, Symbol
from egraph.tensor.expr.scope import Scope, Tensor
from verify.facts import Facts
from verify.literals import Literal0
from verify.paths import LEAST
from verify.polynomials import DataAtom, FloorAtom, Polynomial, entry, variable

_INSTANCES = 6  # most instances stored with facts
_FEWEST = 2  # inherited instances that suffice; with fewer, new ones are drawn
_DRAWS = 48  # most draws to find them
_EXTENSIONS = 4  # most extensions of one instance by values for atoms that occur only in the question
_SPREAD = (0, 0, 1, 1, 2, 3, 4, 7)
_EITHER = (1, 1, -1, 2, -2, 3)  # values of symbols without a lower bound
_LARGEST = 16  # largest value of a symbol at which sides are evaluated


class Draws:
    """The draws of ``random.Random(seed)``. The words of a seed are cached, because seeding a generator takes a thousand steps."""

    __slots__ = ("_place", "_words")

    def __init__(self, seed: int) -> None:
        self._words, self._place = _words(seed), 0

    def getrandbits(self, bits: int) -> int:
        """Return a number of at most ``bits`` bits, where ``bits`` is not 0."""
        made, more = self._words
        value = taken = 0
        while taken < bits:
            if self._place == len(made):
                made.append(more.getrandbits(_WORD))
            word = made[self._place]
            self._place += 1
            value |= word >> max(0, _WORD - (bits - taken)) << taken
            taken += _WORD
        return value

    def between(self, low: int, high: int) -> int:
        """Return a number of ``low <= number < high``, as ``randrange`` does."""
        count = high - low
        bits = count.bit_length()
        number = self.getrandbits(bits)
        while number >= count:
            number = self.getrandbits(bits)
        return low + number

    def chosen(self, values: Sequence[int]) -> int:
        """Return one of the values, as ``choice`` does."""
        return values[self.between(0, len(values))]


_WORD = 32


@lru_cache(maxsize=1 << 8)
def _words(seed: int) -> tuple[list[int], Random]:
    """Return the words that were drawn from a seed so far, and the generator of those that follow."""
    return [], Random(seed)


class NoInstance(Exception):
    """The drawn values admit no instance: a range is empty, or a divisor is not positive."""


@dataclass
class Instance:
    """Values of atoms, drawn on demand."""

    seed: int
    values: dict[int, int] = field(default_factory=dict)
    data: dict[tuple[Tensor | Scope, tuple[int, ...]], int] = field(default_factory=dict)

    @cached_property
    def random(self) -> Draws:
        """The generator, made at the first draw, because most questions to an instance draw nothing."""
        return Draws(self.seed)

    def copy(self, seed: int) -> Instance:
        return Instance(seed, dict(self.values), dict(self.data))

    def of(self, value: Polynomial) -> int:
        """Return the value of a polynomial."""
        total = 0
        values = self.values
        for monomial, coefficient in value.terms.items():
            for atom in monomial:
                coefficient *= values[atom] if atom in values else self._draw(atom)
            total += coefficient
        return total

    def _draw(self, atom: int) -> int:
        atom_entry = entry(atom)
        kind = atom_entry.kind
        value: int
        if isinstance(kind, Symbol):
            value = kind.minimum + self.random.chosen(_SPREAD if kind.minimum > LEAST else _EITHER)
        elif isinstance(kind, FloorAtom):
            by = self.of(kind.divisor)
            if by < 1:
                raise NoInstance
            value = self.of(kind.numerator) // by
        elif isinstance(kind, Iterator):
            assert atom_entry.low is not None and atom_entry.high is not None, "an iterator has a range"
            low, high = self.of(atom_entry.low), self.of(atom_entry.high)
            if low >= high:
                raise NoInstance
            between = self.random.between(low, high)
            value = self.random.chosen((low, high - 1, between))
        elif isinstance(kind, DataAtom):
            key = kind.source, tuple(self.of(i) for i in kind.indices)
            value = self.data.setdefault(key, self.random.between(-2, 5))
        else:
            value = self.random.between(-3, 4)  # a real symbol
        self.values[atom] = value
        return value

    def satisfies(self, literal: Literal0) -> bool:
        return literal.holds_of(self.of(literal.value))


def refuted(facts: Facts, goal: Literal0) -> bool:
    """Return whether an instance of the facts was found at which the literal fails."""
    for drawn in instances(facts):
        for seed in range(_EXTENSIONS):
            instance = drawn.copy(seed)
            size = len(instance.values)
            try:
                if not instance.satisfies(goal) and _solved_symbols_fit(facts, instance):
                    return True
            except NoInstance:
                continue
            if len(instance.values) == size:  # the question needed no draw
                break
    return False


def instances(facts: Facts) -> list[Instance]:
    """Return some instances of the facts, always the same."""
    if facts.instances is None:
        facts.instances = _inherited(facts) or _drawn(facts)
    return facts.instances


def _inherited(facts: Facts) -> list[Instance]:
    """Return the instances of the base facts that also satisfy these facts; none if they are too few."""
    base = facts.base()
    inherited = [instance.copy(seed) for seed, instance in enumerate(instances(base))] if base is not None else []
    inherited = [instance for instance in inherited if _meets(facts, instance)]
    return inherited if len(inherited) >= _FEWEST else []


def _drawn(facts: Facts) -> list[Instance]:
    drawn: list[Instance] = []
    for seed in range(_DRAWS):
        instance = Instance(seed)
        if _meets(facts, instance):
            drawn.append(instance)
            if len(drawn) == _INSTANCES:
                break
    return drawn


def _meets(facts: Facts, instance: Instance) -> bool:
    try:
        return all(instance.satisfies(literal) for literal in facts.kept()) and _solved_symbols_fit(facts, instance)
    except NoInstance:
        return False


def values_of(facts: Facts, symbols: Sequence[Symbol]) -> dict[Symbol, int] | None:
    """Return the values of symbols at the smallest drawn instance; None if that is large or there is none."""
    atoms = [variable(symbol) for symbol in symbols]
    best: dict[Symbol, int] | None = None
    for drawn in instances(facts):
        instance = drawn.copy(0)
        try:
            values = {symbol: instance.of(facts.canonical(atom)) for symbol, atom in zip(symbols, atoms, strict=True)}
        except NoInstance:
            continue
        fits = all(symbol.minimum <= value <= _LARGEST for symbol, value in values.items())
        if fits and (best is None or sum(values.values()) < sum(best.values())):
            best = values
    return best


def _solved_symbols_fit(facts: Facts, instance: Instance) -> bool:
    """Return whether drawn atoms that equalities replace have the values that the equalities give."""
    return all(instance.values.get(atom, value) == value for atom, value in ((a, instance.of(v)) for a, v in facts.substitution.items()))


