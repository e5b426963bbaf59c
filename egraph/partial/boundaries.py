"""Boundary rules with their conditions dropped: sums without some terms that are not zero everywhere, and borders of zeros.

If a tap's distance is large relative to the image, the tap lies in the padding at most positions; there, the sum without it is equal.
If a border mirrors elements, a window reads none of the border at most positions; there, zeros do as well and need no tensor.
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
"""The number of values of an iterator up to which sums over some of them are tried; windows have fewer values."""


def tightened(node: Node) -> Iterator[tuple[Node, str]]:
    """sum(x < n) [g ? body : 0] -> sum(l <= x < h) [g ? body : 0], equal except where g holds for some x outside of [l, h)

    Yield programs of the operator by this rewrite, over the same operands. For each range that drops terms of some positions, the cheapest
    program is yielded.
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
    """window(pad(x, mode)) -> window(x), with as many zeros of its own around x, although the mode does not pad with zeros

    Yield the operator's program by this rewrite if its data is padded only along the axes of its window.
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
    with suppress(TypeMismatch):  # the window of a pool must not hold padding alone
        yield apply(node.op, data.inputs[0], *node.inputs[1:], attributes=attributes), f"zeros for {data.string('mode')} padding"


def _share(scope: Scope, conditions: Sequence[Compare], iterator: IndexIterator, value: int) -> float:
    """Return the share of the output's positions at which conditions may hold for one value of an iterator."""
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
    """Return the cheapest program of an operator that sums over some values of an iterator; None if no operator does."""
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
