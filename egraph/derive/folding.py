"""Fold transposes into the Expressions beside them, which read and write in any order of axes for nothing, and reshapes into one."""

from __future__ import annotations

from egraph.derive.matching.views import reshaped
from egraph.errors import EinsatError
from egraph.tensor import Node, make, rewrite
from egraph.tensor.expr.bodies import with_reads
from egraph.tensor.expr.scope import Read, Scope, Tensor
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.reference import meaning


def folded(program: Node) -> Node:
    """Return an equal program without transposes that an Expression reads, or that read one, and without reshapes of reshapes."""

    def change(old: Node, operands: tuple[Node, ...]) -> Node:
        node = make(old.op, operands, old.attributes, old.type)
        try:
            return _folded(node)
        except EinsatError:
            return node

    return rewrite((program,), change)[program]


def _folded(node: Node) -> Node:
    if node.op == "Reshape":
        return reshaped(node.inputs[0], node.type.sizes)
    if node.op == "Transpose" and node.inputs[0].op == "Expression":
        (inner,) = node.inputs
        scope, perm = meaning(inner), node.integers("perm")
        traversal = tuple(scope.traversal[axis] for axis in perm)
        return apply("Expression", *inner.inputs, text=text_of(Scope(traversal, scope.summation, scope.reduction, scope.body)))
    if node.op == "Expression" and any(operand.op == "Transpose" for operand in node.inputs):
        below = [operand.inputs[0] if operand.op == "Transpose" else operand for operand in node.inputs]
        operands = list(dict.fromkeys(below))
        tensors = [Tensor(str(operands.index(b)), b.type.sizes, b.type.dtype) for b in below]
        scope = meaning(node)
        perms = [operand.integers("perm") if operand.op == "Transpose" else tuple(range(operand.type.rank)) for operand in node.inputs]

        def through(read: Read) -> Read:
            """transposed[i] = below[j] with j[perm[a]] = i[a]"""
            assert isinstance(read.source, Tensor), "an Expression reads its operands alone"
            position = int(read.source.name)
            return Read(tensors[position], tuple(read.indices[perms[position].index(axis)] for axis in range(len(perms[position]))))

        body = with_reads(scope.body, through)
        return apply("Expression", *operands, text=text_of(scope.with_body(body)))
    return node
