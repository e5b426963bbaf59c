"""Merging: several products or convolutions as one, with their results cut out of it. The cost model decides whether that pays off."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from egraph.derive.matching.match import operators
from egraph.derive.matching.views import reshaped, sliced, transposed
from egraph.derive.rules.bodies import Refusal
from egraph.derive.rules.expressions import merge_expressions
from egraph.tensor import Node, attributes, walk
from egraph.tensor.expr.bodies import guarded
from egraph.tensor.expr.compose import inline
from egraph.tensor.expr.index import Index
from egraph.tensor.expr.scope import Compare, Number, Read, Reduction, Scope, Tensor, inside
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.reference import meaning
from egraph.tensor.ops.scopes import grid
from egraph.tensor.ops.window import Layout, window_of


def stacked(nodes: Sequence[Node]) -> tuple[Node, ...] | None:
    """Return the results of operators on different operands out of one: a batched MatMul, or a Conv with all their groups.

    None unless they are products of equal types, or convolutions whose groups agree in size and window.
    """
    if len(nodes) < 2:
        return None
    if all(node.op == "MatMul" for node in nodes) and len({tuple(i.type for i in node.inputs) for node in nodes}) == 1:
        return _batched(nodes)
    if all(node.op == "Conv" for node in nodes) and len({group_signature(node) for node in nodes}) == 1:
        return _grouped(nodes)
    return None


def beside(nodes: Sequence[Node]) -> tuple[Node, ...] | None:
    """Return convolutions of one input out of one: each group has the filters of all of them side by side.

    None unless they are convolutions of the same input with the same groups and windows.
    """
    first = nodes[0]
    same = {(node.inputs[0], node.inputs[1].type.sizes[1:], node.attributes) for node in nodes if node.op == "Conv"}
    if len(nodes) < 2 or len(same) != 1 or any(node.op != "Conv" for node in nodes):
        return None
    group, layout = first.integer("group"), Layout(first.string("layout"), first.type.rank - 2)
    filters = [node.type.sizes[layout.channel] // group for node in nodes]
    filter_shape = first.inputs[1].type.sizes[1:]
    parts = [reshaped(node.inputs[1], (group, count, *filter_shape)) for node, count in zip(nodes, filters, strict=True)]
    weight = reshaped(apply("Concat", *parts, axis=1), (group * sum(filters), *filter_shape))
    result = apply("Conv", first.inputs[0], weight, attributes=first.attributes)
    shape = result.type.sizes
    by_group = reshaped(result, (*shape[: layout.channel], group, sum(filters), *shape[layout.channel + 1 :]))
    ends = [sum(filters[: j + 1]) for j in range(len(nodes))]
    outputs = [_part(by_group, layout.channel + 1, end - count, end) for end, count in zip(ends, filters, strict=True)]
    return tuple(reshaped(part, node.type.sizes) for part, node in zip(outputs, nodes, strict=True))


def along_batch(nodes: Sequence[Node]) -> tuple[Node, ...] | None:
    """op(x_j, w) = op(x_0 | x_1 | ..., w)_j  along the first axis, for products with one matrix and for convolutions with one weight"""
    first = nodes[0]
    same = {(node.op, node.inputs[1:], node.attributes, node.inputs[0].type.sizes[1:]) for node in nodes}
    if len(nodes) < 2 or len(same) != 1 or first.op not in ("MatMul", "Conv"):
        return None
    if first.op == "MatMul" and (first.inputs[1].type.rank != 2 or first.inputs[0].type.rank < 2):
        return None
    result = apply(first.op, apply("Concat", *(node.inputs[0] for node in nodes), axis=0), *first.inputs[1:], attributes=first.attributes)
    ends = [sum(node.type.sizes[0] for node in nodes[: j + 1]) for j in range(len(nodes))]
    return tuple(_part(result, 0, end - node.type.sizes[0], end) for node, end in zip(nodes, ends, strict=True))


def merged_expressions(nodes: Sequence[Node]) -> tuple[Node, ...] | None:
    """{t} f(A_j) = {j, t: f(A_0 | A_1 | ...)}[j, t], if one product or convolution computes all j; None if none does

    The operators' meanings alone decide. Shared operands are not copied, whichever they are.
    """
    operands = tuple(dict.fromkeys(operand for node in nodes for operand in node.inputs))
    tensors = {operand: Tensor(str(position), operand.type.sizes, operand.type.dtype) for position, operand in enumerate(operands)}
    scopes = [inline(meaning(node), {str(k): tensors[operand] for k, operand in enumerate(node.inputs)}) for node in nodes]
    merged = merge_expressions(scopes)
    read = merged[0].body if not isinstance(merged, Refusal) else None
    if not isinstance(read, Read) or not isinstance(read.source, Scope):
        return None
    costly = ("MatMul", "Conv", "ConvTranspose")
    result = next((program for program in operators(read.source, operands) if any(node.op in costly for node in walk((program,)))), None)
    if result is None:
        return None
    return tuple(reshaped(_part(result, 0, j, j + 1), node.type.sizes) for j, node in enumerate(nodes))


def group_signature(node: Node) -> tuple[object, ...]:
    """Return everything that convolutions must have in common for their groups to stand side by side."""
    data, weight = (operand.type.sizes for operand in node.inputs)
    group, channel = node.integer("group"), 1 if node.attribute("layout") == "NCHW" else node.type.rank - 1
    attributes = tuple((key, value) for key, value in node.attributes if key != "group")
    return data[:channel], data[channel + 1 :], weight[1:], weight[0] // group, attributes, node.type.dtype


def _batched(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """{A_j B_j} = (A_0 | A_1 | ...) (B_0 | B_1 | ...) along a new batch axis"""
    rank = nodes[0].type.rank
    operands = []
    for side in (0, 1):
        parts = []
        for node in nodes:
            sizes = node.inputs[side].type.sizes
            parts.append(reshaped(node.inputs[side], (1, *(1,) * (rank - len(sizes)), *sizes)))
        operands.append(apply("Concat", *parts, axis=0))
    product = apply("MatMul", *operands)
    return tuple(reshaped(_part(product, 0, j, j + 1), node.type.sizes) for j, node in enumerate(nodes))


def _grouped(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return convolutions out of one with their channels and their groups side by side."""
    first = nodes[0]
    channel = Layout(first.string("layout"), first.type.rank - 2).channel
    values = {**dict(first.attributes), "group": sum(node.integer("group") for node in nodes)}
    data = apply("Concat", *(node.inputs[0] for node in nodes), axis=channel)
    weight = apply("Concat", *(node.inputs[1] for node in nodes), axis=0)
    result = apply("Conv", data, weight, attributes=attributes(**values))
    results, end = [], 0
    for node in nodes:
        start, end = end, end + node.type.sizes[channel]
        results.append(_part(result, channel, start, end))
    return tuple(results)


