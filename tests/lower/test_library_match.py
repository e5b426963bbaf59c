"""Match fragments to calls of the vendor library: strides, post-operations, refusals. Matched calls are compared with the reference."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from egraph.tensor import (
    Graph,
    Kernel,
    Node,
    Program,
    attributes,
    bind,
    format_fragment,
    make,
    placeholder,
    placeholders,
)  # fmt: skip
from egraph.tensor.ops import OPS, apply
from egraph.tensor.ops.reference import evaluate
from lower.calls.call import LibraryCall
from lower.candidates.tile import Tiling
from lower.compile import CompileOptions, plan_program
from lower.targets import lowering
from lower.targets.cpu import tiles
from lower.targets.cpu.onednn.match import IMPLEMENTATIONS, match
from lower.views import Window
from tests.support.lowering import float32

POSITIVE = ("Relu", "Sigmoid", "Tanh", "HardSwish", "Mish", "Abs", "Neg")


def random_epilogue(random: Random, node: Node) -> Node:
    """Return the node under a few random operators that the library may fuse."""
    index = 10
    for _ in range(random.randrange(4)):
        sizes = node.type.sizes
        if random.random() < 0.4:
            node = apply(random.choice(POSITIVE), node)
        elif random.random() < 0.2:
            node = apply("Mul", node, apply("Sigmoid", node))
        else:
            shape = random.choice([sizes, (1,) * len(sizes), sizes[-1:], tuple(n if random.random() < 0.5 else 1 for n in sizes)])
            other = placeholder(index, float32(*shape), constant=random.random() < 0.5)
            index += 1
            op = random.choice(("Add", "Mul", "Sub", "Max", "PRelu"))
            node = apply(op, node, other) if op == "PRelu" or random.random() < 0.7 else apply(op, other, node)
    if node.type.sizes and random.random() < 0.3:
        node = apply("Transpose", node, perm=tuple(random.sample(range(node.type.rank), node.type.rank)))
    return node


def library_error(
    fragment: Node, implementation: str, seed: int, on: str = "cpu", implementations: list[str] | None = None
) -> float | None:
    """Return the error relative to the largest value, None where the library refuses to be asked at all.

    ``implementations`` gets the names of what the library runs.
    """
    from runtime import Executable
    from runtime.errors import KernelError

    fragment, _ = Tiling.canonical(fragment)
    generator = np.random.default_rng(seed)
    leaves = placeholders(fragment)
    values = {leaf: generator.standard_normal(leaf.type.sizes).astype(np.float32) for leaf in leaves}
    named = {leaf: f"v{i}" for i, leaf in enumerate(leaves)}
    operands = [
        make("Constant", (), attributes(digest=named[leaf]), leaf.type) if leaf.attribute("constant")
        else make("Input", (), attributes(name=named[leaf]), leaf.type) for leaf in leaves
    ]  # fmt: skip
    arrays = {named[leaf]: value for leaf, value in values.items()}
    root = bind(fragment, operands)
    graph = Graph("one", tuple(o for o in operands if o.op == "Input"), (("y", root),), arrays)
    kernel = Kernel(fragment, tuple(operands), root, lowering(on).implementation(implementation))
    plan, _ = plan_program(Program(graph, (kernel,), 0.0), CompileOptions(target=lowering(on).target))
    try:
        executable = Executable(plan, arrays, threads=1, on=on)
    except KernelError:
        return None
    if implementations is not None:
        implementations.extend(executable.implementations.values())
    got = executable.run({o.string("name"): arrays[o.string("name")] for o in graph.inputs})["y"]
    executable.close()
    (expected,) = evaluate((fragment,), values)
    return float(np.abs(got - expected).max() / (np.abs(expected).max() + 1e-30))


@pytest.mark.parametrize("family", IMPLEMENTATIONS, ids=lambda family: f"{family[0]}-{family[1][0]}")
def test_random_library_calls_agree_with_the_reference(family: tuple[str, tuple[str, ...], object]) -> None:
    """Test every operator that the library runs, with random sizes, attributes, epilogues and layouts."""
    implementation, operators, _ = family
    ran = 0
    for seed in range(600):
        if ran == 12:
            break
        random = Random(seed)
        op = random.choice(operators)
        shapes, values = OPS[op].sample(random)
        leaves = [placeholder(i, float32(*shape), constant=i > 0 and random.random() < 0.7) for i, shape in enumerate(shapes)]
        node = apply(op, *leaves, **values)
        fragment = random_epilogue(random, node) if node.type.rank else node
        if isinstance(match(fragment, implementation), str):
            continue
        error = library_error(fragment, implementation, seed)
        assert error is None or error < 5e-5, format_fragment(fragment)
        ran += error is not None
    assert ran == 12


def image(*shape: int, layout: str) -> Node:
    batch, channels, *space = shape
    return placeholder(0, float32(*((batch, channels, *space) if layout == "NCHW" else (batch, *space, channels))))


def plain_conv(x: Node, w: Node, layout: str) -> Node:
    return apply("Conv", x, w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1, layout=layout)


def test_layouts_and_epilogues_become_strides_and_post_operations() -> None:
    x, w, bias, other = (
        image(2, 4, 5, 7, layout="NHWC"), placeholder(1, float32(6, 4, 3, 3), constant=True),
        placeholder(2, float32(1, 1, 1, 6), constant=True), placeholder(3, float32(2, 5, 7, 6)),
    )  # fmt: skip
    fragment = apply("Relu", apply("Add", apply("Add", plain_conv(x, w, "NHWC"), bias), other))
    call = match(fragment, "onednn.convolution")
    assert isinstance(call, LibraryCall)
    assert [a.role for a in call.arguments] == ["src", "weights", "bias", ""]
    assert call.arguments[0].window == Window(0, (2, 4, 5, 7), (140, 1, 28, 4))
    assert call.destination == Window(0, (2, 6, 5, 7), (210, 1, 42, 6))
    assert call.arguments[3].window.strides == (210, 1, 42, 6)
    assert [p.get("algorithm") for p in call.post_operations] == ["add", "relu"]
    assert call.arguments[1].packed and not call.arguments[0].packed
    refused = match(apply("Transpose", plain_conv(x, w, "NHWC"), perm=(0, 3, 1, 2)), "onednn.convolution")
    assert isinstance(refused, str) and "one order" in refused
    refused = match(apply("Transpose", fragment, perm=(0, 3, 1, 2)), "onednn.convolution")
    assert isinstance(refused, str) and "not channels last" in refused


@pytest.mark.parametrize(("shape", "fits"), [((8, 6), True), ((6,), True), ((1,), True), ((8, 1), False)])
def test_operands_beside_a_product_are_whole_or_vary_along_the_columns(shape: tuple[int, ...], fits: bool) -> None:
    product = apply("MatMul", placeholder(0, float32(8, 5)), placeholder(1, float32(5, 6), constant=True))
    assert isinstance(match(apply("Mul", product, placeholder(2, float32(*shape))), "onednn.matmul"), LibraryCall) == fits


@pytest.mark.parametrize(
    ("slopes", "fits"), [((6, 1, 1), True), ((1, 1, 1), True), ((2, 6, 1, 1), False), ((2, 1, 1, 1), True), ((6, 2, 1), False)]
)
def test_slopes_vary_along_one_axis(slopes: tuple[int, ...], fits: bool) -> None:
    """Slopes along two axes are not fused, however short the axes. Fused fragments must agree with the reference."""
    conv = plain_conv(placeholder(0, float32(2, 4, 2, 7)), placeholder(1, float32(6, 4, 3, 3), constant=True), "NCHW")
    fragment = apply("PRelu", conv, placeholder(2, float32(*slopes), constant=True))
    found = match(fragment, "onednn.convolution")
    if fits:
        assert isinstance(found, LibraryCall), found
        error = library_error(fragment, "onednn.convolution", 0)
        assert error is not None and error < 5e-5
    else:
        assert "more than one axis" in str(found)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("group", "outputs"), [(2, 6), (4, 4), (4, 8)])
def test_convolutions_of_groups_run_in_the_library(group: int, outputs: int, layout: str) -> None:
    x, w = image(2, 4, 5, 7, layout=layout), placeholder(1, float32(outputs, 4 // group, 3, 3), constant=True)
    node = apply("Conv", x, w, strides=(1, 2), pads=(1, 1, 1, 0), dilations=(1, 1), group=group, layout=layout)
    call = match(node, "onednn.convolution")
    assert isinstance(call, LibraryCall), call
    assert call.arguments[1].window.shape == (group, outputs // group, 4 // group, 3, 3)
    error = library_error(node, "onednn.convolution", 1)
    assert error is not None and error < 5e-5


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("AveragePool", {"kernel_shape": (129, 128), "strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "count_include_pad": 0,
                      "layout": "NCHW"}),
     ("ReduceMean", {"axes": (2, 3)}), ("ReduceSum", {"axes": (0, 2, 3)})],
)  # fmt: skip
def test_long_sums_are_not_the_librarys(op: str, attributes: dict[str, Any]) -> None:
    """The library adds numbers one after the other: for example, means of 25,600 numbers near 1000 were off by 2e-4."""
    node = apply(op, placeholder(0, float32(1, 2, 129, 128)), **attributes)
    implementations = [one for one in ("onednn.pooling", "onednn.reduction") if isinstance(match(node, one), LibraryCall)]
    assert implementations == []
    assert "one after the other" in " ".join(str(match(node, one)) for one in ("onednn.pooling", "onednn.reduction"))
    if op != "AveragePool":
        fewer = apply(op, placeholder(0, float32(1, 2, 128, 64)), **attributes)
        assert isinstance(match(fewer, "onednn.reduction"), LibraryCall)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("kernel", "dilations", "pads"), [((3, 3), (2, 2), (2, 2, 2, 2)), ((2, 3), (3, 1), (1, 0, 1, 2))])
def test_means_over_spread_windows_leave_the_padding_out(
    kernel: tuple[int, ...], dilations: tuple[int, ...], pads: tuple[int, ...], layout: str
) -> None:
    attributes: dict[str, Any] = {"kernel_shape": kernel, "dilations": dilations, "pads": pads, "strides": (2, 1), "count_include_pad": 0}
    error = library_error(apply("AveragePool", image(1, 2, 9, 8, layout=layout), **attributes, layout=layout), "onednn.pooling", 0)
    assert error is not None and error < 5e-5


@pytest.mark.parametrize(
    ("implementation", "node", "reason"),
    [
        ("onednn.layer_normalization",
         apply("LayerNormalization", placeholder(0, float32(4, 6)),
               apply("Slice", placeholder(1, float32(12)), starts=(0,), ends=(12,), steps=(2,)), placeholder(2, float32(6)),
               axis=1, epsilon=1e-5),
         "the scale is not contiguous"),
        ("onednn.lrn", apply("LRN", placeholder(0, float32(1, 4, 6, 6)), size=2, alpha=0.5, beta=0.75, bias=1.0, axis=1), "must be odd"),
        ("onednn.matmul",
         apply("MatMul", apply("Expand", placeholder(0, float32(1, 3, 4)), shape=(2, 3, 4)), placeholder(1, float32(2, 4, 5))),
         "broadcast by strides"),
    ],
)  # fmt: skip
def test_what_the_library_computes_otherwise_is_refused_with_the_reason(implementation: str, node: Node, reason: str) -> None:
    assert reason in str(match(node, implementation))


def test_a_row_steps_over_all_its_elements_as_leading_dimensions_must() -> None:
    row = apply("Transpose", placeholder(0, float32(8, 1)), perm=(1, 0))
    call = match(apply("MatMul", row, placeholder(1, float32(8, 5))), "onednn.matmul")
    assert isinstance(call, LibraryCall) and call.arguments[0].window == Window(0, (1, 8), (8, 1))


def test_axes_of_size_one_take_the_order_of_the_others() -> None:
    pooled = apply("Transpose", apply("ReduceMean", image(1, 8, 5, 7, layout="NHWC"), axes=(1, 2)), perm=(0, 3, 1, 2))
    call = match(pooled, "onednn.pooling")
    assert isinstance(call, LibraryCall)
    assert (call.arguments[0].window.strides, call.destination.strides) == ((280, 1, 56, 8), (8, 1, 8, 8))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda c: apply("Floor", c), "not an epilogue"),
        (lambda c: apply("Add", c, placeholder(2, float32(3, 2, 6, 5, 7))), "broadcasts"),
        (lambda c: apply("Div", placeholder(2, float32(1)), c), "divided by"),
        (lambda c: apply("Add", c, apply("Relu", c)), "both operands"),
        (lambda c: apply("Clip", c, min=-1.0, max=float("inf")), "finite bounds"),
    ],
)
def test_what_the_library_cannot_fuse_is_refused_with_the_reason(build: Callable[[Node], Node], reason: str) -> None:
    conv = plain_conv(image(2, 4, 5, 7, layout="NCHW"), placeholder(1, float32(6, 4, 3, 3), constant=True), "NCHW")
    refused = match(build(conv), "onednn.convolution")
    assert isinstance(refused, str) and reason in refused


def product(*, swapped: bool, epilogue: bool, step: int = 1) -> Node:
    """Return a product over every ``step``-th element of its left operand, optionally with a bias, and transposed if ``swapped``."""
    left = placeholder(0, float32(8 * step, 5 * step))
    if step > 1:
        left = apply("Slice", left, starts=(0, 0), ends=(8 * step, 5 * step), steps=(step, step))
    node = apply("MatMul", left, placeholder(1, float32(5, 6), constant=True))
    if epilogue:
        node = apply("Relu", apply("Add", node, placeholder(2, float32(6), constant=True)))
    return apply("Transpose", node, perm=(1, 0)) if swapped else node


@pytest.mark.parametrize(
    ("fragment", "part"),
    [
        (product(swapped=False, epilogue=True), ""),
        (product(swapped=True, epilogue=False), ""),
        (product(swapped=True, epilogue=True), "written column by column"),
        (product(swapped=False, epilogue=False, step=2), "neither its rows nor its columns"),
    ],
    ids=("plain", "transposed", "transposed with a bias", "strided both ways"),
)
def test_products_that_only_the_reference_computes_are_refused(fragment: Node, part: str) -> None:
    found = match(fragment, "onednn.matmul")
    assert isinstance(found, str) == bool(part)
    assert not isinstance(found, str) or part in found


def heads(joined: tuple[int, ...] | None, *, perm: tuple[int, ...], lies: bool = False, op: str = "Add") -> Node:
    """Return a batch of products with permuted axes, joined with another operand before the permutation (after it if ``lies``)."""
    node = apply("MatMul", placeholder(0, float32(2, 5, 7)), placeholder(1, float32(2, 7, 6)))
    if lies:
        node = apply("Transpose", node, perm=perm)
    if joined is not None:
        node = apply(op, node, placeholder(2, float32(*joined)))
    return node if lies else apply("Transpose", node, perm=perm)


@pytest.mark.parametrize(
    ("fragment", "fits"),
    [
        (product(swapped=True, epilogue=False), True),
        (apply("Relu", product(swapped=True, epilogue=False)), True),
        (apply("Mul", product(swapped=True, epilogue=False), placeholder(2, float32(8))), True),
        (heads(None, perm=(0, 2, 1)), True),
        (heads((2, 6, 5), perm=(0, 2, 1), lies=True), True),
        (heads((2, 5, 6), perm=(0, 2, 1)), False),
        (heads(None, perm=(1, 0, 2)), True),
        (heads((5, 2, 6), perm=(1, 0, 2), lies=True), True),
        (heads((2, 5, 6), perm=(1, 0, 2)), False),
        (heads((6,), perm=(1, 0, 2)), True),
        (heads((1,), perm=(1, 0, 2), op="Mul"), True),
        (heads((6,), perm=(1, 0, 2), op="Mul"), False),  # regression: the library crashed
    ],
)
def test_products_are_written_in_any_order_of_their_axes(fragment: Node, fits: bool) -> None:
    call = match(fragment, "onednn.matmul")
    assert isinstance(call, LibraryCall) == fits
    if fits:
        names: list[str] = []
        error = library_error(fragment, "onednn.matmul", 0, implementations=names)
        assert error is not None and error < 5e-5
        assert not any(name.startswith("ref") for name in names), names


@pytest.mark.parametrize(
    ("sizes", "axes", "perm", "fits"),
    [
        ((4, 3, 5, 6), (2, 3), (0, 1, 2, 3), True),
        ((4, 3, 5, 6), (2, 3), (0, 2, 3, 1), True),
        ((4, 5, 6, 3), (1, 2), (0, 1, 2, 3), False),
        ((4, 3, 5, 6), (2, 3), (1, 0, 2, 3), False),
    ],
    ids=("innermost", "innermost, unit axes moved", "channels last", "result transposed"),
)
def test_reductions_are_the_librarys_where_the_innermost_axes_are_reduced(
    sizes: tuple[int, ...], axes: tuple[int, ...], perm: tuple[int, ...], fits: bool
) -> None:
    fragment = apply("Transpose", apply("ReduceSum", placeholder(0, float32(*sizes)), axes=axes), perm=perm)
    found = match(fragment, "onednn.reduction")
    assert isinstance(found, LibraryCall) == fits
    assert fits or "only the reference implementation" in str(found)


@pytest.mark.parametrize(
    ("layout", "function", "space", "fits"),
    [("NHWC", "HardSwish", 5, True), ("NCHW", "HardSwish", 5, False), ("NCHW", "Relu", 5, True), ("NCHW", "HardSwish", 1, True)],
)
def test_functions_join_convolutions_where_they_are_computed_in_vectors(layout: str, function: str, space: int, fits: bool) -> None:
    x, w = image(1, 4, space, space, layout=layout), placeholder(1, float32(6, 4, 3, 3), constant=True)
    found = match(apply(function, plain_conv(x, w, layout)), "onednn.convolution")
    assert isinstance(found, LibraryCall) == fits
    assert fits or "one number at a time" in str(found)


def test_what_convolutions_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Source and weights of convolutions by constants are split if they add up along one axis and the processor is fast at it."""

    def convolution(*, group: int = 1, constant: bool = True) -> Node:
        source, weights = placeholder(0, float32(1, 8, 6, 6)), placeholder(1, float32(8, 8 // group, 3, 3), constant=constant)
        return apply("Conv", source, weights, pads=(1,) * 4, strides=(1, 1), dilations=(1, 1), group=group, layout="NCHW")

    def split(fragment: Node, implementation: str = "onednn.convolution") -> LibraryCall | str:
        return match(fragment, f"{implementation}@bf16x3")

    monkeypatch.setattr(tiles, "x86_flags", lambda: frozenset({tiles.TILE_FEATURE}))
    call = split(convolution())
    assert isinstance(call, LibraryCall) and call.spec()["split"] and call.spec()["types"] == {"src": "bfloat16", "weights": "bfloat16"}
    for fragment in (convolution(group=2), convolution(constant=False)):
        assert "without groups" in str(split(fragment))
    product = apply("MatMul", placeholder(0, float32(4, 8)), placeholder(1, float32(8, 8), constant=True))
    assert "convolutions by constant weights alone" in str(split(product, "onednn.matmul"))
    monkeypatch.setattr(tiles, "x86_flags", lambda: frozenset({"avx512_bf16"}))
    assert "no amx_bf16" in str(split(convolution()))
