"""Pooling: what commutes with it, and how windows compose."""

from __future__ import annotations

import math

from egraph.rule import Attributes, Rule, Steps, Tensor, Weight, operation, require, rule
from egraph.rule_operators import average_pool, concat, conv, max_pool, pad, reduce_max, reduce_mean, relu, unary
from egraph.rules.axes import alike_but, channel_axis, per_channel, spatial_axes
from egraph.rules.conv import is_pointwise
from egraph.rules.family import named, of_arity, snake


def _monotone(op: str) -> Rule:
    def law(x: Tensor, a: Attributes) -> Steps:
        """The maximum first: the function then runs on fewer elements."""
        yield max_pool(unary(op, x), a)
        yield unary(op, max_pool(x, a))

    return named(law, f"max_pool_before_{snake(op)}", f"max_pool({op}(x)) = {op}(max_pool(x)),  {op} never falls")


@rule
def max_pool_before_clip(x: Tensor, c: Attributes, a: Attributes) -> Steps:
    """max_pool(clip(x)) = clip(max_pool(x))"""
    yield max_pool(unary("Clip", x, c), a)
    require(c.min < math.inf and -math.inf < c.max, "the limits must leave something between them")
    yield unary("Clip", max_pool(x, a), c)


@rule(rounding="assumes finite")
def max_pool_before_leaky_relu(x: Tensor, c: Attributes, a: Attributes) -> Steps:
    """max_pool(leaky_relu(x)) = leaky_relu(max_pool(x)),  slope >= 0"""
    yield max_pool(unary("LeakyRelu", x, c), a)
    require(c.alpha >= 0, "a negative slope makes the function fall")
    yield unary("LeakyRelu", max_pool(x, a), c)


@rule
def relu_before_max_pool(x: Tensor, a: Attributes) -> Steps:
    """relu(max_pool(x)) = max_pool(relu(x))

    Back to the producer, where the library fuses it."""
    yield relu(max_pool(x, a))
    yield max_pool(relu(x), a)


@rule
def max_pool_of_max_pool(x: Tensor, a: Attributes, b: Attributes) -> Steps:
    """max_pool(max_pool(x, k), l) = max_pool(x, k + l - 1),  inner stride 1"""
    yield max_pool(max_pool(x, a), b)
    require(a.layout == b.layout, "the layouts must agree")
    require(all(s == 1 for s in a.strides), "an inner stride leaves gaps between the windows")
    require(all(d == 1 for d in (*a.dilations, *b.dilations)), "dilated windows do not join")
    kernel = tuple(k + m - 1 for k, m in zip(a.kernel_shape, b.kernel_shape, strict=True))
    yield max_pool(x, b.but(kernel_shape=kernel, pads=tuple(p + q for p, q in zip(a.pads, b.pads, strict=True))))


def _spatial_zeros(p: Attributes, spatial: tuple[int, ...], rank: int) -> tuple[int, ...]:
    require(p.mode == "constant", "the padding must be constant")
    require(all(amount >= 0 for amount in (*p.before, *p.after)), "negative padding crops")
    require(all(p.before[i] == p.after[i] == 0 for i in range(rank) if i not in spatial), "only spatial axes may be padded")
    return (*(p.before[i] for i in spatial), *(p.after[i] for i in spatial))


def _joined(a: Attributes, extra: tuple[int, ...]) -> tuple[int, ...]:
    """Return the padding of both together, or refuse what no pool has: padding as large as the window."""
    n = len(a.kernel_shape)
    pads = tuple(old + new for old, new in zip(a.pads, extra, strict=True))
    require(all(pads[i] < a.kernel_shape[i % n] for i in range(2 * n)), "the padding must be smaller than the window")
    return pads


