"""Test which nodes the importer folds, which become core operators, and which stay opaque."""

from __future__ import annotations

import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from egraph.errors import ModelError
from egraph.onnx.exporter import export
from egraph.onnx.importer import load
from egraph.onnx.importer.movement import MOST_PARTS
from egraph.onnx.importer.sizes import UNKNOWN_SIZES
from egraph.tensor import Graph, walk
from tests.support.onnx_cases import without_large_pools

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return list(onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds))


def model_of(text: str, opset: int = 18) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {text}')
    assert isinstance(model, onnx.ModelProto)
    return model


def operators(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in walk(graph.roots))


def agrees(model: onnx.ModelProto, *, seed: int = 0, tolerance: float = 1e-4, **shapes: tuple[int, ...]) -> Graph:
    """Import and export the model, compare both in onnxruntime on random inputs, and return the graph."""
    graph = load(model, shapes=shapes).graph
    exported = export(graph)
    onnx.checker.check_model(exported, full_check=True)
    source = np.random.default_rng(seed)
    feeds = {}
    for node in graph.inputs:
        is_whole = "int" in node.type.dtype or node.type.dtype == "bool"
        values = source.integers(0, 2, node.type.sizes) if is_whole else source.standard_normal(node.type.sizes)
        feeds[node.string("name")] = np.asarray(values).astype(node.type.dtype)
    for expected, found in zip(run(model, feeds), run(exported, feeds), strict=True):
        assert (expected.dtype, expected.shape) == (found.dtype, found.shape)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=1e-5)
    return graph


@cache
def backend_cases() -> dict[str, Any]:
    """Return the cases of the ONNX backend suite; the tests use only their models and inputs."""
    with warnings.catch_warnings(), without_large_pools():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return {case.name: case for case in collect_testcases(None)}


CORE_CASES = (
    "gemm_all_attributes", "gemm_default_matrix_bias", "conv_with_strides_and_asymmetric_padding", "conv_with_autopad_same",
    "convtranspose_autopad_same", "convtranspose_kernel_shape", "maxpool_2d_ceil", "maxpool_2d_same_lower", "averagepool_2d_ceil",
    "averagepool_2d_pads_count_include_pad", "averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True", "globalmaxpool",
    "batchnorm_example", "group_normalization_example", "instancenorm_example", "mvn", "softmax_axis_1",
    "split_equal_parts_2d_opset13", "edge_pad", "reflect_pad", "slice_neg_steps", "slice_negative_axes", "expand_dim_changed", "tile",
    "gather_negative_indices", "gathernd_example_float32", "gathernd_example_int32_batch_dim1", "reshape_negative_dim",
    "reduce_l2_keep_dims_example", "resize_upsample_scales_linear_half_pixel_symmetric",
    "resize_upsample_sizes_nearest_floor_align_corners", "resize_upsample_scales_cubic", "upsample_nearest", "lrn", "lppool_2d_strides",
    "gelu_tanh_1", "hardswish", "mean_example", "sum_one_input", "prelu_broadcast", "where_example",
    "rms_normalization_2d_axis1", "center_crop_pad_crop_expanded", "dynamicquantizelinear",
    "scan9_sum",
)  # fmt: skip
OPAQUE_CASES = (
    "if", "if_seq", "loop11", "lstm_with_peepholes", "top_k", "nonmaxsuppression_two_classes",
    "maxpool_with_argmax_2d_precomputed_pads", "sequence_insert_at_back",
    "string_concat", "add_uint8", "dropout_default_mask", "hardmax_axis_0", "tril", "loop13_seq",
)  # fmt: skip


def same(left: object, right: object) -> bool:
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    a, b = np.asarray(left), np.asarray(right)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.tolist() == b.tolist() if a.dtype.kind in "OUS" else np.allclose(a.astype(float), b.astype(float), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("constants", [False, True], ids=["inputs", "constants"])
@pytest.mark.parametrize("name", CORE_CASES + OPAQUE_CASES)
def test_round_trip_of_standard_cases(name: str, constants: bool) -> None:
    """The exported model agrees with the original, with all operands as inputs and with all but the first as constants."""
    case = backend_cases()[f"test_{name}"]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = min(model.ir_version, 13)  # the newest version that onnxruntime reads
    feeds = dict(zip([v.name for v in model.graph.input], case.data_sets[0][0], strict=True))
    if constants:
        fixed = [v.name for v in model.graph.input[1:] if isinstance(feeds[v.name], np.ndarray | np.generic)]
        model.ir_version = max(model.ir_version, 4)
        model.graph.initializer.extend(numpy_helper.from_array(np.asarray(feeds.pop(n)), n) for n in fixed)
        kept = [v for v in model.graph.input if v.name not in fixed]
        del model.graph.input[len(kept) :]
        for slot, value in zip(model.graph.input, kept, strict=True):
            slot.CopyFrom(value)
    graph = load(model).graph
    if constants:
        assert ("Opaque" in operators(graph)) == (name in OPAQUE_CASES), operators(graph)
    assert same(run(model, feeds), run(export(graph), feeds))


@pytest.mark.parametrize("name", ["squeezenet", "inception_v1", "shufflenet"])
def test_light_models_with_random_weights_keep_their_values(name: str) -> None:
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    source = np.random.default_rng(1)
    fills = {node.output[0]: node for node in model.graph.node if node.op_type == "ConstantOfShape"}
    shapes = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for output, node in fills.items():
        shape = tuple(int(n) for n in shapes[node.input[0]])
        scale = np.sqrt(2.0 / max(1, int(np.prod(shape[1:]))))
        values = (np.abs(source.standard_normal(shape)) if len(shape) == 1 else source.standard_normal(shape)) * scale
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), output))
        model.graph.node.remove(node)
    graph = agrees(model, tolerance=2e-3)
    assert not operators(graph)["Opaque"]


