"""Fragments over symbolic types: the terms that a rule builds while it is proved, and their meanings as scopes.

Operators are typed by their own shape rules (``OpSpec.shape``) over symbolic sizes; their meanings are ``OpSpec.meaning``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from egraph.errors import TypeMismatch
from egraph.rewrite.refusals import Mismatch
from egraph.rewrite.terms import Bound, BoundType
from egraph.rule import Weight
from egraph.tensor import Attributes
from egraph.tensor.expr.compose import inline
from egraph.tensor.expr.index import Size, simplify
from egraph.tensor.expr.scope import Read, Scope, Tensor, number
from egraph.tensor.expr.scope import apply as call
from egraph.tensor.ops import OPS
from egraph.tensor.ops.attributes import BOUNDS
from egraph.tensor.ops.dtypes import FLOATS
from egraph.tensor.ops.scopes import pointwise, read_broadcast
from egraph.tensor.ops.sizes import at_least, broadcast, broadcasting_by, refuse
from verify.numbers import FINITE, KINDS_OF_NUMBERS, SPECIAL, SymbolicNumber, Unsettled, kind_of
from verify.paths import LeftOut, Path
from verify.symbolic import SymbolicInteger, index_of

ANY = "~any"
"""The name of an uninterpreted function."""
FLOAT = "float32"


class AnyOperator(str):
    """The name of an elementwise operator that stands for any function of the same arity; the language can only apply it."""


@dataclass(frozen=True)
class SymbolicType(BoundType):
    """Element type and shape, with the interface of a ``TensorType``."""

    dtype: str
    sizes: tuple[Any, ...]

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.sizes

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def elements(self) -> Any:
        return math.prod(self.sizes)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.sizes))}]"


SATURATING = frozenset({"Quantize", "Saturate"})
"""Operators that tell int8 and uint8 apart."""


class Workshop:
    """Builds the terms of one path; equal terms are the same object."""

    def __init__(self, path: Path, *, tells_bytes_apart: bool = True) -> None:
        self.path = path
        self.tells_bytes_apart = tells_bytes_apart
        """Whether the path holds for the types of its bytes alone, not for int8 in place of uint8 and the reverse."""
        self.looked = False
        """Whether the rule has looked at a type. If so, its terms may depend on sizes."""
        self.rounded = False
        """Whether a term contains a computed, and therefore rounded, number."""
        self._terms: dict[tuple[Any, ...], SymbolicTerm] = {}
        self._meanings: dict[int, Scope | Tensor] = {}
        self.numbers: dict[str, Any] = {}
        """For variables that are assumed to have one number in all elements, that number."""

    def saved(self) -> Any:
        """Return the argument of ``restore``."""
        return dict(self._terms), dict(self.numbers), self.looked, self.rounded

    def restore(self, saved: Any) -> None:
        terms, numbers, self.looked, self.rounded = saved
        self._terms, self.numbers, self._meanings = dict(terms), dict(numbers), {}

    def leaf(self, name: str, dtype: str, shape: tuple[Any, ...]) -> SymbolicTerm:
        """Return a variable's term."""
        return SymbolicTerm(self, "", (), (), dtype, shape, name)

    def apply(self, op: str, operands: Sequence[SymbolicTerm], attributes: Attributes) -> SymbolicTerm:
        """Return an operator over terms, typed by its specification; raises ``TypeMismatch``."""
        key = (op, type(op), tuple(map(id, operands)), tuple((name, _key(value)) for name, value in attributes))
        if key not in self._terms:
            self._terms[key] = self._typed(op, tuple(operands), attributes)
        return self._terms[key]

    def _typed(self, op: str, operands: tuple[SymbolicTerm, ...], attributes: Attributes) -> SymbolicTerm:
        spec = OPS.get(op)
        if spec is None:
            refuse(f"{op} is not a core operator")
        if (len(operands) != spec.arity) if spec.arity is not None else not operands:
            refuse(f"{op} takes {spec.arity} operand(s), got {len(operands)}")
        if sorted(name for name, _ in attributes) != sorted(spec.attributes):
            refuse(f"{op} has the attributes {', '.join(spec.attributes) or 'none'}, got {', '.join(name for name, _ in attributes)}")
        for name, value in attributes:
            if isinstance(value, float) and not math.isfinite(value) and (name not in BOUNDS or math.isnan(value)):
                raise Mismatch(f"{op} takes no {name} of {value}")
        if op in SATURATING and not self.tells_bytes_apart:
            raise self.path.leaving(f"{op} in a rule that was not seen to saturate")
        if operands[0].dtype not in spec.dtypes:
            refuse(f"{op}: operand 0 must be one of {', '.join(sorted(spec.dtypes))}, got {operands[0].dtype}")
        try:
            dtype = spec.element_type([operand.dtype for operand in operands], dict(attributes))
            shape = spec.shape([operand.shape for operand in operands], dict(attributes))
            sizes = tuple(at_least(simplify(size), 1, "sizes must be at least 1") for size in shape)
        except TypeMismatch as error:
            raise TypeMismatch(f"{op}: {error.what}") from error
        return SymbolicTerm(self, op, operands, attributes, dtype, sizes)

    def plain(self, value: Any) -> Any:
        """Return an attribute's value in the form for meanings: sizes as indices in solved form, numbers as scalars."""
        match value:
            case SymbolicInteger():
                return simplify(value.settled())
            case SymbolicNumber():
                self.rounded = self.rounded or value.roundings > 0
                return value.scalar()
            case Unsettled():
                return self.plain(value.settled())
            case tuple():
                return tuple(self.plain(entry) for entry in value)
        return value

    def sizes(self, term: SymbolicTerm) -> tuple[Size, ...]:
        """Return a term's shape in solved form."""
        return tuple(simplify(self.path.canonical(index_of(size))) for size in term.shape)

    def meaning(self, term: SymbolicTerm) -> Scope | Tensor:
        """Return the meaning of a term over its variables as named tensors."""
        value = self._meanings.get(id(term))
        if value is None:
            value = self._meanings[id(term)] = self._leaf_meaning(term) if not term.op else self._operator_meaning(term)
        return value

    def _leaf_meaning(self, term: SymbolicTerm) -> Scope | Tensor:
        sizes = self.sizes(term)
        if self.numbers.get(term.name) is None:
            return Tensor(term.name, sizes, term.dtype)
        value = number(self.plain(self.numbers[term.name]))
        return pointwise("i", sizes, lambda _: value)

    def _operator_meaning(self, term: SymbolicTerm) -> Scope:
        operands = [Tensor(str(position), self.sizes(operand), operand.dtype) for position, operand in enumerate(term.operands)]
        if isinstance(term.op, AnyOperator):
            return self._any_of_elements(term, operands)
        if not all(self._is_finite(term, value) for _, value in term.attributes):
            return self._any_function(term, operands)
        values = {name: self.plain(value) for name, value in term.attributes}
        with broadcasting_by(self._broadcast):
            scope = OPS[term.op].meaning(operands, values)
        return inline(scope, {str(position): self.meaning(operand) for position, operand in enumerate(term.operands)})

    def _is_finite(self, term: SymbolicTerm, value: Any) -> bool:
        """Return whether an attribute is no float, or a float whose kind is known or is chosen to be finite from here on.

        If a rule passes an attribute on unread, "infinite" is one choice. If it is the value of a border, each infinity is a choice.
        """
        if not isinstance(value, Unsettled) or value.is_settled:
            return True
        if term.op == "Pad":
            value.settled()
        elif not self.path.choose(f"{value.label} is finite", (True, False)):
            return False
        else:
            self.path.choices[kind_of(value.label)] = FINITE
        return True

    def _any_function(self, term: SymbolicTerm, operands: Sequence[Tensor]) -> Scope:
        """Return an uninterpreted function of one element; a proof about it holds for any attributes."""
        if len(operands) != 1 or OPS[term.op].category != "elementwise":
            raise LeftOut(f"{term.op} with an infinite attribute")
        name = f"~{term.op} {_key(tuple(value for _, value in term.attributes))}"
        scope = pointwise("i", operands[0].shape, lambda places: call(name, Read(operands[0], tuple(places))))
        return inline(scope, {"0": self.meaning(term.operands[0])})

    def _any_of_elements(self, term: SymbolicTerm, operands: Sequence[Tensor]) -> Scope:
        """Return an uninterpreted function of one element of each operand, the ones that broadcasting combines."""
        if term.dtype != FLOAT or any(operand.dtype != FLOAT for operand in operands):
            raise LeftOut(f"{term.op} of other types stands for itself alone")
        with broadcasting_by(self._broadcast):
            shape = broadcast([operand.shape for operand in operands])
            scope = pointwise("i", shape, lambda places: call(ANY, *(read_broadcast(operand, places) for operand in operands)))
        return inline(scope, {str(position): self.meaning(operand) for position, operand in enumerate(term.operands)})

    def _broadcast(self, left: Size, right: Size) -> Size | None:
        first, second = self.path.canonical(left), self.path.canonical(right)
        if first == second or second.constant == 1:
            return simplify(first)
        wide = second if first.constant == 1 else self.path.known_broadcast(first, second)
        return None if wide is None else simplify(wide)


