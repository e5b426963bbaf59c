"""Convolutions: sums of products in which an output iterator and a summed iterator run along one axis of the data together.

Stride and dilation are the two coefficients. Padding is the part that the conditions on that axis exclude. Groups are the iterators in
both operands and the output. Axes may stand in any order: data, weight and result are rearranged.
"""

from __future__ import annotations

from collections.abc import Iterator as Iterable
from collections.abc import Sequence
from dataclasses import dataclass

from egraph.derive.matching.conditions import Condition, bounds_index, interval
from egraph.derive.matching.form import Form, substituted
from egraph.derive.matching.products import roles_of, two_reads
from egraph.derive.matching.windowed import Operands, convolved, settled
from egraph.tensor import AttributeValue, Node
from egraph.tensor.expr.index import Index, Iterator, index, length
from egraph.tensor.expr.laws import affine
from egraph.tensor.expr.scope import Read


@dataclass(frozen=True, slots=True)
class Spatial:
    """One axis of the data under a window: ``stride * output + dilation * tap - before``, the data cut to [start, end)."""

    axis: int
    output: Iterator | None
    tap: Iterator | None
    stride: int
    dilation: int
    start: int
    end: int
    before: int
    after: int

    @property
    def taps(self) -> int:
        """The size of the window."""
        return 1 if self.tap is None else length(self.tap)


def spatial(
    axis: int, coordinate: Index, size: int, conditions: Sequence[Condition], outputs: Sequence[Iterator], taps: Sequence[Iterator]
) -> Spatial | None:
    """Return an axis as a window over it; None if it is read in another way, or outside the tensor without a condition."""
    parts = affine(coordinate)
    if parts is None:
        return None
    constant, coefficients = parts
    out, tap = [i for i in coefficients if i in outputs], [i for i in coefficients if i in taps]
    if len(coefficients) != len(out) + len(tap) or len(out) > 1 or len(tap) > 1 or any(c < 1 for c in coefficients.values()):
        return None
    last = constant + sum(c * (length(i) - 1) for i, c in coefficients.items())
    kept = interval(parts, size, conditions)
    if kept.low >= kept.high or (not any(bounds_index(parts, c) for c in conditions) and (constant < 0 or last >= size)):
        return None
    stride = coefficients[out[0]] if out else 1
    start, end = max(kept.low, constant), kept.high
    if last < kept.high - 1 and (last - constant) // stride != (kept.high - 1 - constant) // stride:
        end = last + 1
    return Spatial(
        axis, out[0] if out else None, tap[0] if tap else None, stride, coefficients[tap[0]] if tap else 1,
        start, end, max(0, kept.low - constant), max(0, last - kept.high + 1),
    )  # fmt: skip


def flipped(form: Form, data: Read) -> Form:
    """Reverse summed iterators so that they run in the direction of the data."""
    for coordinate in data.indices:
        parts = affine(coordinate)
        for i, coefficient in parts[1].items() if parts is not None else ():
            if coefficient < 0 and i in form.sums:
                return substituted(form, {i: length(i) - 1 - index(i)})
    return form


def convolutions(form: Form, leaves: Sequence[Node]) -> Iterable[Node]:
    """Yield Conv programs in both layouts, with either operand as the data."""
    yield from _of_either(form, leaves, True)


def products_as_convolutions(form: Form, leaves: Sequence[Node]) -> Iterable[Node]:
    """Yield Conv programs with a window of one element, for products without any window."""
    yield from _of_either(form, leaves, False)


def _of_either(form: Form, leaves: Sequence[Node], windowed: bool) -> Iterable[Node]:
    for first in (0, 1):
        turned = form
        while True:
            reads = two_reads(turned)
            if reads is None:
                return
            after = flipped(turned, reads[first])
            if after is turned:
                break
            turned = after
        yield from _convolutions(turned, reads[first], reads[1 - first], leaves, windowed)


def _convolutions(form: Form, data: Read, weight: Read, leaves: Sequence[Node], windowed: bool) -> Iterable[Node]:
    roles = roles_of(form, data, weight)
    if roles is None or not (form.sums or (roles.left and roles.right)):
        return
    case = Operands(form, data, weight, roles, leaves)
    sliding, still = list[Spatial](), list[Spatial]()
    for axis, (coordinate, size) in enumerate(zip(data.indices, case.source.type.sizes, strict=True)):
        window = spatial(axis, coordinate, size, form.conditions, roles.left, roles.summed)
        if window is not None and window.output is not None:
            (still if window.tap is None else sliding).append(window)
    if bool(sliding) == windowed:
        yield from settled(sliding, still, lambda windows: _with(case, windows))


def _with(case: Operands, windows: Sequence[Spatial]) -> Iterable[Node]:
    axes = [w.axis for w in windows]
    plain = [affine(coordinate) for axis, coordinate in enumerate(case.data.indices) if axis not in axes]
    coordinates = [*plain, *map(affine, case.weight.indices)]
    bounding = [c for c in case.form.conditions if any(bounds_index(parts, c) for parts in coordinates if parts is not None)]
    values: dict[str, AttributeValue] = {
        "strides": tuple(w.stride for w in windows) or (1,), "dilations": tuple(w.dilation for w in windows) or (1,),
        "pads": (*(w.before for w in windows), *(w.after for w in windows)) or (0, 0),
    }  # fmt: skip
    yield from convolved(case, "Conv", windows, bounding, values)