@pytest.mark.parametrize(
    "body",
    [
        "(float[1,8,2,3] x) => (float[1,2,4,6] y) { y = DepthToSpace<blocksize = 2>(x) }",
        '(float[1,8,2,3] x) => (float[1,2,4,6] y) { y = DepthToSpace<blocksize = 2, mode = "CRD">(x) }',
        "(float[1,2,4,6] x) => (float[1,8,2,3] y) { y = SpaceToDepth<blocksize = 2>(x) }",
        '(float[2,3,4] x, float[5,2,3] z) => (float[2,5,4] y) { y = Einsum<equation = "abc,dab->adc">(x, z) }',
        '(float[2,3,4] x, float[2,4,5] z) => (float[2,3,5] y) { y = Einsum<equation = "bij,bjk->bik">(x, z) }',
        "(float[4,2,3] x) => (float[4,2,3] y) <int64[2] n = {4, 4}> { y = ReverseSequence(x, n) }",
        "(float[2,4] x) => (float[2,4] y) <int64[2] n = {4, 4}> { y = ReverseSequence<batch_axis = 0, time_axis = 1>(x, n) }",
        "(float[2,3,4] x) => (float[2,4] y) <int64[1] a = {1}> { y = ReduceLogSumExp<keepdims = 0>(x, a) }",
        "(float[2,3] x) => (float[2,3] y) <float low = {-0.5}> { y = Clip(x, low) }",
        "(float[2,3] x) => (float[3,5] y) <int64[4] p = {0, 2, 1, 0}, float v = {7}> { y = Pad(x, p, v) }",
        "(float[2,3] x) => (float[2,2] y) <int64[4] p = {0, -1, 0, 0}> { y = Pad(x, p) }",
        "(float[2,3] x, float[3] s, float[3] b) => (float[2,3] y) { y = LayerNormalization(x, s, b) }",
        "(float[1,3,4] x, float[3] s, float[3] b) => (float[1,3,4] y) { y, m, v = BatchNormalization<training_mode = 1>(x, s, b, s, b) }",
        "(float[2,3,4,5] x, float[3] s) => (float[2,3,4,5] y) { y, m, v = BatchNormalization<training_mode=1,epsilon=0.1>(x, s, s, s, s) }",
        "(float[4,3] x, float[3] s, float[3] b) => (float[4,3] y) { y, m, v = BatchNormalization<training_mode = 1>(x, s, b, s, b) }",
        "(float[1,2,3,3] x, float[2,2,3,3] w) => (float[1,2,H,W] y) { y = ConvTranspose<strides = [2,2], output_shape = [6,6]>(x, w) }",
        "(float[4,3] x, int64[2] i) => (float[2,3] y) { y = Gather(x, i) }",
        "(float[4,3] x, int64[2,1] i) => (float[2,3] y) { y = GatherND(x, i) }",
        "(float[4,3] x, int64[1] i) => (float[3] y) { y = GatherND(x, i) }",
        "(float[4,3,5] x) => (float[2,5] y) <int64[2,2] i = {-1, 0, 2, -3}> { y = GatherND(x, i) }",
        "(float[2,3,4,5] x) => (float[2,2,5] y) <int64[2,2,2] i = {0, -1, 2, 3, 1, 0, -3, 1}> { y = GatherND<batch_dims = 1>(x, i) }",
        "(float[2,3,4] x) => (float[2,3] y) <int64[2,3,1] i = {0, 1, 2, 3, -1, -4}> { y = GatherND<batch_dims = 2>(x, i) }",
        "(float[3,4] x) => (float[3,2] y) <int64[3,2] i = {0, -1, 2, 3, 1, 0}> { y = GatherElements<axis = -1>(x, i) }",
        "(float[4,3] x, int64[2,2] i) => (float[2] y) { y = GatherND(x, i) }",
        "(float[2,4] x, int64[2,1] i) => (float[2] y) { y = GatherND<batch_dims = 1>(x, i) }",
        "(float[2,4,3] x, int64[2,5,1] i) => (float[2,5,3] y) { r = Relu(x) g = GatherND<batch_dims = 1>(r, i) y = Exp(g) }",
        "(float[3,4] x, int64[3,2] i) => (float[3,2] y) { r = Relu(x) g = GatherElements<axis = -1>(r, i) y = Exp(g) }",
        "(int64[5,4] x, int32[3,4] i) => (int64[3,4] y) { y = GatherElements(x, i) }",
        "(float[3,4] x) => (int64[3,4] y, int32[3,4] z) { y = Cast<to = 7>(x) z = Cast<to = 6>(x) }",
        ("(float[3,4] x) => (int64[3,4] y, int32[3,4] z, float[3,4] w) { b = Less(x, x) o = Not(b) y = Cast<to = 7>(o) "
        "z = Cast<to = 6>(b) w = Cast<to = 1>(y) }"),
        "(float[2,3,5,7] x, float[2,4,6,2] g) => (float[2,3,4,6] y) { y = GridSample(x, g) }",
        "(float[1,3,5,7] x, float[1,4,6,2] g) => (float[1,3,4,6] y) { y = GridSample<align_corners = 1>(x, g) }",
        '(float[2,3,5,7] x, float[2,4,6,2] g) => (float[2,3,4,6] y) { y = GridSample<padding_mode = "border">(x, g) }',
        '(float[1,3,5,1] x, float[1,4,6,2] g) => (float[1,3,4,6] y) { y = GridSample<padding_mode = "border", align_corners = 1>(x, g) }',
        "(float[9,4] x, float[3] f) => (float[3,4] y) { a = Abs(f) i = Cast<to = 7>(a) y = Gather(x, i) }",
        "(float[3,4] x, float[1,4] u) => (float[3,4] y) <int64[1,4] i = {0, -1, 1, 0}> { y = ScatterElements(x, i, u) }",
        "(float[3,4] x, float[3,4] u) => (float[3,4] y) <int64[3,1] i = {0, 2, 0}> { y = ScatterND(x, i, u) }",
        "(float[3,4,2] x, float[2,2] u) => (float[3,4,2] y) <int64[2,2] i = {0, -1, 2, 1}> { y = ScatterND(x, i, u) }",
        "(float[3,4] x, float u) => (float[3,4] y) <int64[2] i = {2, -1}> { y = ScatterND(x, i, u) }",
        "(float[2,5] x) => (float[2,5] y) <int64 a = {-1}> { y = CumSum(x, a) }",
        "(float[2,5] x) => (float[2,5] y) <int64 a = {1}> { y = CumSum<exclusive = 1, reverse = 1>(x, a) }",
        "(float[2,3,4] x) => (int64[2,4] y) { r = Relu(x) y = ArgMax<axis = 1, keepdims = 0>(r) }",
        "(float[2,3,4] x) => (int64[2,3,1] y) { r = Relu(x) y = ArgMin<axis = -1, select_last_index = 1>(r) }",
        "(float[5,3] x) => (int64[1,3] y) <float z = {0}> { a = Mul(x, z) b = Log(a) c = Sub(b, b) y = ArgMin(c) }",
        "(float[2,5] x) => (float[2,5] y) { y = LpNormalization(x) }",
        ("(float[1,2,3,5] x) => (float[1,2,1,1] y) "
        "{ y = AveragePool<kernel_shape = [900, 800], strides = [900, 800], ceil_mode = 1, count_include_pad = 1>(x) }"),
        ("(float[1,2,3,5] x) => (float[1,2,1,2] y) "
        "{ y = AveragePool<kernel_shape = [7, 5], strides = [7, 4], pads = [1, 1, 2, 0], ceil_mode = 1, count_include_pad = 1>(x) }"),
        "(float[1,2,5] x) => (float[1,2,1] y) { y = AveragePool<kernel_shape = [9], strides = [9], pads = [1, 1], ceil_mode = 1>(x) }",
        "(float[1,2,5] x) => (float[1,2,1] y) { y = MaxPool<kernel_shape = [9], strides = [9], pads = [1, 1], ceil_mode = 1>(x) }",
        "(float[2,12,1] x) => (float[2,7,2] y) { y = DFT<onesided = 1>(x) }",
        "(float[2,5,3,2] x) => (float[2,5,3,2] y) { y = DFT<inverse = 1>(x) }",
        "(float[2,12,1] x) => (float[2,9,2] y) <int64 n = {16}> { y = DFT<onesided = 1>(x, n) }",
        "(float[2,3,5,2] x) => (float[2,3,8,2] y) <int64 n = {8}> { y = DFT<axis = 2, inverse = 1>(x, n) }",
        "(float[2,12,1] x) => (float[2,4,2] y) <int64 n = {7}> { y = DFT<onesided = 1>(x, n) }",
        "(float[2,6,3,2] x) => (float[2,4,3,2] y) <int64 n = {4}> { y = DFT(x, n) }",
        "(float[2,40,1] x) => (float[2,5,6,2] y) <int64 s = {7}, int64 n = {10}> { y = STFT(x, s, , n) }",
        "(float[2,40,1] x) => (float[2,7,4,2] y) <int64 s = {6}, float[4] w = {0.2, 0.5, 1, 2}> { y = STFT<onesided = 0>(x, s, w) }",
        "(float[2,5] x) => (float[2,5] y) <float z = {0}> { a = Mul(x, z) y = LpNormalization<axis = 0, p = 1>(a) }",
        "(float x) => (float y) { a = ReduceSum(x) y = ReduceL2(a) }",
        "(float[2,3] x) => (float[2] y) <int64[1] a = {1}> { y = ReduceSum<keepdims = 2>(x, a) }",
        ("(float[60,2] x, float[20,2] u) => (float[60,2] y) { a = Constant<value_int = 0>() b = Constant<value_int = 60>() "
        "c = Constant<value_int = 3>() r = Range(a, b, c) o = Constant<value_ints = [1]>() i = Unsqueeze(r, o) y = ScatterND(x, i, u) }"),
        '(float[2,2,3] x, float[2,3,4] z) => (float[2,2,4] y) { y = Einsum<equation = "...ij,...jk->...ik">(x, z) }',
        '(float[2,3] x, float[3,4] z, float[4,2] w) => (float[2,2] y) { y = Einsum<equation = "ij,jk,kl->il">(x, z, w) }',
        '(float[2,3] x, float[3,4] z) => (float[4,2] y) { y = Einsum<equation = "bj, ja">(x, z) }',
        '(float[2,3] x, float[3] z) => (float[3] y) { y = Einsum<equation = "ij,j->j">(x, z) }',
        '(float[2,3,4] x) => (float[4,2] y) { y = Einsum<equation = "abc->ca">(x) }',
        '(float[2,3,5] x, float[3] z) => (float[3,2] y) { y = Einsum<equation = "abc,b->ba">(x, z) }',
        ("(float[1,1,10,3] x, float[1,1,19,7] z) => (float[1,1,19,7] y) <int64[4] s = {1, 1, 19, 7}> "
        '{ r = Resize<mode = "linear">(x, , , s) y = Add(r, z) }'),
        '(float[3,2,3] x) => (float[2,3] y) { y = Einsum<equation = "iji->ji">(x) }',
        '(float[3,2,3,3] x, float[3,2] z) => (float[2] y) { y = Einsum<equation = "ijii,ij->j">(x, z) }',
        "(float[2,3] x) => (float[2,3] y) <int64 two = {2}> { y = Pow(x, two) }",
        "(float[2,3] x) => (float[2,3] y) { i = IsInf(x) z = Abs(x) y = Where(i, x, z) }",
        "(float[2,3] x) => (float[2,3] y) { i = IsInf<detect_negative = 0>(x) z = Abs(x) y = Where(i, x, z) }",
        "(int64[3] x) => (int64[2,3] y) <bool[2,1] c = {1, 1}, int64 one = {1}> { y = Where(c, x, one) }",
        "(float[3,4] x) => (float[3,4] y) { y = Trilu(x) }",
        "(float[2,4,3] x) => (float[2,4,3] y) <int64 k = {-1}> { y = Trilu<upper = 0>(x, k) }",
        "(float[2,4,3] x) => (float[2,4,3] y) <int64 k = {1}> { y = Trilu(x, k) }",
        "(float[2,0] e, float[2,3] x) => (float[2,3] y) { y = Concat<axis = 1>(e, x) }",
        "(float[2,3] x, float[2,0] e) => (float[2,6] y) { y = Concat<axis = 1>(x, e, x) }",
        "(float[2,3] x) => (float[2,3] y) <int64[2] n = {0, 3}> { e, a = Split<axis = 1>(x, n) b = Relu(a) y = Concat<axis = 1>(e, b) }",
    ],
)
def test_compositions(body: str) -> None:
    assert not operators(agrees(model_of(body)))["Opaque"]


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(2, 160), parts=st.sampled_from([1, 2]), missing=st.integers(-5, 5), onesided=st.booleans(), inverse=st.booleans(),
    axis=st.sampled_from([1, 2]), seed=st.integers(0, 1000))
