"""The specification of an operator: one ``OpSpec`` holds every fact about it.

Shape rules and meanings are written once over sizes that may be plain integers or symbolic ``Index`` values,
so that the same code types a model, evaluates a reference, generates a kernel and states a proof.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from egraph.tensor.expr.index import Size
from egraph.tensor.expr.scope import Scope, Tensor

Shape: TypeAlias = tuple[Size, ...]
Values: TypeAlias = Mapping[str, Any]
"""An operator's attributes by name."""

Category: TypeAlias = Literal["elementwise", "view", "movement", "contraction", "reduction", "normalization", "recurrence", "unpacking"]
"""elementwise: output[i] depends on the operands' (broadcast) element i alone · view: a reshape of the same bytes ·
movement: elements are only moved, dropped, repeated or padded · contraction: products summed ·
reduction, normalization: windows or axes are reduced · recurrence: a fold along an axis ·
unpacking: numbers are extracted from bytes that hold several."""


@dataclass(frozen=True)
class OpSpec:
    """All facts of one core operator.

    ``shape(shapes, attributes)`` returns the output shape or raises ``TypeMismatch`` with the reason.
    ``meaning(operands, attributes)`` returns the output as a scope over operand tensors named '0', '1', ...
    ``dtype`` maps operand dtypes to the result's. ``flops(shapes, attributes)`` counts multiplications and additions.
    ``sample(random)`` draws (operand shapes, attributes) for tests: sizes 1, primes, odd and even, all attributes.
    """

    name: str
    arity: int | None
    """Number of operands; None for variadic (Concat, Sum, Einsum-like)."""
    category: Category
    shape: Callable[[Sequence[Shape], Values], Shape]
    meaning: Callable[[Sequence[Tensor], Values], Scope]
    sample: Callable[[Any], tuple[tuple[tuple[int, ...], ...], dict[str, Any]]]
    attributes: tuple[str, ...] = ()
    dtype: Callable[[Sequence[str]], str] = lambda dtypes: dtypes[0]
    """The result's element type without an attribute ``to``; raises ``TypeMismatch`` if the operands' types do not fit together."""
    dtypes: frozenset[str] = frozenset({"float32", "float64"})
    """Element types of operand 0 that the core operator accepts; a node of another type is imported opaque."""
    admits: Callable[[Sequence[str], Values], None] = lambda dtypes, attributes: None
    """Raises ``TypeMismatch`` if the given attributes do not fit the operands' element types."""
    sample_dtypes: tuple[str, ...] = ()
    """Element types of a sample's operands if they are not all float32 (a condition, indices)."""
    flops: Callable[[Sequence[tuple[int, ...]], Values], int] | None = None
    evaluate: Callable[[Sequence[Any], Values], Any] | None = None
    """Computes the result of float64 operands step by step, if the meaning of many steps is too large an expression."""
    commutative: bool = False
    onnx: tuple[str, ...] = ()
    """ONNX operators (default domain) that import one-to-one onto this one; compositions are in ``onnx_import``."""
    notes: str = ""

    def element_type(self, dtypes: Sequence[str], attributes: Values) -> str:
        """Return the result's element type: the attribute ``to`` if there is one, else the type that follows from the operands."""
        dtype = self.dtype(dtypes)
        self.admits(dtypes, attributes)
        return str(attributes.get("to", dtype))
