"""Convolutions and programs that compute them in part: axes regrouped before and after, other padding, other dilation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from hypothesis import strategies as st

from egraph.tensor import Node
from egraph.tensor.boxes import Mask
from tests.fragments import conv, leaf, reshape, transpose
from verify.application import expression
from verify.disagreement import differing


@dataclass(frozen=True)
class Regrouping:
    """Digit ``factor`` of axis ``source``, its major or minor one, made the major or minor digit of axis ``target``."""

    source: int
    target: int
    factor: int
    takes_major: bool
    puts_major: bool

    def of(self, x: Node) -> Node | None:
        """Return a tensor regrouped; None where the factor does not divide."""
        sizes = x.type.sizes
        if self.source == self.target or sizes[self.source] % self.factor:
            return None
        rest = sizes[self.source] // self.factor
        digits = [[(axis, size)] for axis, size in enumerate(sizes)]
        split = [("moved", self.factor), ("rest", rest)]
        if not self.takes_major:
            split.reverse()
        flat: list[tuple[object, int]] = []
        for axis, size in enumerate(sizes):
            flat += split if axis == self.source else [(axis, size)]
        digits[self.source] = [("rest", rest)]
        digits[self.target].insert(0 if self.puts_major else 1, ("moved", self.factor))
        order = [flat.index(digit) for group in digits for digit in group]
        shape = [
            size * (self.factor if axis == self.target else 1) // (self.factor if axis == self.source else 1)
            for axis, size in enumerate(sizes)
        ]
        return reshape(transpose(reshape(x, *(size for _, size in flat)), *order), *shape)

    @property
    def inverse(self) -> Regrouping:
        return Regrouping(self.target, self.source, self.factor, self.puts_major, self.takes_major)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Node, Node]:
    """Draw a small convolution, and a program of the same type that is made like it and may differ somewhere."""
    sizes = [draw(st.integers(1, 4)), draw(st.integers(1, 7)), draw(st.integers(1, 6)), draw(st.integers(1, 2))]
    taps = draw(st.sampled_from([(1, 1), (1, 3), (3, 1), (3, 3), (2, 2)]))
    dilation = draw(st.sampled_from([1, 1, 2]))
    pads = tuple(draw(st.integers(0, 2)) for _ in range(4))
    stride = draw(st.sampled_from([1, 1, 2]))
    factor = draw(st.sampled_from([2, 2, 3]))
    way = Regrouping(draw(st.integers(0, 2)), draw(st.integers(0, 2)), factor, draw(st.booleans()), draw(st.booleans()))
    for axis in {way.source, way.target}:
        sizes[axis] *= draw(st.sampled_from([1, way.factor]))
    x, w = leaf(0, *sizes), leaf(1, draw(st.integers(1, 2)), sizes[3], *taps, constant=True)
    for axis in (0, 1):
        reach = sizes[1 + axis] + pads[axis] + pads[2 + axis] - (taps[axis] - 1) * dilation
        if reach < 1:
            pads = tuple(2 * (taps[k % 2] - 1) for k in range(4))
    original = conv(x, w, pads, stride, dilation)
    candidates = []
    moved = way.of(x)
    for base, back in ((x, None), (moved, way.inverse)):
        for d, more in product((1, 2), (0, 1, -1)):
            if base is None:
                continue
            other = [p + more for p in pads]
            if min(other) < 0 or any(base.type.sizes[1 + a] + other[a] + other[2 + a] <= (taps[a] - 1) * d for a in (0, 1)):
                continue
            made: Node | None = conv(base, w, other, stride, d)
            made = back.of(made) if back is not None and made is not None else made
            if made is not None and made.type == original.type:
                candidates.append(made)
    return original, draw(st.sampled_from(candidates))


def everywhere(left: Node, right: Node, tests: int = 2) -> Mask:
    """Return by brute force over a prime field where two programs differ."""
    sizes: Sequence[int] = left.type.sizes
    seen = differing(expression(left, {}), expression(right, {}), list(product(*map(range, sizes))), tests)
    assert seen is not None
    mask: Mask = seen.reshape(sizes)
    return mask