def merged_correlations(nodes: Sequence[Node]) -> tuple[Node, ...] | None:
    """Return convolutions of one input (1 x k and k x 1, or any windows) out of one product with all their taps.

    The product is M[position, tap and filter]. Each result sums its own columns at shifted positions: one Expression with channels last,
    as in the product. None unless they are ungrouped convolutions of the same input.
    """
    first = nodes[0]
    if any(node.op != "Conv" or node.inputs[0] is not first.inputs[0] or node.attribute("group") != 1 for node in nodes):
        return None
    if len({node.attribute("layout") for node in nodes}) != 1:
        return None
    data = first.inputs[0]
    layout = Layout(first.string("layout"), data.type.rank - 2)
    axes = tuple(layout.first + axis for axis in range(layout.spatial))
    last = transposed(data, (0, *axes, layout.channel))
    channels = last.type.sizes[-1]
    columns = []
    for node in nodes:
        weight = node.inputs[1]
        taps_first = transposed(weight, (1, *range(2, weight.type.rank), 0))
        columns.append(reshaped(taps_first, (channels, weight.type.elements // channels)))
    rows = reshaped(last, (last.type.elements // channels, channels))
    product = apply("MatMul", rows, apply("Concat", *columns, axis=1) if len(columns) > 1 else columns[0])
    responses = reshaped(product, (*last.type.sizes[:-1], product.type.sizes[1]))
    back = tuple((0, *axes, layout.channel).index(axis) for axis in range(data.type.rank))
    results, start = [], 0
    for node, column in zip(nodes, columns, strict=True):
        channels_last = apply("Conv", last, node.inputs[1], attributes=attributes(**{**dict(node.attributes), "layout": "NHWC"}))
        result = apply("Expression", responses, text=text_of(_shifted_sum(channels_last, responses.type.sizes, start)))
        results.append(transposed(result, back))
        start += column.type.sizes[1]
    return tuple(results)


def _shifted_sum(node: Node, sizes: Sequence[int], start: int) -> Scope:
    """{n, h, w, f} sum(r, s) M[n, stride h + dilation r - pad, ..., start + (r S + s) F + f]"""
    weight = node.inputs[1].type.sizes
    window = window_of(weight[2:], dict(node.attributes))
    iterators, out = grid("i", node.type.sizes)
    summed, taps = grid("k", weight[2:])
    positions = window.positions(out[1:-1], taps)
    conditions: list[Compare] = [c for p, size in zip(positions, sizes[1:-1], strict=True) for c in inside(p, 0, size)]
    column: Index = taps[0]
    for tap, size in zip(taps[1:], weight[3:], strict=True):
        column = column * size + tap
    column = column * weight[0] + out[-1] + start
    value = Read(Tensor("0", tuple(sizes)), (out[0], *positions, column))
    return Scope(iterators, summed, Reduction.SUM, guarded(conditions, value, Number(Fraction(0))))


def _part(node: Node, axis: int, start: int, end: int) -> Node:
    sizes = node.type.sizes
    starts = [start if k == axis else 0 for k in range(len(sizes))]
    return sliced(node, starts, [end if k == axis else size for k, size in enumerate(sizes)], [1] * len(sizes))