class SymbolicTerm(Bound):
    """An operator applied to terms, or a variable; compared by identity."""

    def __init__(
        self, workshop: Workshop, op: str, operands: tuple[SymbolicTerm, ...], attributes: Attributes, dtype: str,
        shape: tuple[Any, ...], name: str = "",
    ) -> None:  # fmt: skip
        self.workshop, self.op, self.operands, self.attributes = workshop, op, operands, attributes
        self.dtype, self.shape, self.name = dtype, shape, name

    @property
    def type(self) -> SymbolicType:
        self.workshop.looked = True
        return SymbolicType(self.dtype, self.shape)

    def applied(self, op: str, operands: Sequence[Bound], attributes: Attributes) -> Bound:
        terms = [operand for operand in operands if isinstance(operand, SymbolicTerm)]
        if len(terms) < len(operands):  # an operand of another kind defines the application
            return next(operand for operand in operands if not isinstance(operand, SymbolicTerm)).applied(op, operands, attributes)
        return self.workshop.apply(op, terms, attributes)

    def __repr__(self) -> str:
        if not self.op:
            return self.name
        bundle = ",".join(f"{name}={value!r}" for name, value in self.attributes)
        return f"{self.op}{'{' + bundle + '}' if bundle else ''}({', '.join(map(repr, self.operands))})"


