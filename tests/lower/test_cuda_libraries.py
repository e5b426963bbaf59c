"""Test cuDNN and cuBLASLt without a GPU: which fragments become calls, whether a recipe computes its fragment, and which plans exist."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace
from random import Random

import ml_dtypes
import numpy as np
import pytest

from egraph.optimize.kernels import TF32_FACTOR
from egraph.tensor import Implementation, Node, Target, format_fragment, placeholder
from egraph.tensor.ops import OPS, apply
from lower.calls.call import LibraryCall
from lower.cost.rounding import UNIT_ROUNDOFF, largest_error
from lower.targets import lowering, lowering_for
from lower.targets.cuda import cublas, cudnn
from runtime.devices.cuda import cudnn as device_cudnn
from runtime.devices.cuda.cublas import COMPUTE, Matrix, matrix, product_of
from runtime.devices.cuda.cudnn import WORKSPACE_BYTES, Graph, channels_last, engine_plans, favourite_plan, roles
from runtime.devices.cuda.gpus import GPUS
from runtime.devices.cuda.meaning import evaluate_call, rounded
from runtime.errors import ArtefactError, LibraryMissing
from runtime.plan import Buffer
from tests.lower.test_library_match import library_error
from tests.support.lowering import float32

WAYS = (
    ("cudnn.convolution", "Conv", cudnn.match), ("cudnn.deconvolution", "ConvTranspose", cudnn.match),
    ("cublas.matmul", "MatMul", cublas.match), ("cublas.matmul", "Conv", cublas.match),
)  # fmt: skip
needs_cudnn = pytest.mark.skipif(not device_cudnn.is_installed(), reason="cuDNN and its frontend are not installed: make test-cuda")


def random_epilogue(random: Random, node: Node) -> Node:
    """Return the node under a summand, a bias and an activation, each of which may be missing or in another order."""
    sizes, parts = node.type.sizes, random.choice((["bias"], ["bias", "act"], ["sum", "bias", "act"], ["bias", "sum"], ["act"], []))
    if random.random() < 0.2:
        random.shuffle(parts)
    for index, part in enumerate(parts, start=10):
        if part == "act":
            node = apply("Relu", node) if random.random() < 0.7 else apply("Gelu", node, approximate="tanh")
            continue
        axis = 1 if random.random() < 0.5 else len(sizes) - 1
        shape = sizes if part == "sum" else tuple(size if i == axis else 1 for i, size in enumerate(sizes))
        node = apply("Add", node, placeholder(index, float32(*shape), constant=part == "bias"))
    return node


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way[0]}-{way[1]}")
def test_random_calls_agree_with_the_reference(way: tuple[str, str, object]) -> None:
    """The recipe of a step, evaluated over its windows, computes the fragment."""
    implementation, op, match = way
    ran, epilogues = 0, set()
    for seed in range(4000):
        if ran == 25:
            break
        random = Random(seed)
        shapes, values = OPS[op].sample(random)
        leaves = [placeholder(i, float32(*shape), constant=i > 0 and random.random() < 0.7) for i, shape in enumerate(shapes)]
        node = apply(op, *leaves, **values)
        fragment = random_epilogue(random, node) if node.type.rank > 1 else node
        call = match(fragment, implementation)  # type: ignore[operator]
        if not isinstance(call, LibraryCall):
            continue
        error = library_error(fragment, implementation, seed, on="cuda:h100")
        assert error is not None and error < 1e-6, format_fragment(fragment)
        epilogues.add((len(call.arguments), len(call.post_operations)))
        ran += 1
    assert ran == 25
    assert len(epilogues) > 2 or implementation == "cudnn.deconvolution"


def conv(layout: str = "NCHW", channels: int = 4, constant: bool = True) -> tuple[Node, tuple[int, ...]]:
    shape = (2, channels, 5, 7) if layout == "NCHW" else (2, 5, 7, channels)
    weights = placeholder(1, float32(6, channels, 3, 3), constant=constant)
    node = apply(
        "Conv", placeholder(0, float32(*shape)), weights, strides=(1, 1), pads=(1,) * 4, dilations=(1, 1), group=1, layout=layout
    )
    return node, (1, 6, 1, 1) if layout == "NCHW" else (1, 1, 1, 6)


def test_the_epilogue_of_a_convolution_is_what_float32_engines_have() -> None:
    node, shape = conv()
    bias = placeholder(2, float32(*shape), constant=True)
    biased = apply("Add", node, bias)
    summand = placeholder(3, float32(*node.type.sizes))
    for fragment in (node, biased, apply("Relu", biased), apply("Relu", apply("Add", biased, summand))):
        assert isinstance(cudnn.match(fragment, "cudnn.convolution"), LibraryCall)
    for fragment, words in (
        (apply("Relu", node), "together with a bias"), (apply("Add", node, summand), "together with a bias"),
        (apply("Gelu", biased, approximate="tanh"), "gelu_tanh"), (apply("Relu", apply("Relu", biased)), "after an activation"),
        (apply("Mul", node, bias), "fuse no mul"),
    ):  # fmt: skip
        refused = cudnn.match(fragment, "cudnn.convolution")
        assert isinstance(refused, str) and words in refused, refused


def test_weights_of_channels_last_data_are_laid_out_anew_where_they_are_constant() -> None:
    call = cudnn.match(conv("NHWC")[0], "cudnn.convolution")
    assert isinstance(call, LibraryCall) and [each.packed for each in call.arguments] == [False, True]
    assert channels_last((6, 4, 3, 3)) == (36, 1, 12, 4)
    refused = cudnn.match(conv("NHWC", constant=False)[0], "cudnn.convolution")
    assert isinstance(refused, str) and "not constant" in refused


@pytest.mark.parametrize(
    ("shape", "strides", "found"),
    [
        ((3, 4), (4, 1), Matrix(1, 0, 3, 4, 4, False)),
        ((3, 4), (1, 3), Matrix(1, 0, 3, 4, 3, True)),
        ((2, 5, 3, 4), (100, 20, 4, 1), Matrix(10, 20, 3, 4, 4, False)),
        ((7, 3, 4), (0, 4, 1), Matrix(7, 0, 3, 4, 4, False)),
        ((3, 4), (10, 1), Matrix(1, 0, 3, 4, 10, False)),
        ((3, 4), (8, 2), "neither rows nor columns"),
        ((2, 5, 3, 4), (12, 100, 4, 1), "one stride apart"),
    ],
)
def test_windows_are_matrices_with_a_leading_dimension(shape: tuple[int, ...], strides: tuple[int, ...], found: Matrix | str) -> None:
    got = matrix(shape, strides)
    assert got == found if isinstance(found, Matrix) else isinstance(got, str) and found in got


def test_a_product_that_does_not_fit_is_refused() -> None:
    spec = {"primitive": "matmul", "arguments": {"src": 0, "weights": 1}, "post_ops": []}

    def buffer(*shape: int) -> Buffer:
        return Buffer("float32", shape, (shape[1], 1), "arena")

    assert product_of(spec, [buffer(2, 3), buffer(3, 4)], buffer(2, 4)).result.columns == 4
    with pytest.raises(ArtefactError, match="do not fit"):
        product_of(spec, [buffer(2, 3), buffer(3, 4)], buffer(2, 5))
    with pytest.raises(ArtefactError, match="does not take"):
        product_of(spec, [Buffer("float32", (2, 3), (9, 2), "arena"), buffer(3, 4)], buffer(2, 4))


def test_tf32_drops_thirteen_bits_of_what_is_multiplied() -> None:
    values = np.array([1.0, 1 + 2**-10, 1 + 2**-11, 1 + 2**-12, -3.1415927, np.inf, np.nan], np.float32)
    cut = rounded(values, "tf32")
    np.testing.assert_array_equal(cut[[0, 1, 2, 3, 5]], np.array([1, 1 + 2**-10, 1 + 2**-10, 1, np.inf], np.float32))
    assert np.isnan(cut[6]) and abs(cut[4] + np.pi) < 2e-3
    spec = {"primitive": "matmul", "arguments": {"src": 0, "weights": 1, "bias": 2}, "post_ops": []}
    operands = [np.full((1, 1), 1 + 2**-12, np.float32), np.ones((1, 1), np.float32), np.full((1, 1), 2**-12, np.float32)]
    assert evaluate_call({**spec, "precision": "tf32"}, operands, (1, 1))[0, 0] == np.float32(1 + 2**-12)
    assert evaluate_call({**spec, "precision": "float32"}, operands, (1, 1))[0, 0] == np.float32(1 + 2**-11)


def test_calls_are_offered_in_the_precisions_that_the_libraries_round_to() -> None:
    convolution, _ = conv()
    product = apply("MatMul", placeholder(0, float32(8, 16)), placeholder(1, float32(16, 4), constant=True))
    transposed = apply(
        "ConvTranspose", placeholder(0, float32(1, 4, 5, 5)), placeholder(1, float32(4, 6, 3, 3), constant=True),
        strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=1, output_padding=(0, 0), layout="NCHW",
    )  # fmt: skip
    for match, fragment, name, offered in (
        (cudnn.match, convolution, "cudnn.convolution", {"tf32"}), (cudnn.match, transposed, "cudnn.deconvolution", {"tf32"}),
        (cublas.match, product, "cublas.matmul", {"tf32", "bf16", "fp16"}),
    ):  # fmt: skip
        calls = {precision: match(fragment, f"{name}@{precision}") for precision in ("tf32", "bf16", "fp16")}
        assert {precision for precision, call in calls.items() if isinstance(call, LibraryCall)} == offered, name
        for precision in offered:
            rounding = Implementation.parse(f"{name}@{precision}")
            assert lowering("cuda:h200").reads(fragment, rounding) == {0: frozenset({precision}), 1: frozenset({precision})}
    for name in GPUS:
        target = lowering(f"cuda:{name}").target
        assert lowering_for(replace(target, precisions=("tf32",), precision="tf32")).target == target
    assert set(lowering("cuda:h100").precisions) == set(COMPUTE) - {"float32"}


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_rounded_operands_are_what_the_recorded_device_multiplies(precision: str) -> None:
    """Rounding by bits equals rounding by float32 arithmetic or by narrower numpy types. The error of a sum is within its bound."""
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    cut = rounded(values, precision)
    if precision == "tf32":
        wide = values * np.float32(TF32_FACTOR)
        np.testing.assert_array_equal(cut, wide - (wide - values))
    else:
        narrow = ml_dtypes.bfloat16 if precision == "bf16" else np.float16
        np.testing.assert_array_equal(cut, values.astype(narrow).astype(np.float32))
    assert 0.5 * UNIT_ROUNDOFF[precision] < np.abs(cut / values - 1).max() <= UNIT_ROUNDOFF[precision]
    spec = {"primitive": "matmul", "arguments": {"src": 0, "weights": 1}, "post_ops": [], "precision": precision}
    left, right = values[:600].reshape(2, 300), values[400:].reshape(300, 2)
    error = np.abs(evaluate_call(spec, [left, right], (2, 2)) - left.astype(np.float64) @ right.astype(np.float64))
    assert np.all(error <= largest_error(precision, 300) * (np.abs(left) @ np.abs(right))) and error.max() > 0


@needs_cudnn
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_every_matched_convolution_has_a_strict_plan_that_is_built_again(
    layout: str, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, shape = conv(layout, channels=64)
    fragment = apply("Relu", apply("Add", node, placeholder(2, float32(*shape), constant=True)))
    call = cudnn.match(fragment, "cudnn.convolution")
    assert isinstance(call, LibraryCall)
    operands = [Buffer("float32", each.window.shape, each.window.strides, "arena") for each in call.arguments]
    operands = device_cudnn.with_packed(call.spec(), operands)
    output = Buffer("float32", call.destination.shape, call.destination.strides, "arena")
    strict, fast = (engine_plans(call.spec(), operands, output, GPUS[gpu], precision) for precision in ("float32", "tf32"))
    assert not isinstance(strict, str) and not isinstance(fast, str)
    assert {plan.engine for plan in strict} < {plan.engine for plan in fast}, "strict float32 leaves tensor cores out"
    for plans, precision in ((strict, "float32"), (fast, "tf32")):
        first = next(plan for plan in plans if plan.workspace_bytes <= WORKSPACE_BYTES)
        assert favourite_plan(call.spec(), operands, output, GPUS[gpu], precision) == first
    monkeypatch.setattr(device_cudnn, "WORKSPACE_BYTES", -1)
    refused = favourite_plan(call.spec(), operands, output, GPUS[gpu], "float32")
    assert isinstance(refused, str) and "more workspace" in refused
    for plan in strict:
        again = Graph(call.spec(), roles(call.spec(), operands), output, gpu=GPUS[gpu])
        assert again.build(plan.spec, "float32") == plan.workspace_bytes and not again.unavailable_plan
    unknown = {"engine": 10_000, "knobs": {"TILE_SIZE": 1}}
    monkeypatch.undo()
    graph, first = Graph(call.spec(), roles(call.spec(), operands), output, gpu=GPUS[gpu]), strict[0]
    assert graph.build(unknown, "float32") == first.workspace_bytes and "does not offer engine 10000" in graph.unavailable_plan
    assert graph.described() == first, "the favourite takes the place of what is not offered"


@needs_cudnn
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_no_strict_plan_is_one_that_the_library_says_uses_tensor_cores(layout: str, gpu: str) -> None:
    """Cross-check: of the plans that the library lists for tensor cores, none is a strict plan."""
    call = cudnn.match(conv(layout, channels=64)[0], "cudnn.convolution")
    assert isinstance(call, LibraryCall)
    operands = [Buffer("float32", each.window.shape, each.window.strides, "arena") for each in call.arguments]
    operands = device_cudnn.with_packed(call.spec(), operands)
    output = Buffer("float32", call.destination.shape, call.destination.strides, "arena")
    strict, fast = (engine_plans(call.spec(), operands, output, GPUS[gpu], precision) for precision in ("float32", "tf32"))
    library, made = device_cudnn.library(), Graph(call.spec(), roles(call.spec(), operands), output, gpu=GPUS[gpu])
    made.graph.create_execution_plans([library.heur_mode.A, library.heur_mode.FALLBACK])
    made.graph.select_numeric_notes([library.numerical_note.TENSOR_CORE])
    on_tensor_cores = set()
    for index in range(made.graph.get_execution_plan_count()):
        try:
            made.graph.build_plan_at_index(index)
        except library.cudnnGraphNotSupportedError:
            continue
        on_tensor_cores.add(made.described().key)
    assert not isinstance(strict, str) and not isinstance(fast, str) and len(on_tensor_cores) > 3
    assert not {plan.key for plan in strict} & on_tensor_cores and {plan.key for plan in fast} & on_tensor_cores


@needs_cudnn
@pytest.mark.parametrize("way", WAYS[:2], ids=lambda way: way[0])
def test_random_matched_convolutions_have_plans(way: tuple[str, str, object]) -> None:
    """If cuDNN is installed, only calls that it has a plan for become candidates. Few other calls match."""
    implementation, op, _ = way
    matched = planned = 0
    for seed in range(300):
        random = Random(seed)
        shapes, values = OPS[op].sample(random)
        node = apply(op, placeholder(0, float32(*shapes[0])), placeholder(1, float32(*shapes[1]), constant=True), **values)
        call = cudnn.match(random_epilogue(random, node), implementation)
        if isinstance(call, LibraryCall):
            spec = {**call.spec(), "precision": "float32"}
            operands = tuple(Buffer("float32", each.window.shape, each.window.strides, "arena") for each in call.arguments)
            output = Buffer("float32", call.destination.shape, call.destination.strides, "arena")
            found = cudnn.favourite(json.dumps(spec, sort_keys=True), operands, output, cudnn_target())
            matched, planned = matched + 1, planned + (not isinstance(found, str))
            assert isinstance(found, str) or found["workspace_bytes"] <= WORKSPACE_BYTES
    assert matched > 20 and planned > 0.8 * matched, (matched, planned)


def cudnn_target() -> Target:
    return lowering("cuda:h100").target


def test_cublas_describes_products_without_a_device() -> None:
    from runtime.devices.cuda.cublas import LEAST_ALIGNMENT, Call, alignments, library

    try:
        library()
    except LibraryMissing as error:
        pytest.skip(f"{error}: make test-cuda")
    buffers = [Buffer("float32", (4, 8, 16), (128, 16, 1), "arena"), Buffer("float32", (4, 16, 5), (80, 1, 16), "arena")]
    bias, output = Buffer("float32", (1, 1, 5), (5, 5, 1), "arena"), Buffer("float32", (4, 8, 5), (40, 5, 1), "arena")
    relu = {"kind": "eltwise", "algorithm": "relu", "alpha": 0.0, "beta": 0.0}
    spec = {"primitive": "matmul", "arguments": {"src": 0, "weights": 1, "bias": 2}, "post_ops": [relu]}
    shifted = [replace(buffers[0], offset=3), replace(buffers[1], offset=2), bias]
    aligned = alignments(spec, shifted, output)
    assert aligned == (8, 4, 256, 256), "of right, left, summand and result, as the library calls them A to D"
    call, lt = Call(product_of(spec, shifted, output), aligned), library()
    preference, value, written = call.preference(1 << 20), ctypes.c_uint32(), ctypes.c_size_t()
    for number, expected in enumerate(aligned):
        lt.cublasLtMatmulPreferenceGetAttribute(
            preference, LEAST_ALIGNMENT + number, ctypes.byref(value), ctypes.c_size_t(4), ctypes.byref(written)
        )
        assert value.value == expected
    call.close()
