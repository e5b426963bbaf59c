"""Movements: scopes that only read, rebuilt by layout operators; guards become Pads, choices between tensors become Concats."""

from __future__ import annotations

from collections.abc import Iterator as Iterable
from collections.abc import Sequence
from dataclasses import dataclass, replace

from egraph.derive.matching.conditions import bounds_index
from egraph.derive.matching.form import Form, substituted
from egraph.derive.matching.views import arrange, padded
from egraph.tensor import Node
from egraph.tensor.expr.bodies import reads_of
from egraph.tensor.expr.conditions import bound_of, tightest
from egraph.tensor.expr.index import Iterator, index, length
from egraph.tensor.expr.laws import affine
from egraph.tensor.expr.scope import Guarded, Read, Scalar, Tensor
from egraph.tensor.ops import apply


@dataclass(frozen=True, slots=True)
class Boxed:
    """A form whose output is the interior of another form's output, and the widths of the border around it."""

    form: Form
    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float

    def around(self, node: Node) -> Node:
        """Return the interior's result with the border around it."""
        if not any(self.before) and not any(self.after):
            return node
        return apply("Pad", node, before=self.before, after=self.after, mode="constant", value=self.value)


def boxed(form: Form) -> Boxed:
    """Remove from a form the conditions on single output iterators that do not bound an axis of a read; they become a border."""
    before, after = [0] * len(form.digits), [0] * len(form.digits)
    value = 0.0 if form.otherwise is None else float(form.otherwise.value)
    if form.otherwise is None or value != form.otherwise.value or (form.sums and form.otherwise != form.reduction.identity):
        return Boxed(form, tuple(before), tuple(after), 0.0)
    coordinates = [p for read in reads_of(form.inner) for p in map(affine, read.indices) if p is not None]
    axes = {i: axis for axis, i in enumerate(form.digits)}
    for condition in form.conditions:
        limit = bound_of(condition)
        if limit is None or limit.iterator not in axes or any(bounds_index(coordinate, condition) for coordinate in coordinates):
            continue
        axis = axes[limit.iterator]
        before[axis] = max(before[axis], limit.low)
        after[axis] = max(after[axis], length(limit.iterator) - limit.high)
    part = restricted(form, before, after)
    return Boxed(form, (0,) * len(before), (0,) * len(after), 0.0) if part is None else Boxed(part, tuple(before), tuple(after), value)


def restricted(form: Form, before: Sequence[int], after: Sequence[int]) -> Form | None:
    """Return the part of a form's output at these distances from its borders; None if nothing is left."""
    digits, names = list[Iterator](), {}
    for i, low, high in zip(form.digits, before, after, strict=True):
        if length(i) - low - high < 1:
            return None
        new = Iterator(f"{i.name}b", 0, length(i) - low - high) if low or high else i
        digits.append(new)
        if new != i:
            names[i] = index(new) + low
    return substituted(replace(form, digits=tuple(digits)), names) if names else form


def movements(form: Form, leaves: Sequence[Node]) -> Iterable[Node]:
    """Yield the program of layout operators for a form that only moves elements."""
    node = None if form.sums else moved(form, leaves)
    if node is not None:
        yield node


def moved(form: Form, leaves: Sequence[Node], *, expand: bool = True) -> Node | None:
    """Return the layout operators that compute a form without arithmetic, one axis per digit; None if there are none.

    Without ``expand``, an axis that nothing depends on has size 1.
    """
    body = form.inner
    if isinstance(body, Guarded):
        return _joined(form, body, leaves)
    if not isinstance(body, Read) or not isinstance(body.source, Tensor):
        return None
    box = boxed(form)
    inner = box.form.inner
    assert isinstance(inner, Read)
    coordinates = [p for p in map(affine, inner.indices) if p is not None]
    if any(not any(bounds_index(coordinate, c) for coordinate in coordinates) for c in box.form.conditions):
        return None
    source = padded(leaves[int(body.source.name)], inner.indices, box.form.conditions, box.form.otherwise)
    expand = expand or any(box.before) or any(box.after)
    node = None if source is None else arrange(source.node, source.indices, [[i] for i in box.form.digits], expand=expand)
    return None if node is None else box.around(node)


def _joined(form: Form, body: Guarded, leaves: Sequence[Node]) -> Node | None:
    """Concatenate along the output iterator that the first condition divides into ranges."""
    conditions = tightest(body.conditions)
    if form.conditions or not conditions:
        return None
    limit = bound_of(conditions[0])
    if limit is None or limit.iterator not in form.digits:
        return None
    axis, size = form.digits.index(limit.iterator), length(limit.iterator)
    low, high = limit.low, limit.high
    remaining: Scalar = Guarded(conditions[1:], body.then, body.otherwise) if conditions[1:] else body.then
    parts: list[Node] = []
    for start, end, value in ((0, low, body.otherwise), (low, high, remaining), (high, size, body.otherwise)):
        if end <= start:
            continue
        before = tuple(start if k == axis else 0 for k in range(len(form.digits)))
        after = tuple(size - end if k == axis else 0 for k in range(len(form.digits)))
        part = restricted(replace(form, inner=value), before, after)
        node = None if part is None else moved(part, leaves)
        if node is None:
            return None
        parts += node.inputs if node.op == "Concat" and node.attribute("axis") == axis else (node,)
    return apply("Concat", *parts, axis=axis)
