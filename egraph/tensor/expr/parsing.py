"""Parse what ``printing`` writes: ``{i0<8,i1<8} sum(r0<3) $0[i0,i1+r0-1] * table(3: 1 2 1)[r0]`` and the like."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Literal

from egraph.errors import EinsatError
from egraph.tensor.expr.functions import FUNCTIONS
from egraph.tensor.expr.index import Index, Iterator, Symbol, index
from egraph.tensor.expr.scope import Apply, Compare, Guarded, IndexNumber, Number, Read, Reduction, Scalar, Scope, Table, Tensor

_INFIX = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_NAME = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"-?(?:inf|nan|\d+(?:/\d+|(?:\.\d+)?(?:e[+-]?\d+)?))")
_INTEGER = re.compile(r"\d+")
_REDUCES = re.compile(r"[a-z]+\((?:[\w+*-]+<=)?[A-Za-z_]\w*<")
_COMPARISONS: tuple[Literal["<=", "<", "==", "!="], ...] = ("<=", "<", "==", "!=")


class ParseError(EinsatError):
    """The text of an expression does not follow the notation."""


def parse_scope(text: str, tensors: Mapping[str, Tensor]) -> Scope:
    """Return the scope that ``text`` denotes; ``tensors`` by name (without the ``$``). Unbound names are symbols."""
    parser = _Parser(text, tensors)
    scope = parser.scope()
    parser.skip()
    if parser.position != len(text):
        raise parser.error("the end")
    return scope


class _Parser:
    def __init__(self, text: str, tensors: Mapping[str, Tensor]) -> None:
        self.text, self.tensors, self.position = text, tensors, 0
        self.bound: dict[str, Iterator] = {}

    def error(self, expected: str) -> ParseError:
        return ParseError(f"expected {expected} at {self.text[self.position : self.position + 20]!r}", where=self.text)

    def skip(self) -> None:
        while self.text[self.position : self.position + 1] == " ":
            self.position += 1

    def accept(self, token: str) -> bool:
        self.skip()
        accepted = self.text.startswith(token, self.position)
        self.position += len(token) * accepted
        return accepted

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.error(repr(token))

    def take(self, pattern: re.Pattern[str], expected: str) -> str:
        self.skip()
        match = pattern.match(self.text, self.position)
        if match is None:
            raise self.error(expected)
        self.position = match.end()
        return match.group()

    def scope(self) -> Scope:
        outer = dict(self.bound)
        self.expect("{")
        traversal = self.iterators("}")
        summation: tuple[Iterator, ...] = ()
        reduction = Reduction.SUM
        for name in Reduction:
            self.skip()
            if _REDUCES.match(self.text, self.position) and self.accept(f"{name}("):
                reduction, summation = name, self.iterators(")")
                break
        body = self.scalar()
        self.bound = outer
        return Scope(traversal, summation, reduction, body)

    def iterators(self, end: str) -> tuple[Iterator, ...]:
        parsed: list[Iterator] = []
        while not self.accept(end):
            if parsed:
                self.expect(",")
            low: Index = index(0)
            start = self.position
            try:
                name = self.take(_NAME, "a name")
                self.expect("<")
            except ParseError:
                self.position = start
                low = self.index()
                self.expect("<=")
                name = self.take(_NAME, "a name")
                self.expect("<")
            high = self.index()
            plain = (low.constant if low.constant is not None else low, high.constant if high.constant is not None else high)
            self.bound[name] = Iterator(name, *plain)
            parsed.append(self.bound[name])
        return tuple(parsed)

    def scalar(self) -> Scalar:
        self.skip()
        remaining = self.text[self.position :]
        if self.accept("("):
            left = self.scalar()
            operator = next((sign for sign in _INFIX if self.accept(sign)), None)
            if operator is None:
                raise self.error("one of + - * /")
            right = self.scalar()
            self.expect(")")
            return Apply(_INFIX[operator], (left, right))
        if self.accept("["):
            conditions = [self.condition()]
            while self.accept(","):
                conditions.append(self.condition())
            self.expect("?")
            then = self.scalar()
            self.expect(":")
            otherwise = self.scalar()
            self.expect("]")
            return Guarded(tuple(conditions), then, otherwise)
        if self.accept("$"):
            name = self.take(re.compile(r"\w+"), "a tensor")
            if name not in self.tensors:
                raise self.error(f"a tensor (there is no ${name})")
            return Read(self.tensors[name], self.indices())
        if remaining.startswith("{"):
            inner, self.bound = self.bound, dict(self.bound)
            self.expect("{")
            scope = self.scope()
            self.expect("}")
            self.bound = inner
            return Read(scope, self.indices())
        if self.accept("table("):
            return self.table()
        if self.accept("index("):
            value = self.index()
            self.expect(")")
            return IndexNumber(value)
        number = _NUMBER.match(remaining)
        if number and not re.match(r"(inf|nan)\w", remaining):
            self.position += number.end()
            word = number.group()
            return Number(float(word) if set(word) & set(".enif") else Fraction(word))
        return self.call()

    def call(self) -> Scalar:
        name = self.take(_NAME, "an expression")
        if name not in FUNCTIONS:
            raise self.error(f"a function (there is no {name})")
        self.expect("(")
        arguments = [self.scalar()]
        while self.accept(","):
            arguments.append(self.scalar())
        self.expect(")")
        return Apply(name, tuple(arguments))

    def table(self) -> Table:
        shape = [int(self.take(_INTEGER, "a size"))]
        while self.accept("x"):
            shape.append(int(self.take(_INTEGER, "a size")))
        self.expect(":")
        values: list[Fraction] = []
        while not self.accept(")"):
            values.append(Fraction(self.take(_NUMBER, "a number")))
        if len(values) != math.prod(shape):
            raise ParseError(f"a table of {'x'.join(map(str, shape))} with {len(values)} numbers")
        return Table(tuple(shape), tuple(values), self.indices())

    def indices(self) -> tuple[Index, ...]:
        self.expect("[")
        indices: list[Index] = []
        while not self.accept("]"):
            if indices:
                self.expect(",")
            indices.append(self.index())
        return tuple(indices)

    def condition(self) -> Compare:
        left = self.index()
        for sign in _COMPARISONS:
            if self.accept(sign):
                return Compare(left, sign, self.index())
        raise self.error("a comparison")

    def index(self) -> Index:
        total = -self.product() if self.accept("-") else self.product()
        while True:
            if self.accept("+"):
                total = total + self.product()
            elif self.accept("-"):
                total = total - self.product()
            else:
                return total

    def product(self) -> Index:
        value = self.factor()
        while True:
            if self.accept("//"):
                value = value // self.factor()
            elif self.accept("%"):
                value = value % self.factor()
            elif self.accept("*"):
                value = value * self.factor()
            else:
                return value

    def factor(self) -> Index:
        if self.accept("("):
            value = self.index()
            self.expect(")")
            return value
        self.skip()
        if self.text[self.position : self.position + 1].isdigit():
            return index(int(self.take(_INTEGER, "an integer")))
        name = self.take(_NAME, "an index")
        return index(self.bound.get(name, Symbol(name)))
