"""Pools and reductions: one read, reduced over summed iterators that either slide with an output iterator or span an axis.

Softmax and LogSoftmax, in any layout, normalise along the axes that their inner sums do not depend on. Their meanings nest scopes,
so a candidate is built from the tensor that is read and compared as a whole, like every match.
"""

from __future__ import annotations

import math
from collections.abc import Iterator as Iterable
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from egraph.derive.matching.convolutions import Spatial, spatial
from egraph.derive.matching.form import Form, form
from egraph.derive.matching.products import finished
from egraph.derive.matching.views import Group, arrange, axes_in_order, padded, sliced
from egraph.errors import TypeMismatch
from egraph.tensor import AttributeValue, Node, attributes
from egraph.tensor.expr.bodies import reads_of, used
from egraph.tensor.expr.index import Iterator, index, length
from egraph.tensor.expr.laws import affine
from egraph.tensor.expr.scope import ZERO, Apply, Number, Read, Scope, Tensor
from egraph.tensor.ops import OPS, apply


def reductions(form: Form, leaves: Sequence[Node]) -> Iterable[Node]:
    """Yield ReduceSum and the other plain reductions, and MaxPool."""
    read = form.inner
    if not form.sums or not isinstance(read, Read) or not isinstance(read.source, Tensor):
        return
    if not set(form.sums) <= used(read) or (form.conditions and form.otherwise != form.reduction.identity):
        return
    yield from reduced(form, read, leaves, form.reduction.operator)
    if form.reduction == "max":
        yield from pooled(form, read, leaves, "MaxPool")


def averages(outer: Form, leaves: Sequence[Node]) -> Iterable[Node]:
    """Yield ReduceMean and AveragePool: a sum divided by the number of its elements, or of those that are not padding."""
    if outer.sums or outer.conditions or not isinstance(outer.inner, Apply) or outer.inner.function != "div":
        return
    total, count = outer.inner.arguments
    if not isinstance(total, Read) or not isinstance(total.source, Scope):
        return
    below = form(Scope.pointwise(outer.digits, total))
    read = below.inner
    if not below.sums or below.reduction != "sum" or below.otherwise not in (None, ZERO):
        return
    if not isinstance(read, Read) or not isinstance(read.source, Tensor) or not set(below.sums) <= used(read):
        return
    below = replace(below, shape=outer.shape)
    counted = isinstance(count, Number) and count.value == Fraction(math.prod(map(length, below.sums)))
    if counted:
        yield from reduced(below, read, leaves, "ReduceMean")
    for include in ((1, 0) if counted else (0,)):
        yield from pooled(below, read, leaves, "AveragePool", count_include_pad=include)


def reduced(form: Form, read: Read, leaves: Sequence[Node], operator: str) -> Iterable[Node]:
    """Yield a reduction of whole axes."""
    assert isinstance(read.source, Tensor)
    source = padded(leaves[int(read.source.name)], read.indices, form.conditions, form.otherwise)
    order = axes_in_order(read.indices)
    node = None if source is None else arrange(source.node, source.indices, [[i] for i in order])
    if node is None or len(order) != len(used(read)):
        return
    axes = tuple(axis for axis, i in enumerate(order) if i in form.sums)
    yield finished(form, apply(operator, node, axes=axes), [[i] if i in form.digits else [] for i in order])


