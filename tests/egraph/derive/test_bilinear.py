"""Bilinear algorithms: the identities are exact, the error is bounded, and the programs compute the operator's result."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

from egraph.derive.bilinear.axes import Strided
from egraph.derive.bilinear.blocks import blocked_program, blocks_of, stage_bytes
from egraph.derive.bilinear.convolutions import LARGEST_WINDOW, algorithms, lines_of, winograd_programs
from egraph.derive.bilinear.cook_toom import CookToom, cook_toom, over, strided
from egraph.derive.bilinear.estimates import direct_estimate
from egraph.derive.bilinear.programs import program
from egraph.derive.bilinear.rearranged import dilation_as_batch, stride_as_channels
from egraph.errors import TypeMismatch
from egraph.tensor import Node, TensorType, placeholder, walk
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate


@pytest.mark.parametrize("taps", range(1, 8))
@pytest.mark.parametrize("outputs", range(1, 7))
def test_cook_toom_is_exact(outputs: int, taps: int) -> None:
    f = cook_toom(outputs, taps)
    for p in range(outputs):
        for i in range(f.products):
            for r in range(taps):
                total = sum(f.a[p][xi] * f.b[xi][i] * f.g[xi][r] for xi in range(f.products))
                assert total == (i == p + r)


@pytest.mark.parametrize(("outputs", "taps", "stride"), [(2, 3, 2), (4, 3, 2), (4, 7, 2), (3, 7, 3), (2, 2, 3), (5, 4, 1), (3, 1, 2)])
def test_strided_algorithms_are_exact(outputs: int, taps: int, stride: int) -> None:
    f = strided(outputs, taps, stride)
    assert f.products < outputs * taps or f.products == outputs * taps == outputs * min(taps, stride)
    for p in range(outputs):
        for i in range(f.window):
            for r in range(taps):
                total = sum(f.a[p][xi] * f.b[xi][i] * f.g[xi][r] for xi in range(f.products))
                assert total == (i == stride * p + r)


@pytest.mark.parametrize("taps", range(2, 8))
@pytest.mark.parametrize("outputs", range(2, 7))
def test_transforms_of_data_are_exact_in_float32(outputs: int, taps: int) -> None:
    f = cook_toom(outputs, taps)
    for value in (v for row in (*f.a, *f.b) for v in row):
        assert float(np.float32(float(value))) == value


@pytest.mark.parametrize(("outputs", "taps"), [(2, 3), (4, 3), (6, 3), (4, 5), (6, 7)])
def test_error_stays_below_its_bound(outputs: int, taps: int) -> None:
    f = cook_toom(outputs, taps)
    worst, typical = errors(f)
    roundings = 2 * f.products + 2  # one for each product and sum of the two transforms, one for U, one for the product itself
    assert 0 < typical < worst <= roundings * 2**-24 * f.growth * taps
    assert typical <= 2 * 2**-24 * f.typical_growth * math.sqrt(taps)


def test_points_are_chosen_for_little_error() -> None:
    chosen, common = cook_toom(4, 3), over(4, 3, tuple(map(Fraction, (0, 1, -1, 2, -2))))
    assert chosen.typical_growth < common.typical_growth
    assert errors(chosen)[1] < errors(common)[1]


def errors(f: CookToom) -> tuple[float, float]:
    """Return the largest and the root mean square error of float32 arithmetic on data and taps in [-1, 1]."""
    random = Random(1)
    a, b = (np.array([[float(v) for v in row] for row in matrix], np.float32) for matrix in (f.a, f.b))
    g64 = np.array([[float(v) for v in row] for row in f.g])
    found = []
    for _ in range(200):
        d = np.array([random.uniform(-1, 1) for _ in range(f.products)], np.float32)
        w = np.array([random.uniform(-1, 1) for _ in range(f.taps)], np.float32)
        result = a @ ((g64 @ w).astype(np.float32) * (b @ d))
        exact = [float(np.dot(w.astype(np.float64), d[p : p + f.taps].astype(np.float64))) for p in range(f.outputs)]
        found.append(result - np.array(exact))
    values = np.array(found)
    return float(np.max(np.abs(values))), float(np.sqrt(np.mean(values**2)))


def conv(x: tuple[int, ...], w: tuple[int, ...], layout: str = "NHWC", **values: Any) -> Node:
    spatial = len(x) - 2
    given = {"strides": (1,) * spatial, "pads": (0,) * 2 * spatial, "dilations": (1,) * spatial, "group": 1, "layout": layout, **values}
    data, weight = placeholder(0, TensorType("float32", x)), placeholder(1, TensorType("float32", w), constant=True)
    return apply("Conv", data, weight, **given)


def leaves(node: Node, random: Random, low: int = -9, high: int = 9) -> dict[Node, np.ndarray]:
    generator = np.random.default_rng(random.randrange(1 << 30))
    return {leaf: generator.integers(low, high, leaf.type.sizes) for leaf in node.inputs}


def assert_equal(node: Node, derived: Node, random: Random) -> None:
    """Assert that two programs are exactly equal in the prime field, and approximately equal in float64."""
    values = leaves(node, random)
    assert derived.type == node.type
    exact, found = evaluate([node, derived], values, "prime")
    assert np.array_equal(exact, found)
    want, got = evaluate([node, derived], values)
    np.testing.assert_allclose(got, want, atol=1e-7 * max(1.0, float(np.max(np.abs(want)))))


@st.composite
def convolutions(draw: st.DrawFn) -> Node:
    """Draw convolutions whose axes differ in all attributes; tiles need not divide the axes."""
    spatial = draw(st.sampled_from((1, 2, 2, 2, 3)))

    def ints(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(spatial))

    taps = ints(1, 7 if spatial < 3 else 3)
    plain = draw(st.booleans())
    strides = (1,) * spatial if plain else ints(1, 3)
    dilations = tuple(1 if plain or stride > 1 else draw(st.integers(1, 3)) for stride in strides)
    extents = [d * (r - 1) + 1 for d, r in zip(dilations, taps, strict=True)]
    before, after = ([draw(st.integers(0, extent - 1)) for extent in extents] for _ in range(2))
    space = tuple(
        draw(st.integers(max(1, e - b - a), e + (9 if spatial < 3 else 4))) for e, b, a in zip(extents, before, after, strict=True)
    )
    group, inner, outer = draw(st.sampled_from((1, 1, 2, 3))), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    batch = draw(st.integers(1, 3))
    return conv(
        (batch, *space, group * inner), (group * outer, inner, *taps),
        strides=strides, dilations=dilations, pads=(*before, *after), group=group,
    )  # fmt: skip


@st.composite
def transposed_convolutions(draw: st.DrawFn) -> Node:
    spatial = draw(st.sampled_from((1, 2, 2)))

    def ints(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(spatial))

    taps, strides, space = ints(1, 7), ints(1, 3), ints(1, 7)
    pads = [tuple(draw(st.integers(0, tap - 1)) for tap in taps) for _ in range(2)]
    extra = tuple(draw(st.integers(0, stride - 1)) for stride in strides)
    group, inner, outer = draw(st.sampled_from((1, 1, 2))), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    data = placeholder(0, TensorType("float32", (draw(st.integers(1, 2)), *space, group * inner)))
    weight = placeholder(1, TensorType("float32", (group * inner, outer, *taps)), constant=True)
    values: dict[str, Any] = {"strides": strides, "pads": (*pads[0], *pads[1]), "dilations": (1,) * spatial, "output_padding": extra}
    try:
        return apply("ConvTranspose", data, weight, group=group, layout="NHWC", **values)
    except TypeMismatch:  # the padding removes everything
        reject()


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.one_of(convolutions(), transposed_convolutions()), st.randoms(use_true_random=False))
def test_winograd_programs_compute_convolutions_and_transposed_ones(node: Node, random: Random) -> None:
    found = algorithms(node)
    assume(found)
    what = found[random.randrange(len(found))]
    assert_equal(node, program(node.inputs[0], node.inputs[1], what), random)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(convolutions(), st.randoms(use_true_random=False))
def test_rearranged_convolutions_are_equal(node: Node, random: Random) -> None:
    lines, group = lines_of(node), node.integer("group")
    x, w = node.inputs
    if all(line.stride == 1 for line in lines):
        assert_equal(node, dilation_as_batch(x, w, lines, group), random)
    elif group == 1 and all(line.dilation == 1 for line in lines):
        assert_equal(node, stride_as_channels(x, w, lines), random)
    else:
        reject()


def test_every_tile_size_of_a_plain_convolution() -> None:
    node, random = conv((2, 9, 13, 3), (4, 3, 3, 3), pads=(1, 0, 2, 1)), Random(3)
    found = algorithms(node)
    assert {axis.algorithm.outputs for what in found for axis in what.axes} == {1, 2, 3, 4, 5, 6}
    for what in found:
        assert_equal(node, program(node.inputs[0], node.inputs[1], what), random)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(convolutions(), st.integers(1, 3), st.integers(1, 3), st.randoms(use_true_random=False))
def test_blocks_compute_the_convolution(node: Node, images: int, rows: int, random: Random) -> None:
    found = algorithms(node)
    assume(found)
    what = found[random.randrange(len(found))]
    assert_equal(node, blocked_program(node.inputs[0], node.inputs[1], what, images, rows), random)


def test_inner_blocks_share_their_kernels() -> None:
    node = conv((1, 40, 12, 8), (8, 8, 3, 3), pads=(1, 1, 1, 1))
    what = next(what for what in algorithms(node) if [axis.algorithm.outputs for axis in what.axes] == [4, 4])
    blocked = blocked_program(node.inputs[0], node.inputs[1], what, 1, 2)
    first = [n for n in walk((blocked,)) if n.op == "Expression" and n.inputs[0].op in ("Slice", "Placeholder")]
    assert len(first) - 1 == 5
    assert len({(n.attribute("text"), n.inputs[0].type) for n in first}) - 1 == 3  # one for each border and one for all inner blocks


@pytest.mark.parametrize(
    ("batch", "rows", "budget", "blocks"),
    [
        (1, 14, 10**9, None),
        (1, 14, 10**6, (1, 3)),
        (8, 14, 8 * 10**6, (2, 14)),
        (8, 14, 10**6, (1, 3)),
        (1, 14, 1, (1, 1)),
        (64, 28, 1, (1, 28)),
    ],
)
def test_blocks_fit_a_budget(batch: int, rows: int, budget: int, blocks: tuple[int, int] | None) -> None:
    node = conv((batch, 4 * rows, 56, 64), (64, 64, 3, 3), pads=(1, 1, 1, 1))
    what = next(what for what in algorithms(node) if [axis.algorithm.outputs for axis in what.axes] == [4, 4])
    found = blocks_of(batch, what, budget)
    assert found == blocks
    if found is not None and budget > 1:  # with a budget of 1, there would be too many blocks
        assert stage_bytes(1, what) * found[0] * found[1] // rows <= budget


def test_what_is_no_faster_is_left_alone() -> None:
    assert winograd_programs(conv((1, 28, 28, 64), (64, 64, 3, 3), pads=(1, 1, 1, 1)))
    assert not winograd_programs(conv((1, 28, 28, 64), (64, 64, 1, 1)))
    assert not winograd_programs(conv((1, 28, 28, 64), (64, 1, 3, 3), pads=(1, 1, 1, 1), group=64))
    assert not winograd_programs(conv((1, 64, 28, 28), (64, 64, 3, 3), layout="NCHW"))


def test_the_best_algorithm_is_proposed_on_the_whole_too() -> None:
    """The best algorithm is also proposed without blocks.

    Blocks are sized for a processor's caches. On other devices each block is a launch, and its few tiles leave the device idle.
    """
    names = [each.name for each in winograd_programs(conv((16, 28, 28, 128), (128, 128, 3, 3), pads=(1, 1, 1, 1)))]
    blocked, whole = [name for name in names if " by " in name], [name for name in names if " by " not in name]
    assert blocked and whole == [names[0].partition(" by ")[0]]
    assert len(names) == len(set(names))


def test_many_taps_are_summed_directly() -> None:
    data, weight = placeholder(0, TensorType("float32", (1, 3, 20, 2))), placeholder(1, TensorType("float32", (2, 2, 3, 17)), constant=True)
    values: dict[str, Any] = {"strides": (1, 1), "pads": (1, 8, 1, 8), "dilations": (1, 1), "output_padding": (0, 0), "layout": "NHWC"}
    node = apply("ConvTranspose", data, weight, group=1, **values)
    found = algorithms(node)
    assert found
    for what in found:
        assert what.axes[1].algorithm.outputs == 1
        assert_equal(node, program(data, weight, what), Random(5))


@pytest.mark.parametrize(
    ("size", "taps", "stride", "has_phases"), [(43, 11, 4, True), (70, 20, 10, True), (130, 60, 30, False), (5000, 900, 441, False)]
)
def test_phases_of_a_stride_have_algorithms_of_their_own_where_these_are_small(size: int, taps: int, stride: int, has_phases: bool) -> None:
    """Phases of a stride get algorithms of their own only if these are small.

    Regression: the phases of a resampler by 441 took 26 s of a budget of 55, in matrices of 2,205 by 2,600 fractions.
    """
    node = conv((1, 1, size, 2), (2, 2, 1, taps), strides=(1, stride))
    axes = [axis for found in algorithms(node) for axis in found.axes if isinstance(axis, Strided)]
    windows = [axis.algorithm.window for axis in axes if axis.separate]
    assert bool(windows) == has_phases and all(window <= LARGEST_WINDOW for window in windows)
    assert not all(axis.separate for axis in axes), "gathered, a stride may be of any size"


def test_tiles_are_divided_where_there_are_many_and_weights_are_few() -> None:
    def divided(size: int, channels: int, outputs: int, batch: int = 1) -> tuple[tuple[int, int], tuple[int, ...]]:
        node = conv((batch, size, size, channels), (channels, channels, 3, 3), pads=(1, 1, 1, 1))
        what = next(w for w in algorithms(node) if [axis.algorithm.outputs for axis in w.axes] == [outputs, outputs])
        return what.division(batch), what.staged(batch, channels)

    assert divided(56, 64, 4) == ((1, 14), (14, 36, 14, 64))
    assert divided(28, 128, 4) == ((1, 7), (7, 36, 7, 128))  # no part would be as good as 14 rows: the largest ones that there are
    assert divided(14, 64, 4) == ((1, 2), (2, 36, 8, 64))
    assert divided(14, 64, 4, batch=6) == ((0, 6), (6, 36, 16, 64))
    assert divided(14, 256, 4) == ((1, 1), (36, 16, 256))  # 9.4 MB of weights would be read twice
    assert divided(4, 64, 4) == ((0, 1), (36, 1, 64))


def test_steps_are_expressions() -> None:
    (first, *_) = winograd_programs(conv((1, 28, 28, 64), (64, 64, 3, 3), pads=(1, 1, 1, 1)))
    rules = [step.rule.partition(":")[0] for step in first.steps]
    assert rules == ["bilinear algorithm F(4,3)xF(4,3)", "expression splitting", "operator matching", "expression splitting"]
    assert first.steps[2].text == "{i0<7,i1<36,i2<7,i3<64} sum(r0<64) ($0[i0,i1,i2,r0] * $1[i1,r0,i3])"
    assert first.steps[3].text == first.program.attribute("text")


def test_few_outputs_are_priced_as_whole_vectors() -> None:
    one, many = (direct_estimate(conv((1, 64, 64, 32), (outputs, 32, 3, 3))) for outputs in (1, 16))
    assert 0.9 < one / many < 1.0
    depthwise, plain = conv((1, 64, 64, 32), (32, 1, 3, 3), group=32), conv((1, 64, 64, 32), (32, 32, 3, 3))
    assert direct_estimate(depthwise) < direct_estimate(plain) / 4
