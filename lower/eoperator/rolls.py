"""Read a cyclic shift (a roll) as one: y = concat(x[k:], x[:k])  =>  y[a] = x[(a + k) mod n].

Exporters write the shifted windows of vision transformers as such slices, along two axes. As slices they are guards, and the generator
splits loops at guards: a kernel that normalises rows and shifts them had all of its code in several loops, and took seconds to compile.
"""

from __future__ import annotations

from egraph.tensor import PLAIN, Node, make, rewrite, walk
from egraph.tensor.expr.scope import Read, Scope, Tensor
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.scopes import grid


def with_rolls(fragment: Node) -> Node:
    """Return an equal fragment in which each cyclic shift is one read.

    A shift along the last axis stays: its slices are read in vectors, and a remainder is not.
    """

    if all(node.op != "Concat" for node in walk((fragment,))):
        return fragment

    def change(old: Node, operands: tuple[Node, ...]) -> Node:
        node = make(old.op, operands, old.attributes, old.type)
        return _roll(node) or node

    return rewrite((fragment,), change)[fragment]


def _roll(node: Node) -> Node | None:
    """Return a concatenation of two slices of float32 as a roll; None where it is none, or along the last axis."""
    if node.op != "Concat" or [operand.op for operand in node.inputs] != ["Slice", "Slice"]:
        return None
    first, second = node.inputs
    (x,), axis, sizes = first.inputs, node.integer("axis"), node.type.sizes
    whole, origin = list(x.type.sizes), [0] * len(sizes)
    shift = first.integers("starts")[axis]
    if x.type.dtype != PLAIN or second.inputs != (x,) or axis == len(sizes) - 1:
        return None
    ends, starts = [*whole], [*origin]
    ends[axis] = starts[axis] = shift
    places = [(list(part.integers("starts")), list(part.integers("ends")), set(part.integers("steps"))) for part in (first, second)]
    if places != [(starts, whole, {1}), (origin, ends, {1})]:
        return None
    iterators, at = grid("i", sizes)
    at = (*at[:axis], (at[axis] + shift) % sizes[axis], *at[axis + 1 :])
    return apply("Expression", x, text=text_of(Scope.pointwise(iterators, Read(Tensor("0", sizes, x.type.dtype), at))))
