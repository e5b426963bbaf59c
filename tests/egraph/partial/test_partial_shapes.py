"""Mutants that mattered to PET, at PET's shapes: each is found in seconds, corrected and proved."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from egraph.derive.bilinear import RULES as BILINEAR
from egraph.optimize.admission import agreement_with, boxes_between
from egraph.partial.generation import generated
from egraph.partial.mutants import mutants
from egraph.partial.stitching import stitches
from egraph.tensor import Node, walk
from egraph.tensor.boxes import cells
from tests.support.fragments import conv, leaf, matmul
from verify.application import equal_at_sizes

SECONDS = 5.0
"""Processor time in seconds within which a program must be found, boxes included."""
Region = tuple[Node, ...]
Product = tuple[tuple[int, ...], tuple[int, ...]]
"""The shapes of the two operands of a convolution or a matrix product."""


def nchw(
    data: Node, filters: int, taps: tuple[int, int], pads: Sequence[int], dilation: int = 1, position: int = 1, stride: int = 1
) -> Node:  # fmt: skip
    weight = leaf(position, filters, data.type.sizes[1], *taps, constant=True)
    return conv(data, weight, (*pads, *pads), stride, dilation, "NCHW")


BLOCKS = nchw(leaf(0, 1, 48, 38, 38), 64, (5, 5), (2, 2))
IMAGES = nchw(leaf(0, 16, 512, 7, 7), 512, (3, 3), (1, 1))
DILATED = nchw(leaf(0, 1, 512, 14, 14), 256, (3, 3), (2, 2), 2)
LINE = nchw(leaf(0, 1, 192, 17, 17), 192, (1, 7), (0, 3))
WIDTHS = tuple(nchw(leaf(0, 1, 768, 18, 18), filters, (1, 1), (0, 0), position=k) for k, filters in ((1, 192), (2, 160)))
STRIDED_LAST = conv(leaf(0, 1, 224, 224, 3), leaf(1, 64, 3, 7, 7, constant=True), (3, 3, 3, 3), 2)
DILATED_LAST = conv(leaf(0, 1, 14, 14, 512), leaf(1, 256, 512, 3, 3, constant=True), (2, 2, 2, 2), 1, 2)
STRIDED = nchw(leaf(0, 1, 64, 56, 56), 64, (3, 3), (1, 1), stride=2)
RULE_1, RULE_2 = nchw(leaf(0, 16, 256, 28, 28), 256, (3, 3), (1, 1)), nchw(leaf(0, 2, 1, 14, 14), 1, (3, 3), (1, 1))
RULE_5, RULE_12 = nchw(leaf(0, 1, 1, 14, 14), 1, (3, 3), (2, 2), 2), nchw(leaf(0, 16, 256, 28, 28), 256, (1, 3), (0, 1))
QUERIES = tuple(matmul(leaf(0, 512, 768), leaf(k, 768, 768, constant=True)) for k in (1, 2, 3))

MOVED: dict[str, tuple[Node, tuple[str, ...], Product, float]] = {
    "parts of an image into the batch": (
        BLOCKS, ("axis 3 by 2 into 0", "axis 2 by 2 into 0"), ((4, 48, 19, 19), (64, 48, 5, 5)), 1 - (34 / 38) ** 2
    ),
    "4 x 4 parts of an image into the batch": (
        BLOCKS, ("axis 3 by 4 into 0", "axis 2 by 4 into 0"), ((16, 48, 10, 10), (64, 48, 5, 5)), 1 - (26 / 38) ** 2
    ),
    "rule 1: images along h": (RULE_1, ("axis 0 by 2 into 2",), ((8, 256, 56, 28), (256, 256, 3, 3)), 1 / 28),
    "rule 2: images along w": (RULE_2, ("axis 0 by 2 into 3",), ((1, 1, 14, 28), (1, 1, 3, 3)), 1 / 14),
    "rule 5: interleaved for a dilation": (
        RULE_5, ("axis 2 by 2 into 2", "axis 3 by 2 into 3"), ((1, 1, 14, 14), (1, 1, 3, 3)), 1 - (12 / 14) ** 2
    ),
    "rule 12: 1x3 as 3x1": (RULE_12, ("h and w exchanged",), ((16, 256, 28, 28), (256, 256, 3, 1)), 0.0),
    "phases of a stride as channels, along h": (STRIDED, ("axis 2 by 2 into channels",), ((1, 128, 28, 56), (64, 128, 2, 3)), 0.0),
    "phases of a stride as channels": (
        STRIDED, ("axis 2 by 2 into channels", "axis 3 by 2 into channels"), ((1, 256, 28, 28), (64, 256, 2, 2)), 0.0
    ),
    "two images along w": (IMAGES, ("axis 0 by 2 into 3",), ((8, 512, 7, 14), (512, 512, 3, 3)), 1 / 7),
    "all images along w": (IMAGES, ("axis 0 by 16 into 3",), ((1, 512, 7, 112), (512, 512, 3, 3)), 30 / 112),
    "images along h, zeros between": (IMAGES, ("axis 0 by 2 into 2",), ((8, 512, 16, 7), (512, 512, 3, 3)), 0.0),
    "a dilation, parities beside each other": (
        DILATED, ("axis 2 by 2 into 2", "axis 3 by 2 into 3"), ((1, 512, 14, 14), (256, 512, 3, 3)), 1 - (12 / 14) ** 2
    ),
    "1x7 as 7x1": (LINE, ("h and w exchanged",), ((1, 192, 17, 17), (192, 192, 7, 1)), 0.0),
}  # fmt: skip
"""An operator, the moves to the mutant, the mutant's product, and the part of the output that is corrected."""
ARRANGED: dict[str, tuple[Region, str, list[Product]]] = {
    "filters of two widths, padded": (
        WIDTHS, "weights padded, joined along axis 0 and results cut along axis 1, padding left out", [((1, 768, 18, 18), (384, 768, 1, 1))]
    ),
    "filters of two widths": (
        WIDTHS, "weights joined along axis 0 and results cut along axis 1", [((1, 768, 18, 18), (352, 768, 1, 1))]
    ),
    "three products as a batch": (
        QUERIES, "data stacked and weights stacked and results taken apart", [((3, 512, 768), (3, 768, 768))]
    ),
    "three products as a wide one": (QUERIES, "weights joined along axis 1 and results cut along axis 1", [((512, 768), (768, 2304))]),
}  # fmt: skip
"""A region, the moves to the program, and the program's products; all programs are equal everywhere."""


