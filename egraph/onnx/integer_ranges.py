"""The integers that a program expects, inferred from their uses: ``OneHot(x, depth 257)`` expects 0 to 256.

A value that indexes a table must be a valid index. A value that is compared with a constant, or divided by one, should lie near it. Demands
on a result are passed to the operands through operators that move or cast them, and through arithmetic with constants by intervals.
If nothing is known, one byte may be anything and wider integers are 0 or 1, which are valid as indices and flags.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx

from egraph.onnx.types import opaque_proto
from egraph.tensor import Node, walk
from egraph.tensor.ops.dtypes import BYTES, RANGES

Interval: TypeAlias = tuple[float, float]
"""Least and largest value, both inclusive."""
EVERYTHING: Interval = (-math.inf, math.inf)
FLAGS = (0, 1)
DIVISORS: Interval = (1, 8)
"""Divisors of integers if nothing else is known of them: a division by 0 makes the model fail."""
MOVES = (
    *("Reshape", "Transpose", "Slice", "Expand", "Cast", "CastLike", "Identity", "Squeeze", "Unsqueeze", "Flatten", "Tile"),
    *("Split", "Floor", "Ceil", "Round", "ReduceMax", "ReduceMin", "OpaqueOutput", "Relu", "Pad", "MaxPool", "Clip"),
)
PASSES_ON: Mapping[str, slice] = {**dict.fromkeys(MOVES, slice(1)), "Concat": slice(None), "Where": slice(1, None)}
"""Operators whose values come from some of their operands, and which operands: demands on the result are demands on them."""
COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
READ_BY_INDEX: Mapping[str, int] = {"Gather": 1, "GatherElements": 1, "ScatterElements": 1}
"""Operators that read operand 0 along ``axis`` by indices, with the position of the operand that holds the indices."""


@dataclass
class _Demands:
    """The demands on values: ``needed`` lest the model fails or reads nothing, ``telling`` so that comparisons have both results."""

    needed: dict[Node, Interval] = field(default_factory=dict)
    telling: dict[Node, Interval] = field(default_factory=dict)

    def need(self, node: Node, interval: Interval) -> None:
        low, high = self.needed.get(node, EVERYTHING)
        common = max(low, interval[0]), min(high, interval[1])
        # the branches of a Where may demand disjoint ranges, for example for negative indices: those from 0 are usual
        self.needed[node] = common if common[0] <= common[1] else max((low, high), interval)

    def tell(self, node: Node, interval: Interval) -> None:
        low, high = self.telling.get(node, interval)
        self.telling[node] = min(low, interval[0]), max(high, interval[1])

    def of(self, node: Node) -> Interval | None:
        """Return the demanded range of a value: the range in which comparisons decide something, as far as it is valid."""
        needed, telling = self.needed.get(node), self.telling.get(node)
        if needed is None or telling is None or (math.isfinite(needed[0]) and math.isfinite(needed[1])):
            return needed or telling
        low, high = max(needed[0], telling[0]), min(needed[1], telling[1])
        return (low, high) if low <= high else needed

    def hand_down(self, node: Node, operand: Node, change: Callable[[Interval], Interval]) -> None:
        """Pass the demands on a result to an operand, changed as the operator requires."""
        for intervals, ask in ((self.needed, self.need), (self.telling, self.tell)):
            if node in intervals:
                interval = change(intervals[node])
                if interval[0] <= interval[1] and interval != EVERYTHING:
                    ask(operand, interval)


def integer_ranges(roots: Iterable[Node], tensors: Mapping[str, np.ndarray] | None = None) -> dict[Node, tuple[int, int]]:
    """Return the least and the largest value that integer inputs and placeholders should have, for those with any demand."""
    demands = _Demands()
    order = list(walk(roots))
    for node in reversed(order):  # users before operands
        _ask(node, demands, tensors or {})
    ranges: dict[Node, tuple[int, int]] = {}
    for node in order:
        if node.op in ("Input", "Placeholder") and node.type.dtype.startswith(("int", "uint")):
            of_bytes = RANGES[node.type.dtype] if node.type.dtype in BYTES else None
            interval = demands.of(node) or of_bytes
            if interval is not None:
                ranges[node] = _whole(interval, node.type.dtype)
    return ranges


def compared_numbers(roots: Iterable[Node], tensors: Mapping[str, np.ndarray] | None = None) -> dict[Node, tuple[int, int]]:
    """Return the number that ``Equal`` first compares each integer input of one element with, as a range of this number alone."""
    numbers: dict[Node, tuple[int, int]] = {}
    for node in walk(roots):
        operator, operands, _ = _described(node)
        if operator != "Equal":
            continue
        constants = [_constant(operand, tensors or {}) for operand in operands]
        for operand, other in ((operands[0], constants[1]), (operands[1], constants[0])):
            while operand.op in MOVES and operand.inputs:
                operand = operand.inputs[0]
            is_number = operand.op == "Input" and operand.type.is_static and operand.type.elements == 1 and "int" in operand.type.dtype
            number = float(other.reshape(())) if other is not None and other.size == 1 else math.nan
            if is_number and number.is_integer():
                numbers.setdefault(operand, (int(number), int(number)))
    return numbers


def _whole(interval: Interval, dtype: str) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    low, high = interval
    low = min(0.0, high) if low == -math.inf else low
    high = max(FLAGS[1], low) if high == math.inf else high
    least, most = max(math.ceil(low), int(limits.min)), min(math.floor(high), int(limits.max))
    return least, max(least, most)


def _ask(node: Node, demands: _Demands, tensors: Mapping[str, np.ndarray]) -> None:
    """Record on its operands the demands of a node's operator, and those on its result."""
    operator, operands, attributes = _described(node)
    if not operands:
        return
    constants = [_constant(operand, tensors) for operand in operands]
    if operator in READ_BY_INDEX:
        data, indices = operands[0], operands[READ_BY_INDEX[operator]]
        if data.type.is_static:
            demands.need(indices, (0, data.type.sizes[attributes.get("axis", 0)] - 1))
        demands.hand_down(node, data, lambda demand: demand)
    elif operator in ("GatherND", "ScatterND") and len(operands) in (2, 3) and operands[0].type.is_static:
        demands.need(operands[1], (0, min(_indexed(operands[0], operands[1], attributes.get("batch_dims", 0)), default=1) - 1))
        if operator == "ScatterND":
            demands.hand_down(node, operands[0], lambda demand: demand)
    elif operator == "OneHot":
        if constants[1] is not None and constants[1].size == 1:
            demands.need(operands[0], (0, float(constants[1].reshape(())) - 1))
    elif operator in COMPARISONS:
        for operand, other in ((operands[0], constants[1]), (operands[1], constants[0])):
            if other is not None and other.size and np.isfinite(other.astype(np.float64)).all():
                demands.tell(operand, _about(other, is_equality=operator == "Equal"))
    elif operator in PASSES_ON:
        for operand in operands[PASSES_ON[operator]]:
            demands.hand_down(node, operand, lambda demand: demand)
    elif operator in ("Neg", "Abs"):
        is_abs = operator == "Abs"
        demands.hand_down(node, operands[0], lambda demand: (-demand[1], demand[1] if is_abs else -demand[0]))
    elif operator in ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max") and len(operands) == 2:
        if operator in ("Div", "Mod") and constants[1] is None and "int" in operands[1].type.dtype:
            demands.need(operands[1], (DIVISORS[0], math.inf))
            demands.tell(operands[1], DIVISORS)
        _ask_arithmetic(operator, node, operands, constants, demands)


