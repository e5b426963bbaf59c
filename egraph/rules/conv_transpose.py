"""Transposed convolutions as products over whole pixels and a rearrangement: libraries are slow at the scattering itself.

Along one axis with stride s, tap ``k = s u + a`` of input position h writes output position ``s (h + u) + a - pad``. So taps
fall into s phases a, and every phase is a sum over few steps u.
"""

from __future__ import annotations

import itertools
import math

from egraph.rule import Attributes, Rule, Steps, Tensor, Weight, require, rule
from egraph.rule_operators import conv, conv_transpose, pad, slice_, transpose
from egraph.rules.axes import spatial_axes

WASTE = 4
"""A convolution over all phases may do this many times the multiplications: most of its taps can be zeros."""
MOST_TERMS = 9


@rule(rounding="reassociates")
def conv_transpose_of_one_position_is_matmul(x: Tensor, w: Weight, a: Attributes) -> Steps:
    """conv_transpose(x, w) = reshape(x) W,  one position in, unpadded"""
    whole = conv_transpose(x, w, a)
    yield whole
    inputs = w.shape[0]
    require(a.group == 1 and x.type.elements == x.shape[0] * inputs, "the input must be one position, ungrouped")
    require(not any(a.pads) and not any(a.output_padding), "nothing may be cut off or added")
    require(all(d == 1 or k == 1 for d, k in zip(a.dilations, w.shape[2:], strict=True)), "the kernel must be dense")
    kernel = w if a.layout == "NCHW" else transpose(w, perm=(0, *range(2, w.rank), 1))
    yield (x.reshape(x.shape[0], inputs) @ kernel.reshape(inputs, w.type.elements // inputs)).reshape(*whole.shape)


def _strided(w: Tensor, a: Attributes) -> None:
    require(a.group == 1, "the convolution must be ungrouped")
    require(all(d == 1 or k == 1 for d, k in zip(a.dilations, w.shape[2:], strict=True)), "the kernel must be dense")
    require(any(s > 1 for s in a.strides), "there must be a stride")


def _phases(size: int, result: int, taps: int, stride: int, before: int) -> tuple[int, tuple[int, int], tuple[int, int], int]:
    """Return how one axis falls into phases, for an equal convolution: its taps, what zeros complete them, its padding, its size."""
    first, last = -((taps - 1 - before) // stride), (stride - 1 + before) // stride
    count = last - first + 1
    front = stride * last - before
    steps = -(-result // stride)
    return count, (front, stride * count - front - taps), (-first, steps + last - size), steps


def _interleave(x: Tensor, layout: str, sizes: tuple[int, ...], strides: tuple[int, ...], channels: int) -> Tensor:
    """Return channels-first [N, (F, a...), q...] or channels-last [N, q..., (a..., F)] as an image of ``q a`` pixels an axis."""
    n, count = x.shape[0], len(sizes)
    image = tuple(q * s for q, s in zip(sizes, strides, strict=True))
    if layout == "NCHW":
        split = x.reshape(n, channels, *strides, *sizes)
        pairs = itertools.chain.from_iterable((2 + count + i, 2 + i) for i in range(count))
        return transpose(split, perm=(0, 1, *pairs)).reshape(n, channels, *image)
    split = x.reshape(n, *sizes, *strides, channels)
    pairs = itertools.chain.from_iterable((1 + i, 1 + count + i) for i in range(count))
    return transpose(split, perm=(0, *pairs, 1 + 2 * count)).reshape(n, *image, channels)


def _window(x: Tensor, axes: tuple[int, ...], starts: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
    """Return x cut to ``sizes`` from ``starts`` on along some axes."""
    first, last = [0] * x.rank, list(x.shape)
    for axis, start, size in zip(axes, starts, sizes, strict=True):
        first[axis], last[axis] = start, start + size
    if tuple(last) == x.shape and not any(first):
        return x
    return slice_(x, starts=tuple(first), ends=tuple(last), steps=(1,) * x.rank)


@rule(rounding="assumes finite")
def conv_transpose_is_conv_of_phases(x: Tensor, w: Weight, a: Attributes) -> Steps:
    """conv_transpose(x, w, stride s) = interleave(conv(x, all s phases of w)),  ungrouped"""
    whole = conv_transpose(x, w, a)
    yield whole
    _strided(w, a)
    axes, count = spatial_axes(a, x.rank), w.rank - 2
    result = tuple(whole.shape[axis] for axis in axes)
    phases = [_phases(x.shape[axis], result[i], w.shape[2 + i], a.strides[i], a.pads[i]) for i, axis in enumerate(axes)]
    counts, pads = [p[0] for p in phases], [p[2] for p in phases]
    require(all(min(cut) >= 0 and min(zeros) >= 0 for _, zeros, cut, _ in phases), "no input may be left out")
    full = pad(w, before=(0, 0, *(p[1][0] for p in phases)), after=(0, 0, *(p[1][1] for p in phases)), mode="constant", value=0.0)
    require(full.type.elements <= WASTE * w.type.elements, "most taps of the equal convolution would be zeros")
    inputs, channels = w.shape[:2]
    split = full.reshape(inputs, channels, *itertools.chain.from_iterable(zip(counts, a.strides, strict=True)))
    starts, ends, steps = [0] * split.rank, list(split.shape), [1] * split.rank
    for i, taps_of_axis in enumerate(counts):
        starts[2 + 2 * i], ends[2 + 2 * i], steps[2 + 2 * i] = taps_of_axis - 1, -1, -1
    turned = slice_(split, starts=tuple(starts), ends=tuple(ends), steps=tuple(steps))
    taps, parts = (tuple(2 + 2 * i for i in range(count)), tuple(3 + 2 * i for i in range(count)))
    outputs = (1, *parts) if a.layout == "NCHW" else (*parts, 1)
    kernel = transpose(turned, perm=(*outputs, 0, *taps))
    total = kernel.type.elements // (inputs * math.prod(counts))
    kernel = kernel.reshape(total, inputs, *counts)
    ones = (1,) * count
    padding = (*(before for before, _ in pads), *(after for _, after in pads))
    mixed = conv(x, kernel, dilations=ones, group=1, layout=a.layout, pads=padding, strides=ones)
    image = _interleave(mixed, a.layout, tuple(size for *_, size in phases), a.strides, channels)
    yield _window(image, axes, (0,) * count, result)


@rule(rounding="assumes finite")
def conv_transpose_is_overlapping_sum(x: Tensor, w: Weight, a: Attributes) -> Steps:
    """conv_transpose(x, w, stride s) = interleave(sum over steps of shifted conv(x, w as 1x1)),  ungrouped"""
    whole = conv_transpose(x, w, a)
    yield whole
    _strided(w, a)
    axes, count = spatial_axes(a, x.rank), w.rank - 2
    result = tuple(whole.shape[axis] for axis in axes)
    steps = tuple(-(-k // s) for k, s in zip(w.shape[2:], a.strides, strict=True))
    rest = tuple(u * s - k for u, s, k in zip(steps, a.strides, w.shape[2:], strict=True))
    terms = list(itertools.product(*map(range, steps)))
    require(1 < len(terms) <= MOST_TERMS, "there must be a few steps to sum")
    inputs, channels = w.shape[:2]
    full = pad(w, before=(0,) * w.rank, after=(0, 0, *rest), mode="constant", value=0.0) if any(rest) else w
    require(full.type.elements <= WASTE * w.type.elements, "most taps would be zeros")
    split = full.reshape(inputs, channels, *itertools.chain.from_iterable(zip(steps, a.strides, strict=True)))
    taps, parts = (tuple(2 + 2 * i for i in range(count)), tuple(3 + 2 * i for i in range(count)))
    outputs = (1, *parts) if a.layout == "NCHW" else (*parts, 1)
    kernel = transpose(split, perm=(*taps, *outputs, 0)).reshape(full.type.elements // inputs, inputs, *(1,) * count)
    ones = (1,) * count
    products = conv(x, kernel, dilations=ones, group=1, layout=a.layout, pads=(0,) * (2 * count), strides=ones)
    channel = 1 if a.layout == "NCHW" else x.rank - 1
    width = products.shape[channel] // len(terms)
    total: Tensor | None = None
    for number, term in enumerate(terms):
        part = _window(products, (channel,), (number * width,), (width,))
        before, after = [0] * x.rank, [0] * x.rank
        for axis, u, most in zip(axes, term, steps, strict=True):
            before[axis], after[axis] = u, most - 1 - u
        moved = pad(part, before=tuple(before), after=tuple(after), mode="constant", value=0.0)
        total = moved if total is None else total + moved
    assert total is not None
    sizes = tuple(x.shape[axis] + u - 1 for axis, u in zip(axes, steps, strict=True))
    image = _interleave(total, a.layout, sizes, a.strides, channels)
    missing = tuple(p + r - q * s for p, r, q, s in zip(a.pads, result, sizes, a.strides, strict=False))
    require(all(m <= 0 for m in missing), "output padding reaches past the last tap")
    yield _window(image, axes, a.pads[:count], result)


RULES: tuple[Rule, ...] = (
    conv_transpose_of_one_position_is_matmul, conv_transpose_is_conv_of_phases, conv_transpose_is_overlapping_sum,
)  # fmt: skip
