"""An ONNX model under construction, which draws every random choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
ELEMENTS = 1500
"""Number of elements of the largest tensor that is made."""
Shape = tuple[int, ...]


class Unsuitable(Exception):
    """The operator does not fit the drawn operand."""


@dataclass(frozen=True)
class Value:
    """A float32 tensor of the model under construction."""

    name: str
    shape: Shape
    constant: bool = False


@dataclass
class Build:
    """A model under construction."""

    random: Random
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    count: int = 0

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def chance(self, percent: int) -> bool:
        return self.random.randint(0, 99) < percent

    def one_of(self, options: Sequence[Any]) -> Any:
        return options[self.random.randint(0, len(options) - 1)]

    def input(self, shape: Shape) -> Value:
        value = Value(self.fresh("x"), shape)
        self.inputs.append(value)
        self.values.append(value)
        return value

    def array(self, data: np.ndarray) -> Value:
        name = self.fresh("w")
        self.weights.append(numpy_helper.from_array(data, name))
        return Value(name, tuple(data.shape), constant=True)

    def weight(self, shape: Shape, low: float = -1.0, high: float = 1.0) -> Value:
        """Return a weight; some are uniform, and some are computed from others."""
        generator = np.random.default_rng(self.integer(0, 9999))
        if self.chance(12):
            number = self.one_of([number for number in (0.0, 1.0, 0.5, 2.0, -1.0) if low <= number <= high])
            return self.array(np.full(shape, number, np.float32))
        made = self.array(generator.uniform(low, high, shape).astype(np.float32))
        if self.chance(12):
            return self.node("Mul", [made, self.array(generator.uniform(0.5, 1.0, shape[-1:]).astype(np.float32))], shape)
        if self.chance(8) and len(shape) == 2:
            turned = self.array(generator.uniform(low, high, shape[::-1]).astype(np.float32))
            return self.node("Transpose", [turned], shape, perm=[1, 0])
        return made

    def node(self, op: str, operands: Sequence[Value | None], shape: Sequence[int], **attributes: Any) -> Value:
        return self.many(op, operands, [shape], **attributes)[0]

    def many(self, op: str, operands: Sequence[Value | None], shapes: Sequence[Sequence[int]], **attributes: Any) -> list[Value]:
        sizes = [tuple(int(n) for n in shape) for shape in shapes]
        if any(math.prod(shape) > ELEMENTS or min(shape, default=1) < 1 for shape in sizes):
            raise Unsuitable(f"{op} of {sizes}")
        names = [self.fresh("v") for _ in sizes]
        self.nodes.append(helper.make_node(op, ["" if v is None else v.name for v in operands], names, **attributes))
        self.used |= {v.name for v in operands if v is not None}
        constant = all(v is None or v.constant for v in operands)
        return [Value(name, shape, constant) for name, shape in zip(names, sizes, strict=True)]

    def integers(self, numbers: Sequence[int]) -> Value:
        return self.array(np.array(numbers, np.int64))

    def number(self, value: float) -> Value:
        return self.array(np.array(value, np.float32))
