"""Arrange operands and restore results: join, cut, repeat and pad lists of tensors; transpose and reshape single tensors.

Every function yields the arrangements that types allow. Other modules decide whether a program made of them agrees with an operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, combinations, product
from math import gcd, prod

from egraph.derive.matching.views import reshaped, sliced, transposed
from egraph.tensor import Node
from egraph.tensor.expr.scope import Compare, Guarded, Number, Read, Scope, Tensor
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.scopes import grid

Nodes = tuple[Node, ...]
Named = tuple[str, Nodes]
"""The description of an arrangement, and the tensors after it."""
PARTS = (2, 4)
"""Numbers of parts that one tensor is cut into, or of its repetitions."""
MOST_APART = 8
"""The number of positions of an axis, or of groups, up to which each may become a tensor of its own."""


def forms(node: Node, depth: int = 2) -> tuple[Node, ...]:
    """Return a tensor with axes exchanged, adjacent axes merged and axes of size 1 dropped, by up to ``depth`` such steps."""
    result: dict[Node, None] = {node: None}
    newest = [node]
    for _ in range(depth):
        newest = [made for each in newest for made in _steps(each) if made not in result]
        result |= dict.fromkeys(newest)
    return tuple(result)


def _steps(node: Node) -> Iterator[Node]:
    sizes = node.type.sizes
    for perm in exchanges(len(sizes)):
        yield transposed(node, perm)
    if len(sizes) > 2:
        for axis in range(len(sizes) - 1):
            yield reshaped(node, (*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :]))
        kept = [size for size in sizes if size > 1]
        yield reshaped(node, [1] * (2 - len(kept)) + kept)


def exchanges(rank: int) -> Iterator[tuple[int, ...]]:
    """Yield the permutations that exchange two axes."""
    for first, second in combinations(range(rank), 2):
        perm = list(range(rank))
        perm[first], perm[second] = second, first
        yield tuple(perm)


def arranged(
    nodes: Nodes, filters: Sequence[int] = (), groups: Sequence[int] = (), counts: Sequence[int] = PARTS
) -> Iterator[Named]:  # fmt: skip
    """Yield lists of tensors made of a list: unchanged, joined, on a diagonal, padded to equal sizes, repeated, cut.

    ``filters``: sizes by whose quotients the tensors may be repeated. ``groups``: the number of equal parts of the first axis within which
    tensors may be placed side by side. ``counts``: numbers of parts that one tensor may be cut into.
    """
    yield "", nodes
    if len(nodes) == 1:
        yield from _divided(nodes[0], counts)
        for group in groups:
            for count in dict.fromkeys((*PARTS, group)):
                if 1 < count <= group and group % count == 0:
                    yield f"{count} of {group} groups as one, zeros between", (_merged_groups(nodes[0], group, count),)
        return
    if len(set(nodes)) == 1:
        yield "", nodes[:1]
    yield from joined(nodes)
    yield from _diagonal(nodes)
    padded = equalised(nodes)
    if padded is not None:
        yield "padded", padded
        yield from ((f"padded, {name}", made) for name, made in joined(padded))
    for group, (name, same) in product(groups, (("", nodes), ("padded, ", padded or ()))):
        pieces = [_in_groups(each, 0, group) for each in same]
        if group > 1 and pieces and all(piece is not None for piece in pieces):
            for _, (made,) in joined([piece for piece in pieces if piece is not None], (1,)):
                yield f"{name}joined inside {group} groups", (reshaped(made, _merged(made.type.sizes, 0)),)
    if filters:
        common = gcd(*filters)
        repeated = [node for node, count in zip(nodes, filters, strict=True) for _ in range(count // common)]
        if common > 1 and len(nodes) < len(repeated) <= 4 * len(nodes):
            yield from ((f"repeated, {name}", made) for name, made in joined(repeated))


def joined(nodes: Sequence[Node], axes: Iterable[int] | None = None) -> Iterator[Named]:
    """Yield the concatenation along every axis if the other sizes are equal, and the stack of equal tensors."""
    sizes = [node.type.sizes for node in nodes]
    if len({len(each) for each in sizes}) != 1 or len({node.type.dtype for node in nodes}) != 1:
        return
    for axis in range(len(sizes[0])) if axes is None else axes:
        if len({(*each[:axis], *each[axis + 1 :]) for each in sizes}) == 1:
            yield f"joined along axis {axis}", (apply("Concat", *nodes, axis=axis),)
    if axes is None and len(set(sizes)) == 1 and len(sizes[0]) == 2:
        yield "stacked", (apply("Concat", *(reshaped(node, (1, *node.type.sizes)) for node in nodes), axis=0),)


def equalised(nodes: Sequence[Node]) -> Nodes | None:
    """Return tensors with zeros appended to their first axis up to the longest; None if nothing has to be added."""
    sizes = [node.type.sizes for node in nodes]
    if len({each[1:] for each in sizes}) != 1 or len({each[0] for each in sizes}) == 1:
        return None
    most = max(each[0] for each in sizes)
    return tuple(padded_axes(node, {0: (0, most - node.type.sizes[0])}) for node in nodes)


def padded_axes(node: Node, zeros: dict[int, tuple[int, int]]) -> Node:
    """Return a tensor with zeros before and after some axes."""
    before, after = (tuple(zeros.get(axis, (0, 0))[side] for axis in range(node.type.rank)) for side in (0, 1))
    return apply("Pad", node, before=before, after=after, mode="constant", value=0.0) if any(before + after) else node


def _divided(node: Node, counts: Sequence[int]) -> Iterator[Named]:
    sizes = node.type.sizes
    for axis, size in enumerate(sizes):
        for count in PARTS:
            yield f"repeated {count} times along axis {axis}", (apply("Concat", *[node] * count, axis=axis),)
        for count in dict.fromkeys((*counts, size)):
            if 1 < count <= MOST_APART and size % count == 0:
                yield f"cut in {count} along axis {axis}", tuple(parts(node, axis, [size // count] * count))


def _diagonal(nodes: Nodes) -> Iterator[Named]:
    """Yield tensors one below the other along the first axis, each with zeros at the other tensors' places along the second."""
    sizes = [node.type.sizes for node in nodes]
    if len({(len(each), each[2:]) for each in sizes}) != 1 or len(sizes[0]) < 2:
        return
    ends = list(accumulate(each[1] for each in sizes))
    alone = [padded_axes(node, {1: (end - node.type.sizes[1], ends[-1] - end)}) for node, end in zip(nodes, ends, strict=True)]
    yield "on a diagonal", (apply("Concat", *alone, axis=0),)


