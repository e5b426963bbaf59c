"""Convolutions whose kernels reach beyond small inputs."""

from __future__ import annotations

from egraph.rule import Attributes, Rule, Steps, Tensor, Weight, require, rule
from egraph.rule_operators import conv, slice_
from egraph.rules.axes import spatial_axes


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


RULES: tuple[Rule, ...] = (taps_on_padding,)