@rule
def pad_into_average_pool(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """average_pool(pad(x)) = average_pool(x) with more padding, counted"""
    yield average_pool(pad(x, p), a)
    extra = _spatial_zeros(p, spatial_axes(a, x.rank), x.rank)
    require(p.value == 0, "the padding must be zeros")
    require(bool(a.count_include_pad) or not any(a.pads), "padding that is not counted cannot join padding that is")
    yield average_pool(x, a.but(pads=_joined(a, extra), count_include_pad=1))


@rule
def pad_into_max_pool(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """max_pool(pad(x)) = max_pool(x) with more padding,  padded with minus infinity

    A finite number would win over minus infinity, and where a window lies wholly in the padding."""
    yield max_pool(pad(x, p), a)
    extra = _spatial_zeros(p, spatial_axes(a, x.rank), x.rank)
    require(p.value == -math.inf, "the padding must never win")
    yield max_pool(x, a.but(pads=_joined(a, extra)))


@rule
def pad_of_relu_into_max_pool(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """max_pool(pad(relu(x))) = relu(max_pool(x)) with more padding,  zeros below every element

    Padding of the pool's own is minus infinity, and a dilated window may lie wholly in it."""
    yield max_pool(pad(relu(x), p), a)
    extra = _spatial_zeros(p, spatial_axes(a, x.rank), x.rank)
    require(p.value == 0, "the padding must be zeros")
    require(not any(a.pads), "the pool must not pad")
    yield relu(max_pool(x, a.but(pads=_joined(a, extra))))


def _concat_of_pools(op: str) -> tuple[Rule, ...]:
    def law(x: list[Tensor], a: Attributes, c: Attributes) -> Steps:
        yield concat(*(operation(op, each, by=a) for each in x), a=c)
        require(c.axis in (0, channel_axis(a, x[0].rank)), "windows would cross the seam of spatial axes")
        require(alike_but(c.axis, x), "the inputs must have the same size: strides may leave out a border")
        yield operation(op, concat(*x, a=c), by=a)

    law.__name__ = f"concat_of_{snake(op)}s"
    return tuple(of_arity(law, n, f"concat({op}(x_i)) = {op}(concat(x_i)),  batch or channels, i to {n}") for n in (2, 3))


def _whole(a: Attributes, spatial: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return not any(a.pads) and tuple(a.kernel_shape) == tuple(shape[i] for i in spatial)


@rule(rounding="reassociates")
def average_pool_of_everything(x: Tensor, a: Attributes) -> Steps:
    """average_pool(x, whole) = mean(x)"""
    yield average_pool(x, a)
    spatial = spatial_axes(a, x.rank)
    require(_whole(a, spatial, x.shape) and all(d == 1 for d in a.dilations), "the window must cover the input")
    yield reduce_mean(x, axes=spatial)


@rule(rounding="reassociates")
def mean_is_average_pool(x: Tensor, a: Attributes) -> Steps:
    """mean(x, spatial) = average_pool(x, whole)"""
    yield reduce_mean(x, a)
    require(x.rank in (4, 5) and a.axes == tuple(range(2, x.rank)), "the axes must be all spatial axes, channels first")
    n = x.rank - 2
    yield average_pool(x, count_include_pad=0, dilations=(1,) * n, kernel_shape=x.shape[2:], layout="NCHW", pads=(0,) * (2 * n),
                       strides=(1,) * n)


@rule
def max_pool_of_everything(x: Tensor, a: Attributes) -> Steps:
    """max_pool(x, whole) = max(x)"""
    yield max_pool(x, a)
    spatial = spatial_axes(a, x.rank)
    require(_whole(a, spatial, x.shape) and all(d == 1 for d in a.dilations), "the window must cover the input")
    yield reduce_max(x, axes=spatial)


def _pool_of_one(op: str) -> Rule:
    def law(x: Tensor, a: Attributes) -> Steps:
        yield operation(op, x, by=a)
        require(all(k == 1 for k in a.kernel_shape) and all(s == 1 for s in a.strides), "windows must hold one element, without stride")
        require(not any(a.pads), "there must be no padding")
        yield x

    return named(law, f"{snake(op)}_of_one", f"{op}(x, 1x1) = x")


@rule(rounding="reassociates")
def average_pool_before_pointwise_conv(x: Tensor, w: Weight, c: Attributes, a: Attributes) -> Steps:
    """average_pool(conv(x, w)) = conv(average_pool(x), w),  w pointwise

    Both are linear and on different axes; the convolution then runs on fewer positions."""
    yield average_pool(conv(x, w, c), a)
    require(is_pointwise(w, c) and a.layout == c.layout, "the convolution must be 1x1 without stride or padding, of the same layout")
    yield conv(average_pool(x, a), w, c)


@rule(rounding="reassociates")
def average_pool_before_bias(x: Tensor, b: Weight, a: Attributes) -> Steps:
    """average_pool(x + b) = average_pool(x) + b,  b one number a channel, padding not counted"""
    whole = x + b
    yield average_pool(whole, a)
    require(whole.rank == x.rank, "the bias must not widen x")
    axis = channel_axis(a, x.rank)
    per_channel(b, axis, x.rank, x.shape[axis])
    require(whole.shape == x.shape, "the bias must not widen x")
    if any(a.pads):
        require(not a.count_include_pad, "counted padding lacks the bias")
        require(all(d == 1 for d in a.dilations), "dilated windows may hold no element to which the bias is added")
    yield average_pool(x, a) + b


@rule(rounding="reassociates")
def average_pool_before_scale(x: Tensor, s: Weight, a: Attributes) -> Steps:
    """average_pool(x * s) = average_pool(x) * s,  s one number a channel"""
    whole = x * s
    yield average_pool(whole, a)
    require(whole.rank == x.rank, "the scale must not widen x")
    axis = channel_axis(a, x.rank)
    per_channel(s, axis, x.rank, x.shape[axis])
    require(whole.shape == x.shape, "the scale must not widen x")
    yield average_pool(x, a) * s


RULES: tuple[Rule, ...] = (
    *(_monotone(op) for op in ("Relu", "Sigmoid", "Tanh", "Softplus")), max_pool_before_clip, max_pool_before_leaky_relu,
    relu_before_max_pool, max_pool_of_max_pool, pad_into_average_pool, pad_into_max_pool, pad_of_relu_into_max_pool,
    *_concat_of_pools("MaxPool"), *_concat_of_pools("AveragePool"), average_pool_of_everything, mean_is_average_pool,
    max_pool_of_everything, _pool_of_one("MaxPool"), _pool_of_one("AveragePool"), average_pool_before_pointwise_conv,
    average_pool_before_bias, average_pool_before_scale,
)
