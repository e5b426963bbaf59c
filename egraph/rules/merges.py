"""Merges: n applications that share an operand become one wide application, sliced apart again.

All members merge at once, whatever their number and widths. There is no merge of applications that share nothing: it
would match every pair.
"""

from __future__ import annotations

from collections.abc import Sequence

from egraph.rule import Attributes, MergeRule, Tensor, Weight, merge_rule, require
from egraph.rule_operators import concat, conv, relu, slice_
from egraph.rules.axes import along, channel_axis, per_channel
from egraph.rules.matmul import row_vector


def split(wide: Tensor, axis: int, widths: Sequence[int]) -> list[Tensor]:
    """Return consecutive slices of ``wide`` along ``axis``."""
    parts, begin = [], 0
    for width in widths:
        starts = tuple(begin if i == axis else 0 for i in range(wide.rank))
        ends = tuple(begin + width if i == axis else size for i, size in enumerate(wide.shape))
        parts.append(slice_(wide, starts=starts, ends=ends, steps=(1,) * wide.rank))
        begin += width
    return parts


def _matmul(x: Tensor, w: Weight) -> Tensor:
    return x @ w


def _wide_matmul(x: Tensor, w: list[Weight]) -> Tensor:
    require(all(each.rank == 2 for each in w), "the weights must be matrices")
    return x @ concat(*w, axis=1)


@merge_rule(member=_matmul, shared=("x",), rounding="reassociates")
def merge_matmuls(x: Tensor, w: list[Weight]) -> list[Tensor]:
    """x W_i = (x [W_1 .. W_n])_i"""
    wide = _wide_matmul(x, w)
    return split(wide, wide.rank - 1, [each.shape[1] for each in w])


def _matmul_with_bias(x: Tensor, w: Weight, b: Weight) -> Tensor:
    return x @ w + b


@merge_rule(member=_matmul_with_bias, shared=("x",), rounding="reassociates")
def merge_matmuls_with_bias(x: Tensor, w: list[Weight], b: list[Weight]) -> list[Tensor]:
    """x W_i + b_i = (x [W_1 .. W_n] + [b_1 .. b_n])_i,  one bias a column"""
    wide = _wide_matmul(x, w)
    rows = [row_vector(bias, wide.rank, each.shape[1]) for bias, each in zip(b, w, strict=True)]
    require(all(row.shape[0] == each.shape[1] for row, each in zip(rows, w, strict=True)), "there must be one bias a column")
    return split(wide + concat(*rows, axis=0), wide.rank - 1, [each.shape[1] for each in w])


def _conv(x: Tensor, w: Weight, a: Attributes) -> Tensor:
    return conv(x, w, a)


def _wide_conv(x: Tensor, w: list[Weight], a: Attributes) -> Tensor:
    require(a.group == 1, "filters of different groups would be interleaved")
    require(all(each.shape[1:] == w[0].shape[1:] for each in w), "the kernels must have the same size")
    return conv(x, concat(*w, axis=0), a)


@merge_rule(member=_conv, shared=("x",), rounding="reassociates")
def merge_convs(x: Tensor, w: list[Weight], a: Attributes) -> list[Tensor]:
    """conv(x, w_i) = conv(x, [w_1 .. w_n])_i,  ungrouped, kernels of one size"""
    return split(_wide_conv(x, w, a), channel_axis(a, x.rank), [each.shape[0] for each in w])


def _conv_with_bias(x: Tensor, w: Weight, b: Weight, a: Attributes) -> Tensor:
    return conv(x, w, a) + b


def _wide_conv_with_bias(x: Tensor, w: list[Weight], b: list[Weight], a: Attributes) -> Tensor:
    require(all(bias.rank == b[0].rank for bias in b), "the biases must have the same rank")
    wide, axis = _wide_conv(x, w, a), channel_axis(a, x.rank)
    rows = [per_channel(bias, axis, x.rank, each.shape[0]) for bias, each in zip(b, w, strict=True)]
    require(all(row.shape[0] == each.shape[0] for row, each in zip(rows, w, strict=True)), "there must be one bias a channel")
    return wide + along(concat(*rows, axis=0), axis, x.rank)


@merge_rule(member=_conv_with_bias, shared=("x",), rounding="reassociates")
def merge_convs_with_bias(x: Tensor, w: list[Weight], b: list[Weight], a: Attributes) -> list[Tensor]:
    """conv(x, w_i) + b_i = (conv(x, [w_1 .. w_n]) + [b_1 .. b_n])_i,  ungrouped, kernels of one size"""
    return split(_wide_conv_with_bias(x, w, b, a), channel_axis(a, x.rank), [each.shape[0] for each in w])


def _conv_with_bias_and_relu(x: Tensor, w: Weight, b: Weight, a: Attributes) -> Tensor:
    return relu(conv(x, w, a) + b)


@merge_rule(member=_conv_with_bias_and_relu, shared=("x",), rounding="reassociates")
def merge_convs_with_bias_and_relu(x: Tensor, w: list[Weight], b: list[Weight], a: Attributes) -> list[Tensor]:
    """relu(conv(x, w_i) + b_i) = relu(conv(x, [w_1 .. w_n]) + [b_1 .. b_n])_i,  ungrouped, kernels of one size"""
    return split(relu(_wide_conv_with_bias(x, w, b, a)), channel_axis(a, x.rank), [each.shape[0] for each in w])


RULES: tuple[MergeRule, ...] = (
    merge_matmuls, merge_matmuls_with_bias, merge_convs, merge_convs_with_bias, merge_convs_with_bias_and_relu,
)
