"""Padding and expansion compose, cancel, and move through elementwise operators."""

from __future__ import annotations

from egraph.rule import Attributes, Equation, Rule, Steps, Tensor, require, rule
from egraph.rule_operators import expand, pad, slice_, unary
from egraph.rules.family import UNARY, named, snake


@rule
def pad_nothing(x: Tensor, p: Attributes) -> Steps:
    """pad(x, nothing) = x"""
    yield pad(x, p)
    require(not any(p.before) and not any(p.after), "there must be no padding")
    yield x


@rule
def pad_twice(x: Tensor, p: Attributes, q: Attributes) -> Steps:
    """pad(pad(x, p), q) = pad(x, p + q),  with one value"""
    yield pad(pad(x, p), q)
    require(p.mode == q.mode == "constant" and p.value == q.value, "both must pad with the same constant")
    before, after = (tuple(a + b for a, b in zip(one, two, strict=True)) for one, two in ((p.before, q.before), (p.after, q.after)))
    yield pad(x, p.but(before=before, after=after))


@rule
def slice_of_pad(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """slice(pad(x)) = slice(x),  where padding is cut off again"""
    padded = slice_(pad(x, p), a)
    yield padded
    lasts = [s + (n - 1) * step for s, n, step in zip(a.starts, padded.shape, a.steps, strict=True)]
    ends = [(start, last) for start, last in zip(a.starts, lasts, strict=True)]
    inside = all(before <= each and each < before + size
                 for before, pair, size in zip(p.before, ends, x.shape, strict=True) for each in pair)
    require(inside, "the slice must lie within x")
    yield slice_(x, starts=tuple(s - b for s, b in zip(a.starts, p.before, strict=True)),
                 ends=tuple(e - b for e, b in zip(a.ends, p.before, strict=True)), steps=a.steps)


@rule
def expand_nothing(x: Tensor, a: Attributes) -> Steps:
    """expand(x, the shape of x) = x"""
    yield expand(x, a)
    require(x.shape == a.shape, "the shape must stay")
    yield x


@rule
def expand_twice(x: Tensor, a: Attributes, b: Attributes) -> Equation:
    """expand(expand(x, a), b) = expand(x, b)"""
    return expand(expand(x, a), b) == expand(x, b)


def _expand_out_of_unary(op: str) -> Rule:
    def law(x: Tensor, a: Attributes) -> Equation:
        return unary(op, expand(x, a)) == expand(unary(op, x), a)

    return named(law, f"expand_out_of_{snake(op)}", f"{op}(expand(x)) = expand({op}(x))")


RULES: tuple[Rule, ...] = (
    pad_nothing, pad_twice, slice_of_pad, expand_nothing, expand_twice,
    *(_expand_out_of_unary(op) for op in UNARY),
)
