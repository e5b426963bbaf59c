"""Operators of XLA's simplifier over rule tensors; attributes that a statement omits are arbitrary numbers.

An arbitrary number is a size of a tensor that nothing reads, so it is unknown to the prover and drawn by tests like every other
size. Attributes that the right side omits follow from the left side in a few ways, which are tried in turn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bench.corpora.constants import number
from bench.corpora.taso_values import Shape, refuse
from bench.corpora.terms import Application, Term
from egraph.errors import RuleError
from egraph.rule import Tensor
from egraph.rule_operators import (
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
    unary,
    where,
)  # fmt: skip

SCALAR = re.compile(r"c\d|Const\d?|Scalar|v")
ARITHMETIC: Mapping[str, str] = {
    "Add": "Add", "Sub": "Sub", "Mul": "Mul", "Divide": "Div", "Div": "Div", "Min": "Min", "Max": "Max", "Binary": "Add", "Pow": "Pow",
    "Power": "Pow",
}  # fmt: skip
COMPARISON: Mapping[str, str] = {"Gt": "Greater", "Ge": "GreaterOrEqual", "Lt": "Less", "Le": "LessOrEqual", "Eq": "Equal"}
UNARY: Mapping[str, str] = {
    "Abs": "Abs", "Negate": "Neg", "Neg": "Neg", "Exp": "Exp", "Log": "Log", "Sqrt": "Sqrt", "Tanh": "Tanh", "Logistic": "Sigmoid",
    "Sign": "Sign", "Floor": "Floor", "Ceil": "Ceil", "Sin": "Sin", "Cos": "Cos", "Relu": "Relu", "Reciprocal": "Reciprocal",
}  # fmt: skip
LOGICAL = ("And", "Or", "Not", "Xor", "Ne", "Eq")
COUNTS: Mapping[str, int] = {"Slice": 3, "DynamicSlice": 2, "DynamicUpdateSlice": 1, "Pad": 2, "Broadcast": 1, "Conv": 3}
"""How many numbers each axis needs if an operator's attributes are omitted."""


def is_scalar(name: str) -> bool:
    return bool(SCALAR.fullmatch(name))


def is_number(name: str) -> bool:
    return bool(re.fullmatch(r"-?(\d+(\.\d+)?|inf)", name))


def is_tensor(name: str) -> bool:
    return bool(re.fullmatch(r"[A-Z]", name))


