"""Moves of a convolution: rearrange its operands, change its window, and rearrange its result back.

A move preserves types, not values: the new program may differ from the convolution at some positions, or everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from math import lcm

from egraph.derive.matching.views import reshaped, sliced, transposed
from egraph.errors import EinsatError
from egraph.partial.arrangements import padded_axes
from egraph.tensor import Node, TensorType, placeholder
from egraph.tensor.ops import apply
from egraph.tensor.ops.window import Layout

FACTORS = (2, 3, 4)
"""Numbers of parts that an axis is cut into, beside its stride and its dilation; a batch is cut by its divisors."""
MOST_FACTORS = 4


@dataclass(frozen=True, slots=True)
class Regrouping:
    """Move digit ``factor`` of axis ``source``, its major or minor digit, to be the major or minor digit of axis ``target``."""

    source: int
    target: int
    factor: int
    takes_major: bool
    puts_major: bool

    def of(self, x: Node) -> Node | None:
        """Return a tensor regrouped; None if the factor does not divide the axis."""
        sizes = x.type.sizes
        if sizes[self.source] % self.factor:
            return None
        split: list[int] = []
        groups: list[list[int]] = []  # the digits of every axis after the move, by their number before it
        moved = 0
        for axis, size in enumerate(sizes):
            if axis != self.source:
                groups.append([len(split)])
                split.append(size)
                continue
            rest = size // self.factor
            moved = len(split) + int(not self.takes_major)
            groups.append([len(split) + int(self.takes_major)])
            split += [self.factor, rest] if self.takes_major else [rest, self.factor]
        groups[self.target].insert(0 if self.puts_major else len(groups[self.target]), moved)
        shape = [1] * len(sizes)
        for axis, digits in enumerate(groups):
            for digit in digits:
                shape[axis] *= split[digit]
        return reshaped(transposed(reshaped(x, split), [digit for digits in groups for digit in digits]), shape)

    @property
    def inverse(self) -> Regrouping:
        return Regrouping(self.target, self.source, self.factor, self.puts_major, self.takes_major)


@dataclass(frozen=True, slots=True)
class Window:
    """Strides, pads before and after, and dilations, with one entry per spatial axis."""

    strides: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """A move: its axes of the data in the order of its text, numbers that belong to no axis, and one number per spatial axis."""

    kind: str
    axes: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        return self.kind.format(*self.axes, *self.numbers)

    def mirrored(self, layout: Layout) -> Move:
        """Return the same move with the two spatial axes exchanged."""
        return replace(self, axes=tuple(mirrored_axis(axis, layout) for axis in self.axes), dilations=self.dilations[::-1])


def mirrored_axis(axis: int, layout: Layout) -> int:
    """Return the position of an axis of the data after the two spatial axes are exchanged."""
    return 2 * layout.first + 1 - axis if layout.first <= axis < layout.first + 2 else axis


@dataclass(frozen=True, slots=True)
class Mutated:
    """A convolution of rearranged operands with its own window, and the regroupings and transposes that rearrange its result back."""

    data: Node
    weight: Node
    window: Window
    back: tuple[Regrouping | tuple[int, ...], ...]
    moves: tuple[Move, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the moves as text."""
        return tuple(move.text for move in self.moves)

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the numbers of parts that axes are cut into."""
        return tuple(sorted(way.factor for way in self.back if isinstance(way, Regrouping)))

    def program(self, conv: Node) -> Node | None:
        """Return the program of ``conv``'s type; None if there is none."""
        window = self.window
        try:
            result: Node | None = apply(
                "Conv", self.data, self.weight, strides=window.strides, pads=(*window.before, *window.after), dilations=window.dilations,
                group=conv.integer("group"), layout=conv.string("layout"),
            )  # fmt: skip
            for way in self.back:
                assert result is not None
                result = way.of(result) if isinstance(way, Regrouping) else transposed(result, way)
                if result is None:
                    return None
            assert result is not None
            sizes = conv.type.sizes
            if any(have < need for have, need in zip(result.type.sizes, sizes, strict=True)):
                return None
            return sliced(result, [0] * len(sizes), sizes, [1] * len(sizes))
        except EinsatError:
            return None


