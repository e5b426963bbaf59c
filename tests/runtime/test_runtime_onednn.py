"""Compare every primitive of the vendor library with onnxruntime or numpy, through hand-written plans."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from lower.calls.epilogue import BINARY, ELTWISE
from lower.targets.cpu.onednn.reductions import ALGORITHMS
from runtime.devices.cpu.program import CpuProgram
from runtime.errors import KernelError
from runtime.executable import Executable
from runtime.plan import Buffer, Port, Step
from tests.support.paths import ROOT
from tests.support.plans import buffer, one_step, plan, run, transposed

RANDOM = np.random.default_rng(7)


def packed(executable: Executable) -> Sequence[np.ndarray]:
    """Return the constants that oneDNN keeps in formats of its own."""
    assert isinstance(executable.loaded, CpuProgram)
    return executable.loaded.contexts["onednn"].constants


def transposed_matrix(size: int, key: str = "") -> Buffer:
    """Return a column-major weight, which the library packs on every processor."""
    return buffer((size, size), "weight", key, strides=(1, size))


def draw(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def reference(op: str, *operands: np.ndarray, opset: int = 20, **attributes: object) -> np.ndarray:
    """Run one ONNX node with onnxruntime, unoptimised."""
    names = [f"i{n}" for n in range(len(operands))]
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, a.shape) for n, a in zip(names, operands, strict=True)]
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attributes)], "g", values, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, dict(zip(names, operands, strict=True)))[0]
    return result


def close(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * max(1.0, float(np.abs(expected).max())))


def convolution(strides: list[int], dilations: list[int], before: list[int], after: list[int], **more: object) -> dict[str, object]:
    return {
        "primitive": "convolution", "arguments": {"src": 0, "weights": 1}, "strides": strides, "dilations": dilations,
        "pads_before": before, "pads_after": after, **more,
    }  # fmt: skip


def test_executables_of_the_same_weights_share_their_packed_copies() -> None:
    """Plans for several input sizes pack a constant once. The packed copy is freed with the last executable that uses it."""
    w = draw(96, 96)
    spec = {"primitive": "matmul", "arguments": {"src": 0, "weights": 1}, "packed": ["weights"]}

    def opened(rows: int, weights: np.ndarray) -> tuple[Executable, np.ndarray]:
        right = weights, transposed_matrix(96)
        made, constants, feeds = one_step(spec, [draw(rows, 96), right], buffer((rows, 96), "output", "y"), weights=[1])
        executable = Executable(made, constants, threads=1)
        close(executable.run(feeds)["y"], feeds["t0"] @ weights.T)
        return executable, feeds["t0"]

    (first, _), (second, x), (other, _) = opened(64, w), opened(64, w), opened(64, w.copy())
    (one,), (same,), (different,) = map(packed, (first, second, other))
    assert same is one and different is not one
    copies = weakref.ref(one)
    first.close()
    del one, same
    close(second.run({"t0": x})["y"], x @ w.T)
    assert copies() is not None
    second.close()
    assert copies() is None


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("packed", [True, False])
def test_convolution_with_bias_and_relu(threads: int, packed: bool) -> None:
    x, w, b = draw(2, 7, 9, 11), draw(5, 7, 3, 2), draw(5)
    spec = convolution([2, 1], [1, 2], [1, 0], [2, 1], post_ops=[{"kind": "eltwise", "algorithm": "relu", "alpha": 0.1, "beta": 0.0}])
    spec |= {"arguments": {"src": 0, "weights": 1, "bias": 2}, "packed": ["weights"] if packed else []}
    expected = reference("Conv", x, w, b, strides=[2, 1], dilations=[1, 2], pads=[1, 0, 2, 1])
    expected = np.where(expected < 0, np.float32(0.1) * expected, expected)
    close(run(spec, [x, w, b], buffer(expected.shape, "output", "y"), weights=[1, 2], threads=threads), expected)


@pytest.mark.parametrize(("rank", "group"), [(1, 1), (2, 2), (2, 6), (3, 1)])
def test_convolution_of_channels_last_data(rank: int, group: int) -> None:
    """Conv over NHWC = NHWC view of Conv over NCHW, including grouped and depthwise convolutions."""
    space = (9, 8, 7)[:rank]
    x, w = draw(2, 6, *space), draw(12, 6 // group, *(3,) * rank)
    expected = reference("Conv", x, w, group=group, pads=[1] * 2 * rank)
    last = (0, *range(2, rank + 2), 1)
    first = (0, rank + 1, *range(1, rank + 1))
    shape, strides = transposed(np.transpose(x, last).shape, first)
    weights = buffer((group, 12 // group, 6 // group, *(3,) * rank), "weight") if group > 1 else buffer(w.shape, "weight")
    out_shape, out_strides = transposed(np.transpose(expected, last).shape, first)
    spec = convolution([1] * rank, [1] * rank, [1] * rank, [1] * rank, packed=["weights"])
    operands = [(np.ascontiguousarray(np.transpose(x, last)), buffer(shape, "input", strides=strides)), (w, weights)]
    close(run(spec, operands, buffer(out_shape, "output", "y", strides=out_strides), weights=[1]), expected)


@pytest.mark.parametrize("group", [1, 2])
def test_deconvolution(group: int) -> None:
    x, w = draw(1, 4, 5, 6), draw(4, 3, 4, 3)
    expected = reference("ConvTranspose", x, w, group=group, strides=[2, 3], pads=[1, 0, 2, 1])
    if group == 1:
        shape, strides = transposed(w.shape, (1, 0, 2, 3))
    else:
        shape, strides = transposed((2, 2, 3, 4, 3), (0, 2, 1, 3, 4))
    spec = convolution([2, 3], [1, 1], [1, 0], [2, 1], primitive="deconvolution", packed=["weights"])
    window = buffer(shape, "weight", strides=strides)
    close(run(spec, [x, (w, window)], buffer(expected.shape, "output", "y"), weights=[1]), expected)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("left", "right"), [((5, 7), (7, 3)), ((1, 6, 7), (1, 7, 8)), ((2, 3, 4, 5), (1, 1, 5, 6)), ((2, 3, 4, 5), (2, 3, 5, 6))]
)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...], packed: bool) -> None:
    """The batch may be absent, shared or repeated. Bias and residual are post-operations."""
    x, w, bias = draw(*left), draw(*right), draw(*(1,) * (len(left) - 1), right[-1])
    residual, row = draw(*left[:-1], right[-1]), draw(*left[:-1], 1)
    expected = np.tanh(x @ w + bias + residual) * row
    spec = {
        "primitive": "matmul", "arguments": {"src": 0, "weights": 1, "bias": 2}, "packed": ["weights"] if packed else [],
        "post_ops": [
            {"kind": "binary", "algorithm": "add", "argument": 3}, {"kind": "eltwise", "algorithm": "tanh"},
            {"kind": "binary", "algorithm": "mul", "argument": 4},
        ],
    }  # fmt: skip
    close(run(spec, [x, w, bias, residual, row], buffer(expected.shape, "output", "y"), weights=[1, 2]), expected)


def test_matmul_merges_batches_only_where_strides_allow() -> None:
    """Heads read in place from [batch, time, heads, size] cannot be merged with the rows. The result must be the same."""
    x, w = draw(2, 5, 3, 4), draw(4, 6)
    shape, strides = transposed(x.shape, (0, 2, 1, 3))
    expected = np.transpose(x, (0, 2, 1, 3)) @ w
    out_shape, out_strides = transposed((2, 5, 3, 6), (0, 2, 1, 3))
    spec = {"primitive": "matmul", "arguments": {"src": 0, "weights": 1}}
    operands = [(x, buffer(shape, "input", strides=strides)), (w, buffer((1, 1, 4, 6), "input"))]
    close(run(spec, operands, buffer(out_shape, "output", "y", strides=out_strides)), expected)


def test_matmul_of_a_transposed_operand_and_a_broadcast_row() -> None:
    x, w, row = draw(5, 4), draw(6, 5), draw(1, 6)
    shape, strides = transposed(w.shape, (1, 0))
    x_shape, x_strides = transposed(x.shape, (1, 0))
    spec = {
        "primitive": "matmul",
        "arguments": {"src": 0, "weights": 1},
        "post_ops": [{"kind": "binary", "algorithm": "sub", "argument": 2}],
    }
    operands = [(x, buffer(x_shape, "input", strides=x_strides)), (w, buffer(shape, "input", strides=strides)), row]
    close(run(spec, operands, buffer((4, 6), "output", "y")), x.T @ w.T - row)


@pytest.mark.parametrize("slope", [(1, 6, 1, 1), (1, 1, 1, 1)])
def test_prelu_post_operation(slope: tuple[int, ...]) -> None:
    x, w, s = draw(1, 4, 5, 5), draw(6, 4, 1, 1), draw(*slope)
    expected = reference("PRelu", reference("Conv", x, w), s[0])
    spec = convolution([1, 1], [1, 1], [0, 0], [0, 0], post_ops=[{"kind": "binary", "algorithm": "prelu", "argument": 2}])
    close(run(spec, [x, w, s], buffer(expected.shape, "output", "y"), weights=[1, 2]), expected)


@pytest.mark.parametrize(
    ("algorithm", "op", "attributes"),
    [
        ("average_include_padding", "AveragePool", {"count_include_pad": 1}),
        ("average_exclude_padding", "AveragePool", {"count_include_pad": 0}),
    ],
)
def test_pooling(algorithm: str, op: str, attributes: dict[str, int]) -> None:
    x = draw(2, 3, 8, 9) - 3
    expected = reference(op, x, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1], **attributes)
    spec = {
        "primitive": "pooling", "arguments": {"src": 0}, "algorithm": algorithm, "kernel": [3, 2], "strides": [2, 1],
        "dilations": [1, 1], "pads_before": [1, 0], "pads_after": [1, 1],
    }  # fmt: skip
    close(run(spec, [x], buffer(expected.shape, "output", "y")), expected)


def test_dilated_pooling() -> None:
    x = draw(1, 2, 9, 9)
    expected = reference("AveragePool", x, kernel_shape=[3, 3], dilations=[2, 2])
    spec = {
        "primitive": "pooling", "arguments": {"src": 0}, "algorithm": "average_exclude_padding", "kernel": [3, 3], "strides": [1, 1],
        "dilations": [2, 2], "pads_before": [0, 0], "pads_after": [0, 0],
    }  # fmt: skip
    close(run(spec, [x], buffer(expected.shape, "output", "y")), expected)


def test_layer_normalization() -> None:
    x, scale, shift = draw(2, 3, 16), draw(16), draw(16)
    spec = {"primitive": "layer_normalization", "arguments": {"src": 0, "scale": 1, "shift": 2}, "epsilon": 1e-5}
    expected = reference("LayerNormalization", x, scale, shift, epsilon=1e-5)
    close(run(spec, [x, scale, shift], buffer(x.shape, "output", "y"), weights=[1, 2]), expected)


def test_lrn() -> None:
    x = draw(1, 9, 4, 5)
    spec = {"primitive": "lrn", "arguments": {"src": 0}, "size": 5, "alpha": 0.3, "beta": 0.75, "k": 1.5}
    close(run(spec, [x], buffer(x.shape, "output", "y")), reference("LRN", x, size=5, alpha=0.3, beta=0.75, bias=1.5))


def test_lrn_of_even_size_is_refused() -> None:
    spec = {"primitive": "lrn", "arguments": {"src": 0}, "size": 4, "alpha": 0.3, "beta": 0.75, "k": 1.5}
    with pytest.raises(KernelError, match="even size 4"):
        run(spec, [draw(1, 9, 4, 5)], buffer((1, 9, 4, 5), "output", "y"))


@pytest.mark.parametrize(
    ("algorithm", "function"), [("sum", np.sum), ("mean", np.mean), ("max", np.max), ("min", np.min), ("mul", np.prod)]
)
def test_reduction(algorithm: str, function: Callable[..., np.ndarray]) -> None:
    x = draw(3, 4, 5)
    spec = {"primitive": "reduction", "arguments": {"src": 0}, "algorithm": algorithm}
    close(run(spec, [x], buffer((3, 1, 5), "output", "y")), function(x, axis=1, keepdims=True))


@pytest.mark.parametrize(("algorithm", "size"), [("nearest", (8, 15)), ("linear", (7, 13))])
def test_resampling(algorithm: str, size: tuple[int, int]) -> None:
    x = draw(1, 2, 4, 5)
    empty = {"mode": algorithm, "coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_floor"}
    scales = np.array([1, 1, size[0] / 4, size[1] / 5], np.float32)
    expected = reference("Resize", x, scales, opset=10, mode=empty["mode"]) if algorithm == "nearest" else _resize(x, size)
    spec = {"primitive": "resampling", "arguments": {"src": 0}, "algorithm": algorithm}
    close(run(spec, [x], buffer((1, 2, *size), "output", "y")), expected)


def _resize(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Interpolate linearly with half-pixel centres, one axis after the other."""
    for axis, count in zip((2, 3), size, strict=True):
        old = x.shape[axis]
        centre = np.clip((np.arange(count) + 0.5) * old / count - 0.5, 0, old - 1)
        low = np.floor(centre).astype(int)
        part = (centre - low).reshape([-1 if a == axis else 1 for a in range(4)])
        x = np.take(x, low, axis) * (1 - part) + np.take(x, np.minimum(low + 1, old - 1), axis) * part
    return x.astype(np.float32)