def operators(term: SymbolicTerm) -> set[str]:
    """Return the names of all operators of a term."""
    return {term.op} - {""} | {name for operand in term.operands for name in operators(operand)}


def _key(value: Any) -> Any:
    """Return a key of an attribute value whose comparison does not compare symbolic numbers."""
    if isinstance(value, tuple):
        return tuple(map(_key, value))
    match value:
        case SymbolicInteger():
            return id(value)
        case SymbolicNumber():
            return "number", str(value.key)
        case Unsettled():
            return "number", value.label
    return type(value), value


class KnownNumber(Weight):
    """A constant that may be one number. Whether it is one becomes a choice when the rule asks."""

    def __init__(self, term: SymbolicTerm, path: Path) -> None:
        self.term, self.name, self._path = term, term.name, path

    @property
    def number(self) -> Any:  # type: ignore[override]  # settled when the rule asks
        assert isinstance(self.term, SymbolicTerm)
        numbers = self.term.workshop.numbers
        if numbers.get(self.name) is None and self._path.choose(f"{self.name} is one number", (False, True)):
            kind = self._path.choose(kind_of(self.name), KINDS_OF_NUMBERS if self.term.dtype in FLOATS else (FINITE,))
            numbers[self.name] = SymbolicNumber(self._path, self._path.real(self.name)) if kind == FINITE else SPECIAL[kind]
        return numbers.get(self.name)
