"""Normalisations and softmax recognised from decomposed forms; scales and shifts folded into their parameters."""

from __future__ import annotations

import math

from egraph.rule import Attributes, Equation, Rule, Steps, Tensor, Weight, require, require_number, rule
from egraph.rule_operators import (
    exp,
    instance_normalization,
    layer_normalization,
    log,
    log_softmax,
    power,
    reciprocal,
    reduce_max,
    reduce_mean,
    reduce_sum,
    softmax,
    sqrt,
)
from egraph.rules.axes import padded_shape


def _deviation(x: Tensor, a: Attributes) -> Tensor:
    return x - reduce_mean(x, a)


def _variance(x: Tensor, a: Attributes, two: Tensor | None) -> Tensor:
    d = _deviation(x, a)
    return reduce_mean(d * d if two is None else power(d, two), a)


def _is_last(axes: tuple[int, ...], rank: int) -> bool:
    return axes == tuple(range(rank - len(axes), rank))


def _as_affine(c: Tensor, x: Tensor, axis: int) -> Tensor:
    """Return c in the shape of the normalised axes, or refuse a c that varies along others or adds axes."""
    require(c.rank <= x.rank, "scale and bias must not add axes")
    shape = padded_shape(c.shape, x.rank)
    require(all(size == 1 for size in shape[:axis]), "scale and bias must vary along the normalised axes alone")
    require(shape[axis:] == x.shape[axis:], "scale and bias must have the shape of the normalised axes")
    return c.reshape(*shape[axis:])


def _require_single(c: Weight) -> None:
    require(c.rank <= 1 and all(size == 1 for size in c.shape), "the constant must be a scalar or hold one element")


@rule(rounding="reassociates")
def layer_normalization_from_power(x: Tensor, two: Weight, epsilon: Weight, s: Weight, b: Weight, a: Attributes) -> Steps:
    """(x - mean) / sqrt(mean((x - mean) ** 2) + e) * s + b = layer_normalization(x, s, b)"""
    yield _deviation(x, a) / sqrt(_variance(x, a, two) + epsilon) * s + b
    require(_is_last(a.axes, x.rank), "the last axes must be normalised")
    _require_single(two)
    require_number(two, 2.0)
    yield _affine(x, epsilon, s, b, a)


@rule(rounding="reassociates")
def layer_normalization_from_square(x: Tensor, epsilon: Weight, s: Weight, b: Weight, a: Attributes) -> Steps:
    """(x - mean) / sqrt(mean((x - mean) * (x - mean)) + e) * s + b = layer_normalization(x, s, b)"""
    yield _deviation(x, a) / sqrt(_variance(x, a, None) + epsilon) * s + b
    yield _affine(x, epsilon, s, b, a)


@rule(rounding="reassociates")
def layer_normalization_from_scaled_reciprocal(x: Tensor, epsilon: Weight, s: Weight, b: Weight, a: Attributes) -> Steps:
    """(x - mean) * ((1 / sqrt(mean((x - mean) * (x - mean)) + e)) * s) + b = layer_normalization(x, s, b)"""
    yield _deviation(x, a) * (reciprocal(sqrt(_variance(x, a, None) + epsilon)) * s) + b
    yield _affine(x, epsilon, s, b, a)


def _affine(x: Tensor, epsilon: Weight, s: Tensor, b: Tensor, a: Attributes) -> Tensor:
    require(_is_last(a.axes, x.rank), "the last axes must be normalised")
    _require_single(epsilon)
    require(s.rank <= x.rank and b.rank <= x.rank, "scale and bias must not add axes")
    axis = x.rank - len(a.axes)
    scale, bias = _as_affine(s, x, axis), _as_affine(b, x, axis)
    require(epsilon.number is not None and 0 < epsilon.number < math.inf, "epsilon must be one known positive number")
    return layer_normalization(x, scale, bias, axis=axis, epsilon=epsilon.number)


@rule(rounding="reassociates")
def instance_normalization_from_square(x: Tensor, epsilon: Weight, s: Weight, b: Weight, a: Attributes) -> Steps:
    """(x - mean) / sqrt(mean((x - mean) * (x - mean)) + e) * s + b = instance_normalization(x, s, b)"""
    yield _deviation(x, a) / sqrt(_variance(x, a, None) + epsilon) * s + b
    require(x.rank >= 3 and a.axes == tuple(range(2, x.rank)), "all spatial axes must be normalised")
    one_a_channel = (1, x.shape[1], *(1,) * (x.rank - 2))
    require(all(c.rank <= x.rank and padded_shape(c.shape, x.rank) == one_a_channel for c in (s, b)), "one number a channel is needed")
    require(epsilon.number is not None and 0 < epsilon.number < math.inf, "epsilon must be one known positive number")
    channels = x.shape[1]
    yield instance_normalization(x, s.reshape(channels), b.reshape(channels), epsilon=epsilon.number)


