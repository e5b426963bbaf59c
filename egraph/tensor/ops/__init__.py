"""The operator table: every fact of every core operator, and typed application of operators to nodes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from egraph.errors import TypeMismatch
from egraph.tensor import Attributes, AttributeValue, Node, TensorType, make
from egraph.tensor.expr.index import simplify
from egraph.tensor.ops.attributes import check_attributes
from egraph.tensor.ops.blocks import BLOCKS
from egraph.tensor.ops.contraction import CONTRACTION
from egraph.tensor.ops.convolution import CONVOLUTION
from egraph.tensor.ops.elementwise import ELEMENTWISE, PREDICATES
from egraph.tensor.ops.expression import EXPRESSION
from egraph.tensor.ops.lookup import LOOKUP
from egraph.tensor.ops.movement import MOVEMENT
from egraph.tensor.ops.normalization import NORMALIZATION
from egraph.tensor.ops.padding import PADDING
from egraph.tensor.ops.pooling import POOLING
from egraph.tensor.ops.quantisation import QUANTISATION
from egraph.tensor.ops.recurrence import RECURRENCE
from egraph.tensor.ops.reduction import REDUCTION
from egraph.tensor.ops.reshape import RESHAPE
from egraph.tensor.ops.resize import RESIZE
from egraph.tensor.ops.spec import OpSpec

__all__ = ["OPS", "OpSpec", "apply", "infer"]

OPS: Mapping[str, OpSpec] = MappingProxyType(
    {
        spec.name: spec
        for family in (
            *(ELEMENTWISE, PREDICATES, RESHAPE, MOVEMENT, LOOKUP, PADDING, RESIZE),
            *(QUANTISATION, BLOCKS, CONTRACTION, CONVOLUTION, REDUCTION, POOLING, NORMALIZATION, RECURRENCE, EXPRESSION),
        )
        for spec in family
    }
)
"""Every core operator by name."""


def apply(op: str, *nodes: Node, attributes: Attributes | None = None, **values: AttributeValue) -> Node:
    """Return the operator applied to nodes, typed by its specification.

    Attributes are given whole, as a canonical tuple or as keywords; raises ``TypeMismatch`` when anything does not fit.
    """
    if attributes is None:
        attributes = tuple(sorted(values.items()))
    elif values:
        raise TypeMismatch(f"{op}: attributes are given as a tuple or as keywords, not both", where=op)
    return make(op, nodes, attributes, infer(op, tuple(node.type for node in nodes), attributes))


def infer(op: str, types: tuple[TensorType, ...], attributes: Attributes) -> TensorType:
    """Return the result type of an operator; raises ``TypeMismatch`` with the reason when it refuses."""
    try:
        inferred = _inferred(op, types, attributes, repr(attributes))  # repr: 1, 1.0 and True are different attributes
    except TypeError as error:
        raise TypeMismatch(f"{op}: attribute values must be tuples and scalars: {error}", where=f"{op} {attributes!r}") from error
    if isinstance(inferred, tuple):
        what, where, fix = inferred
        raise TypeMismatch(what, where=where, fix=fix)
    return inferred


@lru_cache(maxsize=1 << 16)
def _inferred(op: str, types: tuple[TensorType, ...], attributes: Attributes, _text: str) -> TensorType | tuple[str, str, str]:
    """Return a result type, or the parts of the refusal, cached because random draws are often refused for the same reason."""
    try:
        return _infer(op, types, attributes)
    except TypeMismatch as error:
        where = f"{op}{{{', '.join(f'{name}={value!r}' for name, value in attributes)}}}({', '.join(map(str, types))})"
        return f"{op}: {error.what}", where, error.fix


def _infer(op: str, types: tuple[TensorType, ...], attributes: Attributes) -> TensorType:
    spec = OPS.get(op)
    if spec is None:
        raise TypeMismatch("not a core operator")
    if (len(types) != spec.arity) if spec.arity is not None else not types:
        raise TypeMismatch(f"takes {'at least one' if spec.arity is None else spec.arity} operand(s), got {len(types)}")
    values = dict(attributes)
    check_attributes(spec.attributes, values)
    for position, type_ in enumerate(types):
        if not type_.is_static:
            fix = "give the model's input sizes: --shape name:1,3,224,224"
            raise TypeMismatch(f"operand {position} has unknown sizes ({type_})", fix=fix)
        if 0 in type_.sizes:
            raise TypeMismatch(f"operand {position} is empty ({type_})")
    if types[0].dtype not in spec.dtypes:
        raise TypeMismatch(f"operand 0 must be one of {', '.join(sorted(spec.dtypes))}, got {types[0].dtype}")
    dtype = spec.element_type([type_.dtype for type_ in types], values)
    sizes = []
    for size in spec.shape([type_.sizes for type_ in types], values):
        number = simplify(size)
        if not isinstance(number, int) or number < 1:
            raise TypeMismatch(f"the result would have a size {number}; sizes must be at least 1")
        sizes.append(number)
    return TensorType(dtype, tuple(sizes))