@pytest.mark.parametrize(
    ("algorithm", "function"),
    [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide), ("max", np.maximum), ("min", np.minimum),
     ("ge", np.greater_equal), ("gt", np.greater), ("le", np.less_equal), ("lt", np.less), ("eq", np.equal), ("ne", np.not_equal)],
)  # fmt: skip
def test_binary(algorithm: str, function: Callable[..., np.ndarray]) -> None:
    x, y = np.round(draw(3, 4, 5) * 2), np.round(draw(1, 4, 1) * 2) + np.float32(0.0)
    y = np.where(y == 0, np.float32(1), y)
    spec = {"primitive": "binary", "arguments": {"src0": 0, "src1": 1}, "algorithm": algorithm}
    close(run(spec, [x, y], buffer(x.shape, "output", "y")), function(x, y).astype(np.float32))


@pytest.mark.parametrize(
    ("algorithm", "op", "alpha", "beta", "attributes"),
    [
        ("relu", "Relu", 0.0, 0.0, {}), ("relu", "LeakyRelu", 0.2, 0.0, {"alpha": 0.2}), ("tanh", "Tanh", 0, 0, {}),
        ("elu", "Elu", 0.7, 0, {"alpha": 0.7}), ("logistic", "Sigmoid", 0, 0, {}), ("exp", "Exp", 0, 0, {}), ("abs", "Abs", 0, 0, {}),
        ("gelu_erf", "Gelu", 0, 0, {}), ("gelu_tanh", "Gelu", 0, 0, {"approximate": "tanh"}), ("mish", "Mish", 0, 0, {}),
        ("hardswish", "HardSwish", 1 / 6, 0.5, {}), ("hardsigmoid", "HardSigmoid", 0.3, 0.4, {"alpha": 0.3, "beta": 0.4}),
        ("soft_relu", "Softplus", 1.0, 0, {}), ("round", "Round", 0, 0, {}), ("linear", "Neg", -1.0, 0.0, {}),
    ],
)  # fmt: skip
def test_eltwise(algorithm: str, op: str, alpha: float, beta: float, attributes: dict[str, Any]) -> None:
    x = 4 * draw(2, 3, 7)
    spec = {"primitive": "eltwise", "arguments": {"src": 0}, "algorithm": algorithm, "alpha": alpha, "beta": beta}
    close(run(spec, [x], buffer(x.shape, "output", "y")), reference(op, x, **attributes))


