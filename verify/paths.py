"""Symbolic execution: run a function once for every combination of outcomes of its comparisons, and record each one's assumptions.

A ``Path`` holds the consequences of its decisions in solved form: an equality eliminates a symbol wherever it can, so that later
values compare structurally. Polynomial identity and the symbols' bounds then answer nearly all questions. A question that stays
open forks the path: it is answered yes, and the run is repeated later with no. Nothing is decided by guessing; a fork that no
instance can take only costs time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from egraph.errors import TypeMismatch
from egraph.tensor.expr.conditions import negation
from egraph.tensor.expr.index import Index, RealSymbol, Symbol, index
from egraph.tensor.expr.scope import Compare
from verify.bounds import divide_terms
from verify.budget import PATH, spend
from verify.solved import Deferred, Ended, Solved

T = TypeVar("T")
Choice = TypeVar("Choice")


class Restorable(Protocol):
    """The state that a path has built, from which its alternatives continue."""

    def saved(self) -> Any:
        """Return the argument of ``restore``."""

    def restore(self, saved: Any) -> None:
        """Return to the saved state."""


State = TypeVar("State", bound=Restorable)
LEAST = -(2**63)
"""Least value of an unknown without another bound, because attributes are int64."""
ENUMERATED = (1, 2, 3, 4)
"""Values that are tried for a symbolic number if the rule needs a plain one (``range(n)``)."""


class LeftOut(Ended):
    """The path is not covered; the message says why."""


class TooManyPaths(Exception):
    """A function forks into more paths than the limit."""


@dataclass
class Path(Solved):
    """The assumptions of one run."""

    conclusion: bool = False
    """Whether demands of shape rules are obligations (on the right side) or assumptions (on the left side)."""
    choices: dict[str, Any] = field(default_factory=dict)
    left_out: str = ""
    """Why this path is not covered; kept here too, because a function may catch the exception."""
    alternatives: list[Path] = field(default_factory=list)
    """The paths not taken."""
    opaque: bool = False
    """Whether functions of integers stay uninterpreted; a proof for any function covers the actual ones."""
    values: list[tuple[str, tuple[Index, ...], Index]] = field(default_factory=list)
    """Opaque functions with their arguments and the unknowns that stand for their values."""
    rounded: dict[Any, Index] = field(default_factory=dict)
    """Computations whose rounding errors are not bounded, and the unknowns that stand for their results."""
    signed: dict[Symbol, str] = field(default_factory=dict)
    """Unknowns of either sign, with the name of the choice (whether it is negative) that the first question about one makes."""
    truths: dict[Any, bool] = field(default_factory=dict)
    """Comparisons of rounded numbers, which may have either outcome, and their outcomes on this path."""
    _settling: list[Deferred] = field(default_factory=list)

    def copy(self) -> Path:
        """Return an independent copy from which to continue later."""
        made = Path(list(self.conditions), self.bounds.copy(), list(self.deferred))
        made.conclusion, made._version, made._fresh = self.conclusion, self._version, self._fresh
        made.opaque, made.values = self.opaque, list(self.values)
        made.rounded, made.truths, made.signed = dict(self.rounded), dict(self.truths), dict(self.signed)
        made.choices, made.left_out = dict(self.choices), self.left_out
        made._solved, made._rewrites, made._memo = dict(self._solved), dict(self._rewrites), dict(self._memo)
        made._age, made._floors = dict(self._age), dict(self._floors)
        return made

    def become(self, way: Path) -> None:
        """Take over the assumptions of another path, which must not be used afterwards."""
        self.conclusion, self._version, self._fresh = way.conclusion, way._version, way._fresh
        self.opaque, self.values = way.opaque, way.values
        self.rounded, self.truths, self.signed = way.rounded, way.truths, way.signed
        self.conditions, self.deferred = way.conditions, way.deferred
        self.choices, self.left_out, self.bounds = way.choices, way.left_out, way.bounds
        self._solved, self._rewrites, self._memo = way._solved, way._rewrites, way._memo
        self._age, self._floors = way._age, way._floors

    def choose(self, name: str, options: Sequence[Choice]) -> Choice:
        """Return one of the options; every other one becomes an alternative. Each name is chosen once."""
        if name in self.choices:
            chosen: Choice = self.choices[name]
            return chosen
        if not options:
            raise Ended(f"nothing fits {name}")
        for option in reversed(options[1:]):
            way = self.copy()
            way.choices[name] = option
            self.alternatives.append(way)
        self.choices[name] = options[0]
        return options[0]

    def ask(self, condition: Compare, required: bool | None = None) -> bool:
        """Return whether a condition holds on this path; fork if both answers are possible.

        ``required``: the only answer that does not end the path; the other answer is then not forked.
        """
        while True:
            decided = self.decide(condition)
            if decided is not None:
                return decided
            if not self._settle(self.canonical(condition.right - condition.left)):
                break
        if required is not None:
            try:
                self.assume(condition if required else negation(condition))
            except Ended:
                return not required
            return required
        otherwise = self.copy()
        try:
            otherwise.assume(negation(condition))
            self.alternatives.append(otherwise)
        except Ended:
            pass
        try:
            self.assume(condition)
        except Ended:  # only the other answer is possible, so continue there
            if not self.alternatives or self.alternatives[-1] is not otherwise:
                raise
            self.become(self.alternatives.pop())
            return False
        return True

    def either(self, question: Any) -> bool:
        """Return an answer to a question about which nothing is known; the other answer is a path of its own. It is asked once."""
        if question not in self.truths:
            way = self.copy()
            way.truths[question] = False
            self.alternatives.append(way)
            self.truths[question] = True
        return self.truths[question]

    def computed(self, how: Any) -> Index:
        """Return the unknown that stands for a computation: the same one each time."""
        if how not in self.rounded:
            self.rounded[how] = self.real(f"rounded_{len(self.rounded)}")
        return self.canonical(self.rounded[how])

    def demand(self, condition: Compare) -> bool:
        """Assume a condition of the shape rules on the left side; ask for it on the right side."""
        if self.conclusion:
            return self.ask(condition)
        decided = self.decide(condition)
        if decided is None:
            self.assume(condition)
        return decided is not False

    def whole(self, value: Index) -> int:
        """Return a plain number for a symbolic one: each small value is a path of its own, and larger values are not covered."""
        settled = self.canonical(value)
        for candidate in (0, *ENUMERATED):
            if settled.constant is None and self.ask(Compare(settled, "==", index(candidate))):
                settled = index(candidate)
        if settled.constant is None:
            raise self.leaving(f"{value} must be one of 0 to {ENUMERATED[-1]}")
        return settled.constant

    def leaving(self, reason: str) -> LeftOut:
        """Mark the path as not covered and return the exception to raise."""
        self.left_out = reason
        return LeftOut(reason)

    def broadcast(self, left: Index, right: Index) -> Index:
        """Return the broadcast of two sizes. Which of them is one stays open until a question depends on it."""
        left, right = self.canonical(left), self.canonical(right)
        if left.constant == 1 or left == right:
            return right
        if right.constant == 1:
            return left
        asked_before = self.known_broadcast(left, right)
        if asked_before is not None:
            return asked_before
        for wide, narrow in ((left, right), (right, left)):
            if self.decide(Compare(wide, "==", index(1))) is False:
                holds = Deferred(wide, narrow, wide, self.conclusion)
                if self.conclusion:
                    self._settle_one(holds)
                elif self._broadcast_known(holds) is None:
                    self.deferred.append(holds)
                return self.canonical(wide)
        result = self.fresh(1, "b")
        self.deferred.append(Deferred(left, right, index(result), self.conclusion))
        return index(result)

    def _settle(self, asked: Index) -> bool:
        """Decide one open sign or broadcast that a question is about; return whether there was one."""
        if (symbol := next((each for each in self.signed if each in asked.atoms), None)) is not None:
            self._settle_sign(symbol)
            return True
        for each in self.deferred:
            result = self.canonical(each.result)
            is_open = any(result == deferred.result for deferred in self.deferred)  # else it is already known as another size
            if each not in self._settling and is_open and any(atom in asked.atoms for atom in result.atoms):
                self._settle_one(each)
                return True
        return False

    def _settle_sign(self, symbol: Symbol) -> None:
        negative = self.choose(self.signed[symbol], (False, True))
        del self.signed[symbol]
        size = index(self.fresh(1, "s"))
        self.assume(Compare(index(symbol), "==", -size if negative else size))

    def settle_all(self) -> None:
        """Decide every open broadcast that the right side depends on."""
        while waiting := [each for each in self.deferred if each.obligation]:
            self._settle_one(waiting[0])

    def _settle_one(self, each: Deferred) -> None:
        """Decide an open broadcast. It stays among the open ones until it is decided, for the alternatives forked meanwhile."""
        self._settling.append(each)
        try:
            self._settled(each)
        finally:
            self._settling.remove(each)
        if each in self.deferred:
            self.deferred.remove(each)

    def _settled(self, each: Deferred) -> None:
        left, right, result = self.canonical(each.left), self.canonical(each.right), self.canonical(each.result)
        if left.constant == 1:
            self.assume(Compare(result, "==", right))
        elif right.constant == 1 or self.ask(Compare(left, "==", right)) or self.ask(Compare(right, "==", index(1))):
            self.assume(Compare(result, "==", left))
        elif self.ask(Compare(left, "==", index(1))):
            self.assume(Compare(result, "==", right))
        elif each.obligation:
            raise TypeMismatch(f"cannot broadcast the sizes {left} and {right}")
        else:
            raise Ended("the sizes do not broadcast")

    def exact_quotient(self, value: Index, divisor: Index, *, signed: bool = False) -> Index | None:
        """Return value / divisor if the divisor divides the value (assumed on the left side), else None.

        The divisor is demanded to be positive. A ``signed`` divisor only has to be nonzero; its sign stays open if it visibly divides.
        """
        value, divisor = self.canonical(value), self.canonical(divisor)
        if signed:
            quotient, leftover = divide_terms(value, divisor)
            if not leftover.terms:
                return quotient if self.demand(Compare(divisor, "!=", index(0))) else None
            if self.ask(Compare(divisor, "<", index(0))):
                value, divisor = -self.canonical(value), -self.canonical(divisor)
        if not self.demand(Compare(index(0), "<", divisor)):
            return None
        quotient, leftover = divide_terms(value, self.canonical(divisor))
        if not leftover.terms:
            return quotient
        remainder = self.modulo(value, divisor)
        if not self.demand(Compare(remainder, "==", index(0))):
            return None
        value, divisor = self.canonical(value), self.canonical(divisor)
        return self.floor(value, divisor)

    def symbol(self, name: str, minimum: int = 1) -> Index:
        """Return a fresh integer unknown of at least ``minimum``; names are unique on a path."""
        return self._aged(Symbol(name, minimum))

    def signed_symbol(self, name: str, choice: str) -> Index:
        """Return a fresh nonzero integer unknown. ``choice`` names the choice whether it is negative, made if its sign matters."""
        symbol = Symbol(name, LEAST)
        self.signed[symbol] = choice
        self._aged(symbol)
        self.assume(Compare(index(symbol), "!=", index(0)))
        return index(symbol)

    def real(self, name: str) -> Index:
        """Return a fresh real unknown."""
        return self._aged(RealSymbol(name))

    def _aged(self, symbol: Symbol | RealSymbol) -> Index:
        self._age.setdefault(symbol, len(self._age))
        return index(symbol)

    def value_of(self, function: str, arguments: tuple[Index, ...], minimum: int) -> Index:
        """Return an unknown of at least ``minimum`` for the value of an opaque function: the same one for equal arguments."""
        given = tuple(map(self.canonical, arguments))
        for name, others, value in self.values:
            if name == function and tuple(map(self.canonical, others)) == given:
                return self.canonical(value)
        value = index(self.fresh(minimum, "f"))
        self.values.append((function, given, value))
        return value

    def known_broadcast(self, left: Index, right: Index) -> Index | None:
        """Return the open broadcast of two sizes that was made before; None if there is none."""
        for each in self.deferred:
            if {self.canonical(each.left), self.canonical(each.right)} == {left, right}:
                return self.canonical(each.result)
        return None

    def broadcasts(self) -> list[Compare]:
        """Return the open broadcasts as conditions: each operand is 1 or the result, and at least one is the result."""
        conditions: list[Compare] = []
        for each in self.deferred:
            left, right, result = (self.canonical(value) for value in (each.left, each.right, each.result))
            zero = index(0)
            for gap in ((left - 1) * (result - left), (right - 1) * (result - right), (result - left) * (result - right)):
                conditions.append(Compare(self.canonical(gap), "==", zero))
            conditions += [Compare(left, "<=", result), Compare(right, "<=", result)]
        return [c for c in conditions if c.left.constant is None or c.right.constant is None]

    def equalities(self) -> list[Compare]:
        """Return the equalities that are kept as rewrites of products and divisions and are not among the conditions."""
        return [Compare(Index(((monomial, 1),)), "==", value) for monomial, value in self._rewrites.items()]


def explore(start: Callable[[Path], State], stages: Sequence[Callable[[State], T | None]], limit: int) -> Iterator[T]:
    """Yield for every path, in a fixed order, the result of its first stage that has one; paths that end early yield nothing.

    An alternative continues from the state before the stage in which it was forked, so that earlier stages are not repeated.
    Raises ``TooManyPaths`` beyond ``limit`` runs.
    """
    path = Path()
    state = start(path)
    waiting: list[tuple[Path, int, Any]] = [(path.copy(), 0, state.saved())]
    runs = 0
    while waiting:
        if runs == limit:
            raise TooManyPaths(f"more than {limit} paths")
        runs += 1
        spend(PATH)
        way, first, saved = waiting.pop()
        path.become(way)
        state.restore(saved)
        for number in range(first, len(stages)):
            saved = state.saved()
            try:
                result = stages[number](state)
            except Ended:
                break
            finally:
                waiting += [(alternative, number, saved) for alternative in path.alternatives]
                path.alternatives = []
            if result is not None:
                yield result
                break