def test_transforms_of_all_lengths_are_numpys(
    length: int, parts: int, missing: int, onesided: bool, inverse: bool, axis: int, seed: int
) -> None:
    """A DFT agrees with numpy in float64 at every length.

    A length with factors becomes two products, any other length becomes one. onnxruntime runs the exported core operators.
    """
    inverse = inverse and not onesided
    sizes = [2, 3, 3, parts]
    sizes[axis] = max(1, length - missing)
    results = list(sizes)
    results[axis], results[3] = length // 2 + 1 if onesided else length, 2
    graph = load(model_of(
        f"(float{sizes} x) => (float{results} y) <int64 n = {{{length}}}> "
        f"{{ y = DFT<axis = {axis}, onesided = {int(onesided)}, inverse = {int(inverse)}>(x, n) }}")).graph
    assert not operators(graph)["Opaque"]
    x = np.random.default_rng(seed).standard_normal(sizes, dtype=np.float32)
    signal = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    expected = (np.fft.ifft if inverse else np.fft.fft)(signal, length, axis).take(range(results[axis]), axis)
    (y,) = run(export(graph), {"x": x})
    np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], expected, atol=1e-6 * max(1.0, float(np.abs(expected).max())))


def test_a_window_beyond_its_input_is_cut() -> None:
    """A pooling window that is larger than its input is cut to the input's size.

    Regression: an exporter writes a global average as a pool of 1280 x 1280, which took the interpreter minutes.
    """
    body = "y = AveragePool<kernel_shape = [1280, 1280], strides = [1280, 1280], ceil_mode = 1, count_include_pad = 1>(x)"
    graph = load(model_of(f"(float[1,2,7,5] x) => (float[1,2,1,1] y) {{ {body} }}")).graph
    (pool,) = (node for node in walk(graph.roots) if node.op == "AveragePool")
    assert pool.integers("kernel_shape") == (7, 5) and pool.integers("pads") == (0, 0, 0, 0)