def products(*roots: Node) -> list[Product]:
    of = [node.inputs for node in walk(roots) if node.op in ("Conv", "MatMul")]
    return [(data.type.sizes, weight.type.sizes) for data, weight in of]


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """Import the prover before time is measured."""
    mutants(nchw(leaf(0, 2, 1, 4, 4), 1, (3, 3), (1, 1)), agreement_with, boxes_between)


@pytest.mark.slow
@pytest.mark.parametrize("name", MOVED)
def test_mutants_of_an_operator_are_found_in_seconds_on_published_shapes(name: str) -> None:
    node, moves, product, share = MOVED[name]
    started = time.process_time()
    found = mutants(node, agreement_with, boxes_between)
    taken = time.process_time() - started
    print(f"{name}: {taken:.1f} s of processor time")
    (mutant,) = [each for each in found if sorted(each.moves) == sorted(moves) and bool(each.cells) == bool(share)]
    assert products(*mutant.programs) == [product]
    assert cells(mutant.boxes[0]) == pytest.approx(share * node.type.elements)
    assert equal_at_sizes(node, stitches(node, mutant.programs[0], mutant.boxes[0])[0]) == ""
    assert taken < SECONDS


@pytest.mark.parametrize("name", ARRANGED)
def test_programs_of_regions_are_found_in_seconds_on_published_shapes(name: str) -> None:
    region, moves, expected = ARRANGED[name]
    started = time.process_time()
    found = generated(region, agreement_with, boxes_between)
    taken = time.process_time() - started
    print(f"{name}: {taken:.1f} s of processor time")
    (mutant,) = [each for each in found if " and ".join(each.moves) == moves]
    assert products(*mutant.programs) == expected and not mutant.cells
    assert all(equal_at_sizes(root, program) == "" for root, program in zip(region, mutant.programs, strict=True))
    assert taken < SECONDS


@pytest.mark.parametrize(
    ("node", "product"),
    [(STRIDED_LAST, ((1, 115, 115, 12), (64, 12, 4, 4))), (DILATED_LAST, ((4, 9, 9, 512), (256, 512, 3, 3)))],
    ids=["a stride as channels", "parities into the batch"],
)
def test_exact_forms_are_derived_in_seconds_on_published_shapes(node: Node, product: Product) -> None:
    """A stride or a dilation is a plain convolution over other channels or images, without the corrections that PET needs."""
    started = time.process_time()
    derived = [each.program for rule in BILINEAR if "Conv" in rule.operators for each in rule.derive(node)]
    assert time.process_time() - started < SECONDS
    (program,) = [each for each in derived if products(each) == [product]]
    (plain,) = [each for each in walk((program,)) if each.op == "Conv"]
    assert {*plain.integers("strides"), *plain.integers("dilations")} == {1}
    assert equal_at_sizes(node, program) == ""
