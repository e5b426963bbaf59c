"""Transposed convolutions: sums of products that read the data at ``(output + before - dilation * tap) // stride`` where stride divides.

The quotient and the condition on the remainder are recognised before any iterator is split. With stride 1 there is no quotient, and the
operator is also a convolution with its taps reversed.
"""

from __future__ import annotations

from collections.abc import Iterator as Iterable
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from egraph.derive.matching.conditions import Condition, bounds_index, interval
from egraph.derive.matching.form import Form, substituted
from egraph.derive.matching.products import roles_of, two_reads
from egraph.derive.matching.windowed import Operands, convolved, settled
from egraph.tensor import AttributeValue, Node
from egraph.tensor.expr.bodies import used
from egraph.tensor.expr.index import Floor, Index, Iterator, Modulo, bounds, index, length
from egraph.tensor.expr.laws import affine
from egraph.tensor.expr.scope import Compare, Read


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


def _whole(coordinate: Index) -> tuple[Index, int] | None:
    """Return (numerator, divisor) of an index that is one floor division, other terms moved into it; divisor 1 without a division."""
    floors = [(m, c) for m, c in coordinate.terms if len(m) == 1 and isinstance(m[0], Floor)]
    if not floors:
        return coordinate, 1
    (monomial, coefficient), atom = floors[0], floors[0][0][0]
    by = atom.divisor.constant if isinstance(atom, Floor) else None
    if len(floors) > 1 or coefficient != 1 or by is None or not isinstance(atom, Floor):
        return None
    return (coordinate - Index(((monomial, 1),))) * by + atom.numerator, by


def spread(
    axis: int, coordinate: Index, size: int, form: Form, outputs: Sequence[Iterator], taps: Sequence[Iterator]
) -> tuple[Spread, list[Condition]] | None:
    """Return an axis as a transposed window over it, and the conditions that express that."""
    division = _whole(coordinate)
    parts = affine(division[0]) if division is not None else None
    if division is None or parts is None:
        return None
    numerator, stride = division
    out, tap = [i for i in parts[1] if i in outputs], [i for i in parts[1] if i in taps]
    if len(out) != 1 or len(tap) > 1 or len(parts[1]) != 1 + len(tap) or parts[1][out[0]] != 1 or any(parts[1][i] >= 0 for i in tap):
        return None
    used = [c for c in form.conditions if c.operator == "==" and _remainder(c, numerator, stride)]
    if stride > 1 and not used:
        return None
    # 0 <= a (numerator // stride) + c bounds the position like an iterator
    position = Iterator("position", *_limits(coordinate))
    low, high = 0, size
    for condition in form.conditions:
        for sign in (1, -1):
            bound = condition.right - coordinate * sign
            if condition.operator == "<=" and bound.constant is not None:
                used.append(condition)
                limits_of_condition = interval((0, {position: 1}), size, [Compare(index(0), "<=", index(position) * sign + bound.constant)])
                low, high = max(low, limits_of_condition.low), min(high, limits_of_condition.high)
    limits = bounds(coordinate)
    if low >= high or limits is None or (limits[0] < 0 and not used) or (limits[1] >= size and not used):
        return None
    dilation = -parts[1][tap[0]] if tap else 1
    return Spread(axis, out[0], tap[0] if tap else None, stride, dilation, parts[0], low, high), used


def _limits(coordinate: Index) -> tuple[int, int]:
    limits = bounds(coordinate)
    return (0, 1) if limits is None else (limits[0], limits[1] + 1)


def _remainder(condition: Condition, numerator: Index, stride: int) -> bool:
    """Return whether a condition states that the stride divides the numerator."""
    (monomial, coefficient), *more_terms = condition.right.terms or (((), 0),)
    if more_terms or len(monomial) != 1 or abs(coefficient) != 1 or not isinstance(monomial[0], Modulo):
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
    """Reverse every tap so that it runs against the data, if that axis also has an output iterator."""
    for _ in form.sums:
        reads = two_reads(form)
        if reads is None:
            return form
        for coordinate in reads[first].indices:
            parts = affine(coordinate)
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
    if roles is None:
        return
    case = Operands(form, data, weight, roles, leaves)
    sliding, still = list[Spread](), list[Spread]()
    conditions: dict[int, list[Condition]] = {}
    for axis, (coordinate, size) in enumerate(zip(data.indices, case.source.type.sizes, strict=True)):
        iterators = used(Read(data.source, (coordinate,)))
        if not iterators & set(roles.left):
            continue  # this is an axis of the channels
        plain = iterators <= set(roles.left) and _whole(coordinate) == (coordinate, 1)
        axis_spread = spread(axis, coordinate, size, form, roles.left, roles.summed)
        if axis_spread is not None:
            (still if plain else sliding).append(axis_spread[0])
            conditions[axis] = axis_spread[1]
        elif not plain:
            return
    if sliding:
        yield from settled(sliding, still, lambda windows: _with(case, windows, conditions))


def _with(case: Operands, windows: Sequence[Spread], conditions: Mapping[int, Sequence[Condition]]) -> Iterable[Node]:
    used = [c for window in windows for c in conditions[window.axis]]
    unused = [c for c in case.form.conditions if c not in used]
    coordinates = [p for read in (case.data, case.weight) for p in map(affine, read.indices) if p is not None]
    values = _attributes(windows)
    if values is not None and all(any(bounds_index(coordinate, c) for coordinate in coordinates) for c in unused):
        yield from convolved(case, "ConvTranspose", windows, unused, values)


def _attributes(axes: Sequence[Spread]) -> dict[str, AttributeValue] | None:
    """Return strides, dilations, pads and output padding; None if the data would have to be padded first."""
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