@pytest.mark.parametrize(("length", "products"), [(16, 1), (97, 1), (240, 2), (768, 2), (1021, 0), (4096, 2), (16384, 0)])
def test_a_transform_takes_two_products_where_they_multiply_less(length: int, products: int) -> None:
    """A DFT becomes two products only if they need fewer multiplications than one.

    If the matrices would be too large, the DFT is left to onnxruntime: at prime lengths, and at lengths with large factors.
    """
    graph = load(model_of(f"(float[2,{length},1] x) => (float[2,{length},2] y) {{ y = DFT(x) }}")).graph
    assert operators(graph)["MatMul"] == products
    assert operators(graph)["Opaque"] == (0 if products else 1)


def test_a_one_sided_transform_computes_about_half_of_the_results() -> None:
    last_columns = []
    for onesided, results in ((0, 240), (1, 121)):
        body = f"(float[2,240,1] x) => (float[2,{results},2] y) {{ y = DFT<onesided = {onesided}>(x) }}"
        products = [node for node in walk(load(model_of(body)).graph.roots) if node.op == "MatMul"]
        last_columns.append(products[-1].type.elements)
    assert 2 * 2 * 121 <= last_columns[1] < 0.6 * last_columns[0] == 0.6 * 2 * 2 * 240


@pytest.mark.parametrize(
    ("body", "opset"),
    [
        ("(float[1,2,6,6] x) => (float[1,2,4,4] y) { y = LpPool<kernel_shape = [2, 2], dilations = [2, 2]>(x) }", 18),
        ("(float[4] x) => (float[4] y) { y = ThresholdedRelu<alpha = 0.3>(x) }", 9),
    ],
)
def test_what_the_opset_cannot_say_is_left_to_onnxruntime(body: str, opset: int) -> None:
    """An operator whose core form needs a newer opset is left to onnxruntime.

    Regression: the whole model was refused.
    """
    model = model_of(body, opset)
    graph = load(model).graph
    assert operators(graph)["Opaque"] == 1
    x = np.random.default_rng(0).standard_normal(graph.inputs[0].type.sizes, dtype=np.float32)
    np.testing.assert_array_equal(run(export(graph), {"x": x})[0], run(model, {"x": x})[0])


@pytest.mark.parametrize("opset", [8, 10])
def test_integers_are_compared_as_numbers_in_old_opsets(opset: int) -> None:
    """Integers are also compared in old opsets, in which Equal takes no floats; it does from opset 11 on."""
    body = "c = Constant<value = int64 {2}>() y = Equal(x, c) z = Cast<to = 9>(x) h = Hardmax(f)"
    model = model_of(f"(int64[6] x, float[1,6] f) => (bool[6] y, bool[6] z, float[1,6] h) {{ {body} }}", opset)
    graph = load(model).graph
    assert operators(graph)["Opaque"] == 1, "it holds the exported model to its opset"
    feeds: dict[str, np.ndarray] = {"x": np.array([0, 1, 2, 3, (1 << 62) + 2, -2]), "f": np.ones((1, 6), np.float32)}
    assert all(map(np.array_equal, run(export(graph), feeds), run(model, feeds)))


def test_every_run_of_a_loop_has_sizes_of_its_own() -> None:
    """Each iteration of an unrolled loop has its own names for dynamic sizes.

    Regression: tensors of several iterations shared a name for their sizes, and onnxruntime reused the memory of one tensor for another.
    """
    body = """b (int64 i, bool d) => (bool g, float[2] r) { g = Identity(d) f = Gather(s, i) t = Gather(e, i) u = Unsqueeze(f, z)
        v = Unsqueeze(t, z) p = Slice(w, u, v, z) q = Gather(x, p) r = ReduceSum<keepdims = 0>(q, z) }"""
    model = model_of(
        "(float[12,2] x, int64[12] w, int64[3] s, int64[3] e) => (float[3,2] y) <int64 n = {3}, int64[1] z = {0}> "
        "{ c = Constant<value = bool {1}>() y = Loop (n, c) <body = " + body + "> }"
    )
    x = np.random.default_rng(0).standard_normal((12, 2), dtype=np.float32)
    feeds: dict[str, np.ndarray] = {"x": x, "w": np.arange(12), "s": np.array([0, 4, 9]), "e": np.array([4, 9, 12])}
    graph = load(model).graph
    assert operators(graph)["Opaque"] == 9
    np.testing.assert_allclose(run(export(graph), feeds)[0], run(model, feeds)[0], rtol=1e-5)