@pytest.mark.parametrize(
    ("algorithm", "alpha", "beta", "function"),
    [
        ("clip", -0.5, 0.7, lambda x: np.clip(x, -0.5, 0.7)), ("square", 0, 0, np.square),
        ("swish", 1.0, 0, lambda x: x / (1 + np.exp(-x))),
        ("pow", 2.0, 3.0, lambda x: 2 * x**3), ("linear", 2.0, 3.0, lambda x: 2 * x + 3),
    ],
)  # fmt: skip
def test_eltwise_by_formula(algorithm: str, alpha: float, beta: float, function: Callable[..., np.ndarray]) -> None:
    x = draw(2, 3, 7)
    spec = {"primitive": "eltwise", "arguments": {"src": 0}, "algorithm": algorithm, "alpha": alpha, "beta": beta}
    close(run(spec, [x], buffer(x.shape, "output", "y")), function(x))


@pytest.mark.parametrize(("algorithm", "function"), [("log", np.log), ("sqrt", np.sqrt)])
def test_eltwise_of_positive_numbers(algorithm: str, function: Callable[..., np.ndarray]) -> None:
    x = np.abs(draw(50)) + np.float32(0.1)
    spec = {"primitive": "eltwise", "arguments": {"src": 0}, "algorithm": algorithm}
    close(run(spec, [x], buffer(x.shape, "output", "y")), function(x))


