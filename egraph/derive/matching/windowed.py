"""The common part of convolutions and transposed convolutions: operands and result around windows along axes of the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Iterator as Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from egraph.derive.matching.conditions import Condition
from egraph.derive.matching.form import Form
from egraph.derive.matching.products import Roles, finished
from egraph.derive.matching.views import Group, arrange, expanded, moved_elements, padded, sliced
from egraph.errors import TypeMismatch
from egraph.tensor import AttributeValue, Node, attributes
from egraph.tensor.expr.bodies import used
from egraph.tensor.expr.index import Iterator, index, length
from egraph.tensor.expr.scope import Read, Tensor
from egraph.tensor.ops import apply

MOST_SPATIAL = 3


class Window(Protocol):
    """One axis of the data, cut to [start, end), under a window."""

    @property
    def axis(self) -> int: ...
    @property
    def output(self) -> Iterator | None: ...
    @property
    def tap(self) -> Iterator | None: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


W = TypeVar("W", bound=Window)


@dataclass(frozen=True, slots=True)
class Operands:
    """The two reads of a convolution, the roles of their iterators, and the tensors by name."""

    form: Form
    data: Read
    weight: Read
    roles: Roles
    leaves: Sequence[Node]

    @property
    def source(self) -> Node:
        """The tensor of the data."""
        assert isinstance(self.data.source, Tensor)
        return self.leaves[int(self.data.source.name)]

    @property
    def filters(self) -> Node:
        """The tensor of the weight."""
        assert isinstance(self.weight.source, Tensor)
        return self.leaves[int(self.weight.source.name)]


def settled(sliding: Sequence[W], still: Sequence[W], programs: Callable[[Sequence[W]], Iterable[Node]]) -> Iterable[Node]:
    """Yield the programs of the sliding windows, and those with additional windows of one element that move fewer elements.

    Such windows are the axes that only the output iterates over: all of them, or all but the first, the batch.
    """
    plain = list(programs(sliding))
    yield from plain
    least = min(map(moved_elements, plain), default=None)
    for more in dict.fromkeys((tuple(still), tuple(still[1:]))):
        windows = sorted((*sliding, *more), key=lambda w: w.axis)
        if more and len(windows) <= MOST_SPATIAL:
            yield from (program for program in programs(windows) if least is None or moved_elements(program) < least)


def convolved(
    case: Operands, operator: str, windows: Sequence[Window], unused: Sequence[Condition], values: Mapping[str, AttributeValue]
) -> Iterable[Node]:
    """Yield the operator in both layouts; without any window, the rows of a product are the one spatial axis.

    ``unused`` are the conditions on other axes; ``values`` are the operator's attributes except the layout.
    """
    sliding = [i for w in windows for i in (w.output, w.tap) if i is not None]
    plain = [coordinate for axis, coordinate in enumerate(case.data.indices) if axis not in [w.axis for w in windows]]
    if len(set(sliding)) != len(sliding) or not set(sliding).isdisjoint(used(Read(case.data.source, tuple(plain)))):
        return
    roles = case.roles
    batch, channels = ([i for i in group if i not in sliding] for group in (roles.left, roles.summed))
    positions = [Iterator(f"p{w.axis}", 0, w.end - w.start) for w in windows]
    indices, cut = list(case.data.indices), [(0, size) for size in case.source.type.sizes]
    for w, position in zip(windows, positions, strict=True):
        indices[w.axis], cut[w.axis] = index(position), (w.start, w.end)
    data = sliced(case.source, [low for low, _ in cut], [high for _, high in cut], [1] * len(cut))
    left, right = padded(data, indices, unused, case.form.otherwise), padded(case.filters, case.weight.indices, unused, case.form.otherwise)
    if left is None or right is None:
        return
    space: list[Group] = [[position] for position in positions]
    taps: list[Group] = [[w.tap] if w.tap is not None else [] for w in windows]
    outputs: list[Group] = [[w.output] if w.output is not None else [] for w in windows]
    if not windows:
        space, taps, outputs, batch = [batch], [[]], [list(roles.left)], []
    into: Group = [*roles.batch, *channels]
    out: Group = [*roles.batch, *roles.right]
    filters = [out, channels, *taps] if operator == "Conv" else [into, list(roles.right), *taps]
    weights = arrange(right.node, right.indices, filters)
    if weights is None:
        return
    weights = expanded(weights, [_count([group]) for group in filters])
    for layout in ("NCHW", "NHWC"):
        first = layout == "NCHW"
        tensor = arrange(left.node, left.indices, [batch, into, *space] if first else [batch, *space, into])
        if tensor is None:
            return
        try:
            node = apply(operator, tensor, weights, attributes=attributes(layout=layout, group=_count([roles.batch]), **values))
        except TypeMismatch:
            return
        axes = [batch, out, *outputs] if first else [batch, *outputs, out]
        if node.type.elements == _count(axes):
            yield finished(case.form, node, axes)


def _count(groups: Sequence[Group]) -> int:
    return math.prod(length(i) for group in groups for i in group)