def test_a_place_that_is_no_number_stops_nothing() -> None:
    """A sampling position that is NaN does not fail the model.

    Regression: the exported model gathered at the index that NaN becomes, and onnxruntime refused it.
    """
    model = model_of('(float[1,3,5,7] x, float[1,1,2,2] g) => (float[1,3,1,2] y) { y = GridSample<padding_mode = "border">(x, g) }')
    x, grid = np.ones((1, 3, 5, 7), np.float32), np.array([[[[0, np.nan], [0, 0]]]], np.float32)
    assert run(export(load(model).graph), {"x": x, "g": grid})[0][..., 1].tolist() == [[[1.0], [1.0], [1.0]]]


@pytest.mark.parametrize(
    "body",
    [
        "(float[3,4] x) => (float[3,4] y) { y = Shrink<lambd = 0.3, bias = 0.2>(x) }",
        "(float[2,4,5,8] q, float[2,2,6,8] k, float[2,2,6,8] v) => (float[2,4,5,8] y) { y = Attention<is_causal = 1>(q, k, v) }",
        ("(float[2,5,32] q, float[2,6,32] k, float[2,6,32] v, bool[5,6] m) => (float[2,5,32] y) "
        "{ y = Attention<q_num_heads = 4, kv_num_heads = 4>(q, k, v, m) }"),
        ("(float[2,4,5,8] q, float[2,4,6,8] k, float[2,4,6,8] v) => (float[2,4,5,8] y) <float[6] m = {1, 0, -1, 2, 0, 3}> "
        "{ l = Constant<value_ints = [5, 6]>() n = Expand(m, l) y = Attention<softcap = 2.0, scale = 0.3>(q, k, v, n) }"),
        ("(float[2,4,1,8] q, float[2,4,1,8] k, float[2,4,1,8] v, float[2,4,3,8] a, float[2,4,3,8] b) => "
        "(float[2,4,1,8] y, float[2,4,4,8] s, float[2,4,4,8] t) { y, s, t = Attention<is_causal = 1>(q, k, v, , a, b) }"),
        "(float[2,4,5,8] x, float[8,4] c, float[8,4] s, int64[2,5] p) => (float[2,4,5,8] y) { y = RotaryEmbedding(x, c, s, p) }",
        ("(float[2,5,32] x, float[2,5,2] c, float[2,5,2] s) => (float[2,5,32] y) "
        "{ y = RotaryEmbedding<num_heads = 4, interleaved = 1, rotary_embedding_dim = 4>(x, c, s) }"),
        "(float[3,5] x, int64[3] t) => (float y) { y = SoftmaxCrossEntropyLoss(x, t) }",
    ],
)
def test_what_the_standard_defines_by_other_operators_is_those(body: str) -> None:
    assert not operators(agrees(model_of(body, 23)))["Opaque"]


