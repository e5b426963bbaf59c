"""The values of a rule's function: tensors, weights and attributes, and the conditions that it may require.

While the left side is read, a tensor is a pattern; at a match it is a node of a fragment, in a proof a term with symbolic sizes.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from egraph.errors import RuleError
from egraph.rewrite.refusals import Mismatch, WrongAttribute, WrongNumber
from egraph.tensor import Attributes as AttributeTuple
from egraph.tensor import Node, TensorType
from egraph.tensor import attributes as make_attributes
from egraph.tensor.ops import apply

Steps: TypeAlias = Generator["Tensor", None, None]


def require(condition: bool, reason: str) -> None:
    """Refuse the match with ``reason`` unless ``condition`` holds."""
    if not condition:
        raise Mismatch(reason)


def differs(value: Any, expected: Any) -> bool:
    """Return whether a number is not the expected one, to the precision of float32."""
    for first, second in ((value, expected), (expected, value)):
        if hasattr(first, "differs_from"):  # a number that is known only by name
            return bool(first.differs_from(second))
    if is_float32(expected):
        return bool(value != expected)
    return not abs(value - expected) <= 1e-6 * abs(expected)


def is_float32(number: float) -> bool:
    """Return whether float32 holds a number; such numbers are compared exactly, others to the precision of float32."""
    if not math.isfinite(number):
        return True
    try:
        return bool(struct.unpack("f", struct.pack("f", number))[0] == float(number))
    except OverflowError:
        return False


def require_number(weight: Weight, expected: float) -> None:
    """Refuse the match unless every element of ``weight`` is ``expected`` (to the precision of float32)."""
    if weight.number is None or differs(weight.number, expected):
        actual = "other values" if weight.number is None else str(weight.number)
        raise WrongNumber(f"{weight.name} must be {expected} everywhere, got {actual}", weight.name, expected)


def require_attribute(bundle: Attributes, attribute: str, expected: float) -> None:
    """Refuse the match unless an attribute is ``expected`` (to the precision of float32)."""
    value = getattr(bundle, attribute)
    if differs(value, expected):
        raise WrongAttribute(f"{attribute} must be {expected}, got {value}", bundle.name, attribute, expected)


@dataclass(frozen=True, slots=True)
class Variable:
    """A pattern variable. A ``constant`` variable matches only values known at compile time, one with a ``dtype`` only values of that type.

    If ``dtype`` is None, the variable matches numbers, or whatever the operator that reads it takes."""

    name: str
    constant: bool
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Pattern:
    """An operator over patterns; ``attributes`` is a fixed tuple or the name of an attributes variable."""

    op: str
    attributes: AttributeTuple | str
    operands: tuple[Pattern | Variable, ...]
    _hash: int = field(init=False, repr=False, compare=False)
    """The hash, computed once because every random draw looks up patterns in memos."""

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            value = hash((self.op, self.attributes, self.operands))
            object.__setattr__(self, "_hash", value)
            return value

    def __reduce__(self) -> tuple[type[Pattern], tuple[object, ...]]:
        return Pattern, (self.op, self.attributes, self.operands)  # a hash differs between processes

    def names(self) -> set[str]:
        """Return the names of its variables, including attributes variables."""
        variables = {self.attributes} if isinstance(self.attributes, str) else set()
        for operand in self.operands:
            variables |= operand.names() if isinstance(operand, Pattern) else {operand.name}
        return variables


class Attributes:
    """All attributes of one matched operator: opaque in a pattern, readable by name (``a.strides``) when bound."""

    def __init__(self, name: str, values: AttributeTuple | None) -> None:
        self.name, self.values = name, values

    def __getattr__(self, key: str) -> Any:
        if self.values is None:
            raise RuleError(f"attribute {key!r} of {self.name!r} is used on the left side of a rule; yield the left side first")
        for name, value in self.values:
            if name == key:
                return value
        raise AttributeError(key)

    def but(self, **changes: Any) -> AttributeTuple:
        """Return the attributes with some replaced: ``conv(x, w, a.but(group=1))``."""
        if self.values is None:
            raise RuleError(f"attributes of {self.name!r} are changed on the left side of a rule; yield the left side first")
        return make_attributes(**{**dict(self.values), **changes})


class BoundType:
    """The type of a bound term that is not a node; it has all that rules read of a ``TensorType``."""


class Bound(ABC):
    """A bound term that is not a node: a proof binds variables to terms with symbolic sizes."""

    @property
    @abstractmethod
    def type(self) -> Any:
        """Return the type, with everything that rules read of a ``TensorType``."""

    @abstractmethod
    def applied(self, op: str, operands: Sequence[Bound], attributes: AttributeTuple) -> Bound:
        """Return an operator over terms of this kind."""


class Tensor:
    """A tensor in a rule: a pattern while unbound, a fragment node with a type while bound."""

    __hash__ = object.__hash__

    def __class_getitem__(cls, dtype: object) -> type[Tensor]:
        """Return the class: ``Tensor[bool]`` and ``Tensor[int64]`` are read from a rule's text."""
        return cls

    def __init__(self, term: Pattern | Variable | Node | Bound) -> None:
        self.term = term

    @property
    def node(self) -> Node:
        assert isinstance(self.term, Node)
        return self.term

    @property
    def type(self) -> TensorType:
        if isinstance(self.term, Pattern | Variable):
            raise RuleError("shapes are used on the left side of a rule; yield the left side first, then look at shapes")
        return cast(TensorType, self.term.type)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.sizes

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __add__(self, other: Tensor) -> Tensor:
        return operation("Add", self, other)

    def __sub__(self, other: Tensor) -> Tensor:
        return operation("Sub", self, other)

    def __mul__(self, other: Tensor) -> Tensor:
        return operation("Mul", self, other)

    def __truediv__(self, other: Tensor) -> Tensor:
        return operation("Div", self, other)

    def __neg__(self) -> Tensor:
        return operation("Neg", self)

    def __matmul__(self, other: Tensor) -> Tensor:
        return operation("MatMul", self, other)

    def reshape(self, *shape: int) -> Tensor:
        return operation("Reshape", self, shape=tuple(shape))

    def transpose(self, *perm: int) -> Tensor:
        return operation("Transpose", self, perm=tuple(perm))

    def __eq__(self, other: object) -> Equation:  # type: ignore[override]  # rules read as equations
        return Equation(self, _tensor(other, "an equation"))