LOSES_NAN = {"relu": "Relu", "clip": "Clip", "logistic": "Sigmoid", "hardsigmoid": "HardSigmoid", "exp": "Exp"}
"""Fused functions that give a number where the contraction gave NaN, in some layouts: docs/proofs.md says so."""
FUSED: list[tuple[str, Mapping[str, Any]]] = [
    ("Relu", {}), ("LeakyRelu", {"alpha": 0.2}), ("Sigmoid", {}), ("Tanh", {}), ("Elu", {"alpha": 0.7}), ("Exp", {}), ("Sqrt", {}),
    ("Abs", {}), ("Neg", {}), ("Round", {}),
    ("Clip", {"min": -0.5, "max": 0.7}), ("HardSigmoid", {"alpha": 0.2, "beta": 0.5}), ("HardSwish", {}), ("Mish", {}),
    ("Softplus", {}), ("Gelu", {"approximate": "none"}), ("Gelu", {"approximate": "tanh"}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "attributes"), FUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_a_fused_function_keeps_nan_or_is_named(op: str, attributes: Mapping[str, Any]) -> None:
    recipe = ELTWISE[op](attributes)
    assert not isinstance(recipe, str)
    algorithm, alpha, beta = recipe
    operation = {"kind": "eltwise", "algorithm": algorithm, "alpha": alpha, "beta": beta}
    x, w = draw(7, 64), draw(64, 48)
    x[::2, 5] = np.nan
    product = {"primitive": "matmul", "arguments": {"src": 0, "weights": 1}, "post_ops": [operation]}
    got = run(product, [x, w], buffer((7, 48), "output", "y"))
    lost = not np.isnan(got[::2]).all()
    image, kernel = draw(1, 16, 9, 9), draw(16, 16, 3, 3)
    image[0, 3, 4] = np.nan
    spec = convolution([1, 1], [1, 1], [1, 1], [1, 1])
    plain, fused = (run(each, [image, kernel], buffer(image.shape, "output", "y")) for each in (spec, spec | {"post_ops": [operation]}))
    lost = lost or not np.isnan(fused[np.isnan(plain)]).all()
    assert np.isnan(plain).any()
    if lost:
        assert op in LOSES_NAN.values() and LOSES_NAN[algorithm] in (ROOT / "docs/proofs.md").read_text()


def test_every_fused_function_is_asked_about_nan() -> None:
    assert {op for op, _ in FUSED} >= ELTWISE.keys() and not BINARY.keys() & {"Max", "Min"}


def test_what_adds_keeps_nan() -> None:
    """Sums, means and normalisations propagate NaN. The library's maxima do not, so none of them is used."""
    x = draw(3, 4, 37)
    x[1, :, 30] = np.nan
    for algorithm in ALGORITHMS.values():
        got = run({"primitive": "reduction", "arguments": {"src": 0}, "algorithm": algorithm}, [x], buffer((3, 4, 1), "output", "y"))
        assert np.isnan(got[1]).all() and np.isfinite(got[::2]).all()
    rows, scale, shift = draw(4, 16), draw(16), draw(16)
    rows[2, 3] = np.nan
    spec = {"primitive": "layer_normalization", "arguments": {"src": 0, "scale": 1, "shift": 2}, "epsilon": 1e-5}
    got = run(spec, [rows, scale, shift], buffer(rows.shape, "output", "y"), weights=[1, 2])
    assert np.isnan(got[2]).all() and np.isfinite(got[[0, 1, 3]]).all()
    assert ALGORITHMS.keys() == {"ReduceSum", "ReduceMean"}


def test_reorder_transposes() -> None:
    x = draw(2, 3, 4, 5)
    shape, strides = transposed(x.shape, (0, 3, 1, 2))
    spec = {"primitive": "reorder", "arguments": {"src": 0}}
    close(run(spec, [(x, buffer(shape, "input", strides=strides))], buffer(shape, "output", "y")), np.transpose(x, (0, 3, 1, 2)))


def test_a_window_into_the_middle_of_an_input() -> None:
    x = draw(6, 10)
    window = buffer((3, 4), "input", strides=(20, 2), offset=11)
    close(run({"primitive": "reorder", "arguments": {"src": 0}}, [(x, window)], buffer((3, 4), "output", "y")), x[1::2, 1:9:2])


def test_scalars() -> None:
    spec = {"primitive": "binary", "arguments": {"src0": 0, "src1": 1}, "algorithm": "add"}
    close(run(spec, [np.array(2, np.float32), np.array(3, np.float32)], buffer((), "output", "y")), np.array(5, np.float32))


def test_refusals_show_the_recipe() -> None:
    spec = {"primitive": "matmul", "arguments": {"src": 0, "weights": 1}}
    with pytest.raises(KernelError, match=r"matmul_primitive_desc_create.*\n.*\"primitive\": \"matmul\".*\[3, 4\].*\[5, 6\]"):
        run(spec, [draw(3, 4), draw(5, 6)], buffer((3, 6), "output", "y"))
    with pytest.raises(KernelError, match="unknown primitive 'magic'"):
        run({**spec, "primitive": "magic"}, [draw(3, 4), draw(4, 6)], buffer((3, 6), "output", "y"))
    with pytest.raises(KernelError, match="unknown algorithm 'sine'"):
        run({"primitive": "eltwise", "arguments": {"src": 0}, "algorithm": "sine"}, [draw(3)], buffer((3,), "output", "y"))
    with pytest.raises(KernelError, match="lacks 'strides'"):
        run(
            {"primitive": "convolution", "arguments": {"src": 0, "weights": 1}}, [draw(1, 2, 3), draw(2, 2, 1)], buffer((1, 2, 3), "output")
        )


def test_equal_constants_are_packed_once() -> None:
    w = draw(64, 64)
    spec = {"primitive": "matmul", "arguments": {"src": 0, "weights": 1}, "packed": ["weights"]}
    buffers = [buffer((8, 64), "input", "x"), buffer((64, 64), "weight", "w"), buffer((8, 64), "arena"), buffer((8, 64), "output", "y")]
    made = plan(
        buffers, [Step("onednn", "a", (0, 1), (2,), spec), Step("onednn", "b", (2, 1), (3,), spec)],
        [Port("x", "float32", (8, 64), 0)], [Port("y", "float32", (8, 64), 3)],
    )  # fmt: skip
    executable = Executable(made, {"w": w}, threads=1)
    x = draw(8, 64)
    close(executable.run({"x": x})["y"], x @ w @ w)
    assert len(packed(executable)) <= 1


def test_packed_weights_are_told_apart() -> None:
    """Two constants of the same shape and layout are packed separately. An operand that is not a constant is not packed."""
    spec = {"primitive": "matmul", "arguments": {"src": 0, "weights": 1}, "packed": ["weights"]}
    buffers = [buffer((64, 64), "input", "x"), *(transposed_matrix(64, f"w{k}") for k in (0, 1))]
    buffers += [buffer((64, 64), "output", f"y{k}") for k in (0, 1, 2)]
    steps = [Step("onednn", f"step{k}", (0, 1 + k % 2), (3 + k,), spec) for k in (0, 1, 2)]
    ports = [Port(f"y{k}", "float32", (64, 64), 3 + k) for k in (0, 1, 2)]
    made = plan(buffers, steps, [Port("x", "float32", (64, 64), 0)], ports)
    x, weights = draw(64, 64), {f"w{k}": draw(64, 64) for k in (0, 1)}
    executable = Executable(made, weights, threads=1)
    results = executable.run({"x": x})
    assert len(packed(executable)) == 2
    executable.close()
    for k in (0, 1, 2):
        close(results[f"y{k}"], x @ weights[f"w{k % 2}"].T)
    right = replace(transposed_matrix(64, "w"), area="input")
    given = plan([buffers[0], right, buffers[3]], [Step("onednn", "step", (0, 1), (2,), spec)], [], [])
    with pytest.raises(KernelError, match="only a constant can be packed"):
        Executable(given, {}, threads=1)