def _indexed(data: Node, indices: Node, batch_axes: int) -> tuple[int, ...]:
    """Return the sizes of the axes that rows of indices refer to; all axes if the rows' length is unknown."""
    length = indices.type.shape[-1] if indices.type.shape else None
    return data.type.sizes[batch_axes : batch_axes + length if isinstance(length, int) else None]


def _ask_arithmetic(
    operator: str, node: Node, operands: Sequence[Node], constants: Sequence[np.ndarray | None], demands: _Demands
) -> None:
    first, second = operands
    left, right = (None if value is None or not value.size else (float(value.min()), float(value.max())) for value in constants)
    if left is not None and right is not None:
        return
    if left is None and right is None:
        if operator == "Add" and first is not second:  # each operand may have half, so that their sum is in range
            for operand in operands:
                demands.hand_down(node, operand, lambda demand: (demand[0] / 2, demand[1] / 2))
        return
    variable, (low, high) = (first, right) if right is not None else (second, left or (0.0, 0.0))
    if operator == "Add":
        demands.hand_down(node, variable, lambda demand: (demand[0] - low, demand[1] - high))
    elif operator == "Sub" and variable is first:
        demands.hand_down(node, variable, lambda demand: (demand[0] + high, demand[1] + low))
    elif operator == "Sub":
        demands.hand_down(node, variable, lambda demand: (high - demand[1], low - demand[0]))
    elif operator == "Mul" and low > 0:
        demands.hand_down(node, variable, lambda demand: _divided(demand, low, high))
        if high < 1:
            demands.tell(variable, (0, round(1 / high)))
    elif operator == "Div" and variable is first and low > 0:
        demands.hand_down(node, variable, lambda demand: _divided(demand, 1 / high, 1 / low))
        if low > 1:
            demands.tell(variable, (0, round(low)))
    elif operator == "Min":
        demands.hand_down(node, variable, lambda demand: (demand[0], math.inf if high <= demand[1] else demand[1]))
    elif operator == "Max":
        demands.hand_down(node, variable, lambda demand: (-math.inf if low >= demand[0] else demand[0], demand[1]))


def _divided(demand: Interval, low: float, high: float) -> Interval:
    """Return the values whose products with every number from ``low`` to ``high``, both above 0, lie in an interval."""
    return demand[0] / (low if demand[0] > 0 else high), demand[1] / (high if demand[1] > 0 else low)


def _about(constant: np.ndarray, *, is_equality: bool) -> Interval:
    """Return a range of values that covers both results of a comparison with a constant."""
    low, high = float(constant.min()), float(constant.max())
    if is_equality and low < high:
        return low, high
    return (low - 1 if low > 0 or high < 0 else low), high + 1


def _constant(node: Node, tensors: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the constant value of a node that is moved or cast, or None."""
    while node.op in ("Reshape", "Expand", "Cast", "Transpose"):
        node = node.inputs[0]
    value = tensors.get(node.string("digest")) if node.op == "Constant" else None
    return value if value is not None and value.dtype.kind in "iufb" else None


def _described(node: Node) -> tuple[str, Sequence[Node], Mapping[str, int]]:
    """Return operator, operands and integer attributes of a node; those of ONNX for an opaque node."""
    if node.op != "Opaque":
        return node.op, node.inputs, {"axis": node.integer("axis")} if node.op in READ_BY_INDEX else {}
    proto = opaque_proto(node)
    if proto.domain not in ("", "ai.onnx"):
        return "", (), {}
    numbers: Iterator[int] = iter(range(len(node.inputs)))
    order: dict[str, int] = {}
    for name in proto.input:
        if name and name not in order:
            order[name] = next(numbers)
    operands = [node.inputs[order[name]] for name in proto.input if name]
    integers = {each.name: each.i for each in proto.attribute if each.type == onnx.AttributeProto.INT}
    return proto.op_type, operands, integers