@pytest.mark.parametrize(
    "body",
    [
        "(float[1,2,5,8] x) => (float[1,2,5,8] y) { y = Attention<softcap = -1.0>(x, x, x) }",
        "(float[1,2,5,8] x) => (float[1,2,5,8] y, float[1,2,5,5] s) { y, , , s = Attention<is_causal = 1>(x, x, x) }",
    ],
)
def test_what_onnxruntime_computes_in_its_own_way_is_one_node(body: str) -> None:
    model = model_of(body, 23)
    graph, random = load(model).graph, np.random.default_rng(0)
    assert operators(graph)["Opaque"] == 1
    feeds = {"x": random.standard_normal(graph.inputs[0].type.sizes).astype(np.float32), "t": np.array([0, 4, 2])}
    feeds = {node.string("name"): feeds[node.string("name")] for node in graph.inputs}
    for expected, found in zip(run(model, feeds), run(export(graph), feeds), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_many_parts_side_by_side_are_joined_in_groups() -> None:
    """A Concat of many expressions is split into groups.

    Regression: such expressions are nested, and 300 of them exceeded Python's recursion limit.
    """
    made = " ".join(f"p{k} = {('Add', 'Mul')[k % 2]}(x, n{k % 3})" for k in range(300))
    parts = ", ".join(f"p{k}" for k in range(300))
    numbers = ", ".join(f"float[1,1] n{k} = {{{k + 2}}}" for k in range(3))
    graph = agrees(model_of(f"(float[2,3] x) => (float[2,900] y) <{numbers}> {{ {made} y = Concat<axis = 1>({parts}) }}"))
    assert max(len(node.inputs) for node in walk(graph.roots)) <= MOST_PARTS


BODY = "body = b (int64 i, bool c, float[4,6] s) => (bool d, float[4,6] o"
ROWS = "body = b (float[6] s, float[6] v) => (float[6] o, float[6] p)"
TWO_ROWS = "body = b (float[6] s, float[6] v, float[6] u) => (float[6] o, float[6] p)"
OTHER_WAYS = "scan_input_axes = [0, 1], scan_input_directions = [1, 0], scan_output_axes = [-1], scan_output_directions = [1]"


@pytest.mark.parametrize(
    "body",
    [
        f"y, z = Loop(n, t, x) <{BODY}, float[4,6] p) {{ d = Identity(c) m = Mul(s, x) o = Tanh(m) p = Neg(o) }}> r = Exp(z)",
        f"y = Loop(n, , x) <{BODY}) {{ d = Identity(c) f = Cast<to = 1>(i) m = Mul(s, f) o = Add(m, k) }}> r = Relu(y)",
        "r = Loop(n, t) <body = b (int64 i, bool c) => (bool d, float[6] p) { d = Identity(c) p = Gather(x, i) }>",
        f"r = Loop(n, t, x) <{BODY}) {{ one = Constant<value_int = 1>() d = Less(i, one) o = Mul(s, k) }}>",
        f"r = Loop(, t, x) <{BODY}) {{ four = Constant<value_int = 4>() d = Less(i, four) o = Mul(s, k) }}>",
        f"m = Constant<value_int = 9223372036854775807>() r = Loop(m, t, x) <{BODY}) {{ d = Less(i, n) o = Mul(s, k) }}>",
        (f"r = Loop(n, t, x) <{BODY}) {{ d = Identity(c) "
        "o = Loop(n, c, s) <body = a (int64 j, bool f, float[4,6] u) => (bool g, float[4,6] v) { g = Identity(f) v = Mul(u, k) }> }>"),
        f"q = ReduceSum<keepdims = 0>(x, e) r, z = Scan<num_scan_inputs = 1, {ROWS} {{ a = Add(s, v) o = Tanh(a) p = Mul(o, v) }}>(q, x)",
        (f"q = ReduceSum<keepdims = 0>(x, e) w = Transpose(x) z, r = Scan<num_scan_inputs = 2, {OTHER_WAYS}, {TWO_ROWS} "
        "{ a = Add(s, v) o = Tanh(a) p = Mul(o, u) }>(q, x, w)"),
    ],
)  # fmt: skip
def test_loops_that_run_a_known_number_of_times_are_their_bodies(body: str) -> None:
    assert not operators(agrees(loop_model(body)))["Opaque"]


@pytest.mark.parametrize(
    "body",
    [
        f"r = Loop(n, t, x) <{BODY}) {{ o = Mul(s, k) m = ReduceMax<keepdims = 0>(o) d = Greater(m, k) }}>",
        f"m = Constant<value_int = 1000>() r = Loop(m, t, x) <{BODY}) {{ d = Identity(c) o = Mul(s, k) }}>",
        f"m = Constant<value_int = 1000>() r = Loop(, t, x) <{BODY}) {{ d = Less(i, m) o = Mul(s, k) }}>",
        f"m = Constant<value_int = 1000>() r = Loop(m, t, x) <{BODY}) {{ d = Less(i, m) o = Mul(s, k) }}>",
    ],
)
def test_loops_that_run_long_or_as_long_as_they_compute_stay(body: str) -> None:
    model = loop_model(body)
    graph, x = load(model).graph, np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    assert operators(graph)["Opaque"] == 1
    np.testing.assert_array_equal(run(export(graph), {"x": x})[0], run(model, {"x": x})[0])


def test_loops_are_written_out_up_to_a_number_of_nodes_in_all() -> None:
    chain = " ".join(f"v{k} = Tanh({f'v{k - 1}' if k else 's'})" for k in range(15))
    first, second = (f"Loop(m, t, x) <{BODY}) {{ d = Identity(c) {chain} o = {op}(v14) }}>" for op in ("Neg", "Abs"))
    model = loop_model(f"m = Constant<value_int = 100>() p = {first} q = {second} r = Add(p, q)")
    graph, x = load(model).graph, np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    assert (operators(graph)["Neg"], operators(graph)["Abs"]) == (100, 0)
    np.testing.assert_allclose(run(export(graph), {"x": x})[0], run(model, {"x": x})[0], rtol=1e-4)


def test_rows_that_are_reversed_in_part_stay() -> None:
    model = model_of("(float[4,2,3] x) => (float[4,2,3] y) <int64[2] n = {4, 3}> { y = ReverseSequence(x, n) }")
    assert operators(agrees(model))["Opaque"] == 1


def loop_model(body: str) -> onnx.ModelProto:
    model = model_of(f"(float[4,6] x) => (float r) <int64 n = {{3}}, bool t = {{1}}, float k = {{0.5}}, int64[1] e = {{0}}> {{ {body} }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize(
    "body",
    [
        "y = SplitToSequence(x) z = SequenceAt(y, minus) r = Relu(z)",
        "y = SplitToSequence<axis = -1, keepdims = 0>(x) z = SequenceAt(y, two) r = Relu(z)",
        "y = SplitToSequence<axis = 1>(x, four) z = SequenceAt(y, one) r = Relu(z)",
        "y = SplitToSequence<axis = 1>(x, parts) z = SequenceAt(y, one) r = Relu(z)",
        "a = Exp(x) y = SequenceConstruct(x, a) s = SequenceInsert(y, x, minus) r = ConcatFromSequence<axis = 1, new_axis = 1>(s)",
        ("e = SequenceEmpty() a = SequenceInsert(e, x) b = Neg(x) c = SequenceInsert(a, b) i = Identity(c) d = SequenceErase(i, minus) "
        "f = SequenceInsert(d, b) n = SequenceLength(f) v = Cast<to = 1>(n) g = ConcatFromSequence<axis = -1>(f) r = Mul(g, v)"),
        "o = Optional(x) h = OptionalHasElement(o) e = OptionalGetElement(o) z = Neg(e) r = Where(h, e, z)",
    ],
)  # fmt: skip
def test_sequences_that_are_known_are_no_values(body: str) -> None:
    constants = "<int64 minus = {-1}, int64 one = {1}, int64 two = {2}, int64 four = {4}, int64[2] parts = {1, 5}>"
    model = model_of(f"(float[3,6] x) => (float r) {constants} {{ {body} }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert not operators(agrees(model))["Opaque"]


def test_the_logarithm_of_a_sum_of_exponentials_of_infinities() -> None:
    model = model_of("(float[3,2] x) => (float[3,1] y) <int64[1] a = {1}> { y = ReduceLogSumExp(x, a) }")
    x = np.array([[-np.inf, -np.inf], [np.inf, 1], [2, -np.inf]], np.float32)
    np.testing.assert_allclose(run(export(load(model).graph), {"x": x}), run(model, {"x": x}))


@pytest.mark.parametrize(
    ("body", "opset"),
    [
        ("(float[3] x) => (float[2] y) <int64[2] p = {4, -5}> { y = Pad(x, p) }", 18),
        ('(float[1,2,6] x) => (float[1,2,N] y) { y = MaxPool<kernel_shape = [3], dilations = [2], auto_pad = "SAME_UPPER">(x) }', 22),
        ('(float[1,2,6] x) => (float[1,2,N] y) { y = AveragePool<kernel_shape = [3], dilations = [2], auto_pad = "SAME_LOWER">(x) }', 22),
    ],
)
def test_what_onnxruntime_reads_in_its_own_way_stays_opaque(body: str, opset: int) -> None:
    model = model_of(body, opset)
    graph = load(model).graph
    x = np.random.default_rng(0).standard_normal(graph.inputs[0].type.sizes).astype(np.float32)
    assert operators(graph)["Opaque"] == 1
    np.testing.assert_allclose(run(export(graph), {"x": x}), run(model, {"x": x}))


def test_a_normalisation_whose_statistics_are_read_stays_opaque() -> None:
    body = "y, mean, variance = BatchNormalization<training_mode = 1>(x, one, zero, zero, one)"
    weights = "<float[3] one = {1, 1, 1}, float[3] zero = {0, 0, 0}>"
    graph = agrees(model_of(f"(float[2,3,4] x) => (float[2,3,4] y, float[3] mean) {weights} {{ {body} }}"))
    assert operators(graph)["Opaque"] == 1


def test_shape_arithmetic_folds() -> None:
    model = model_of(
        "(float[2,3,4] x) => (float[N,M] y) <int64[1] first = {0}, int64[1] rest = {-1}> "
        "{ s = Shape(x) n = Gather(s, first) t = Concat<axis = 0>(n, rest) y = Reshape(x, t) }"
    )
    assert operators(agrees(model)) == {"Input": 1, "Reshape": 1}


@pytest.mark.parametrize(("start", "limit", "delta"), [(0, 5, 1), (5, 0, -2), (1, 8, 3), (1, 7, 3), (3, 1, 1), (2, 2, 1)])
def test_ranges_fold(start: int, limit: int, delta: int) -> None:
    model = model_of(
        f"(float[2] x) => (float[2] y) <int64 s = {{{start}}}, int64 l = {{{limit}}}, int64 d = {{{delta}}}> "
        "{ r = Range(s, l, d) t = ReduceSum<keepdims = 0>(r) f = Cast<to = 1>(t) y = Add(x, f) }"
    )
    assert operators(agrees(model))["Opaque"] == 0


@pytest.mark.parametrize(("given", "expected"), [("int64", "Cast"), ("uint8", "Cast"), ("bool", "Where"), ("float", "Input")])
def test_what_is_cast_to_a_float_is_no_opaque_node(given: str, expected: str) -> None:
    model = model_of(f"({given}[3,5] m, float[3,5] x) => (float[3,5] y) {{ f = Cast<to = 1>(m) y = Sub(x, f) }}")
    found = operators(agrees(model))
    assert found["Opaque"] == 0 and found[expected] >= 1


@pytest.mark.parametrize("given", ["int64", "uint8", "float"])
def test_what_is_cast_to_a_truth_value_is_whether_it_is_not_zero(given: str) -> None:
    model = model_of(f"({given}[3,5] m, float[3,5] x) => (float[3,5] y) {{ c = Cast<to = 9>(m) n = Neg(x) y = Where(c, x, n) }}")
    assert operators(agrees(model))["Opaque"] == 0


def test_large_weights_in_half_precision_are_constants_in_float32() -> None:
    model = model_of("(float[2,256] x) => (float[2,256] y) { c = Cast<to = 1>(w) y = MatMul(x, c) }")
    weight = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float16)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    assert operators(agrees(model)) == {"Input": 1, "Constant": 1, "MatMul": 1}


def test_what_is_no_number_is_asked_for_by_an_operator() -> None:
    model = model_of("(float[3,5] x, float[3,5] z) => (float[3,5] y) { q = Div(x, x) c = IsNaN(q) y = Where(c, z, q) }")
    found = operators(agrees(model))
    assert found["Opaque"] == 0 and found["IsNaN"] == 1


def test_a_cast_that_rounds_or_wraps_stays_opaque() -> None:
    assert operators(agrees(model_of("(int64[5] x) => (int32[5] y) { y = Cast<to = 6>(x) }")))["Opaque"] == 1
    assert operators(agrees(model_of("(double[5] x) => (float[5] y) { y = Cast<to = 1>(x) }")))["Opaque"] == 1


def test_equal_values_are_one_node_and_keep_their_origins() -> None:
    model = model_of("(float[2] x) => (float[2] y) { [first] a = Relu(x) [second] b = Relu(x) [last] y = Add(a, b) }")
    graph = agrees(model)
    relu = next(node for node in walk(graph.roots) if node.op == "Relu")
    assert graph.origins[relu] == ("first", "second")
    assert graph.names[relu] == "a"


def test_a_branch_with_a_known_condition_is_imported() -> None:
    model = model_of(
        "(float[2] x) => (float[2] y) <bool c = {1}> "
        "{ y = If(c) <then_branch = t () => (float[2] a) { a = Relu(x) }, else_branch = e () => (float[2] b) { b = Neg(x) }> }"
    )
    assert operators(agrees(model)) == {"Input": 1, "Relu": 1}


def test_a_loop_captures_outer_values() -> None:
    model = model_of(
        "(float[2] x, float[2] k) => (float[2] y) <int64 count = {3}, bool go = {1}> "
        "{ r = Relu(k) y = Loop(count, go, x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t) "
        "{ d = Identity(c) t = Add(s, r) }> }"
    )
    assert operators(agrees(model))["Relu"] == 1


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12, 13])
def test_softmax_means_what_it_meant_in_its_opset(opset: int) -> None:
    agrees(model_of("(float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = 1>(x) }", opset))


