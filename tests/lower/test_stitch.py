"""A stitch launches nothing: its whole is written in place of the result, and its parts over it, in boxes along any axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egraph.extract import extract, to_program
from egraph.optimize.estimated import estimate, grown, open_program
from egraph.optimize.folding import Folder
from egraph.partial.stitching import _chosen, _multiplied, correction
from egraph.tensor import Candidate, Graph, Implementation, Kernel, Node, TensorType, attributes, make, placeholder, rewrite, walk
from egraph.tensor.boxes import Box, boxes_of, cells, mask_of
from egraph.tensor.expr.index import index
from egraph.tensor.expr.scope import Compare, Guarded, Read, Scalar, Scope, Tensor, table
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.reference import evaluate, meaning
from egraph.tensor.ops.scopes import grid, multiply, read
from egraph.tensor.ops.stitch import Stitch, boxes_by_choice, stitch_of
from lower.candidates import candidates
from lower.cost.model import CostModel
from lower.roofline import DeviceSpeed
from lower.targets import lowering
from lower.views import Window, contiguous
from runtime import Session
from runtime.plan import COPY_STEP
from runtime.profile import Database
from tests.support.fragments import Indices, conv, expression, leaf, matmul
from tests.support.implementations import GENERATED


def entry(name: str, *shape: int) -> Node:
    return make("Input", (), attributes(name=name), TensorType("float32", shape))


def stitch(whole: Node, parts: Sequence[tuple[Box, Node]]) -> Node:
    return _chosen(whole, parts)


def over_leaves(node: Node) -> Node:
    return make(node.op, [placeholder(k, operand.type) for k, operand in enumerate(node.inputs)], node.attributes, node.type)


@st.composite
def stitched(draw: st.DrawFn) -> tuple[Node, tuple[tuple[Box, Node], ...]]:
    """Draw a computed whole, and computed parts in disjoint boxes of it."""
    shape = tuple(draw(st.integers(1, 5)) for _ in range(draw(st.integers(1, 4))))
    mask = np.zeros(shape, np.bool_)
    starts = [draw(st.integers(0, size - 1)) for size in shape]
    steps = [draw(st.integers(1, 3)) for _ in shape]
    mask[tuple(slice(a, None, c) for a, c in zip(starts, steps, strict=True))] = True
    if draw(st.booleans()):
        mask[tuple(draw(st.integers(0, size - 1)) for size in shape)] ^= True
    whole = apply("Relu", entry("x", *shape))
    parts = []
    for number, box in enumerate(boxes_of(mask)[:4]):
        sizes = tuple(map(len, box))
        parts.append((box, apply(draw(st.sampled_from(["Neg", "Exp"])), entry(f"p{number}", *sizes))))
    return whole, tuple(parts)


def ran(
    root: Node, others: Sequence[Node] = (), device: str = "reference", *, by_library: bool = False
) -> tuple[list[str], list[np.ndarray], list[np.ndarray]]:
    """Return the steps of a program of single-operator kernels, its outputs, and the expected outputs."""
    roots = (root, *others)
    inputs = tuple(node for node in walk(roots) if node.op == "Input")
    generator = np.random.default_rng(0)
    feeds = {node.string("name"): generator.standard_normal(node.type.sizes).astype(np.float32) for node in inputs}
    session = opened(roots, device, by_library=by_library)
    expected = evaluate(roots, {node: feeds[node.string("name")] for node in inputs})
    return [f"{step.kind}: {step.name}" for step in session.plan.steps], list(session.run(None, feeds)), expected


def opened(roots: Sequence[Node], device: str, *, by_library: bool = False) -> Session:
    """Return a session of a program whose kernels are single operators."""
    inputs = tuple(node for node in walk(roots) if node.op == "Input")
    graph = Graph("net", inputs, tuple((f"y{k}", node) for k, node in enumerate(roots)), {})
    frozen, folder = grown(graph, ()), Folder(graph)
    laid = candidates(frozen, lowering(device).target, fused=False)
    if by_library:
        made = {number: tuple(each for each in options if each.implementation.is_library) for number, options in laid.items()}
        laid = {number: made[number] or options for number, options in laid.items()}
    program = folder.fold(to_program(frozen, extract(frozen, estimate(laid), 1, 1.0, 0)[0], graph))
    return open_program(program, device=device)


def test_boxes_of_a_choice_are_disjoint_where_its_conditions_are_not() -> None:
    """If two conditions hold, the first part is used. Conditions that join two axes give no boxes."""
    iterators, (row, column) = grid("i", (4, 4))
    tensors = [Tensor(str(k), (4, 4)) for k in range(3)]

    def choice(first: Compare, second: Compare) -> Scope:
        inner = Guarded((second,), read(tensors[1], (row, column)), read(tensors[2], (row, column)))
        return Scope.pointwise(iterators, Guarded((first,), read(tensors[0], (row, column)), inner))

    in_row, in_columns, joined = Compare(row, "<", index(1)), Compare(column, "<", index(3)), Compare(row, "<", column)
    assert boxes_by_choice(choice(in_row, in_columns)) == (
        (range(1), range(4)), (range(1, 4), range(3)), (range(1, 4), range(3, 4)),
    )  # fmt: skip
    assert boxes_by_choice(choice(joined, in_columns)) == boxes_by_choice(choice(in_row, joined)) == ()
    assert boxes_by_choice(Scope.pointwise(iterators, read(tensors[0], (row, column)))) == ()


@settings(max_examples=60, deadline=None)
@given(stitched())
def test_parts_are_written_over_the_whole_in_boxes_on_any_axis(drawn: tuple[Node, tuple[tuple[Box, Node], ...]]) -> None:
    whole, parts = drawn
    if not parts or any(part.type.sizes == whole.type.sizes for _, part in parts):
        return
    root = stitch(whole, parts)
    assert stitch_of(over_leaves(root)) == Stitch(0, tuple((k + 1, box) for k, (box, _) in enumerate(parts)))
    by_choice = boxes_by_choice(meaning(root))
    assert [mask_of(by_choice, whole.type.sizes).all(), cells(by_choice)] == [True, whole.type.elements]
    assert sorted(map(str, by_choice[: len(parts)])) == sorted(str(box) for box, _ in parts)
    steps, (value,), (expected,) = ran(root)
    assert sum(step.startswith("reference: ") for step in steps) == 1 + len(parts)  # the stitch itself is not a kernel
    np.testing.assert_allclose(value, expected, rtol=1e-6)


def corrected() -> tuple[Node, tuple[tuple[Box, Node], ...]]:
    """Return a whole, and two parts of it: two of its columns, and every second row of one channel."""
    x = entry("x", 2, 6, 6, 4)
    whole = apply("Relu", x)
    columns = (range(2), range(6), range(0, 6, 5), range(4))
    rows = (range(2), range(0, 6, 2), range(2, 3), range(1, 2))
    return whole, ((columns, apply("Neg", entry("p", 2, 6, 2, 4))), (rows, apply("Exp", entry("q", 2, 3, 1, 1))))


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_generated_kernels_write_parts_where_they_stand(device: str) -> None:
    whole, parts = corrected()
    steps, (value,), (expected,) = ran(stitch(whole, parts), device=device)
    assert len(steps) == 3 and not any("Expression" in step or step.startswith(COPY_STEP) for step in steps)
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_kernels_around_tables_write_parts_where_they_stand() -> None:
    """The part is an unrolled expression with a table, like the transforms of fast convolutions."""
    whole, ((box, _), _) = corrected()

    def body(tensors: Sequence[Tensor], out: Indices, summed: Indices) -> Scalar:
        return multiply(Read(tensors[0], (*out, *summed)), table([Fraction(k % 3 - 1, 2) for k in range(4)], summed[0]))

    part = expression([entry("p", 2, 6, 2, 4, 4)], (2, 6, 2, 4), body, (4,))
    steps, (value,), (expected,) = ran(stitch(whole, ((box, part),)), device="cpu")
    assert [step.split(":")[0] for step in steps] == [GENERATED.text] * 2
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_parts_that_cannot_be_written_there_are_copied_and_the_whole_is_not(device: str) -> None:
    whole, ((box, _), _) = corrected()
    root = stitch(whole, ((box, entry("p", 2, 6, 2, 4)),))
    steps, (value,), (expected,) = ran(root, device=device)
    assert [step.startswith(COPY_STEP) for step in steps] == [False, True]
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_a_library_writes_runs_and_has_other_parts_copied() -> None:
    """Consecutive rows of one image are contiguous, so the library writes them in place. Every second row is copied."""
    for rows, copied in ((range(2, 4), 0), (range(0, 6, 2), 1)):
        x, w, p = entry("x", 1, 6, 6, 16), entry("w", 16, 16, 3, 3), entry("p", 1, len(rows), 6, 16)
        root = stitch(conv(x, w, (1, 1, 1, 1)), (((range(1), rows, range(6), range(16)), conv(p, w, (1, 1, 1, 1))),))
        steps, (value,), (expected,) = ran(root, device="cpu")
        assert [step.split(":")[0] for step in steps] == ["onednn"] * 2 + [COPY_STEP] * copied
        np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-4)


def window(x: Node, w: Node | None, pads: Sequence[int], strides: Sequence[int], layout: str) -> Node:
    """Return a convolution, or an average pool of three by two if there are no weights."""
    values: dict[str, Any] = {"strides": tuple(strides), "pads": tuple(pads), "dilations": (1, 1), "layout": layout}
    if w is None:
        return apply("AveragePool", x, kernel_shape=(3, 2), count_include_pad=0, **values)
    return apply("Conv", x, w, group=1, **values)


IMAGES, ROWS = range(1, 4, 2), range(0, 6, 5)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("is_pool", [False, True])
@pytest.mark.parametrize(
    ("images", "rows", "pads", "stride"),
    [
        (IMAGES, range(6), (1, 1, 1, 0), 1),  # whole images, of any padding
        (IMAGES, range(5, 6), (0, 1, 1, 0), 1),  # one row of each image, padded beside and below
        (range(1, 2), ROWS, (0, 1, 0, 0), 5),  # two rows of one image, with data above and below
    ],
)
def test_a_library_writes_dense_pieces_one_by_one(
    images: range, rows: range, pads: Sequence[int], stride: int, layout: str, is_pool: bool
) -> None:
    """Images are dense, and so are rows if channels are last. Rows of planes have gaps between the channels and are copied."""

    def data(name: str, count: int, height: int) -> Node:
        return entry(name, count, height, 6, 16) if layout == "NHWC" else entry(name, count, 16, height, 6)

    w = None if is_pool else entry("w", 16, 16, 3, 2)
    height = (len(rows) - 1) * stride + 3 - pads[0] - pads[2]
    part = window(data("p", len(images), height), w, pads, (stride, 1), layout)
    whole = window(data("x", 4, 6), w, (1, 1, 1, 0), (1, 1), layout)
    box = (images, rows, range(6), range(16)) if layout == "NHWC" else (images, range(16), rows, range(6))
    steps, (value,), (expected,) = ran(stitch(whole, ((box, part),)), device="cpu", by_library=True)
    is_written = layout == "NHWC" or len(rows) == 6
    assert [step.split(":")[0] for step in steps] == ["onednn"] * 2 + [COPY_STEP] * (not is_written)
    np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-4)


def test_more_runs_than_a_copy_is_worth_are_a_copy_and_the_plan_says_so() -> None:
    x, w, p = entry("x", 40, 4, 4, 16), entry("w", 16, 16, 3, 3), entry("p", 20, 2, 4, 16)
    part = conv(p, w, (1, 1, 0, 1))
    whole = stitch(conv(x, w, (1, 1, 1, 1)), (((range(0, 40, 2), range(1), range(4), range(16)), part),))
    assert [step.spec["reason"] for step in opened((whole,), "cpu").plan.steps if step.kind == COPY_STEP] == [
        "onednn.convolution would take 20 runs to write it, and a copy costs less"
    ]


def test_a_library_writes_products_wherever_their_columns_stand_side_by_side() -> None:
    """Some columns of all rows, or every second row, need no copy. Every second column is copied."""
    x, w = entry("x", 6, 8), entry("w", 8, 16)
    for rows, columns, copied in (
        (range(6), range(4, 12), 0), (range(0, 6, 2), range(16), 0), (range(1, 6, 4), range(3, 9), 0), (range(6), range(0, 16, 2), 1)
    ):  # fmt: skip
        part = matmul(entry("p", len(rows), 8), entry("v", 8, len(columns)))
        steps, (value,), (expected,) = ran(stitch(matmul(x, w), (((rows, columns), part),)), device="cpu", by_library=True)
        assert [step.split(":")[0] for step in steps] == ["onednn"] * 2 + [COPY_STEP] * copied
        np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "box", [(range(2), range(6), range(2, 4)), (range(2), range(6), range(5, 6)), (range(2), range(1, 6, 2), range(6))],
    ids=["two columns", "a column", "every second row"],
)  # fmt: skip
def test_a_library_writes_corrections_into_boxes_with_gaps_as_products_of_patches(box: Box) -> None:
    """The convolution would need a copy. As a product of patches, it is written in place and the stitch launches nothing."""
    x, w, v = leaf(0, 2, 6, 6, 16), leaf(1, 16, 16, 3, 3), leaf(2, 16, 16, 3, 3)
    original, other = conv(x, w, (1, 1, 1, 1)), conv(x, v, (1, 1, 1, 1))
    part = correction(original, (*box, range(16)))
    assert part is not None
    parts = [((*box, range(16)), part)]
    multiplied = _multiplied(parts, original.type.sizes)
    assert multiplied is not None
    inputs = {node: entry(f"x{node.integer('index')}", *node.type.sizes) for node in (x, w, v)}
    for made, copied in ((parts, 1), (multiplied, 0)):
        whole = stitch(other, made)
        root = rewrite((whole,), lambda old, new: inputs.get(old) or make(old.op, new, old.attributes, old.type))[whole]
        steps, (value,), (expected,) = ran(root, device="cpu")
        assert sum(step.startswith(COPY_STEP) for step in steps) == copied, steps
        np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-4)


def test_what_a_library_writes_into_strides_has_no_operand_beside_the_product() -> None:
    product, window = matmul(leaf(0, 6, 8), leaf(1, 8, 4)), contiguous((6, 16)).slice((0, 4), (6, 8), (1, 1))

    def written(fragment: Node, into: Window = window) -> int:
        kernel = Kernel(fragment, (), fragment, Implementation.parse("onednn.matmul"))
        return lowering("cpu").library_writes(kernel, into)

    assert written(product) and written(apply("Relu", product)) and written(product, contiguous((6, 4)))
    assert not written(apply("Add", product, leaf(2, 6, 4)))
    assert not written(product, contiguous((6, 16)).slice((0, 0), (6, 8), (1, 2)))


def test_a_whole_that_something_else_reads_stays_what_it_is() -> None:
    whole, parts = corrected()
    _, values, expected = ran(stitch(whole, parts), [whole])
    for value, right in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-5)
    _, values, expected = ran(apply("Softmax", stitch(whole, parts), axis=1), [apply("Softmax", whole, axis=1)])
    for value, right in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-5)


def test_a_whole_that_is_made_of_a_part_is_made_after_it() -> None:
    """Otherwise the whole is computed first, so that the parts are written over it."""
    whole, ((box, part), other) = corrected()
    made_of_it = apply("Add", whole, apply("ReduceSum", part, axes=(0, 1, 2, 3)))
    steps, (value,), (expected,) = ran(stitch(made_of_it, ((box, part), other)))
    assert [step for step in steps if step.startswith(COPY_STEP)] == [f"{COPY_STEP}: Stitch"]
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_what_is_no_stitch_is_not_taken_for_one() -> None:
    whole, parts = corrected()
    node = over_leaves(stitch(whole, parts))
    x = node.inputs[0]
    assert stitch_of(apply("Relu", node)) is None
    assert stitch_of(make(node.op, [apply("Relu", x), *node.inputs[1:]], node.attributes, node.type)) is None
    overlapping = (range(2), range(6), range(2), range(4))
    both = over_leaves(stitch(whole, (*parts, (overlapping, entry("r", 2, 6, 2, 4)))))
    assert stitch_of(both) is None
    axes, (i, j) = grid("i", (2, 3))
    a, b = Tensor("0", (2, 3)), Tensor("1", (3,))
    for place in (2 - j, j):
        body = Guarded((Compare(i, "==", index(1)),), Read(b, (place,)), Read(a, (i, j)))
        turned = apply("Expression", leaf(0, 2, 3), leaf(1, 3), text=text_of(Scope.pointwise(axes, body)))
        assert stitch_of(turned) is None


def test_a_stitch_costs_what_its_parts_take_to_be_copied() -> None:
    whole, parts = corrected()
    node = over_leaves(stitch(whole, parts))
    model = CostModel(Database.in_memory(), "here", DeviceSpeed())
    bare = Candidate(node, (1, 2, 3), (), GENERATED)
    relu = Candidate(apply("Relu", leaf(0, 2, 6, 6, 4)), (9,), (), GENERATED)
    inside = model.price({1: (relu,), 4: (bare,)})[4][0].cost_us
    assert inside == pytest.approx(2 * DeviceSpeed().launch_us, rel=0.2)
    part, gaps = Candidate(apply("Neg", leaf(0, 2, 6, 2, 4)), (8,), (), GENERATED), DeviceSpeed().copy_us(2 * 6 * 2 * 4 * 4)
    library = replace(part, implementation=Implementation.parse("onednn.matmul"))
    alone = {1: (relu,), 2: (library,), 4: (bare,)}
    assert model.price(alone)[4][0].cost_us == inside  # the only kernel of a part cannot write in place, so the stitch pays for the copy
    assert model.price(alone)[2][0].cost_us == model.cost_us(library)
    both = model.price({1: (relu,), 2: (library, part), 4: (bare,)})
    assert both[4][0].cost_us == pytest.approx(inside - gaps)  # another kernel can, so the copy is charged to the kernel that needs it
    assert [each.cost_us for each in both[2]] == pytest.approx([model.cost_us(library) + gaps, model.cost_us(part)])
    assert model.price({4: (bare,)})[4][0].cost_us == model.cost_us(bare)  # the whole is an input, which must not be overwritten
    assert model.is_settled(bare)
