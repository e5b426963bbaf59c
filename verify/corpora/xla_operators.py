"""Operators of XLA's simplifier over rule tensors; attributes that a statement leaves out are numbers that may be anything.

A number that may be anything is a size of a tensor that nothing reads: so it is unknown to the prover and drawn by tests
like every other size. What the right side leaves out follows from the left side in a few ways, which are tried in turn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from egraph.errors import RuleError
from egraph.rule import Tensor
from egraph.rule_operators import (
    absolute,
    binary,
    concat,
    conv,
    expand,
    maximum,
    minimum,
    pad,
    reduce_sum,
    reshape,
    slice_,
    transpose,
    where,
)  # fmt: skip
from verify.corpora.constants import number
from verify.corpora.taso_values import Shape, refuse
from verify.corpora.terms import Application, Term

SCALAR = re.compile(r"c\d|Const\d?|Scalar|v")
ARITHMETIC: Mapping[str, str] = {"Add": "Add", "Sub": "Sub", "Mul": "Mul", "Divide": "Div", "Min": "Min", "Max": "Max", "Binary": "Add"}
COMPARISON: Mapping[str, str] = {"Gt": "Greater", "Ge": "GreaterOrEqual", "Lt": "Less", "Le": "LessOrEqual"}
NUMBERS: Mapping[str, float] = {"0": 0.0, "inf": math.inf}
COUNTS: Mapping[str, int] = {"Slice": 3, "DynamicSlice": 2, "DynamicUpdateSlice": 1, "Pad": 1, "Broadcast": 1, "Conv": 2}
"""How many numbers an axis needs where an operator's attributes are left out."""


def is_scalar(name: str) -> bool:
    return bool(SCALAR.fullmatch(name))


def is_tensor(name: str) -> bool:
    return bool(re.fullmatch(r"[A-Z]", name))


