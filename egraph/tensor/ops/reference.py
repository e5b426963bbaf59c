"""The reference interpreter: what a graph or fragment computes, by the operators' meanings alone.

Slow, exact, and independent of every kernel. float64, or the prime field for exact tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from egraph.errors import EinsatError
from egraph.tensor import LEAVES, Attributes, Node, TensorType, walk
from egraph.tensor.expr.compose import Placed, identity, inline
from egraph.tensor.expr.evaluate import Field
from egraph.tensor.expr.evaluate import evaluate as evaluate_scope
from egraph.tensor.expr.functions import PRIME
from egraph.tensor.expr.scope import Scope, Tensor, number
from egraph.tensor.ops import OPS
from egraph.tensor.ops.scopes import pointwise


def meaning(node: Node) -> Scope:
    """Return what a node computes from its operands, which are named '0', '1', ..."""
    return _meaning(node.op, tuple(operand.type for operand in node.inputs), node.attributes)


def _meaning(op: str, types: tuple[TensorType, ...], attributes: Attributes) -> Scope:
    operands = [Tensor(str(i), each.sizes, each.dtype) for i, each in enumerate(types)]
    return OPS[op].meaning(operands, dict(attributes))


@lru_cache(maxsize=1 << 10)
def _cached_meaning(op: str, types: tuple[TensorType, ...], attributes: Attributes, written: str) -> Scope:
    """Return a meaning; ``written`` distinguishes 1, 1.0 and True, and 0.0 and -0.0."""
    return _meaning(op, types, attributes)


def fragment_expression(root: Node, numbers: Mapping[int, float] = MappingProxyType({})) -> Scope:
    """Return a fragment as one scope over its leaves; placeholder i is the tensor named str(i), or ``numbers[i]`` everywhere."""
    scopes: dict[Node, Scope | Tensor] = {}
    placed = Placed()
    for node in walk((root,)):
        if node.op != "Placeholder":
            scopes[node] = inline(meaning(node), {str(i): scopes[operand] for i, operand in enumerate(node.inputs)}, placed)
        elif node.integer("index") in numbers:
            scopes[node] = _filled(node.type.sizes, numbers[node.integer("index")])
        else:
            scopes[node] = Tensor(str(node.integer("index")), node.type.sizes, node.type.dtype)
    result = scopes[root]
    return identity(result) if isinstance(result, Tensor) else result


def _filled(shape: Sequence[int], value: float) -> Scope:
    return pointwise("i", shape, lambda _: number(value))


class OutOfTime(EinsatError):
    """An evaluation was stopped between two operators."""


def evaluate(
    roots: Iterable[Node], leaves: Mapping[Node, np.ndarray], field: Field = "float64", goes_on: Callable[[], bool] = lambda: True
) -> list[np.ndarray]:
    """Return the values of ``roots`` given its leaves' (Input, Constant, Placeholder) values.

    float64: leaves of any real type; prime: integer leaves, taken modulo p. Raises EinsatError at opaque nodes, and OutOfTime if
    ``goes_on``, called before each operator, returns False.
    """
    roots = tuple(roots)
    values: dict[Node, np.ndarray] = {}
    for node in walk(roots):
        if not goes_on():
            raise OutOfTime("there is no time for an operator")
        if node in leaves:
            values[node] = _into(leaves[node], field)
        elif node.op in LEAVES:
            raise EinsatError(f"no value was given for {node.op} {dict(node.attributes)}")
        elif node.op not in OPS:
            raise EinsatError(f"{node.op} has no meaning to evaluate", fix="evaluate opaque nodes with onnxruntime")
        elif field == "float64" and (step_by_step := OPS[node.op].evaluate) is not None:
            values[node] = step_by_step([values[operand] for operand in node.inputs], dict(node.attributes))
        else:
            operands = {str(i): values[operand] for i, operand in enumerate(node.inputs)}
            types = tuple(operand.type for operand in node.inputs)
            values[node] = evaluate_scope(_cached_meaning(node.op, types, node.attributes, repr(node.attributes)), operands, field)
    return [values[root] for root in roots]


def _into(value: np.ndarray, field: Field) -> np.ndarray:
    if field == "float64":
        return np.asarray(value, np.float64)
    return np.asarray(value).astype(np.int64) % PRIME
