"""Fragments in one line: placeholders, the usual operators over them, and any scope as an Expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from egraph.tensor import Node, TensorType, placeholder
from egraph.tensor.expr.index import Index
from egraph.tensor.expr.scope import Reduction, Scalar, Scope, Tensor
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.scopes import grid

Pair = tuple[Node, Node]
"""An operator and a program over the same placeholders that computes it."""
Indices = tuple[Index, ...]
Body = Callable[[Sequence[Tensor], Indices, Indices], Scalar]


def leaf(position: int, *shape: int, dtype: str = "float32", constant: bool = False) -> Node:
    return placeholder(position, TensorType(dtype, shape), constant=constant)


def expression(operands: Sequence[Node], shape: Sequence[int], body: Body, sums: Sequence[int] = ()) -> Node:
    """{shape} sum(sums) body(operands, outer indices, summed indices)"""
    outer, out = grid("i", shape)
    inner, summed = grid("k", sums)
    tensors = [Tensor(str(k), node.type.sizes) for k, node in enumerate(operands)]
    return apply("Expression", *operands, text=text_of(Scope(outer, inner, Reduction.SUM, body(tensors, out, summed))))


def matmul(a: Node, b: Node) -> Node:
    return apply("MatMul", a, b)


def reshape(x: Node, *shape: int) -> Node:
    return apply("Reshape", x, shape=shape)


def transpose(x: Node, *perm: int) -> Node:
    return apply("Transpose", x, perm=perm)


def cut(x: Node, starts: Sequence[int], ends: Sequence[int]) -> Node:
    return apply("Slice", x, starts=tuple(starts), ends=tuple(ends), steps=(1,) * len(starts))


def concat(axis: int, *parts: Node) -> Node:
    return apply("Concat", *parts, axis=axis)


def conv(x: Node, w: Node, pads: Sequence[int], stride: int = 1, dilation: int = 1, layout: str = "NHWC", group: int = 1) -> Node:
    return apply(
        "Conv", x, w, strides=(stride,) * 2, pads=tuple(pads), dilations=(dilation,) * 2, group=group, layout=layout
    )


# --- fast convolution
