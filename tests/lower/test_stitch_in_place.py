"""Test that corrections are written in place: in both layouts, of every kind, in boxes with gaps along any axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from egraph.extract import extract, to_program
from egraph.onnx.types import array_type, tensor_digest
from egraph.optimize.estimated import estimate, grown, open_program
from egraph.optimize.folding import Folder
from egraph.partial.stitching import _chosen, _multiplied, correction
from egraph.tensor import Graph, Node, attributes, make, rewrite, walk
from egraph.tensor.boxes import Box
from egraph.tensor.ops import apply
from lower.candidates import candidates
from lower.targets import FUNCTION_STEP, lowering
from runtime import Session
from runtime.plan import COPY_STEP, Plan
from tests.support.fragments import conv, leaf
from tests.support.implementations import GENERATED
from tests.support.onnxruntime_outputs import outputs_of_onnxruntime

IMAGES, CHANNELS, ROWS, COLUMNS = range(2), range(16), range(6), range(8)
BOXES: Mapping[str, tuple[range, range, range]] = {
    "rows": (IMAGES, range(2, 4), COLUMNS),
    "the last row": (IMAGES, range(5, 6), COLUMNS),
    "every second row": (IMAGES, range(0, 6, 2), COLUMNS),
    "a column": (IMAGES, ROWS, range(7, 8)),
    "a column of one image": (range(1, 2), ROWS, range(7, 8)),
    "two columns": (IMAGES, ROWS, range(2, 4)),
    "every second column": (IMAGES, ROWS, range(1, 8, 2)),
    "a corner": (IMAGES, range(2), range(3)),
    "crossings": (IMAGES, range(1, 6, 2), range(0, 8, 7)),
}
"""Images, rows and columns, of all channels."""
GROUPS: Mapping[str, int] = {"a convolution": 1, "one in groups": 4, "a depthwise one": 16}


def laid_out(layout: str, images: Any, channels: Any, rows: Any, columns: Any) -> tuple[Any, ...]:
    return (images, channels, rows, columns) if layout == "NCHW" else (images, rows, columns, channels)


def pair(kind: str, layout: str) -> tuple[Node, Node]:
    """Return an operator, and another one that computes a different result from the same data."""
    x = leaf(0, *laid_out(layout, *map(len, (IMAGES, CHANNELS, ROWS, COLUMNS))))
    if kind not in GROUPS:
        values: dict[str, Any] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "layout": layout}
        first, second = (apply("AveragePool", x, kernel_shape=(3, 3), count_include_pad=counts, **values) for counts in (0, 1))
        return first, second
    group = GROUPS[kind]
    weights = (leaf(k, len(CHANNELS), len(CHANNELS) // group, 3, 3, constant=True) for k in (1, 2))
    first, second = (conv(x, w, (1, 1, 1, 1), layout=layout, group=group) for w in weights)
    return first, second


def opened(root: Node, values: Mapping[Node, np.ndarray]) -> tuple[Session, np.ndarray]:
    """Return a session of the program with the lowest estimated time, with constant weights, and its input data."""
    names = {
        node: make("Constant", (), attributes(digest=tensor_digest(array)), array_type(array))
        if node.attribute("constant")
        else make("Input", (), attributes(name="x"), node.type)
        for node, array in values.items()
    }
    built = rewrite((root,), lambda old, new: names.get(old) or make(old.op, new, old.attributes, old.type))[root]
    tensors = {names[node].string("digest"): array for node, array in values.items() if names[node].op == "Constant"}
    (x,) = (node for node in values if names[node].op == "Input")
    graph = Graph("net", (names[x],), (("y", built),), tensors)
    frozen, folder = grown(graph, ()), Folder(graph)
    laid = candidates(frozen, lowering("cpu").target)
    program = folder.fold(to_program(frozen, extract(frozen, estimate(laid), 1, 1.0, 0)[0], graph))
    return open_program(program, device="cpu"), values[x]


def compare(kind: str, layout: str, where: tuple[range, range, range], *, by_products: bool) -> tuple[list[str], Plan]:
    """Run an operator's box stitched into another program beside onnxruntime; return the kinds of the steps that fill the result.

    The first writes all of it. A stitch that launches a kernel of its own would be one more, a copy of a box, too.
    """
    original, other = pair(kind, layout)
    images, rows, columns = where
    box: Box = laid_out(layout, images, CHANNELS, rows, columns)
    part = correction(original, box)
    assert part is not None
    multiplied = _multiplied([(box, part)], original.type.sizes)
    assert (multiplied is not None) == by_products
    if multiplied is not None:
        part = multiplied[0][1]
        assert {node.op for node in walk((part,))} >= {"MatMul"} and "Conv" not in {node.op for node in walk((part,))}
    (right, expected), values = outputs_of_onnxruntime([original, other])
    inside = tuple(slice(r.start, r.stop, r.step) for r in box)
    expected[inside] = right[inside]
    session, data = opened(_chosen(other, [(box, part)]), values)
    (value,) = session.run(None, {"x": data})
    np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-4)
    plan = session.plan
    assert not any(implementation.startswith("ref") for implementation in session.executable.implementations.values())
    return [step.kind for step in plan.steps if plan.buffers[step.outputs[0]].area == "output"], plan


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kind", ["a convolution", "one in groups"])
def test_products_of_patches_are_written_into_boxes_of_both_layouts(kind: str, layout: str, name: str) -> None:
    steps, _ = compare(kind, layout, BOXES[name], by_products=True)
    assert len(steps) == 2 and COPY_STEP not in steps


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kind", ["a depthwise one", "an average pool"])
def test_a_kernel_that_writes_in_place_is_chosen_where_what_the_library_makes_would_be_copied(kind: str, layout: str, name: str) -> None:
    steps, _ = compare(kind, layout, BOXES[name], by_products=False)
    by_function = kind == "a depthwise one" and layout == "NHWC"
    assert len(steps) == 2 and steps[1] == (FUNCTION_STEP if by_function else GENERATED.text)


def test_rows_of_a_product_that_reach_beyond_the_next_ones_are_written_in_place() -> None:
    """Every third of eight columns is written: three steps span nine, which no descriptor of the vendor library expresses."""
    steps, _ = compare("a convolution", "NHWC", (IMAGES, ROWS, range(1, 8, 3)), by_products=True)
    assert len(steps) == 2 and steps[1] == FUNCTION_STEP


def test_single_taps_are_products_wherever_channels_come_first() -> None:
    """With channels last, the library computes the product itself."""
    for layout, is_patched in (("NCHW", True), ("NHWC", False)):
        x, w = leaf(0, *laid_out(layout, 2, 16, 6, 8)), leaf(1, 16, 16, 1, 1, constant=True)
        original, box = conv(x, w, (0, 0, 0, 0), layout=layout), laid_out(layout, IMAGES, CHANNELS, range(5, 6), COLUMNS)
        part = correction(original, box)
        assert part is not None
        assert (_multiplied([(box, part)], original.type.sizes) is not None) == is_patched
