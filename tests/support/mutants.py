"""Convolutions and programs that agree with them in part: axes regrouped before and after, other padding, other dilation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from egraph.errors import EinsatError
from egraph.partial.moves import Mutated, moved, start
from egraph.tensor import Node
from egraph.tensor.boxes import Mask
from egraph.tensor.expr.scope import Compare, Guarded, Scalar, Scope
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.reference import fragment_expression, meaning
from egraph.tensor.ops.window import Layout
from tests.support.fragments import conv, leaf
from verify.disagreement import MOST_TOGETHER, _values, differing


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Node, Node]:
    """Draw a small convolution and its variant by one move or another padding; parts of the variant's result may be misplaced."""
    taps = draw(st.sampled_from([(1, 1), (1, 3), (3, 1), (3, 3), (2, 2)]))
    dilation = draw(st.sampled_from([1, 1, 2]))
    stride = draw(st.sampled_from([1, 1, 2]))
    pads = draw(st.one_of(st.just(tuple(2 * [(t - 1) * dilation // 2 for t in taps])), st.tuples(*[st.integers(0, 2)] * 4)))
    space = [draw(st.integers(max(1, (t - 1) * dilation + 1), 8)) for t in taps]
    layout = draw(st.sampled_from(("NHWC", "NCHW")))
    batch, channels = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    sizes = (batch, channels, *space) if layout == "NCHW" else (batch, *space, channels)
    x, w = leaf(0, *sizes), leaf(1, draw(st.integers(1, 2)), channels, *taps, constant=True)
    original = conv(x, w, pads, stride, dilation, layout)
    other = conv(x, w, [p + draw(st.integers(0, 1)) for p in pads], stride, dilation, layout)
    states = list(moved(start(original), Layout(layout, 2)))
    fixed = [original, *([other] if other.type == original.type else [])]
    number = draw(st.integers(0, len(states) + len(fixed) - 1))
    if number < len(fixed):
        return original, fixed[number]
    number -= len(fixed)
    more = draw(st.sampled_from((0, 0, 0, 1, 2)))
    ordered = (*states[number:], *states[:number])
    later = (_further(state, more).program(original) for state in ordered)  # the programs of all states would take most of the time
    return original, next((program for program in later if program is not None), original)


def _further(state: Mutated, more: int) -> Mutated:
    """Return a state with more zeros after its data, so that its results are longer and parts of them are misplaced."""
    return replace(state, window=replace(state.window, after=tuple(pad + more for pad in state.window.after)))


def with_an_edge_moved(program: Node) -> Iterator[Node]:
    """Yield copies of a program that chooses between tensors, each with one bound of one box moved by one cell."""
    scope = meaning(program)

    def bodies(body: Scalar) -> Iterator[Scalar]:
        if not isinstance(body, Guarded):
            return
        for number, condition in enumerate(body.conditions):
            for by in (-1, 1):
                moved_condition = Compare(condition.left, condition.operator, condition.right + by)
                conditions = (*body.conditions[:number], moved_condition, *body.conditions[number + 1 :])
                yield Guarded(conditions, body.then, body.otherwise)
        yield from (Guarded(body.conditions, body.then, inner) for inner in bodies(body.otherwise))

    for body in bodies(scope.body):
        try:
            yield apply("Expression", *program.inputs, text=text_of(scope.with_body(body)))
        except EinsatError:
            continue  # a correction would be read beyond its end


def fails_a_test(original: Node, programs: Iterable[Node], tests: int) -> bool:
    """Return whether any program differs from an operator anywhere in any of the tests in a prime field.

    The result is that of ``everywhere``, but the operator's values are computed once.
    """
    positions = list(product(*map(range, original.type.sizes)))
    together = max(1, MOST_TOGETHER // len(positions))
    chunks = [range(first, min(tests, first + together)) for first in range(0, tests, together)]
    expected = [_rows(fragment_expression(original), positions, chunk) for chunk in chunks]
    sides = [fragment_expression(program) for program in programs]
    return any((_rows(side, positions, chunk) != right).any() for side in sides for chunk, right in zip(chunks, expected, strict=True))


def _rows(side: Scope, positions: Sequence[tuple[int, ...]], tests: range) -> NDArray[np.float64]:
    """Return an expression's values at positions, test after test; halve the number of tests evaluated together if there are too many."""
    values = _values(side, positions, tests)
    if values is not None:
        return values
    assert len(tests) > 1, "a single test can be evaluated"
    half = len(tests) // 2
    return np.concatenate([_rows(side, positions, part) for part in (tests[:half], tests[half:])])


def everywhere(left: Node, right: Node, tests: int = 2) -> Mask:
    """Return by brute force over a prime field where two programs differ."""
    sizes: Sequence[int] = left.type.sizes
    seen = differing(fragment_expression(left), fragment_expression(right), list(product(*map(range, sizes))), tests)
    assert seen is not None
    mask: Mask = seen.reshape(sizes)
    return mask