class XlaReading:
    """Evaluates terms; ``way`` chooses how the right side's attributes follow from the left side's."""

    def __init__(self, tensors: Mapping[str, Tensor], axis: int, rank: int, way: int, nested: frozenset[str] = frozenset()) -> None:
        self.tensors, self.axis, self.rank, self.way = tensors, axis, rank, way
        self.nested = nested
        """Operators that the left side applies to their own results."""
        self.seed = next(iter(tensors.values()))
        self.unknown = 0
        self.noted: dict[str, list[tuple[Shape, ...]]] = {}
        """The attributes of the left side's operators, by operator."""
        self.parts: list[Tensor] = []
        self.convolved: list[Term] = []
        """The operands of the left side's convolution."""
        self.left: Tensor | None = None
        self.written: Shape | None = None
        """The sizes of the part that the left side writes into a tensor."""
        self.turned = self.reversed = False
        """Whether the left side transposes, and whether it reverses."""

    def _numbers(self, operator: str) -> tuple[Shape, ...]:
        """Return the left side's free numbers for an operator: COUNTS rows with one number per axis."""
        rows, dummy = COUNTS[operator], self.tensors[f"attributes{self.unknown}"].shape
        self.unknown += 1
        rows_of_numbers = tuple(tuple(dummy[row * self.rank : (row + 1) * self.rank]) for row in range(rows))
        self.noted.setdefault(operator, []).append(rows_of_numbers)
        return rows_of_numbers

    def condition(self, term: Term) -> Tensor:
        """Return a term as a tensor of booleans: any such tensor tells where some tensor of numbers is positive."""
        if term in ("True", "False", "0"):
            unit, zero = number(self.seed, 1.0), number(self.seed, 0.0)
            return binary("Greater", unit, zero) if term == "True" else binary("Greater", zero, unit)
        tensor = self.tensor(term)
        return tensor if tensor.type.dtype == "bool" else binary("Greater", tensor, number(self.seed, 0.0))

    def tensor(self, term: Term) -> Tensor:
        if isinstance(term, str):
            if is_number(term):
                return number(self.seed, float(term))
            if term in ("True", "False"):
                return self.condition(term)
            return self.tensors[term]
        if isinstance(term, int):
            return number(self.seed, float(term))
        operands = [a for a in term.arguments if not (isinstance(a, str) and re.fullmatch(r"\.\.\.|low\w*|dims|.*size.*", a))]
        places = [str(a) for a in term.arguments[1:]] if any(isinstance(a, str) and "size" in a for a in term.arguments) else []
        return self._application(term.operator, operands[:1] if places else operands, places)

    def _application(self, operator: str, operands: Sequence[Term], places: Sequence[str]) -> Tensor:
        if operator in LOGICAL and (operator not in ("Ne", "Eq") or {"True", "False"} & set(map(str, operands))):
            return self._logical(operator, [self.condition(o) for o in operands])
        if operator == "Ne":
            return self._logical("Not", [self._application("Eq", operands, places)])
        if operator in ARITHMETIC or operator in COMPARISON:
            left, right = (self.tensor(o) for o in operands)
            if left.rank and right.rank and left.shape != right.shape:
                refuse(f"{operator}: operands must have one shape")
            return binary(ARITHMETIC.get(operator) or COMPARISON[operator], left, right)
        if operator in UNARY and len(operands) == 1:
            return unary(UNARY[operator], self.tensor(operands[0]))
        match operator, operands:
            case "Rsqrt", [x]:
                return unary("Reciprocal", unary("Sqrt", self.tensor(x)))
            case "Select", [c, x, y]:
                return where(self.condition(c), self.tensor(x), self.tensor(y))
            case "Clamp", [low, x, high]:
                return minimum(maximum(self.tensor(x), self.tensor(low)), self.tensor(high))
            case "Concat" | "ConcatList", [_, _, *_]:
                parts = [self.tensor(o) for o in operands]
                self.parts = self.parts or parts
                return concat(*parts, axis=self._along(parts[0]))
            case "Transpose", [x]:
                self.turned = True
                return transpose(self.tensor(x), perm=tuple(reversed(range(self.rank))))
            case "Reverse", [x]:
                self.reversed = True
                return self._reversed(self.tensor(x))
            case "Reduce", [x]:
                tensor = self.tensor(x)
                if tensor.rank > self.rank:
                    return reshape(reduce_sum(tensor, axes=(0,)), shape=tensor.shape[1:])
                return reduce_sum(tensor, axes=(self._along(tensor),)) if tensor.rank else tensor
            case "ReshapeDegenerate" | "Reshape", [x]:
                tensor = self.tensor(x)
                if self.left is not None:
                    return reshape(tensor, shape=self.left.shape)
                return reshape(tensor, shape=(1, *tensor.shape) if operator != "Reshape" else (math.prod(tensor.shape),))
            case "Broadcast", [x]:
                return self._broadcast(self.tensor(x))
            case "Pad", [x, v]:
                value, tensor = self.tensor(v), self.tensor(x)
                before, after = self._padding(tensor)
                return pad(tensor - value, before=before, after=after, mode="constant", value=0.0) + value
            case "Slice" | "DynamicSlice", [x]:
                return self._slice(operator, self.tensor(x), places)
            case "DynamicUpdateSlice", [x, y]:
                return self._updated(self.tensor(x), self.tensor(y))
            case "DynamicUpdateSlice", [x] if self.left is not None:
                return self._updated(self.tensor(x), None)
            case "Dot", [x, y]:
                if not all(_joins(o) for o in (x, y)):
                    return self._dot(self.tensor(x), self.tensor(y))
                axis = self.axis
                self.axis = 1  # the columns of one are the rows of the other
                first = self.tensor(x)
                self.axis = 0
                second = self.tensor(y)
                self.axis = axis
                return self._dot(first, second)
            case "Conv", [x, w]:
                if self.left is not None and operands == self.convolved[::-1]:
                    return self._exchanged(self.tensor(x), self.tensor(w))
                self.convolved = self.convolved or list(operands)
                return self._conv(self.tensor(x), self.tensor(w))
        raise RuleError(f"the set has no operator for {operator} of {len(operands)}")

    def _logical(self, operator: str, operands: Sequence[Tensor]) -> Tensor:
        match operator, operands:
            case "Not", [x]:
                return unary("Not", x)
            case "And" | "Or", [x, y]:
                return binary(operator, x, y)
            case "Xor" | "Ne" | "Eq", [x, y]:
                both, none = binary("And", x, y), binary("And", unary("Not", x), unary("Not", y))
                same = binary("Or", both, none)
                return same if operator == "Eq" else unary("Not", same)
        raise RuleError(f"{operator} of {len(operands)} operands is not stated")

    def _along(self, tensor: Tensor) -> int:
        """Return the axis of an operator: on the right side of a transposition, in the second way, the one it came from."""
        if tensor.rank != self.rank:
            return 0
        return self.rank - 1 - self.axis if self.way and self.left is not None and self.turned else self.axis

    def _padding(self, x: Tensor) -> tuple[Shape, Shape]:
        """Return what is padded before and after: free on the left side; the left side's, all of them, or up to its size."""
        noted = self.noted.get("Pad", [])
        if self.left is None:
            low, high = self._numbers("Pad")
            return tuple(n - 1 for n in low), tuple(n - 1 for n in high)
        if noted and (self.way < 2 or "Pad" not in self.nested):
            low, high = (tuple(n - 1 for n in row) for row in noted[0])
            if self.way and self.turned:
                return low[::-1], high[::-1]
            if self.way and self.reversed:
                return self._but(low, high), self._but(high, low)
            return low, high
        if noted:
            low, high = (tuple(sum(entries) - len(entries) for entries in zip(*rows, strict=True)) for rows in zip(*noted, strict=True))
            return low, high
        missing = tuple(a - b for a, b in zip(self.left.shape, x.shape, strict=True))
        if updates := self.noted.get("DynamicUpdateSlice"):
            start = tuple(n - 1 for n in updates[0][0])
            return start, tuple(m - s for m, s in zip(missing, start, strict=True))
        nothing = (0,) * self.rank
        return (missing, nothing) if self.way else (nothing, missing)

    def _but(self, values: Shape, others: Shape) -> Shape:
        """Return ``values``, with the entry of ``others`` along the axis."""
        return tuple(b if i == self.axis else a for i, (a, b) in enumerate(zip(values, others, strict=True)))

    def _conv(self, x: Tensor, w: Tensor) -> Tensor:
        k = self.rank - 2
        strides, low, high = self._numbers("Conv") if self.left is None else self._given("Conv")
        before, after = (tuple(n - 1 for n in row[:k]) for row in (low, high))
        if self.left is not None and self.way and (pads := self.noted.get("Pad")):
            before, after = (
                tuple(a + b - 1 for a, b in zip(ours, row[2:], strict=True)) for ours, row in zip((before, after), pads[0], strict=True)
            )
        values: dict[str, Any] = {"strides": strides[:k], "dilations": (1,) * k, "pads": (*before, *after), "group": 1, "layout": "NCHW"}
        return conv(x, w, **values)

    def _exchanged(self, w: Tensor, x: Tensor) -> Tensor:
        """The weights convolved with the input, both reversed: one's batch is the other's output channels, and strides are one."""
        _, low, high = self._given("Conv")
        more = tuple(size - length for size, length in zip(x.shape[2:], w.shape[2:], strict=True))
        k = self.rank - 2
        pads = [tuple(n - 1 + m for n, m in zip(row[:k], more, strict=True)) for row in (low, high)]
        reversed_ = (self._turned(w), self._turned(x))
        values: dict[str, Any] = {"strides": (1,) * k, "dilations": (1,) * k, "pads": (*pads[0], *pads[1]), "group": 1, "layout": "NCHW"}
        return transpose(conv(*reversed_, **values), perm=(1, 0, *range(2, self.rank)))

    def _turned(self, x: Tensor) -> Tensor:
        """Return a tensor with its spatial axes reversed."""
        last = x.shape[2:]
        return slice_(x, starts=(0, 0, *(n - 1 for n in last)), ends=(*x.shape[:2], *(-1 for _ in last)), steps=(1, 1, *(-1 for _ in last)))

    def _given(self, operator: str) -> tuple[Shape, ...]:
        """Return the left side's attributes of an operator."""
        if not self.noted.get(operator):
            raise RuleError(f"nothing says what the attributes of {operator} are")
        return self.noted[operator][0]

    def _reversed(self, x: Tensor) -> Tensor:
        size = x.shape[self.axis]
        ends = tuple(-1 if i == self.axis else s for i, s in enumerate(x.shape))
        return slice_(x, starts=self._only(size - 1, 0), ends=ends, steps=self._only(-1, 1))

    def _only(self, value: int, default: int) -> Shape:
        return tuple(value if i == self.axis else default for i in range(self.rank))

    def _broadcast(self, x: Tensor) -> Tensor:
        if self.left is not None and self.way == 0:
            return expand(x, shape=self.left.shape)
        if self.left is not None:  # a new axis
            return reshape(x, shape=(1, *x.shape))
        (shape,) = self._numbers("Broadcast")
        return expand(x, shape=shape)

    def _slice(self, operator: str, x: Tensor, places: Sequence[str]) -> Tensor:
        if places:  # up to the first operand's size, or from there on
            first, extent = self.parts[0].shape[self.axis], x.shape[self.axis]
            low, top = (0 if bound == "0" else extent if "+" in bound else first for bound in places[:2])
            return slice_(x, starts=self._only(low, 0), ends=self._but(x.shape, (top,) * self.rank), steps=(1,) * self.rank)
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
            if pieces := self.noted.get("DynamicUpdateSlice"):
                assert self.written is not None
                return tuple(n - 1 for n in pieces[-1][0]), self.written, (1,) * self.rank
            raise RuleError("nothing says what the attributes of the slice are")
        start, count, *step = noted[0]
        steps = step[0] if step else (1,) * self.rank
        begin = tuple(each - 1 for each in start)
        match self.way:
            case 1 if self.parts and len(noted) == 1:
                begin = tuple(b - (self.parts[0].shape[i] if i == self.axis else 0) for i, b in enumerate(begin))
            case 1 if self.reversed:
                size = self.tensors[next(iter(self.tensors))].shape
                begin = self._but(begin, tuple(s - 1 - b - (c - 1) * by for s, b, c, by in zip(size, begin, count, steps, strict=True)))
            case 1 if len(noted) > 1:
                count = tuple(c + (noted[1][1][i] if i == self.axis else 0) for i, c in enumerate(count))
            case 1 if pads := self.noted.get("Pad"):
                begin = tuple(b - (low - 1) for b, low in zip(begin, pads[0][0], strict=True))
            case 1:
                begin, count, steps = begin[::-1], count[::-1], steps[::-1]
            case 2 if self.nested & {"Slice", "DynamicSlice"}:
                second, outer, *by = noted[1]
                begin = tuple(b + (o - 1) * s for b, o, s in zip(begin, second, steps, strict=True))
                count, steps = outer, tuple(s * t for s, t in zip(steps, by[0] if by else (1,) * self.rank, strict=True))
        return begin, count, steps

    def _updated(self, x: Tensor, y: Tensor | None) -> Tensor:
        """x - (the part of x) + y, both in place: over real numbers, y stands where it is written.

        Without y, what is written is what the left side has there.
        """
        if self.left is None:
            (start,) = self._numbers("DynamicUpdateSlice")
            begin = tuple(each - 1 for each in start)
        else:
            given = self.noted.get("DynamicUpdateSlice") or self._given("DynamicSlice")[:1]
            rows = [noted[0] if isinstance(noted[0], tuple) else noted for noted in given]
            begin = tuple(sum(entries) - len(entries) for entries in zip(*rows, strict=True))
        size = self.written if y is None else y.shape
        if size is None:
            raise RuleError("what is written into the tensor is not stated")
        self.written = size
        ends = tuple(b + length for b, length in zip(begin, size, strict=True))
        after = tuple(size - end for size, end in zip(x.shape, ends, strict=True))
        overwritten = slice_(x, starts=begin, ends=ends, steps=(1,) * self.rank)
        if y is None:
            assert self.left is not None
            y = slice_(self.left, starts=begin, ends=ends, steps=(1,) * self.rank)
        old, new = (pad(part, before=begin, after=after, mode="constant", value=0.0) for part in (overwritten, y))
        return x - old + new

    def _dot(self, x: Tensor, y: Tensor) -> Tensor:
        """A product of matrices; of a convolution's operands, the sum over channels."""
        if self.rank == 2:
            return x @ y
        matrix = reshape(y, shape=(y.shape[0], y.shape[1]))
        last = tuple(range(2, self.rank))
        product = transpose(x, perm=(0, *last, 1)) @ transpose(matrix, perm=(1, 0))
        return transpose(product, perm=(0, self.rank - 1, *range(1, self.rank - 1)))


def _joins(term: Term) -> bool:
    return isinstance(term, Application) and term.operator in ("Concat", "ConcatList")


def unknowns(term: Term) -> list[str]:
    """Return the operators of a left side that need free numbers, in the order in which they are evaluated."""
    if not isinstance(term, Application):
        return []
    inner = [name for argument in term.arguments for name in unknowns(argument)]
    stated = any(isinstance(a, str) and "size" in a for a in term.arguments)
    return inner + ([term.operator] if term.operator in COUNTS and not stated else [])
