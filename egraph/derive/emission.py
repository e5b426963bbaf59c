"""Programs of trees of scopes: contractions become operators, views become views, memory-bound scopes become Expressions.

Transposes are folded into the Expressions beside them, which read and write axes in any order at no cost. Chains of reshapes become one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from egraph.derive.matching.convolutions import products_as_convolutions
from egraph.derive.matching.form import form
from egraph.derive.matching.match import MATCHERS, Matcher, means, moved_elements, over, proposed
from egraph.derive.matching.movements import movements
from egraph.derive.matching.views import reshaped
from egraph.derive.trees import BALANCE, contraction_of, intensity
from egraph.errors import EinsatError
from egraph.tensor import Node, format_fragment, make, placeholder, rewrite, walk
from egraph.tensor.expr.bodies import reads_of, with_reads
from egraph.tensor.expr.scope import Read, Scope, Tensor
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.reference import meaning

DENSE = tuple((matcher, keep_strides) for matcher, keep_strides in MATCHERS if matcher is not products_as_convolutions)


def programs(scope: Scope, leaves: Mapping[str, Node], operator: str, *, free: bool = False) -> Node | None:
    """Return a program for a tree, its contractions as ``operator``; None if one is no such operator and is bound by arithmetic.

    With ``free``, a contraction may be an Expression even if arithmetic bounds it: for trees that came from an Expression.
    """
    memo: dict[int, Node | None] = {}
    program = _program(scope, leaves, operator, free, memo)
    return None if program is None else folded(program)


def _program(scope: Scope, leaves: Mapping[str, Node], operator: str, free: bool, memo: dict[int, Node | None]) -> Node | None:
    if id(scope) not in memo:
        memo[id(scope)] = _made(scope, leaves, operator, free, memo)
    return memo[id(scope)]


def _made(scope: Scope, leaves: Mapping[str, Node], operator: str, free: bool, memo: dict[int, Node | None]) -> Node | None:
    nodes: list[Node] = []
    names: dict[object, Tensor] = {}
    for read in reads_of(scope.body):
        key: object = read.source.name if isinstance(read.source, Tensor) else id(read.source)
        if key in names:
            continue
        node = leaves[read.source.name] if isinstance(read.source, Tensor) else _program(read.source, leaves, operator, free, memo)
        if node is None:
            return None
        if node not in nodes:
            nodes.append(node)
        names[key] = Tensor(str(nodes.index(node)), node.type.sizes, node.type.dtype)

    def named(read: Read) -> Read:
        return Read(names[read.source.name if isinstance(read.source, Tensor) else id(read.source)], read.indices)

    flat = scope.with_body(with_reads(scope.body, named))
    if contraction_of(scope) is not None:
        program = matched(flat, nodes, (operator,))
        if program is not None:
            return program
        if not free and intensity(flat) > BALANCE:
            return None
    return _view(flat, nodes) or _expression(flat, nodes)


def matched(scope: Scope, nodes: Sequence[Node], operators: Sequence[str], matchers: Sequence[tuple[Matcher, bool]] = DENSE) -> Node | None:
    """Return the match of a scope as a program with one of these operators, with the fewest windowless axes and movements."""
    leaves = [placeholder(position, node.type) for position, node in enumerate(nodes)]
    normal = form(scope)
    ranked: dict[Node, tuple[object, ...]] = {}
    for program, _ in proposed(scope, normal, leaves, matchers):
        if any(inner.op in operators for inner in walk((program,))):
            text = format_fragment(program)
            ranked[program] = (axes_without_window(program), moved_elements(program), len(text), text)
    for program in sorted(ranked, key=ranked.__getitem__):
        if means(program, normal):
            return over(program, leaves, nodes)
    return None


def axes_without_window(program: Node) -> int:
    """Return the number of axes of convolutions whose window has one position: these could be axes of the batch."""
    weights = [node.inputs[1] for node in walk((program,)) if node.op in ("Conv", "ConvTranspose")]
    return sum(size == 1 for weight in weights for size in weight.type.sizes[2:])


def _view(scope: Scope, nodes: Sequence[Node]) -> Node | None:
    """Return a scope as Slice, Pad, Reshape and Transpose if it only moves elements of one tensor, else None."""
    if scope.summation or len(nodes) != 1:
        return None
    return matched(scope, nodes, ("Slice", "Pad", "Reshape", "Transpose", "Placeholder"), ((movements, False),))


def _expression(scope: Scope, nodes: Sequence[Node]) -> Node | None:
    try:
        return apply("Expression", *nodes, text=text_of(scope))
    except EinsatError:
        return None


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
