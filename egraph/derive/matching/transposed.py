"""Transposed convolutions: sums of products that read the data at ``(output + before - dilation * tap) // stride`` where that divides.

The quotient and the condition on the remainder are recognised as they stand, before any iterator is split; with stride 1 there is no
quotient, and the operator is also a convolution with its taps reversed.
"""

from __future__ import annotations

from collections.abc import Iterator as Iterable
from collections.abc import Sequence
from dataclasses import dataclass

from egraph.derive.matching.conditions import Condition, interval, speaks_of
from egraph.derive.matching.form import Form, substituted
from egraph.derive.matching.laws import affine, length
from egraph.derive.matching.products import finished, occurring, roles_of, two_reads
from egraph.derive.matching.views import Group, arrange, expanded, padded, sliced
from egraph.errors import TypeMismatch
from egraph.expr.index import Floor, Index, Iterator, Modulo, bounds, index
from egraph.expr.scope import Compare, Read, Tensor
from egraph.ir import AttributeValue, Node, attributes
from egraph.ops import apply


@dataclass(frozen=True, slots=True)
class Spread:
    """One axis of the data: read at ``(output + before - dilation * tap) // stride``, cut to [start, end)."""

    axis: int
    output: Iterator
    tap: Iterator | None
    stride: int
    dilation: int
    before: int
    start: int
    end: int


def _whole(place: Index) -> tuple[Index, int] | None:
    """Return (numerator, divisor) of an index that is one floor division, what stands beside it drawn in; divisor 1 for none."""
    floors = [(m, c) for m, c in place.terms if len(m) == 1 and isinstance(m[0], Floor)]
    if not floors:
        return place, 1
    (monomial, coefficient), atom = floors[0], floors[0][0][0]
    by = atom.divisor.constant if isinstance(atom, Floor) else None
    if len(floors) > 1 or coefficient != 1 or by is None or not isinstance(atom, Floor):
        return None
    return (place - Index(((monomial, 1),))) * by + atom.numerator, by


def spread(
    axis: int, place: Index, size: int, form: Form, outputs: Sequence[Iterator], taps: Sequence[Iterator]
) -> tuple[Spread, list[Condition]] | None:
    """Return an axis as a transposed window over it, and the conditions that say so."""
    found = _whole(place)
    parts = affine(found[0]) if found is not None else None
    if found is None or parts is None:
        return None
    numerator, stride = found
    out, tap = [i for i in parts[1] if i in outputs], [i for i in parts[1] if i in taps]
    if len(out) != 1 or len(tap) > 1 or len(parts[1]) != 1 + len(tap) or parts[1][out[0]] != 1 or any(parts[1][i] >= 0 for i in tap):
        return None
    used = [c for c in form.conditions if c.operator == "==" and _remainder(c, numerator, stride)]
    if stride > 1 and not used:
        return None
    # 0 <= a (numerator // stride) + c speaks of the position as if it were an iterator of its own
    position = Iterator("position", *_limits(place))
    low, high = 0, size
    for condition in form.conditions:
        for sign in (1, -1):
            rest = condition.right - place * sign
            if condition.operator == "<=" and rest.constant is not None:
                used.append(condition)
                here = interval((0, {position: 1}), size, [Compare(index(0), "<=", index(position) * sign + rest.constant)])
                low, high = max(low, here.low), min(high, here.high)
    limits = bounds(place)
    if low >= high or limits is None or (limits[0] < 0 and not used) or (limits[1] >= size and not used):
        return None
    dilation = -parts[1][tap[0]] if tap else 1
    return Spread(axis, out[0], tap[0] if tap else None, stride, dilation, parts[0], low, high), used


def _limits(place: Index) -> tuple[int, int]:
    limits = bounds(place)
    return (0, 1) if limits is None else (limits[0], limits[1] + 1)


def _remainder(condition: Condition, numerator: Index, stride: int) -> bool:
    """Return whether a condition says that the stride divides the numerator."""
    (monomial, coefficient), *rest = condition.right.terms or (((), 0),)
    if rest or len(monomial) != 1 or abs(coefficient) != 1 or not isinstance(monomial[0], Modulo):
        return False
    difference = monomial[0].numerator - numerator
    return monomial[0].divisor.constant == stride and all(c % stride == 0 for _, c in difference.terms)


def transposed_convolutions(form: Form, leaves: Sequence[Node]) -> Iterable[Node]:
    """Yield ConvTranspose programs in both layouts, with either operand as the data."""
    for first in (0, 1):
        reads = two_reads(form)
        if reads is None:
            return
        yield from _programs(_against(form, first), first, leaves)