def start(conv: Node) -> Mutated:
    """Return the initial state, the unchanged convolution."""
    pads = conv.integers("pads")
    half = len(pads) // 2
    window = Window(conv.integers("strides"), pads[:half], pads[half:], conv.integers("dilations"))
    return Mutated(conv.inputs[0], conv.inputs[1], window, (), ())


def is_symmetric(conv: Node) -> bool:
    """Return whether a convolution has two spatial axes that are alike, so that a correct program remains correct with both exchanged."""
    state, space = start(conv), Layout(conv.string("layout"), conv.type.rank - 2)
    sides = (state.window.strides, state.window.before, state.window.after, state.window.dilations, conv.inputs[1].type.sizes[2:])
    sizes = state.data.type.sizes[space.first : space.first + space.spatial]
    return space.spatial == 2 and all(side == side[::-1] for side in (*sides, sizes))


def with_few_channels(conv: Node) -> Node:
    """Return a convolution over placeholders that has the same moves, with as few channels, filters and groups as that allows.

    Every move treats filters and groups alike, and channels as far as the factors divide them. Hence a program of one convolution agrees
    with it exactly where the program by the same moves agrees with the other.
    """
    layout, group = Layout(conv.string("layout"), conv.type.rank - 2), min(2, conv.integer("group"))
    data, weight = (operand.type for operand in conv.inputs)
    _, channels, *taps = weight.sizes
    few = lcm(*(factor for factor in FACTORS if channels % factor == 0))
    sizes = tuple(group * few if axis == layout.channel else size for axis, size in enumerate(data.sizes))
    are_constant = [operand.op == "Placeholder" and bool(operand.attribute("constant")) for operand in conv.inputs]
    x = placeholder(0, TensorType(data.dtype, sizes), constant=are_constant[0])
    w = placeholder(1, TensorType(weight.dtype, (group, few, *taps)), constant=are_constant[1])
    return apply("Conv", x, w, attributes=tuple(sorted({**dict(conv.attributes), "group": group}.items())))


def moved(state: Mutated, layout: Layout) -> Iterable[Mutated]:
    """Yield the states that one more move makes of a state."""
    yield from _transposed(state, layout)
    yield from _unfolded_channels(state, layout)
    yield from _folded_pixels(state, layout)
    yield from _alike(state, layout)
    space = tuple(range(len(state.data.type.sizes)))
    axes = (0, *(axis for axis in space[1:] if axis != layout.channel))
    for source, target in product(axes, axes):
        for takes_major, puts_major in _ends(source, target):
            for factor in _factors(state, layout, source, target):
                way = Regrouping(source, target, factor, takes_major, puts_major)
                earlier = [step.inverse for step in state.back if isinstance(step, Regrouping)]
                if all(factor == step.factor and not _undoes(way, step) for step in earlier):  # all axes are cut alike
                    yield from _regrouped(state, layout, way)


def _alike(state: Mutated, layout: Layout) -> Iterable[Mutated]:
    """Yield states with all spatial axes cut alike: into parts in the batch, or interleaved.

    A cut of one axis alone may agree at fewer positions than the states that the beam keeps.
    """
    axes = range(layout.first, layout.first + layout.spatial)
    if state.moves or len(axes) < 2:
        return
    factors = sorted({factor for axis in axes for factor in _factors(state, layout, axis, axis)})
    for factor, into_batch in product(factors, (True, False)):
        for takes_major, puts_major in _ends(axes[0], 0 if into_batch else axes[0]):
            states = [state]
            for axis in axes:
                way = Regrouping(axis, 0 if into_batch else axis, factor, takes_major, puts_major)
                states = [made for each in states for made in _regrouped(each, layout, way)]
            yield from states


def _undoes(way: Regrouping, earlier: Regrouping) -> bool:
    """Return whether a move takes from an axis for a second time, or returns what an earlier move took."""
    return way.source == earlier.source or (way.source == earlier.target and way.target == earlier.source)