class Weight(Tensor):
    """A tensor whose value is known at compile time; ``number`` is the one value of all its elements, if there is one."""

    def __init__(self, term: Pattern | Variable | Node | Bound, name: str = "", number: float | None = None) -> None:
        super().__init__(term)
        self.name, self.number = name, number


@dataclass(frozen=True, eq=False)
class Equation:
    """left == right, for all values of the variables."""

    left: Tensor
    right: Tensor


def _tensor(value: object, where: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    fix = "a number is a Weight, of which require_number(w, 2.0) says what it must be"
    raise RuleError(f"{where} takes tensors, got {value!r}", fix=fix)


def operation(op: str, *operands: Tensor, by: Attributes | AttributeTuple | None = None, **values: Any) -> Tensor:
    """Apply the core operator ``op``; attributes come from a variable (``by``) or as keywords, never both."""
    terms = [_tensor(operand, op).term for operand in operands]
    attributes = (by.values if isinstance(by, Attributes) else by) or make_attributes(**values)
    nodes = [t for t in terms if isinstance(t, Node)]
    bound = [t for t in terms if not isinstance(t, Node | Pattern | Variable)]  # isinstance of an abstract class is slow
    if len(nodes) == len(terms):
        return Tensor(apply(op, *nodes, attributes=attributes))
    if len(bound) == len(terms):
        return Tensor(bound[0].applied(op, bound, attributes))
    if nodes or bound:
        raise RuleError(f"{op}: left and right side variables are mixed")
    fixed = by.name if isinstance(by, Attributes) else attributes
    return Tensor(Pattern(op, fixed, tuple(t for t in terms if isinstance(t, Pattern | Variable))))
