"""Algebra of convolutions over their weights: scales, biases, sums, concatenations and 1x1 forms.

Weights are OIHW (IOHW for the transposed one) whatever the layout of the data, so only channel axes depend on it.
"""

from __future__ import annotations

from egraph.rule import Attributes, Rule, Steps, Tensor, Weight, require, rule
from egraph.rule_operators import concat, conv, conv_transpose, pad, slice_, transpose
from egraph.rules.axes import alike_but, along, channel_axis, per_channel, spatial_axes
from egraph.rules.family import of_arity


def is_pointwise(w: Tensor, a: Attributes) -> bool:
    """Return whether the convolution looks at one position at a time: 1x1, stride 1, no padding."""
    return all(k == 1 for k in w.shape[2:]) and all(s == 1 for s in a.strides) and not any(a.pads)


def by_group(w: Tensor, s: Tensor, group: int, output: bool) -> Tensor:
    """Return w * s for OIHW weights, s[1] or one number an output (or input) channel of the whole convolution."""
    if s.shape == (1,):
        return w * s
    if output:
        return w * along(s, 0, w.rank)
    split = w.reshape(group, w.shape[0] // group, *w.shape[1:])
    return (split * s.reshape(group, 1, w.shape[1], *(1,) * (w.rank - 2))).reshape(*w.shape)


@rule(rounding="assumes finite")
def scale_into_conv(x: Tensor, w: Weight, s: Weight, a: Attributes) -> Steps:
    """conv(x, w) * s = conv(x, w * s),  s one number an output channel"""
    yield conv(x, w, a) * s
    scale = per_channel(s, channel_axis(a, x.rank), x.rank, w.shape[0])
    yield conv(x, by_group(w, scale, a.group, output=True), a)


@rule(rounding="assumes finite")
def scale_into_conv_transpose(x: Tensor, w: Weight, s: Weight, a: Attributes) -> Steps:
    """conv_transpose(x, w) * s = conv_transpose(x, w * s),  s one number an output channel"""
    yield conv_transpose(x, w, a) * s
    scale = per_channel(s, channel_axis(a, x.rank), x.rank, w.shape[1] * a.group)
    if scale.shape == (1,):
        yield conv_transpose(x, w * scale, a)
    else:
        split = w.reshape(a.group, w.shape[0] // a.group, *w.shape[1:])
        scaled = split * scale.reshape(a.group, 1, w.shape[1], *(1,) * (w.rank - 2))
        yield conv_transpose(x, scaled.reshape(*w.shape), a)


@rule(rounding="reassociates")
def input_scale_into_conv(x: Tensor, s: Weight, w: Weight, a: Attributes) -> Steps:
    """conv(x * s, w) = conv(x, w * s),  s one number an input channel

    Padding adds zeros, which a scale leaves alone."""
    scaled = x * s
    yield conv(scaled, w, a)
    require(scaled.shape == x.shape, "the scale must not widen x")
    axis = channel_axis(a, x.rank)
    scale = per_channel(s, axis, x.rank, x.shape[axis])
    yield conv(x, by_group(w, scale, a.group, output=False), a)


@rule(rounding="reassociates")
def input_scale_into_conv_transpose(x: Tensor, s: Weight, w: Weight, a: Attributes) -> Steps:
    """conv_transpose(x * s, w) = conv_transpose(x, w * s),  s one number an input channel"""
    scaled = x * s
    yield conv_transpose(scaled, w, a)
    require(scaled.shape == x.shape, "the scale must not widen x")
    axis = channel_axis(a, x.rank)
    yield conv_transpose(x, w * along(per_channel(s, axis, x.rank, x.shape[axis]), 0, w.rank), a)


# A bias before a convolution stays where it is: it may pass only where nothing is padded, and then every constant of a
# whole chain would pass every convolution, in every combination.


@rule(rounding="reassociates")
def pointwise_conv_then_conv(x: Tensor, v: Weight, w: Weight, a: Attributes, b: Attributes) -> Steps:
    """conv(conv(x, v), w) = conv(x, w v),  v pointwise

    Zeros stay zeros through v, so padding of the outer convolution stays what it was."""
    yield conv(conv(x, v, a), w, b)
    require(is_pointwise(v, a), "the inner convolution must be 1x1 without stride or padding")
    require(a.group == 1 and b.group == 1 and a.layout == b.layout, "both must be ungrouped and of one layout")
    inner, kernel = v.shape[1], w.type.elements // (w.shape[0] * w.shape[1])
    require(w.shape[0] * inner * kernel <= v.type.elements + w.type.elements, "the product must not be larger than both weights")
    last = tuple(range(2, w.rank))
    rows = transpose(w, perm=(0, *last, 1)).reshape(w.shape[0] * kernel, w.shape[1])
    product = (rows @ v.reshape(v.shape[0], inner)).reshape(w.shape[0], *w.shape[2:], inner)
    yield conv(x, transpose(product, perm=(0, w.rank - 1, *range(1, w.rank - 1))), b)


@rule(rounding="reassociates")
def conv_then_pointwise_conv(x: Tensor, v: Weight, w: Weight, a: Attributes, b: Attributes) -> Steps:
    """conv(conv(x, v), w) = conv(x, w v),  w pointwise"""
    yield conv(conv(x, v, a), w, b)
    require(is_pointwise(w, b), "the outer convolution must be 1x1 without stride or padding")
    require(a.group == 1 and b.group == 1 and a.layout == b.layout, "both must be ungrouped and of one layout")
    inner = v.type.elements // v.shape[0]
    require(w.shape[0] * inner <= v.type.elements + w.type.elements, "the product must not be larger than both weights")
    product = w.reshape(w.shape[0], w.shape[1]) @ v.reshape(v.shape[0], inner)
    yield conv(x, product.reshape(w.shape[0], *v.shape[1:]), a)


def _enlarge(w: Tensor, a: Attributes, wanted: Tensor, b: Attributes) -> Tensor:
    """Return w with zeros around, as large as ``wanted``, such that attributes b do with it what a did with w.

    Padding must move with the kernel's first tap, on each side, whatever the stride; both sides are compared, so kernels
    of even size and uneven padding are as right as centred ones."""
    n = w.rank - 2
    dilations_agree = all(d == e or k == 1 for d, e, k in zip(a.dilations, b.dilations, w.shape[2:], strict=True))
    require(a.strides == b.strides and a.group == b.group and a.layout == b.layout, "stride, group and layout must agree")
    require(dilations_agree, "the dilations must agree")
    before, after = [], []
    for i in range(n):
        shift, dilation = b.pads[i] - a.pads[i], b.dilations[i]
        require(shift >= 0 and shift % dilation == 0, "the smaller kernel must begin on a tap of the larger")
        before.append(shift // dilation)
        after.append(wanted.shape[2 + i] - w.shape[2 + i] - before[-1])
        require(after[-1] >= 0, "the smaller kernel must lie within the larger")
    if not any(before) and not any(after):
        return w
    return pad(w, before=(0, 0, *before), after=(0, 0, *after), mode="constant", value=0.0)


@rule(rounding="reassociates")
def add_convs_of_one_input(x: Tensor, v: Weight, w: Weight, a: Attributes, b: Attributes) -> Steps:
    """conv(x, v) + conv(x, w) = conv(x, v + w),  the smaller kernel enlarged with zeros"""
    first, second = conv(x, v, a), conv(x, w, b)
    yield first + second
    require(v.shape[:2] == w.shape[:2] and first.shape == second.shape, "both must have the same channels and sizes: neither may broadcast")
    if v.type.elements >= w.type.elements:
        yield conv(x, v + _enlarge(w, b, v, a), a)
    else:
        yield conv(x, _enlarge(v, a, w, b) + w, b)


@rule(rounding="reassociates")
def add_convs_of_one_weight(x: Tensor, y: Tensor, w: Weight, a: Attributes) -> Steps:
    """conv(x, w) + conv(y, w) = conv(x + y, w)"""
    yield conv(x, w, a) + conv(y, w, a)
    require(x.shape == y.shape, "the inputs must have the same shape: a convolution does not broadcast")
    yield conv(x + y, w, a)


@rule(rounding="reassociates")
def add_convs(x: Tensor, y: Tensor, v: Weight, w: Weight, a: Attributes) -> Steps:
    """conv(x, v) + conv(y, w) = conv([x y], [v w]),  ungrouped"""
    yield conv(x, v, a) + conv(y, w, a)
    require(a.group == 1, "grouped filters would cross between x and y")
    require(v.shape[0] == w.shape[0] and x.shape[0] == y.shape[0], "neither may broadcast")
    require(v.shape[2:] == w.shape[2:], "the kernels must have the same size")
    axis = channel_axis(a, x.rank)
    require(alike_but(axis, (x, y)), "the inputs must have the same size: strides may leave out a border")
    yield conv(concat(x, y, axis=axis), concat(v, w, axis=1), a)


@rule(rounding="reassociates")
def conv_of_concat(x: Tensor, y: Tensor, w: Weight, a: Attributes, c: Attributes) -> Steps:
    """conv([x y], w) = conv(x, w[:, :k]) + conv(y, w[:, k:]),  ungrouped"""
    yield conv(concat(x, y, a=c), w, a)
    axis = channel_axis(a, x.rank)
    require(c.axis == axis and a.group == 1, "the concatenation must be along the channels of an ungrouped convolution")
    k = x.shape[axis]
    zeros, ones = (0,) * w.rank, (1,) * w.rank
    first = slice_(w, starts=zeros, ends=(w.shape[0], k, *w.shape[2:]), steps=ones)
    second = slice_(w, starts=(0, k, *zeros[2:]), ends=w.shape, steps=ones)
    yield conv(x, first, a) + conv(y, second, a)


def concat_of_convs_of_one_input(x: Tensor, w: list[Weight], a: Attributes, c: Attributes) -> Steps:
    yield concat(*(conv(x, each, a) for each in w), a=c)
    require(a.group == 1, "filters of different groups would be interleaved")
    require(c.axis == channel_axis(a, x.rank), "the concatenation must be along the channels")
    require(all(each.shape[1:] == w[0].shape[1:] for each in w), "the kernels must have the same size")
    yield conv(x, concat(*w, axis=0), a)


def concat_of_convs_of_one_weight(x: list[Tensor], w: Weight, a: Attributes, c: Attributes) -> Steps:
    yield concat(*(conv(each, w, a) for each in x), a=c)
    require(c.axis == 0, "the concatenation must be along the batch")
    require(alike_but(0, x), "the inputs must have the same size: strides may leave out a border")
    yield conv(concat(*x, axis=0), w, a)


def concat_of_convs(x: list[Tensor], w: list[Weight], a: Attributes, c: Attributes) -> Steps:
    yield concat(*(conv(each, v, a) for each, v in zip(x, w, strict=True)), a=c)
    axis = channel_axis(a, x[0].rank)
    require(c.axis == axis, "the concatenation must be along the channels")
    alike = all(each.shape == x[0].shape and v.shape == w[0].shape for each, v in zip(x, w, strict=True))
    require(alike, "groups must be of one size: channels and kernels")
    yield conv(concat(*x, axis=axis), concat(*w, axis=0), a.but(group=a.group * len(x)))


@rule
def channels_of_conv(x: Tensor, w: Weight, a: Attributes, c: Attributes) -> Steps:
    """conv(x, w)[:, i:j] = conv(x, w[i:j]),  ungrouped"""
    whole = conv(x, w, a)
    yield slice_(whole, c)
    axis = channel_axis(a, x.rank)
    others = [i for i in range(x.rank) if i != axis]
    require(a.group == 1, "the filters that remain may belong to uneven groups")
    require(all(c.steps[i] == 1 for i in others), "only channels may be stepped over")
    require(all(c.starts[i] == 0 and c.ends[i] == whole.shape[i] for i in others), "only channels may be cut")
    yield conv(x, slice_(w, starts=(c.starts[axis], *(0,) * (w.rank - 1)), ends=(c.ends[axis], *w.shape[1:]),
                         steps=(c.steps[axis], *(1,) * (w.rank - 1))), a)


@rule(rounding="assumes finite")
def pad_into_conv(x: Tensor, w: Weight, p: Attributes, a: Attributes) -> Steps:
    """conv(pad(x), w) = conv(x, w) with more padding,  zeros around spatial axes"""
    yield conv(pad(x, p), w, a)
    spatial = spatial_axes(a, x.rank)
    require(p.mode == "constant" and p.value == 0, "the padding must be zeros")
    require(all(amount >= 0 for amount in (*p.before, *p.after)), "negative padding crops")
    require(all(p.before[i] == p.after[i] == 0 for i in range(x.rank) if i not in spatial), "only spatial axes may be padded")
    extra = (*(p.before[i] for i in spatial), *(p.after[i] for i in spatial))
    yield conv(x, w, a.but(pads=tuple(old + new for old, new in zip(a.pads, extra, strict=True))))


@rule
def strided_pointwise_conv(x: Tensor, w: Weight, a: Attributes) -> Steps:
    """conv(x, w, stride) = conv(x[::stride], w),  1x1 without padding"""
    yield conv(x, w, a)
    require(all(k == 1 for k in w.shape[2:]) and not any(a.pads), "the kernel must be 1x1 without padding")
    require(any(s > 1 for s in a.strides), "there must be a stride")
    steps, ends = [1] * x.rank, list(x.shape)
    for axis, stride in zip(spatial_axes(a, x.rank), a.strides, strict=True):
        steps[axis], ends[axis] = stride, ((x.shape[axis] - 1) // stride + 1) * stride
    kept = slice_(x, starts=(0,) * x.rank, ends=tuple(ends), steps=tuple(steps))
    yield conv(kept, w, a.but(strides=(1,) * len(a.strides)))


@rule(rounding="reassociates")
def pointwise_conv_is_matmul(x: Tensor, w: Weight, a: Attributes) -> Steps:
    """conv(x, w) = x W^T,  1x1 at one position: [N, C] by [C, F]

    With more positions libraries run a 1x1 convolution as this product anyway, and the reshapes would double the e-graph."""
    whole = conv(x, w, a)
    yield whole
    n, c = x.shape[0], w.shape[1]
    require(is_pointwise(w, a) and a.group == 1, "the convolution must be 1x1 and ungrouped")
    require(x.type.elements == n * c, "there must be one position")
    yield (x.reshape(n, c) @ transpose(w.reshape(w.shape[0], c), perm=(1, 0))).reshape(*whole.shape)


@rule(rounding="reassociates")
def conv_of_whole_input_is_matmul(x: Tensor, w: Weight, a: Attributes) -> Steps:
    """conv(x, w) = reshape(x) W^T,  the kernel as large as the input"""
    whole = conv(x, w, a)
    yield whole
    require(a.group == 1 and a.layout == "NCHW" and not any(a.pads), "the convolution must be ungrouped, unpadded, channels first")
    require(x.shape[2:] == w.shape[2:] and any(k > 1 for k in w.shape[2:]), "the kernel must cover the input")
    require(all(d == 1 or k == 1 for d, k in zip(a.dilations, w.shape[2:], strict=True)), "the kernel must be dense")
    k = w.type.elements // w.shape[0]
    yield (x.reshape(x.shape[0], k) @ transpose(w.reshape(w.shape[0], k), perm=(1, 0))).reshape(*whole.shape)


@rule
def depthwise_pointwise_conv_is_scale(x: Tensor, w: Weight, a: Attributes) -> Steps:
    """conv(x, w) = x * w,  1x1 with one channel a group"""
    yield conv(x, w, a)
    require(is_pointwise(w, a) and w.shape[:2] == (a.group, 1), "the convolution must be 1x1 with one channel in and out a group")
    yield x * along(w.reshape(a.group), channel_axis(a, x.rank), x.rank)


@rule
def conv_transpose_is_conv(x: Tensor, w: Weight, a: Attributes) -> Steps:
    """conv_transpose(x, w) = conv(x, flipped w^T),  stride 1, ungrouped"""
    yield conv_transpose(x, w, a)
    require(a.group == 1 and all(s == 1 for s in a.strides), "the stride must be 1, ungrouped")
    require(not any(a.output_padding), "there must be no output padding")
    n = w.rank - 2
    reach = tuple(d * (k - 1) for d, k in zip(a.dilations, w.shape[2:], strict=True))
    pads = tuple(reach[i % n] - a.pads[i] for i in range(2 * n))
    require(all(amount >= 0 for amount in pads), "padding must not exceed the kernel's reach")
    backwards = slice_(w, starts=(0, 0, *(k - 1 for k in w.shape[2:])), ends=(*w.shape[:2], *(-1,) * n), steps=(1, 1, *(-1,) * n))
    turned = transpose(backwards, perm=(1, 0, *range(2, w.rank)))
    yield conv(x, turned, dilations=a.dilations, group=1, layout=a.layout, pads=pads, strides=a.strides)


@rule(rounding="assumes finite")
def halve_groups(x: Tensor, w: Weight, a: Attributes) -> Steps:
    """conv(x, w, group g) = conv(x, block-diagonal w, group g / 2)

    Pays where groups are so narrow that a dense kernel of twice the work is faster."""
    yield conv(x, w, a)
    require(a.group % 2 == 0, "the number of groups must be even")
    require(1 < w.shape[1] <= 16, "groups must be narrow, and not depthwise")
    f, c = w.shape[0] // a.group, w.shape[1]
    pairs = w.reshape(a.group // 2, 2, f, c, *w.shape[2:])
    zeros, ones = (0,) * pairs.rank, (1,) * pairs.rank
    kernel = (0,) * (w.rank - 2)
    upper = slice_(pairs, starts=zeros, ends=(a.group // 2, 1, *pairs.shape[2:]), steps=ones)
    lower = slice_(pairs, starts=(0, 1, *zeros[2:]), ends=pairs.shape, steps=ones)
    wide = concat(
        pad(upper, before=zeros, after=(0, 0, 0, c, *kernel), mode="constant", value=0.0),
        pad(lower, before=(0, 0, 0, c, *kernel), after=zeros, mode="constant", value=0.0), axis=1)
    yield conv(x, wide.reshape(w.shape[0], 2 * c, *w.shape[2:]), a.but(group=a.group // 2))


@rule
def taps_on_padding(x: Tensor, w: Weight, a: Attributes) -> Steps:
    """conv(x, w) = conv(x, w[taps]) with less padding,  without the taps that read padding at every position

    The first taps of an axis do where even the last position leaves them before x, the last ones where the first position
    leaves them behind it."""
    whole = conv(x, w, a)
    yield whole
    first, last = [], []
    for i, axis in enumerate(spatial_axes(a, x.rank)):
        d = a.dilations[i]
        first.append(max(0, (a.pads[i] - (whole.shape[axis] - 1) * a.strides[i] + d - 1) // d))
        last.append(max(0, ((w.shape[2 + i] - 1) * d - x.shape[axis] - a.pads[i]) // d + 1))
    require(any(first) or any(last), "some taps must read padding alone")
    require(all(f + n < k for f, n, k in zip(first, last, w.shape[2:], strict=True)), "some tap must read x")
    ends = (*w.shape[:2], *(k - n for k, n in zip(w.shape[2:], last, strict=True)))
    kept = slice_(w, starts=(0, 0, *first), ends=ends, steps=(1,) * w.rank)
    pads = tuple(amount - d * n for amount, d, n in zip(a.pads, (*a.dilations, *a.dilations), (*first, *last), strict=True))
    require(all(amount >= 0 for amount in pads), "the taps must end with the padding")
    yield conv(x, kept, a.but(pads=pads))


RULES: tuple[Rule, ...] = (
    scale_into_conv, scale_into_conv_transpose, input_scale_into_conv, input_scale_into_conv_transpose,
    pointwise_conv_then_conv, conv_then_pointwise_conv, add_convs_of_one_input, add_convs_of_one_weight, add_convs, conv_of_concat,
    *(of_arity(concat_of_convs_of_one_input, n, f"concat(conv(x, w_i)) = conv(x, concat(w_i)),  i to {n}") for n in (2, 3, 4)),
    *(of_arity(concat_of_convs_of_one_weight, n, f"concat(conv(x_i, w)) = conv(concat(x_i), w),  batch, i to {n}") for n in (2, 3)),
    *(of_arity(concat_of_convs, n, f"concat(conv(x_i, w_i)) = conv(concat(x_i), concat(w_i), {n} g groups)") for n in (2, 3, 4)),
    channels_of_conv, pad_into_conv, strided_pointwise_conv, pointwise_conv_is_matmul,
    conv_of_whole_input_is_matmul, depthwise_pointwise_conv_is_scale, conv_transpose_is_conv, halve_groups, taps_on_padding,
)