def _ends(source: int, target: int) -> tuple[tuple[bool, bool], ...]:
    """Return which digits may be taken and placed: images may be in any order, and an axis moved within itself is interleaved."""
    if source == target:
        return () if source == 0 else ((False, True), (True, False))
    if source == 0:
        return (False, True), (False, False)
    if target == 0:
        return (True, False), (False, False)
    return (True, True), (True, False), (False, True), (False, False)


def _factors(state: Mutated, layout: Layout, source: int, target: int) -> tuple[int, ...]:
    size = state.data.type.sizes[source]
    if source == 0:
        return tuple(n for n in range(2, size + 1) if size % n == 0)[:MOST_FACTORS]
    axis = _spatial(layout, source)
    suggested = {state.window.strides[axis], state.window.dilations[axis]} - {1}
    return tuple(sorted({n for n in (*suggested, *FACTORS) if 1 < n <= size}))


def _spatial(layout: Layout, axis: int) -> int:
    """Return the number of the spatial axis that is this axis of the image."""
    return axis - (2 if layout.channel == 1 else 1)


def _regrouped(state: Mutated, layout: Layout, way: Regrouping) -> Iterable[Mutated]:
    window = state.window
    taps = state.weight.type.sizes[2:]
    space = range(layout.first, layout.first + layout.spatial)
    spatial = sorted({axis - space.start for axis in (way.source, way.target) if axis != 0})
    for gap, dilations in product(_gaps(state, layout, way), _dilations(window, way, layout)):
        padded = _padded(state.data, way, gap)
        data = None if padded is None else way.of(padded)
        if data is None:
            continue
        before, after = (
            [pad * d // w for pad, d, w in zip(side, dilations, window.dilations, strict=True)] for side in (window.before, window.after)
        )
        for axis in spatial:
            # Parts stand in the result as they do in the data: its size is that of the data, by strides.
            reach, size = (taps[axis] - 1) * dilations[axis], data.type.sizes[axis + space.start]
            last = (size // window.strides[axis] - 1) * window.strides[axis]
            after[axis] = max(after[axis], last + reach + 1 - size - before[axis])
        made = replace(window, before=tuple(before), after=tuple(after), dilations=dilations)
        numbers = way.factor, int(way.takes_major), int(way.puts_major), gap
        move = Move("axis {0} by {2} into {1}", (way.source, way.target), numbers, dilations)
        yield replace(state, data=data, window=made, back=(way.inverse, *state.back), moves=(*state.moves, move))


def _gaps(state: Mutated, layout: Layout, way: Regrouping) -> tuple[int, ...]:
    """Return numbers of zeros to append to the spatial axis that is cut or joined: none, or as many as keep the parts apart."""
    if way.source == way.target or (way.source != 0 and way.target != 0):
        return (0,)
    axis = _spatial(layout, way.target if way.source == 0 else way.source)
    reach = (state.weight.type.sizes[2 + axis] - 1) * state.window.dilations[axis]
    return tuple(dict.fromkeys((0, reach // 2, reach))) if way.source == 0 else (0,)


def _padded(data: Node, way: Regrouping, gap: int) -> Node | None:
    """Append zeros between parts that are joined, or to make parts equal."""
    after = [0] * data.type.rank
    if way.source == 0:
        after[way.target] = gap
    else:
        after[way.source] = -data.type.sizes[way.source] % way.factor
    if not any(after):
        return data
    return apply("Pad", data, before=(0,) * data.type.rank, after=tuple(after), mode="constant", value=0.0)


def _dilations(window: Window, way: Regrouping, layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Return the dilations to try: unchanged, or divided by the factor along the axis that is cut."""
    if way.source == 0:
        return (window.dilations,)
    axis = _spatial(layout, way.source)
    value = window.dilations[axis]
    if value % way.factor:
        return (window.dilations,)
    return window.dilations, tuple(value // way.factor if k == axis else d for k, d in enumerate(window.dilations))


def _transposed(state: Mutated, layout: Layout) -> Iterable[Mutated]:
    """Yield the state with the two spatial axes exchanged."""
    if len(state.window.strides) != 2 or state.moves:
        return
    first = 2 if layout.channel == 1 else 1
    perm = tuple(first + 1 if axis == first else first if axis == first + 1 else axis for axis in range(4))
    window = Window(*(side[::-1] for side in (state.window.strides, state.window.before, state.window.after, state.window.dilations)))
    weight = transposed(state.weight, (0, 1, 3, 2))
    if weight is not state.weight:
        data = transposed(state.data, perm)
        move = Move("h and w exchanged")
        yield replace(state, data=data, weight=weight, window=window, back=(perm, *state.back), moves=(*state.moves, move))


def _unfolded_channels(state: Mutated, layout: Layout) -> Iterable[Mutated]:
    """Yield states with channels moved beside the pixels of a spatial axis, in image and weights alike: the stride steps over them.

    The result is equal everywhere, and this move commutes with other moves, like the exchange of axes: both come first of all.
    """
    channels = state.weight.type.sizes[1]
    if state.moves or state.data.type.sizes[layout.channel] != channels:
        return
    for axis in range(len(state.window.strides)):
        if state.window.dilations[axis] != 1:
            continue
        for factor in (n for n in FACTORS if channels % n == 0):
            way = Regrouping(layout.channel, axis + (2 if layout.channel == 1 else 1), factor, False, False)
            data, weight = way.of(state.data), Regrouping(1, 2 + axis, factor, False, False).of(state.weight)
            if data is None or weight is None:
                continue
            scaled = [
                tuple(v * factor if k == axis else v for k, v in enumerate(side))
                for side in (state.window.strides, state.window.before, state.window.after)
            ]
            window = Window(scaled[0], scaled[1], scaled[2], state.window.dilations)
            move = Move("channels by {1} into axis {0}", (way.target,), (factor,))
            yield replace(state, data=data, weight=weight, window=window, moves=(*state.moves, move))


def _folded_pixels(state: Mutated, layout: Layout) -> Iterable[Mutated]:
    """Yield states with pixels of one spatial axis, or of all, as channels, in image and weights alike: the phases of a stride.

    conv(x, w, stride s) = conv(phases of x, phases of w, stride s / factor)

    The result is equal everywhere; taps are completed to whole phases by zeros.
    """
    window, count = state.window, len(state.window.strides)
    if state.moves:
        return
    for axes in dict.fromkeys((*((axis,) for axis in range(count)), tuple(range(count)))):
        for factor in sorted({n for axis in axes for n in (window.strides[axis], *FACTORS) if n > 1}):
            if all(window.strides[axis] % factor == 0 and window.dilations[axis] == 1 for axis in axes):
                made: Mutated | None = state
                for axis in axes:
                    made = None if made is None else _phases_as_channels(made, layout, axis, factor)
                if made is not None:
                    yield made


def _phases_as_channels(state: Mutated, layout: Layout, axis: int, factor: int) -> Mutated | None:
    """o s + t - p = factor (o s / factor + (t + e) // factor - q) + (t + e) % factor,  where factor q = p + e"""
    window, place = state.window, axis + layout.first
    size, taps = state.data.type.sizes[place], state.weight.type.sizes[2 + axis]
    before = -(-window.before[axis] // factor)
    shift = before * factor - window.before[axis]
    whole = -(-(taps + shift) // factor)
    image = Regrouping(place, layout.channel, factor, False, False).of(padded_axes(state.data, {place: (0, -size % factor)}))
    filters = padded_axes(state.weight, {2 + axis: (shift, whole * factor - taps - shift)})
    weight = Regrouping(2 + axis, 1, factor, False, False).of(filters)
    if image is None or weight is None:
        return None
    outputs = (size + window.before[axis] + window.after[axis] - taps) // window.strides[axis] + 1
    stride = window.strides[axis] // factor
    after = max(0, (outputs - 1) * stride - before + whole - image.type.sizes[place])

    def at_axis(side: tuple[int, ...], value: int) -> tuple[int, ...]:
        return (*side[:axis], value, *side[axis + 1 :])

    made = Window(at_axis(window.strides, stride), at_axis(window.before, before), at_axis(window.after, after), window.dilations)
    move = Move("axis {0} by {1} into channels", (place,), (factor,))
    return replace(state, data=image, weight=weight, window=made, moves=(*state.moves, move))