@rule(rounding="reassociates")
def scale_into_layer_normalization(x: Tensor, s: Weight, b: Weight, c: Weight, a: Attributes) -> Steps:
    """layer_normalization(x, s, b) * c = layer_normalization(x, s * c, b * c)"""
    yield layer_normalization(x, s, b, a) * c
    factor = _as_affine(c, x, a.axis)
    yield layer_normalization(x, s * factor, b * factor, a)


@rule(rounding="reassociates")
def bias_into_layer_normalization(x: Tensor, s: Weight, b: Weight, c: Weight, a: Attributes) -> Steps:
    """layer_normalization(x, s, b) + c = layer_normalization(x, s, b + c)"""
    yield layer_normalization(x, s, b, a) + c
    yield layer_normalization(x, s, b + _as_affine(c, x, a.axis), a)


def _channel_vector(c: Tensor, x: Tensor) -> Tensor:
    require(c.rank <= x.rank, "the constant must not add axes")
    shape = padded_shape(c.shape, x.rank)
    require(all(size == 1 for i, size in enumerate(shape) if i != 1) and shape[1] in (x.shape[1], 1), "one number a channel is needed")
    return c.reshape(shape[1])


@rule(rounding="reassociates")
def scale_into_instance_normalization(x: Tensor, s: Weight, b: Weight, c: Weight, a: Attributes) -> Steps:
    """instance_normalization(x, s, b) * c = instance_normalization(x, s * c, b * c),  c one number a channel"""
    yield instance_normalization(x, s, b, a) * c
    factor = _channel_vector(c, x)
    yield instance_normalization(x, s * factor, b * factor, a)


@rule(rounding="reassociates")
def bias_into_instance_normalization(x: Tensor, s: Weight, b: Weight, c: Weight, a: Attributes) -> Steps:
    """instance_normalization(x, s, b) + c = instance_normalization(x, s, b + c),  c one number a channel"""
    yield instance_normalization(x, s, b, a) + c
    yield instance_normalization(x, s, b + _channel_vector(c, x), a)


@rule(rounding="assumes finite")
def softmax_from_exp(x: Tensor, a: Attributes) -> Steps:
    """exp(x) / sum(exp(x)) = softmax(x)

    The left side overflows for large x, the right does not."""
    yield exp(x) / reduce_sum(exp(x), a)
    require(len(a.axes) == 1, "one axis must be summed")
    yield softmax(x, axis=a.axes[0])


@rule(rounding="reassociates")
def softmax_of_shifted(x: Tensor, a: Attributes, b: Attributes) -> Steps:
    """softmax(x - max(x)) = softmax(x),  along one axis"""
    yield softmax(x - reduce_max(x, b), a)
    require(b.axes == (a.axis,), "the maximum must be taken along the axis of the softmax")
    yield softmax(x, a)


@rule(rounding="reassociates")
def softmax_of_biased(x: Tensor, b: Weight, a: Attributes) -> Steps:
    """softmax(x + b) = softmax(x),  b one number"""
    shifted = x + b
    yield softmax(shifted, a)
    require(shifted.shape == x.shape, "the bias must not widen x")
    require(b.number is not None and -math.inf < b.number < math.inf, "the bias must be one known finite number: an infinite one is a mask")
    yield softmax(x, a)


@rule(rounding="assumes finite")
def log_of_softmax(x: Tensor, a: Attributes) -> Equation:
    """log(softmax(x)) = log_softmax(x)

    The left side loses small probabilities to zero."""
    return log(softmax(x, a)) == log_softmax(x, a)


RULES: tuple[Rule, ...] = (
    layer_normalization_from_power, layer_normalization_from_square, layer_normalization_from_scaled_reciprocal,
    instance_normalization_from_square,
    scale_into_layer_normalization, bias_into_layer_normalization, scale_into_instance_normalization, bias_into_instance_normalization,
    softmax_from_exp, softmax_of_shifted, softmax_of_biased, log_of_softmax,
)
