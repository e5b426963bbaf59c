"""Conflicts with targets, estimates and folding, which guide the search and simplify its programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.searches import convolution
from egraph.derive.bilinear.convolutions import saving
from egraph.derive.emission import folded
from egraph.derive.estimating import attainable, estimate
from egraph.derive.search import DERIVATION, maps_of
from egraph.derive.targets import BAND, PRODUCT, SMALL_WINDOW, WINDOW, Target, block_sizes, distance, is_digits, onward
from egraph.derive.trees import contraction_of, contractions, exchanged, intensity, normal
from egraph.tensor import Node, TensorType, placeholder, walk
from egraph.tensor.expr.functions import PRIME
from egraph.tensor.expr.index import Index, Iterator, index
from egraph.tensor.expr.parsing import parse_scope
from egraph.tensor.expr.printing import format_scope
from egraph.tensor.expr.scope import Scope, Tensor
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate

ROW, COLUMN = index(Iterator("i", 0, 6)), index(Iterator("j", 0, 4))


def parsed(text: str, *shapes: tuple[int, ...]) -> Scope:
    return parse_scope(text, {str(k): Tensor(str(k), shape) for k, shape in enumerate(shapes)})


@pytest.mark.parametrize(
    ("place", "digits"),
    [(ROW * 4 + COLUMN, True), (ROW + COLUMN, False), (ROW * 8 - COLUMN, True), (ROW * 5 + COLUMN * 2, False), (ROW // 4, False)],
)
def test_digits_are_places_of_one_number(place: Index, digits: bool) -> None:
    assert is_digits(place) is digits


CONV = "{f<4,h<8} sum(c<3,r<3) [0<=h+r-1, h+r-1<8 ? ($0[c,h+r-1] * $1[f,c,r]) : 0]"
STRIDED = "{f<4,h<4} sum(c<3,r<5) [0<=2*h+r-2, 2*h+r-2<8 ? ($0[c,2*h+r-2] * $1[f,c,r]) : 0]"


@pytest.mark.parametrize(
    ("text", "taps", "target", "far"),
    [
        (CONV, 3, PRODUCT, 2),
        (CONV, 3, WINDOW, 0),
        (CONV, 3, SMALL_WINDOW, 0),
        (STRIDED, 5, WINDOW, 2),
        (CONV.replace("r<3", "r<5").replace("h+r-1", "h+r-2"), 5, WINDOW, 0),
        (CONV.replace("r<3", "r<5").replace("h+r-1", "h+r-2"), 5, SMALL_WINDOW, 0),
        (CONV.replace("r<3", "r<5").replace("h+r-1", "h+r-2"), 5, replace(SMALL_WINDOW, taps=3), 2),
        (CONV.replace("$0[c,h+r-1]", "max($0[c,h+r-1], 0)"), 3, WINDOW, 6),
        (CONV.replace("($0[c,h+r-1] * $1[f,c,r])", "(($0[c,h+r-1] * $1[f,c,r]) * 1/2)"), 3, WINDOW, 3),
    ],
)
def test_distance_counts_iterators_in_conflict(text: str, taps: int, target: Target, far: int) -> None:
    contraction = contraction_of(parsed(text, (3, 8), (4, 3, taps)))
    assert contraction is not None
    assert distance(contraction, target) == far


@pytest.mark.parametrize(
    ("taps", "sizes"), [(2, ()), (3, (2,)), (4, (2,)), (5, (3, 2)), (6, (3, 2)), (7, (4, 3, 2)), (9, (5, 3, 2)), (11, (6, 4, 3, 2))]
)
def test_windows_are_cut_into_the_least_blocks_of_each_number(taps: int, sizes: tuple[int, ...]) -> None:
    """A window size is skipped if a smaller one needs as many blocks.

    A larger size has more taps, and a fast algorithm needs more products for them.
    """
    assert block_sizes(taps, taps) == sizes
    for size in set(range(2, taps)) - set(sizes):
        blocks = -(-taps // size)
        assert any(-(-taps // other) == blocks for other in sizes if other < size)
    assert block_sizes(taps, 3) == tuple(size for size in sizes if size <= 3)


@pytest.mark.parametrize(("taps", "most"), [(2, None), (3, 2), (4, 2), (5, 3), (7, 4)])
def test_smaller_windows_are_at_most_half_of_the_operators(taps: int, most: int | None) -> None:
    text = CONV.replace("r<3", f"r<{taps}").replace("h+r-1", "h+r").replace("h+r<8", "h+r<12")
    contraction = contraction_of(parsed(text, (3, 12), (4, 3, taps)))
    assert contraction is not None and onward([contraction], WINDOW) is None
    target = onward([contraction], SMALL_WINDOW)
    assert (None if target is None else target.taps) == most
    if target is not None:
        assert distance(contraction, SMALL_WINDOW) == 0 < distance(contraction, target) and onward([contraction], target) is None


def test_a_fast_algorithm_saves_what_it_is_known_to_save() -> None:
    """F(6,3) needs 8 products instead of 18; nothing is saved if the error is above the limit or the operator has no taps."""

    def conv(*kernel: int, size: int, layout: str) -> Node:
        data = (1, 8, size, size) if layout == "NCHW" else (1, size, size, 8)
        pads = tuple(taps // 2 for taps in kernel) * 2
        return convolution(data, (16, 8, *kernel), pads=pads, layout=layout)

    for layout in ("NCHW", "NHWC"):
        assert saving(conv(1, 3, size=24, layout=layout)) == pytest.approx(18 / 8)
        assert saving(conv(3, 3, size=24, layout=layout)) == pytest.approx((18 / 8) ** 2)
        assert saving(conv(1, 1, size=24, layout=layout)) == 1 == saving(conv(3, 3, size=1, layout=layout))
    product = apply("MatMul", *(placeholder(k, TensorType("float32", (8, 8))) for k in (0, 1)))
    assert saving(product) == 1 and attainable(product) == estimate(product)


def test_smaller_windows_are_proposed_where_a_fast_algorithm_may_pay() -> None:
    """Smaller windows are proposed only for few filters.

    With few filters they fill lanes that the operator leaves idle. With many they are no better than the operator's own fast algorithm.
    """

    def proposed(filters: int) -> list[str]:
        node = convolution((1, 16, 28, 28), (filters, 16, 5, 5), pads=(2, 2, 2, 2))
        return [found.name for found in DERIVATION.derive(node) if "small window" in found.name]

    assert proposed(1) and not proposed(16)


def test_a_band_with_unit_steps_is_at_its_target() -> None:
    for dilation, far in ((1, 0), (3, 2)):
        place = f"m+{dilation}*w-{2 * dilation}" if dilation > 1 else "m+w-2"
        scope = parsed(f"{{m<9,w<5}} sum(k<4) [0<={place}, {place}<9 ? ($0[m,k] * $1[{place},k]) : 0]", (9, 4), (9, 4))
        contraction = contraction_of(scope)
        assert contraction is not None and distance(contraction, BAND) == far


def test_sums_of_one_read_are_no_contraction() -> None:
    assert contraction_of(parsed("{i<4} sum(k<3) ($0[i,k] * table(3: 1 2 1)[k])", (4, 3))) is None
    assert contraction_of(parsed("{i<4} max(k<3) ($0[i,k] * $1[k])", (4, 3), (3,))) is None


def test_layers_merge_when_a_scope_is_exchanged() -> None:
    inner = "{m<4,n<5} sum(k<3) ($0[m,k] * $1[k,n])"
    tree = normal(parsed("{a<5,b<4} {" + inner + "}[b,a]", (4, 3), (3, 5)))
    (contraction,) = contractions(tree)
    layered = parsed("{x<4,y<5} {{p<5,q<4} {" + inner + "}[q,p]}[y,x]", (4, 3), (3, 5))
    after = exchanged(tree, [(contraction.scope, layered)])
    assert format_scope(after) == format_scope(tree)


def test_intensity_is_operations_a_byte() -> None:
    assert intensity(parsed("{m<8,n<8} sum(k<8) ($0[m,k] * $1[k,n])", (8, 8), (8, 8))) == 2 * 512 / (3 * 64 * 4)


def test_maps_are_read_off_indices() -> None:
    scope = parsed("{h<4,w<5} sum(r<3) $0[h+2*w+r]", (20,))
    assert [([i.name for i in iterators], [list(row) for row in matrix]) for iterators, matrix in maps_of(scope)] == [
        (["h", "w"], [[1, 2], [0, 1]])
    ]


def test_idle_lanes_count() -> None:
    def conv(outputs: int) -> int:
        x, w = placeholder(0, TensorType("float32", (1, 8, 9, 9))), placeholder(1, TensorType("float32", (outputs, 8, 3, 3)), constant=True)
        return estimate(apply("Conv", x, w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1, layout="NCHW"))

    assert conv(3) > 0.75 * conv(16) and conv(32) > 1.5 * conv(16)


def test_transposes_beside_expressions_are_folded() -> None:
    x = placeholder(0, TensorType("float32", (3, 4, 5)))
    inner = apply("Expression", apply("Transpose", x, perm=(2, 0, 1)), text="{i0<5,i1<4} sum(r0<3) $0[i0,r0,i1]")
    program = apply("Reshape", apply("Reshape", apply("Transpose", inner, perm=(1, 0)), shape=(20,)), shape=(2, 10))
    after = folded(program)
    assert [n.op for n in walk((after,))] == ["Placeholder", "Expression", "Reshape"]
    values = {x: np.random.default_rng(0).integers(0, PRIME, (3, 4, 5))}
    one, other = evaluate([program, after], values, "prime")
    assert np.array_equal(one, other)