def _merged_groups(node: Node, groups: int, count: int) -> Node:
    """{f, c, ...: w[f, c % C, ...] where c // C = f // F % count, else 0}  of groups of F filters over C channels"""
    first, second, *rest = node.type.sizes
    iterators, (f, c, *others) = grid("i", (first, count * second, *rest))
    stands = Compare(c // second, "==", f // (first // groups) % count)
    read = Read(Tensor("0", node.type.sizes, node.type.dtype), (f, c % second, *others))
    body = Guarded((stands,), read, Number(Fraction(0)))
    return apply("Expression", node, text=text_of(Scope.pointwise(iterators, body)))


def parts(node: Node, axis: int, lengths: Sequence[int], starts: Sequence[int] | None = None) -> Iterator[Node]:
    """Yield stretches of an axis, by default one after the other."""
    sizes = node.type.sizes
    for start, length in zip(starts if starts is not None else [0, *accumulate(lengths)], lengths, strict=False):
        first = [start if k == axis else 0 for k in range(len(sizes))]
        yield sliced(node, first, [start + length if k == axis else size for k, size in enumerate(sizes)], [1] * len(sizes))


def _in_groups(node: Node, axis: int, group: int) -> Node | None:
    size = node.type.sizes[axis]
    return None if size % group else reshaped(node, (*node.type.sizes[:axis], group, size // group, *node.type.sizes[axis + 1 :]))


def _merged(sizes: Sequence[int], axis: int) -> tuple[int, ...]:
    return (*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :])


def led_back(results: Nodes, goals: Sequence[tuple[int, ...]], groups: Sequence[int] = ()) -> Iterator[Named]:
    """Yield tensors of given shapes made of results: unchanged, reshaped, cut (inside groups, too), joined, summed."""
    sizes = [result.type.sizes for result in results]
    if len(results) == len(goals):
        if sizes == list(goals):
            yield "", results
        elif [prod(each) for each in sizes] == [prod(goal) for goal in goals]:
            yield "reshaped", tuple(reshaped(result, goal) for result, goal in zip(results, goals, strict=True))
    if len(goals) == 1 < len(results):
        if all(each == goals[0] for each in sizes):
            total = results[0]
            for result in results[1:]:
                total = apply("Add", total, result)
            yield "summed", (total,)
        yield from ((name, made) for name, made in joined(results) if made[0].type.sizes == goals[0])
    if len(results) == 1:
        yield from _cut(results[0], goals, groups)


def _cut(result: Node, goals: Sequence[tuple[int, ...]], groups: Sequence[int]) -> Iterator[Named]:
    sizes = result.type.sizes
    if len(goals) > 1 and sizes[0] == len(goals) and all(prod(sizes[1:]) == prod(goal) for goal in goals):
        yield "taken apart", tuple(reshaped(part, goal) for part, goal in zip(parts(result, 0, [1] * len(goals)), goals, strict=True))
    for axis, size in enumerate(sizes):
        beside = (*sizes[:axis], *sizes[axis + 1 :])
        if any(len(goal) != len(sizes) or (*goal[:axis], *goal[axis + 1 :]) != beside for goal in goals):
            continue
        lengths = [goal[axis] for goal in goals]
        if (sum(lengths) == size and len(goals) > 1) or (len(goals) == 1 and lengths[0] < size):
            yield f"cut along axis {axis}", tuple(parts(result, axis, lengths))
        share = size // len(goals)
        if size % len(goals) == 0 and max(lengths) <= share and set(lengths) != {share}:
            starts = [share * number for number in range(len(goals))]
            yield f"cut along axis {axis}, padding left out", tuple(parts(result, axis, lengths, starts))
        for group in groups if len(goals) > 1 else ():
            whole = _in_groups(result, axis, group) if group > 1 and all(length % group == 0 for length in lengths) else None
            room, shorter = size // group, [length // group for length in lengths]
            if whole is not None and sum(shorter) == room:
                taken = zip(parts(whole, axis + 1, shorter), goals, strict=True)
                yield f"cut along axis {axis} inside {group} groups", tuple(reshaped(part, goal) for part, goal in taken)