def _against(form: Form, first: int) -> Form:
    """Run every tap against the data, where that axis has an output iterator too."""
    for _ in form.sums:
        reads = two_reads(form)
        if reads is None:
            return form
        for place in reads[first].indices:
            parts = affine(place)
            turned = [i for i, c in parts[1].items() if c > 0 and i in form.sums] if parts is not None and len(parts[1]) == 2 else []
            if parts is not None and turned and any(i in form.digits and c == 1 for i, c in parts[1].items()):
                form = substituted(form, {turned[0]: length(turned[0]) - 1 - index(turned[0])})
                break
    return form


def _programs(form: Form, first: int, leaves: Sequence[Node]) -> Iterable[Node]:
    reads = two_reads(form)
    if reads is None:
        return
    data, weight = reads[first], reads[1 - first]
    roles = roles_of(form, data, weight)
    assert isinstance(data.source, Tensor) and isinstance(weight.source, Tensor)
    if roles is None:
        return
    source = leaves[int(data.source.name)]
    axes: list[Spread] = []
    used: list[Condition] = []
    for axis, (place, size) in enumerate(zip(data.indices, source.type.sizes, strict=True)):
        own = occurring(Read(data.source, (place,)))
        if not own & set(roles.left) or (own <= set(roles.left) and _whole(place) == (place, 1)):
            continue  # no window: an axis of the batch, or of channels
        found = spread(axis, place, size, form, roles.left, roles.summed)
        if found is None:
            return
        axes.append(found[0])
        used += found[1]
    own_iterators = [i for window in axes for i in (window.output, window.tap) if i is not None]
    if not 1 <= len(axes) <= 3 or len(set(own_iterators)) != len(own_iterators):
        return
    batch = [i for i in roles.left if i not in own_iterators]
    channels = [i for i in roles.summed if i not in own_iterators]
    rest = [c for c in form.conditions if c not in used]
    if any(not any(speaks_of(p, c) for read in (data, weight) for p in map(affine, read.indices) if p) for c in rest):
        return
    positions = [Iterator(f"p{window.axis}", 0, window.end - window.start) for window in axes]
    indices, cut = list(data.indices), [(0, size) for size in source.type.sizes]
    for window, position in zip(axes, positions, strict=True):
        indices[window.axis], cut[window.axis] = index(position), (window.start, window.end)
    left = padded(sliced(source, [a for a, _ in cut], [b for _, b in cut], [1] * len(cut)), indices, rest, form.otherwise)
    right = padded(leaves[int(weight.source.name)], weight.indices, rest, form.otherwise)
    if left is None or right is None:
        return
    taps: list[Group] = [[window.tap] if window.tap is not None else [] for window in axes]
    filters: list[Group] = [[*roles.batch, *channels], list(roles.right), *taps]
    weights = arrange(right.node, right.indices, filters)
    if weights is None:
        return
    weights = expanded(weights, [_count([group]) for group in filters])
    shared = _attributes(axes)
    if shared is None:
        return
    channel: Group = [*roles.batch, *channels]
    result: Group = [*roles.batch, *roles.right]
    for layout in ("NCHW", "NHWC"):
        before, after = ([channel], []) if layout == "NCHW" else ([], [channel])
        tensor = arrange(left.node, left.indices, [batch, *before, *([p] for p in positions), *after])
        if tensor is None:
            return
        try:
            node = apply("ConvTranspose", tensor, weights, attributes=attributes(layout=layout, group=_count([roles.batch]), **shared))
        except TypeMismatch:
            return
        outputs: list[Group] = [[axis.output] for axis in axes]
        made = [batch, result, *outputs] if layout == "NCHW" else [batch, *outputs, result]
        if node.type.elements == _count(made):
            yield finished(form, node, made)


def _attributes(axes: Sequence[Spread]) -> dict[str, AttributeValue] | None:
    """Return strides, dilations, pads and output padding; None where the data would have to be padded first."""
    pads, extra = list[int](), list[int]()
    for window in axes:
        before = window.before - window.start * window.stride
        taps = 1 if window.tap is None else length(window.tap)
        full = window.stride * (window.end - window.start - 1) + window.dilation * (taps - 1) + 1
        after = full - before - length(window.output)
        if before < 0:
            return None
        pads.append(before)
        extra.append(after)
    return {
        "strides": tuple(w.stride for w in axes), "dilations": tuple(w.dilation for w in axes),
        "pads": (*pads, *(max(0, after) for after in extra)), "output_padding": tuple(max(0, -after) for after in extra),
    }  # fmt: skip


def _count(groups: Sequence[Group]) -> int:
    total = 1
    for group in groups:
        for i in group:
            total *= length(i)
    return total
