"""The operators of the rule language on values; the kinds of the operands decide what an operator means, or that it has no meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from egraph.rewrite import syntax
from egraph.rewrite.clock import look
from egraph.rewrite.refusals import Mismatch
from egraph.rewrite.terms import Tensor
from egraph.rewrite.values import LARGEST_POWER, Distinct, Interpretation, Value

STEPS = 1_000_000
"""The most steps of one run of a rule's function; the longest run of a shipped rule takes some thousands."""
BETWEEN_LOOKS = 256
"""Steps between two checks of the clock."""


class TooLong(Mismatch):
    """A function takes more steps than a rule may."""


class Operations:
    """Operators under an interpretation of integers and numbers. Steps are counted, so that a function that does not terminate is refused.

    ``loading``: whether a file is being read, in which case texts may be joined.
    """

    def __init__(self, numbers: Interpretation, *, loading: bool) -> None:
        self.numbers, self.loading = numbers, loading
        self.kind = numbers.kind
        self._steps = 0

    def step(self) -> None:
        """Count a step."""
        self._steps += 1
        if self._steps % BETWEEN_LOOKS == 0:
            self._look()

    def _look(self) -> None:
        look()
        if self._steps > STEPS:
            raise TooLong(f"its function takes more than {STEPS} steps")

    def each(self, values: Value) -> Iterator[Value]:
        """Return the values of a sequence, in order; raise ``TypeError`` for a set, which has no order."""
        if type(values) is tuple and len(values) <= BETWEEN_LOOKS:  # the common case: its steps are counted at once
            self._steps += len(values)
            if self._steps % BETWEEN_LOOKS < len(values):
                self._look()
            return iter(values)
        return self._each_in_steps(values)

    def _each_in_steps(self, values: Value) -> Iterator[Value]:
        kind = self.kind(values)
        if kind not in ("tuple", "list", "range", "stream"):
            reason = "a set has no order: sorted({...}) has" if kind == "set" else f"a {kind} is no sequence"
            raise TypeError(reason)
        for value in values:
            self._steps += 1
            if self._steps % BETWEEN_LOOKS == 0:
                self._look()
            yield value

    def arithmetic(self, operator: syntax.ArithmeticOperator, left: Value, right: Value) -> Value:
        """left OPERATOR right"""
        if type(left) is type(right) is int and operator in _PLAIN:
            return self.numbers.arithmetic(operator, left, right)
        kinds = left_kind, right_kind = self.kind(left), self.kind(right)
        if left_kind in _NUMERIC and right_kind in _NUMERIC and operator != "@":
            if operator == "**":
                _check_power(left_kind, right)
            return self.numbers.arithmetic(operator, left, right)
        if "tensor" in kinds and operator in _TENSORS:
            return _TENSORS[operator](left, right) if left_kind == "tensor" else _TENSORS[operator](right, left)
        match operator, kinds:
            case "+", ("tuple", "tuple") | ("list", "list"):
                return _joined(left, right)
            case "+", ("text", "text") if self.loading:
                return _joined(left, right)
            case "*", ("tuple" | "list", "integer"):
                return self._repeated(left, right)
            case "*", ("integer", "tuple" | "list"):
                return self._repeated(right, left)
        raise TypeError(f"{left_kind} {operator} {right_kind}")

    def _repeated(self, values: Value, times: Value) -> Value:
        count = self.numbers.whole(times)
        if count * len(values) > STEPS:
            raise TooLong(f"a sequence of {count} elements")
        return values * count

    def compare(self, operator: syntax.Comparison, left: Value, right: Value, required: bool | None = None) -> Value:
        """left OPERATOR right; ``required``: the answer without which the match is refused"""
        if type(left) is type(right) is int and operator in _OF_INTEGERS:  # the common case
            return self.numbers.compare(operator, left, right, required)
        match operator:
            case "is" | "is not":
                return (left is None and right is None) == (operator == "is")
            case "in" | "not in":
                return self._within(left, right) == (operator == "in")
            case "==" if "tensor" in (self.kind(left), self.kind(right)):
                return left == right if self.kind(left) == "tensor" else right == left
            case "==" | "!=":
                return self.equal(left, right, None if required is None else required == (operator == "==")) == (operator == "==")
        return self._ordered(operator, left, right, required)

    def _within(self, value: Value, container: Value) -> bool:
        match self.kind(container):
            case "tuple" | "list" | "range":
                return any(self.equal(value, each) for each in self.each(container))
            case "set":
                return any(self.equal(value, each) for each in container.values)
            case "table":
                return any(self.equal(value, key) for key, _ in container.entries)
        raise TypeError(f"in a {self.kind(container)}")

    def equal(self, left: Value, right: Value, required: bool | None = None) -> bool:
        """left == right; ``required``: the answer without which the match is refused"""
        if type(left) is type(right) is int or type(left) is type(right) is str:
            return bool(left == right)
        left_kind, right_kind = self.kind(left), self.kind(right)
        if left_kind in _NUMERIC and right_kind in _NUMERIC:
            return self.numbers.compare("==", left, right, required)
        if left_kind in _OPAQUE or right_kind in _OPAQUE:
            raise TypeError(f"a {left_kind} is compared with a {right_kind}")
        if left_kind != right_kind:
            if {left_kind, right_kind} <= {"tuple", "list", "range"}:
                raise TypeError(f"a {left_kind} is compared with a {right_kind}: write tuple(...)")
            return False
        match left_kind:
            case "none":
                return True
            case "text":
                return bool(left == right)
            case "set":
                return all(self._within(each, right) for each in left.values) and all(self._within(each, left) for each in right.values)
            case "table":
                raise TypeError("a table is compared")
        each_required = required or None  # a differing pair decides that the sequences differ, an equal pair nothing
        return len(left) == len(right) and all(self.equal(a, b, each_required) for a, b in zip(left, right, strict=True))

    def _ordered(self, operator: syntax.Comparison, left: Value, right: Value, required: bool | None = None) -> bool:
        left_kind, right_kind = self.kind(left), self.kind(right)
        if left_kind in _NUMERIC and right_kind in _NUMERIC:
            return self.numbers.compare(operator, left, right, required)
        if left_kind == right_kind == "set" and operator in ("<=", ">="):
            smaller, larger = (left, right) if operator == "<=" else (right, left)
            return all(self._within(each, larger) for each in smaller.values)
        if left_kind != right_kind or left_kind not in ("tuple", "list"):
            raise TypeError(f"{left_kind} {operator} {right_kind}")
        for a, b in zip(left, right, strict=False):
            if not self.equal(a, b):
                return self._ordered(operator, a, b)
        return self.numbers.compare(operator, len(left), len(right))

    def truth(self, value: Value, required: bool | None = None) -> bool:
        """Return whether a value counts as true; ``required``: the answer without which the match is refused."""
        if type(value) is bool:  # the common case
            return value is True
        match self.kind(value):
            case "truth":
                return value is True
            case "integer" | "number":
                return self.numbers.truth(value, required)
            case "none":
                return False
            case "tuple" | "list" | "range":
                return len(value) > 0
            case "set":
                return len(value.values) > 0
            case "text":
                return bool(value != "")
        raise TypeError(f"a {self.kind(value)} is neither true nor false")

    def distinct(self, values: Sequence[Value]) -> Distinct:
        """Return the distinct values."""
        distinct: list[Value] = []
        for each in values:
            if not any(self.equal(each, other) for other in distinct):
                distinct.append(each)
        return Distinct(tuple(distinct))


def _joined(left: Value, right: Value) -> Value:
    if len(left) + len(right) > STEPS:
        raise TooLong(f"a sequence of {len(left) + len(right)} elements")
    return left + right


def _check_power(base: str, exponent: Value) -> None:
    if type(exponent) is not int or (base != "number" and exponent < 0) or abs(exponent) > LARGEST_POWER:
        raise TypeError(f"an exponent must be a whole number of the text, up to {LARGEST_POWER}, and not negative for integers")


_PLAIN = frozenset({"+", "-", "*", "//", "%"})
_OF_INTEGERS = frozenset({"==", "!=", "<", "<=", ">", ">="})
_NUMERIC = frozenset({"integer", "number", "truth"})
_OPAQUE = frozenset({"tensor", "equation", "attributes", "type", "function", "module", "stream", "reason", "other"})
_TENSORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "/": lambda x, y: x / y, "@": lambda x, y: x @ y,
}  # fmt: skip
