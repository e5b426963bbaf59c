"""Pictures of stitched tensors: inspect and the report draw what the program does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest

from egraph.inspect.command import kernels_table, why, why_text
from egraph.optimize.report import render
from egraph.optimize.stitched import Stitched, picture, shown, stitched_tensors, svg
from egraph.partial.stitching import stitches
from egraph.tensor import Graph, Implementation, Kernel, Program, attributes, make, placeholder, rewrite, walk
from egraph.tensor.boxes import mask_of
from tests.egraph.optimize.test_report import outcome
from tests.egraph.partial.test_partial import CASES, Case, under_each_other
from tests.support.fragments import leaf


def program_of(case: Case, number: int = 0) -> Program:
    """Return a stitched program with one kernel per node, on inputs."""
    stitched = stitches(*case)[number]
    leaves = [node for node in walk((stitched,)) if not node.inputs]
    inputs = {node: make("Input", (), attributes(name=f"x{node.integer('index')}"), node.type) for node in leaves}
    new = rewrite((stitched,), lambda old, operands: inputs.get(old) or make(old.op, operands, old.attributes, old.type))
    kernels = []
    for node in walk((new[stitched],)):
        if node.inputs:
            operands = [placeholder(k, operand.type) for k, operand in enumerate(node.inputs)]
            how = Implementation.parse("view") if node.op == "Reshape" else Implementation.parse(f"some.{node.op.lower()}")
            kernels.append(Kernel(make(node.op, operands, node.attributes, node.type), node.inputs, node, how, ("mine",)))
    return Program(Graph("stitched", tuple(inputs.values()), (("y", new[stitched]),), {}), tuple(kernels), 1.0)


@pytest.mark.parametrize("case", CASES)
def test_boxes_are_read_back_from_the_program(case: str) -> None:
    """The boxes of different operands are disjoint, and together they cover the positions where the sides differ."""
    original, mutant, boxes = CASES[case]()
    parts = shown(stitches(original, mutant, boxes)[0])
    assert parts is not None and parts[0] == (0, ())
    sizes = original.type.sizes
    masks = [mask_of(there, sizes) for _, there in parts[1:]]
    assert (np.sum(masks, axis=0) == mask_of(boxes, sizes)).all()


def test_what_is_no_stitch_is_none() -> None:
    original, _, _ = under_each_other()
    assert shown(original) is None and shown(leaf(0, 3)) is None


def test_a_picture_says_which_kernel_fills_each_box(golden: Callable[[str, str], None]) -> None:
    drawn = []
    for name, make_case in CASES.items():
        case = make_case()
        for number in range(len(stitches(*case))):
            (one,) = stitched_tensors(program_of(case, number), {"mine"})
            drawn += [f"{name}, {number}", *picture(one), ""]
    large = under_each_other(16, 28)
    (one,) = stitched_tensors(program_of(large), ())
    drawn += ["large", *picture(one)]
    golden("stitched.txt", "\n".join(drawn) + "\n")


def test_a_concatenation_that_corrects_nothing_is_not_drawn() -> None:
    assert not stitched_tensors(program_of(CASES["two operators"](), 1), ())


def of_pairs() -> Stitched:
    (one,) = stitched_tensors(program_of(under_each_other()), ())
    return one


def test_the_drawing_is_to_scale_and_well_formed(golden: Callable[[str, str], None]) -> None:
    golden("stitched.svg", svg(of_pairs()) + "\n")
    root = ElementTree.fromstring(svg(of_pairs()))
    areas = {each.get("class"): float(each.get("width", 0)) * float(each.get("height", 0)) for each in root if each.tag == "rect"}
    assert areas["part1"] == pytest.approx(areas["part0"] / 16)  # a row of an image: one of four, of one of four images, drawn twice


def test_a_stitch_outlives_the_manifest_and_is_shown() -> None:
    made = dataclasses.replace(outcome(), stitched=(of_pairs(),))
    again = type(made).from_manifest(json.loads(json.dumps(made.to_manifest())))
    assert again.stitched == made.stitched
    text = "\n".join(picture(of_pairs()))
    assert kernels_table(again).endswith(text)
    assert text in why_text(why(again, "1")) or of_pairs().kernel not in (0, 1)
    assert '<svg class="stitched"' in render(again) and "n in {0, 2}, h = 3" in render(again)
    assert "stitched" not in kernels_table(outcome()) and '<svg class="stitched"' not in render(outcome())
