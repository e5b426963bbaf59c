"""The state of one import, and the view of it that an operator's handler receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from egraph.errors import TypeMismatch
from egraph.onnx.types import array_type, is_tensor, tensor_digest
from egraph.tensor import AttributeValue, Node, TensorType, attributes, make, ops

FLOATS = ("float32", "float64")


class NotCore(Exception):
    """The reason why a node has no form in the core set; such a node is imported as opaque."""


UNREADABLE = (NotCore, TypeMismatch, ValueError, LookupError, ArithmeticError)
"""Exceptions for a node that has no core form or is malformed. It then becomes opaque, which checks its types."""


@dataclass
class Importing:
    """The mutable state of one import."""

    opsets: Mapping[str, int]
    functions: Sequence[onnx.FunctionProto]
    ir_version: int
    folder: Path | None
    fold_limit_bytes: int
    declared: Mapping[str, TensorType] = field(default_factory=dict)
    """Types that the model's ``value_info`` states, by tensor name."""
    values: dict[str, Node] = field(default_factory=dict)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    origins: dict[Node, dict[str, None]] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    used: frozenset[str] = frozenset()
    """Tensor names that some node or graph output reads."""
    sequences: dict[Node, tuple[Node, ...]] = field(default_factory=dict)
    """The elements of sequences, if they are known."""
    wholes: dict[Node, Node] = field(default_factory=dict)
    """The float32 numbers that integers were made of, with equal values."""
    ranges: dict[Node, tuple[float, float]] = field(default_factory=dict)
    """The least and the largest possible value of nodes, for nodes that were queried."""
    unrolled: list[int] = field(default_factory=list)
    """For each loop, the nodes of its body times the number of its copies."""
    inside: str = ""
    """The label of the loop's run or the branch that is being imported: tensors of one name in several of them have separate sizes."""
    lazy: dict[str, onnx.TensorProto] = field(default_factory=dict)
    """Initialisers that nothing has read yet."""

    def constant(self, array: np.ndarray) -> Node:
        """Return the Constant node that holds the array."""
        digest = tensor_digest(array)
        self.tensors.setdefault(digest, array)
        return make("Constant", (), attributes(digest=digest), array_type(array))

    def data(self, node: Node | None) -> np.ndarray | None:
        """Return a Constant's data, or None for anything else."""
        return None if node is None or node.op != "Constant" else self.tensors[node.string("digest")]

    def note(self, text: str) -> None:
        self.notes[text] = None

    def came_from(self, node: Node, name: str) -> Node:
        """Record that ``node`` stands for the source node ``name``."""
        self.origins.setdefault(node, {})[name] = None
        return node


@dataclass(frozen=True)
class Call:
    """One ONNX node with its operands; handlers build core nodes through it."""

    state: Importing
    node: onnx.NodeProto
    label: str
    operands: tuple[Node | None, ...]

    @property
    def opset(self) -> int:
        return self.state.opsets.get("", 0)

    def uses_more_than_first(self) -> bool:
        """Return whether anything reads a result after the first."""
        return any(name in self.state.used for name in self.node.output[1:])

    def has(self, index: int) -> bool:
        return index < len(self.operands) and self.operands[index] is not None

    def __getitem__(self, index: int) -> Node:
        """Return an operand that must be present."""
        node = self.operands[index] if index < len(self.operands) else None
        if node is None:
            raise NotCore(f"operand {index} is absent")
        return node

    def shape(self, index: int) -> tuple[int, ...]:
        return self[index].type.sizes

    def data(self, index: int) -> np.ndarray | None:
        """Return an operand's constant value, or None if it is absent or only known at run time."""
        return self.state.data(self.operands[index]) if self.has(index) else None

    def known(self, index: int) -> np.ndarray:
        """Return an operand's constant value; the node is opaque without it."""
        value = self.data(index)
        if value is None:
            raise NotCore(f"operand {index} is not known at compile time")
        return value

    def attribute(self, name: str, default: Any = None) -> Any:
        for attribute in self.node.attribute:
            if attribute.name == name:
                value = onnx.helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def required(self, name: str) -> Any:
        """Return an attribute that must be present."""
        value = self.attribute(name)
        if value is None:
            raise NotCore(f"the attribute {name} is absent")
        return value

    def integers(self, name: str, index: int, default: Sequence[int] | None = None) -> tuple[int, ...] | None:
        """Return a list of integers given as an attribute (old opsets) or as a constant operand (new ones)."""
        value = self.attribute(name)
        if value is None and self.has(index):
            value = self.known(index).reshape(-1).tolist()
        if value is None:
            return None if default is None else tuple(default)
        return tuple(int(v) for v in value)

    def constant(self, value: Any, dtype: str) -> Node:
        """Return a Constant of the given value and element type."""
        return self.state.came_from(self.state.constant(np.asarray(value, dtype=dtype)), self.label)

    def like(self, value: Any) -> Node:
        """Return a Constant of operand 0's element type."""
        return self.constant(value, self[0].type.dtype)

    def apply(self, op: str, *operands: Node, **values: AttributeValue) -> Node:
        """Apply a core operator and record its origin."""
        return self.state.came_from(ops.apply(op, *operands, attributes=attributes(**values)), self.label)

    def chain(self, op: str, operands: Sequence[Node]) -> Node:
        """Fold a binary operator over operands from the left."""
        result = operands[0]
        for operand in operands[1:]:
            result = self.apply(op, result, operand)
        return result

    def reshape(self, node: Node, shape: Sequence[int]) -> Node:
        """Reshape, unless the node has this shape."""
        return node if tuple(shape) == node.type.shape else self.apply("Reshape", node, shape=tuple(int(n) for n in shape))

    def transpose(self, node: Node, perm: Sequence[int]) -> Node:
        """Transpose, unless the order is unchanged."""
        return node if list(perm) == list(range(len(perm))) else self.apply("Transpose", node, perm=tuple(int(n) for n in perm))


def usable(type: TensorType) -> bool:
    """Return whether core operators accept such an operand: a dense tensor whose sizes are known and not zero."""
    return is_tensor(type) and type.is_static and all(int(n) > 0 for n in type.sizes)


def axis_of(axis: int, rank: int) -> int:
    """Return a non-negative axis; an axis out of range leaves the node to onnx's own checks."""
    if not -rank <= axis < max(rank, 1):
        raise NotCore(f"axis {axis} is out of range for rank {rank}")
    return axis % rank if rank else 0