def pooled(form: Form, read: Read, leaves: Sequence[Node], operator: str, **counting: int) -> Iterable[Node]:
    """Yield a pool over the axes along which a summed iterator slides, in both layouts."""
    assert isinstance(read.source, Tensor)
    source = leaves[int(read.source.name)]
    windows: list[Spatial] = []
    for axis, (coordinate, size) in enumerate(zip(read.indices, source.type.sizes, strict=True)):
        parts = affine(coordinate)
        if parts is not None and any(i in form.sums for i in parts[1]):
            window = spatial(axis, coordinate, size, form.conditions, form.digits, form.sums)
            if window is None:
                return
            windows.append(window)
    sliding = [i for window in windows for i in (window.output, window.tap) if i is not None]
    if all(window.output is None and not window.before + window.after for window in windows):
        return  # whole axes are reductions
    if not 1 <= len(windows) <= 3 or len(set(sliding)) != len(sliding) or not set(form.sums) <= set(sliding):
        return
    positions = [Iterator(f"p{window.axis}", 0, window.end - window.start) for window in windows]
    indices, cut = list(read.indices), [(0, size) for size in source.type.sizes]
    for window, position in zip(windows, positions, strict=True):
        indices[window.axis], cut[window.axis] = index(position), (window.start, window.end)
    source = sliced(source, [low for low, _ in cut], [high for _, high in cut], [1] * len(cut))
    read_iterators = used(read)
    unpooled = [i for i in form.digits if i in read_iterators and i not in sliding]
    data = padded(source, indices, (), None)
    if data is None:
        return
    order = [i for i in axes_in_order(read.indices) if i in unpooled or i == windows[0].output]
    outputs: list[Group] = [[window.output] if window.output is not None else [] for window in windows]
    first = order.index(windows[0].output) if windows[0].output in order else len(order)
    ahead, behind = order[:first], order[first + 1 :]
    for layout, batch, channel in (("NCHW", unpooled[:-1], unpooled[-1:]), ("NHWC", ahead, behind)):
        space: list[Group] = [[position] for position in positions]
        sides: tuple[list[Group], list[Group]] = ([channel], []) if layout == "NCHW" else ([], [channel])
        node = arrange(data.node, data.indices, [batch, *sides[0], *space, *sides[1]])
        if node is None:
            return
        try:
            node = apply(operator, node, attributes=attributes(layout=layout, **_window(windows), **counting))
        except TypeMismatch:
            return
        groups = [batch, *sides[0], *outputs, *sides[1]]
        if node.type.elements == math.prod(length(i) for group in groups for i in group):
            yield finished(form, node, groups)


def _window(windows: Sequence[Spatial]) -> dict[str, AttributeValue]:
    return {
        "kernel_shape": tuple(w.taps for w in windows), "strides": tuple(w.stride for w in windows),
        "dilations": tuple(w.dilation for w in windows), "pads": (*(w.before for w in windows), *(w.after for w in windows)),
    }  # fmt: skip


def normalizations(form: Form, leaves: Sequence[Node]) -> Iterable[Node]:
    """Yield operators that normalise one tensor along some axes."""
    reads = list(dict.fromkeys(reads_of(form.inner)))
    plain = [read for read in reads if isinstance(read.source, Tensor)]
    inner = [read for read in reads if isinstance(read.source, Scope)]
    if form.sums or form.conditions or len(plain) != 1 or not inner:
        return
    kept = set().union(*(used(read) for read in inner))
    data = plain[0]
    order = [i for i in axes_in_order(data.indices) if i in form.digits]
    spanned = [i for i in order if i not in kept]
    if not spanned or set(order) != set(form.digits):
        return
    groups: list[Group] = []
    for coordinate in data.indices:  # keep the tensor's own axes if they are kept or spanned whole
        iterators = axes_in_order((coordinate,))
        groups += [iterators] if kept.issuperset(iterators) else [[i] for i in iterators if i in kept]
    axis = sum(1 for group in groups if group and order.index(group[0]) < order.index(spanned[0]))
    groups = [group for group in groups if group]
    groups.insert(axis, spanned)
    assert isinstance(data.source, Tensor)
    node = arrange(leaves[int(data.source.name)], data.indices, groups)
    for name, spec in sorted(OPS.items()) if node is not None else ():
        if node is not None and spec.category == "normalization" and spec.arity == 1 and spec.attributes == ("axis",):
            yield finished(form, apply(name, node, axis=axis), groups)
