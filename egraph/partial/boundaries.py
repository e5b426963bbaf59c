"""Boundary rules with their conditions dropped: sums that leave out terms which are not zero everywhere, borders of zeros.

A window's tap lies in the padding at most positions where its distance is large beside the image. Without it the sum is equal there.
A window that reads a border of mirrored elements reads none of them at most positions: zeros do as well there, and need no tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations
from math import prod

from egraph.derive.estimating import estimate
from egraph.derive.matching.match import match
from egraph.derive.matching.views import moved_elements
from egraph.derive.rules.bodies import pulled, replaced
from egraph.errors import TypeMismatch
from egraph.partial.mutants import LARGEST_SHARE
from egraph.tensor import AttributeValue, Node, make, placeholder, rewrite, walk
from egraph.tensor.expr.conditions import truth
from egraph.tensor.expr.index import Iterator as IndexIterator
from egraph.tensor.expr.index import atoms, index, length, substitute
from egraph.tensor.expr.scope import Compare, Scope
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import meaning
from egraph.tensor.ops.window import Layout

MOST_TERMS = 16
"""Values of an iterator that sums of some of them are tried for; windows have fewer."""


def tightened(node: Node) -> Iterator[tuple[Node, str]]:
    """sum(x < n) [g ? body : 0] -> sum(l <= x < h) [g ? body : 0], though g holds for some x outside of [l, h), at some positions

    Yield the operator's programs by this, over the same operands: the cheapest of each range that leaves out terms of some positions.
    """
    scope = meaning(node)
    conditions, _ = pulled(scope.body, scope.reduction)
    for iterator in scope.summation:
        speaking = [each for each in conditions if iterator in atoms(each.left) | atoms(each.right)]
        count = length(iterator)
        if not speaking or not 1 < count <= MOST_TERMS:
            continue
        shares = [_share(scope, speaking, iterator, value) for value in range(count)]
        for low, high in combinations(range(count + 1), 2):
            left_out = [*shares[:low], *shares[high:]]
            if 0 < max(left_out, default=0.0) <= LARGEST_SHARE:
                program = _summed(node, scope, iterator, low, high)
                if program is not None:
                    yield program, f"{iterator.name} of {count} from {low} to {high - 1}"


def unpadded(node: Node) -> Iterator[tuple[Node, str]]:
    """window(pad(x, mode)) -> window(x), with as many zeros of its own around x, though the mode pads with something else

    Yield the operator's program by this, where its data is padded along the axes of its window alone.
    """
    data = node.inputs[0]
    if node.op not in ("Conv", "AveragePool") or data.op != "Pad":
        return
    layout = Layout(node.string("layout"), node.type.rank - 2)
    before, after = data.integers("before"), data.integers("after")
    inside = [*layout.space(before), *layout.space(after)]
    is_zero = data.string("mode") == "constant" and data.attribute("value") == 0.0
    if is_zero or sum(inside) != sum(before) + sum(after):
        return
    pads = tuple(own + more for own, more in zip(node.integers("pads"), inside, strict=True))
    values: dict[str, AttributeValue] = {**dict(node.attributes), "pads": pads}
    if node.op == "AveragePool":
        values["count_include_pad"] = 1
    attributes = tuple(sorted(values.items()))
    with suppress(TypeMismatch):  # a pool's window holds more than padding
        yield apply(node.op, data.inputs[0], *node.inputs[1:], attributes=attributes), f"zeros for {data.string('mode')} padding"


def _share(scope: Scope, conditions: Sequence[Compare], iterator: IndexIterator, value: int) -> float:
    """Return at which share of the output's positions conditions may hold where an iterator has a value."""
    fixed = [_at(each, iterator, value) for each in conditions]
    shares = []
    for axis in scope.traversal:
        of_axis = [each for each in fixed if (atoms(each.left) | atoms(each.right)) == {axis}]
        holding = sum(all(truth(_at(each, axis, place)) is not False for each in of_axis) for place in range(length(axis)))
        shares.append(holding / length(axis))
    return prod(shares)


def _at(condition: Compare, iterator: IndexIterator, value: int) -> Compare:
    left, right = (substitute(side, {iterator: index(value)}) for side in (condition.left, condition.right))
    return Compare(left, condition.operator, right)


def _summed(node: Node, scope: Scope, iterator: IndexIterator, low: int, high: int) -> Node | None:
    """Return the cheapest program of an operator that sums over some values of an iterator; None where none is an operator."""
    fewer = IndexIterator(iterator.name, 0, high - low)
    summation = tuple(fewer if each == iterator else each for each in scope.summation)
    body = replaced(scope.body, {iterator: index(fewer) + low})
    leaves = [placeholder(k, each.type, constant=bool(each.attribute("constant"))) for k, each in enumerate(node.inputs)]
    matches = match(Scope(scope.traversal, summation, scope.reduction, body), leaves)
    programs = [program for program in matches if program.op != "Expression"]
    if not programs:
        return None
    alike = {each: any((inner.op, inner.type.rank) == (node.op, node.type.rank) for inner in walk((each,))) for each in programs}
    cheapest = min(programs, key=lambda each: (moved_elements(each), not alike[each], estimate(each), each.digest))
    names = dict(zip(leaves, node.inputs, strict=True))
    return rewrite((cheapest,), lambda old, new: names.get(old) or make(old.op, new, old.attributes, old.type))[cheapest]