class XlaReading:
    """Evaluates terms; ``way`` chooses how the right side's attributes follow from the left side's."""

    def __init__(self, tensors: Mapping[str, Tensor], axis: int, rank: int, way: int) -> None:
        self.tensors, self.axis, self.rank, self.way = tensors, axis, rank, way
        self.seed = next(iter(tensors.values()))
        self.unknown = 0
        self.noted: dict[str, list[tuple[Shape, ...]]] = {}
        """The attributes that the left side's operators have, by operator."""
        self.parts: list[Tensor] = []
        self.left: Tensor | None = None

    def _numbers(self, operator: str) -> tuple[Shape, ...]:
        """Return the left side's free numbers for an operator: COUNTS rows of one a axis."""
        rows, dummy = COUNTS[operator], self.tensors[f"attributes{self.unknown}"].shape
        self.unknown += 1
        found = tuple(tuple(dummy[row * self.rank : (row + 1) * self.rank]) for row in range(rows))
        self.noted.setdefault(operator, []).append(found)
        return found

    def condition(self, term: Term) -> Tensor:
        """Return a term as true or false: any tensor of them is where some tensor of numbers is positive."""
        if term in ("True", "False", "0"):
            one, zero = number(self.seed, 1.0), number(self.seed, 0.0)
            return binary("Greater", one, zero) if term == "True" else binary("Greater", zero, one)
        if isinstance(term, str):
            return binary("Greater", self.tensors[term], number(self.seed, 0.0))
        return self.tensor(term)

    def tensor(self, term: Term) -> Tensor:
        if isinstance(term, str):
            if term in NUMBERS:
                return number(self.seed, NUMBERS[term])
            if term in ("True", "False"):
                return self.condition(term)
            return self.tensors[term]
        if isinstance(term, int):
            return number(self.seed, float(term))
        operands = [a for a in term.arguments if not (isinstance(a, str) and re.fullmatch(r"\.\.\.|low\w*|dims|.*size.*", a))]
        return self._application(term.operator, operands, [str(a) for a in term.arguments if isinstance(a, str) and "size" in a])

    def _application(self, operator: str, operands: Sequence[Term], places: Sequence[str]) -> Tensor:
        if operator in ARITHMETIC or operator in COMPARISON:
            one, other = (self.tensor(o) for o in operands)
            if one.rank and other.rank and one.shape != other.shape:
                refuse(f"{operator}: operands must have one shape")
            return binary(ARITHMETIC.get(operator) or COMPARISON[operator], one, other)
        match operator, operands:
            case "Abs" | "Negate", [x]:
                return absolute(self.tensor(x)) if operator == "Abs" else -self.tensor(x)
            case "And" | "Or", [x, y]:
                return binary(operator, self.condition(x), self.condition(y))
            case "Select", [c, x, y]:
                return where(self.condition(c), self.tensor(x), self.tensor(y))
            case "Clamp", [low, x, high]:
                return minimum(maximum(self.tensor(x), self.tensor(low)), self.tensor(high))
            case "Concat" | "ConcatList", [_, _, *_]:
                parts = [self.tensor(o) for o in operands]
                self.parts = self.parts or parts
                return concat(*parts, axis=self.axis if parts[0].rank == self.rank else 0)
            case "Transpose", [x]:
                return transpose(self.tensor(x), perm=tuple(reversed(range(self.rank))))
            case "Reverse", [x]:
                return self._reversed(self.tensor(x))
            case "Reduce", [x]:
                tensor = self.tensor(x)
                if tensor.rank > self.rank:
                    return reshape(reduce_sum(tensor, axes=(0,)), shape=tensor.shape[1:])
                return reduce_sum(tensor, axes=(self.axis,))
            case "ReshapeDegenerate", [x]:
                assert self.left is not None
                return reshape(self.tensor(x), shape=self.left.shape)
            case "Broadcast", [x]:
                return self._broadcast(self.tensor(x))
            case "Pad", [x, v]:
                value, (lows,) = self.tensor(v), self._given("Pad")
                before = tuple(amount - 1 for amount in lows)
                return pad(self.tensor(x) - value, before=before, after=(0,) * self.rank, mode="constant", value=0.0) + value
            case "Slice" | "DynamicSlice", [x]:
                return self._slice(operator, self.tensor(x), places)
            case "DynamicUpdateSlice", [x, y]:
                return self._updated(self.tensor(x), self.tensor(y))
            case "Dot", [x, y]:
                self.axis = 1  # the columns of one are the rows of the other
                first = self.tensor(x)
                self.axis = 0
                return self._dot(first, self.tensor(y))
            case "Conv", [x, w]:
                strides, pads = self._numbers("Conv")
                k = self.rank - 2
                window = tuple(p - 1 for p in pads[:k])
                values: dict[str, Any] = {"strides": strides[:k], "dilations": (1,) * k, "pads": window * 2, "group": 1, "layout": "NCHW"}
                return conv(self.tensor(x), self.tensor(w), **values)
        raise RuleError(f"the set has no operator for {operator} of {len(operands)}")

    def _given(self, operator: str) -> tuple[Shape, ...]:
        """Return the attributes of an operator: free on the left side, the left side's on the right."""
        if self.left is None:
            return self._numbers(operator)
        if not self.noted.get(operator):
            raise RuleError(f"nothing says what the attributes of {operator} are")
        return self.noted[operator][0]

    def _reversed(self, x: Tensor) -> Tensor:
        size = x.shape[self.axis]
        ends = tuple(-1 if i == self.axis else s for i, s in enumerate(x.shape))
        return slice_(x, starts=self._only(size - 1, 0), ends=ends, steps=self._only(-1, 1))

    def _only(self, value: int, other: int) -> Shape:
        return tuple(value if i == self.axis else other for i in range(self.rank))

    def _broadcast(self, x: Tensor) -> Tensor:
        if self.left is not None and self.way == 0:
            return expand(x, shape=self.left.shape)
        if self.left is not None:  # a new axis
            return reshape(x, shape=(1, *x.shape))
        (shape,) = self._numbers("Broadcast")
        return expand(x, shape=shape)

    def _slice(self, operator: str, x: Tensor, places: Sequence[str]) -> Tensor:
        if places:  # from the first operand's size to the end of the second
            starts = self._only(self.parts[0].shape[self.axis], 0)
            return slice_(x, starts=starts, ends=x.shape, steps=(1,) * self.rank)
        if self.left is None:
            start, count, *step = self._numbers(operator)
            steps = step[0] if step else (1,) * self.rank
            begin = tuple(each - 1 for each in start)
            if operator == "DynamicSlice":  # a start that is too large is moved
                begin = tuple(b if b + c <= s else s - c for b, c, s in zip(begin, count, x.shape, strict=True))
        else:
            begin, count, steps = self._derived()
        ends = tuple(b + c * s for b, c, s in zip(begin, count, steps, strict=True))
        if x.rank == 0:  # a constant of any shape
            x = expand(x, shape=ends)
        return slice_(x, starts=begin, ends=ends, steps=steps)

    def _derived(self) -> tuple[Shape, Shape, Shape]:
        """Return start, count and step of a right side's slice: the left side's; moved to the second part; turned; of two, as one."""
        noted = self.noted.get("Slice") or self.noted.get("DynamicSlice") or []
        if not noted:
            raise RuleError("nothing says what the attributes of the slice are")
        start, count, *step = noted[0]
        steps = step[0] if step else (1,) * self.rank
        begin = tuple(each - 1 for each in start)
        match self.way:
            case 1 if self.parts and len(noted) == 1:
                begin = tuple(b - (self.parts[0].shape[i] if i == self.axis else 0) for i, b in enumerate(begin))
            case 1 if len(noted) > 1:
                count = tuple(c + (noted[1][1][i] if i == self.axis else 0) for i, c in enumerate(count))
            case 1:
                begin, count = begin[::-1], count[::-1]
        return begin, count, steps

    def _updated(self, x: Tensor, y: Tensor) -> Tensor:
        """x - (the part of x) + y, both in place: over real numbers, y stands where it is written."""
        if self.left is None:
            (start,) = self._numbers("DynamicUpdateSlice")
            begin = tuple(each - 1 for each in start)
        else:
            begin = tuple(sum(entries) - len(entries) for entries in zip(*(n[0] for n in self.noted["DynamicUpdateSlice"]), strict=True))
        ends = tuple(b + size for b, size in zip(begin, y.shape, strict=True))
        after = tuple(size - end for size, end in zip(x.shape, ends, strict=True))
        own = slice_(x, starts=begin, ends=ends, steps=(1,) * self.rank)
        old, new = (pad(part, before=begin, after=after, mode="constant", value=0.0) for part in (own, y))
        return x - old + new

    def _dot(self, x: Tensor, y: Tensor) -> Tensor:
        """A product of matrices; of a convolution's operands, the sum over channels."""
        if self.rank == 2:
            return x @ y
        matrix = reshape(y, shape=(y.shape[0], y.shape[1]))
        last = tuple(range(2, self.rank))
        product = transpose(x, perm=(0, *last, 1)) @ transpose(matrix, perm=(1, 0))
        return transpose(product, perm=(0, self.rank - 1, *range(1, self.rank - 1)))


def unknowns(term: Term) -> list[str]:
    """Return the operators of a left side that need free numbers, in the order in which they are evaluated."""
    if not isinstance(term, Application):
        return []
    inner = [name for argument in term.arguments for name in unknowns(argument)]
    stated = any(isinstance(a, str) and "size" in a for a in term.arguments)
    return inner + ([term.operator] if term.operator in COUNTS and not stated else [])