def test_other_element_types_pass_through() -> None:
    graph = agrees(model_of("(int64[2,3] x, float16[2] h) => (int64[3,2] y, float16[2] z) { t = Transpose(x) y = Add(t, t) z = Relu(h) }"))
    found = operators(graph)
    assert found["Relu"] == 1 and found["Opaque"] == 3  # the sum of integers, and a cast on either side of Relu


@pytest.mark.parametrize("kind", [onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16])
def test_weights_of_16_bits_are_weights_however_large_they_are(kind: int) -> None:
    """In y = x Cast(w), the cast is folded into the weight, bit for bit, even if the weight is above the folding limit."""
    values = np.random.default_rng(3).standard_normal((16, 8)).astype(np.float32)
    weight = onnx.helper.make_tensor("w", kind, (16, 8), values.reshape(-1).tolist())
    cast = onnx.helper.make_node("Cast", ["w"], ["wide"], to=onnx.TensorProto.FLOAT)
    nodes = [cast, onnx.helper.make_node("MatMul", ["x", "wide"], ["y"])]
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in (("x", (4, 16)), ("y", (4, 8)))]
    graph = onnx.helper.make_graph(nodes, "halves", ports[:1], ports[1:], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    found = load(model, fold_limit_bytes=64).graph
    assert operators(found) == {"Input": 1, "Constant": 1, "MatMul": 1}
    (array,) = found.tensors.values()
    exact = numpy_helper.to_array(weight).astype(np.float32)
    assert array.dtype == np.float32 and np.array_equal(array, exact)
    assert 0 < np.abs(exact - values).max() < 2e-2


def dynamic() -> onnx.ModelProto:
    return model_of("(float[N,3,H,4] x, float[N,2] m, float[2,2] k) => (float[N,3,H,4] y, float[N,2] z, float[2,2] w) "
                    "{ y = Relu(x) z = MatMul(m, k) w = Tanh(k) }")  # fmt: skip


def test_unknown_sizes_leave_the_rest_optimised_and_say_which_flag_helps() -> None:
    result = load(dynamic())
    assert operators(result.graph) == {"Input": 3, "Opaque": 2, "OpaqueOutput": 2, "Tanh": 1}
    assert result.hints == (f"{UNKNOWN_SIZES}--shape x:N,3,H,4 --shape m:N,2",)


def test_sizes_given_for_one_input_reach_the_others_through_their_names() -> None:
    result = load(dynamic(), shapes={"x": (5, 3, 7, 4)})
    assert operators(result.graph) == {"Input": 3, "Relu": 1, "MatMul": 1, "Tanh": 1}
    assert result.hints == ()
    agrees(dynamic(), x=(5, 3, 7, 4))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"q": (1,)}, "no input 'q'(.|\n)*x, m, k"),
        ({"x": (1, 3, 4)}, "has 4 axes, not 3"),
        ({"x": (1, 3, 4, 4), "m": (2, 2)}, "'N' is given as 1 and as 2"),
        ({"x": (-1, 3, 4, 4)}, "negative"),
    ],
)
def test_wrong_sizes_are_refused(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(dynamic(), shapes=shapes)


def fixed(rows: str) -> onnx.ModelProto:
    """Return a model with fixed sizes that declares the shapes of its intermediate values."""
    return model_of(f"(float[1,3,4] x) => (float[1,12] y, float[1,3,4] q) <int64[2] rows = {{{rows}}}, float[1,3,4] r> "
                    "{ r = Relu(x) y = Reshape(r, rows) q = CumSum(r, axis) axis = Constant<value = int64 {1}>() }")  # fmt: skip


def test_sizes_may_be_given_in_place_of_those_that_the_file_fixes() -> None:
    result = load(fixed("0,-1"), shapes={"x": (2, 5, 4)})
    assert [str(node.type) for node in result.graph.roots] == ["float32[2,20]", "float32[2,5,4]"]
    assert result.notes == ("the input 'x' has the sizes 2,5,4 in place of the file's 1,3,4",)
    assert load(fixed("0,-1"), shapes={"x": (1, 3, 4)}).notes == ()


def test_sizes_that_a_node_does_not_allow_are_refused_by_its_name() -> None:
    with pytest.raises(ModelError, match=r"24 elements cannot have the constant shape \[1, 12\](.|\n)*Reshape(.|\n)*--shape"):
        load(fixed("1,12"), shapes={"x": (2, 3, 4)})
    product = model_of("(float[1,3] x) => (float[1,2] y) <float[3,2] w = {1,2,3,4,5,6}> { y = MatMul(x, w) }")
    with pytest.raises(ModelError, match=r"ill-typed(.|\n)*MatMul(.|\n)*x: float32\[1,4\](.|\n)*--shape"):
        load(product, shapes={"x": (1, 4)})


def test_what_the_file_says_inside_of_branches_is_inferred_anew() -> None:
    text = ("(float[1,4] x, bool c) => (float[1,4] y) { y = If (c) <then_branch = t () => (float[1,4] a) <float[1,4] s> "
            "{ s = Exp(x) a = Neg(s) }, else_branch = e () => (float[1,4] b) { b = Neg(x) }> }")  # fmt: skip
    graph = load(model_of(text), shapes={"x": (3, 4)}).graph
    assert [str(node.type) for node in graph.roots] == ["float32[3,4]"]
    x = np.ones((3, 4), np.float32)
    np.testing.assert_allclose(run(export(graph), {"x": x, "c": np.array(True)})[0], -np.exp(x), rtol=1e-6)


def test_a_small_model_does_not_fold_into_a_huge_one() -> None:
    model = model_of("() => (float[N] y) <int64[1] n = {75000000}, float[1] one = {1}> { c = ConstantOfShape(n) y = Add(c, one) }")
    result = load(model)
    assert sum(data.nbytes for data in result.graph.tensors.values()) < 100
    integers = model_of("() => (int64[N] y) <int64[1] n = {75000000}, int64[1] one = {1}> { c = Expand(one, n) y = Add(c, c) }")
    assert any("not folded" in note and "600000000 bytes" in note for note in load(integers).notes)


def test_initialisers_listed_as_inputs_are_constants() -> None:
    model = model_of("(float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    result = load(model)
    assert [node.string("name") for node in result.graph.inputs] == ["x"]
    assert "also listed as inputs" in result.notes[0]
    as_input = load(model, shapes={"w": (2,)})
    assert [node.string("name") for node in as_input.graph.inputs] == ["x", "w"] and as_input.notes == ()
    model.ir_version = 3
    assert load(model).notes == ()


def test_nodes_out_of_order_are_sorted() -> None:
    model = model_of("(float[2] x) => (float[2] y) { a = Relu(x) y = Neg(a) }")
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert operators(load(model).graph) == {"Input": 1, "Relu": 1, "Neg": 1}


def test_functions_of_the_model_are_inlined() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18, "local": 1]> g (float[2] x) => (float[2] y) { y = local.twice(x) } '
        '<domain: "local", opset_import: ["": 18]> twice (a) => (b) { b = Add(a, a) }'
    )
    assert operators(agrees(model)) == {"Input": 1, "Add": 1}


def test_custom_domains_stay_as_they_are() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]> g (float[2] x) => (float[2] y) '
        "{ r = Relu(x) y = com.microsoft.SampleOp(r) }"
    )
    assert operators(agrees(model))["Opaque"] == 1


def test_a_question_mark_names_no_size() -> None:
    model = model_of("(float[N,M] x) => (float[N,M] y) { y = Relu(x) }")
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_param = "?"
    assert load(model, shapes={"x": (2, 3)}).graph.inputs[0].type.sizes == (2, 3)
    assert load(model).hints == (f"{UNKNOWN_SIZES}--shape x:x_0,x_1",)
