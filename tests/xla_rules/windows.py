"""Convolutions and pools."""

from __future__ import annotations

from egraph.rule import Attributes, Equation, Steps, Tensor, Weight, require
from egraph.rule_operators import average_pool, conv, max_pool, pad
from tests.xla_rules.claims import Claim, Truth, claim, member


def of_padded(truth: Truth, name: str, text: str, *, zeros: bool = True, exchanged: bool = False) -> Claim:
    """conv(pad(x), w) = conv(x, w) with pads; ``exchanged``: what is padded along the height is padded along the width"""

    def law(x: Tensor, w: Tensor, p: Attributes, a: Attributes) -> Steps:
        yield conv(pad(x, p), w, a)
        require(a.layout == "NCHW" and x.rank == 4 and p.mode == "constant" and (not zeros or p.value == 0.0), "zeros")
        require(p.before[:2] == (0, 0) and p.after[:2] == (0, 0), "along spatial axes")
        if exchanged:
            require(x.shape[2] == x.shape[3] and w.shape[2] == w.shape[3] and a.strides == (1, 1), "square")
        height, width = (3, 2) if exchanged else (2, 3)
        more = (p.before[height], p.before[width], p.after[height], p.after[width])
        yield conv(x, w, a.but(pads=tuple(own + each for own, each in zip(a.pads, more, strict=True))))

    return member(truth, name, text, law, "assumes finite")


@claim("false")
def largest_of_padded_window(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """max_pool(pad(x)) = max_pool(x) with pads, but x may be negative"""
    yield max_pool(pad(x, p), a)
    require(a.layout == "NCHW" and x.rank == 3 and p.mode == "constant" and p.value == 0.0, "zeros")
    require(p.before[:2] == (0, 0) and p.after[:2] == (0, 0), "along the spatial axis")
    pads = tuple(own + more for own, more in zip(a.pads, (*p.before[2:], *p.after[2:]), strict=True))
    require(all(each < a.kernel_shape[0] for each in pads), "windows reach x")
    yield max_pool(x, a.but(pads=pads))


@claim("false")
def largest_of_negated_window(x: Tensor, a: Attributes) -> Equation:
    """max_pool(-x) = -max_pool(x)"""
    return max_pool(-x, a) == -max_pool(x, a)


def average_of_shifted(truth: Truth, name: str, text: str, *, padding_may_count: bool) -> Claim:
    """average_pool(x + c) = average_pool(x) + c, for one number c"""

    def law(x: Tensor, c: Weight, a: Attributes) -> Steps:
        yield average_pool(x + c, a)
        require(c.rank == 0, "a number")
        require(padding_may_count or not a.count_include_pad, "padding does not count")
        yield average_pool(x, a) + c

    return member(truth, name, text, law, "reassociates")


CLAIMS = (
    of_padded("false", "convolution_of_padded", "conv(pad(x), w) = conv(x, w) with pads, but any number pads", zeros=False),
    of_padded("true", "convolution_of_zeros_around", "conv(pad(x), w) = conv(x, w) with pads"),
    of_padded("false", "convolution_of_turned_pads", "conv(pad(x), w) = conv(x, w) with pads, but height for width", exchanged=True),
    largest_of_padded_window, largest_of_negated_window,
    average_of_shifted("true", "average_of_constant_window",
                       "average_pool(x + c) = average_pool(x) + c, for one number where padding does not count",
                       padding_may_count=False),
    average_of_shifted("false", "average_of_constant_window_with_padding",
                       "average_pool(x + c) = average_pool(x) + c, but zeros may count", padding_may_count=True),
)  # fmt: skip
