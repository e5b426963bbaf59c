"""Unusual models that onnxruntime runs: values of unknown or zero size or of no axes, and values that are not numeric tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from egraph.engine.saturate import Limits, saturate
from egraph.extract import extract, to_program
from egraph.onnx import importer
from egraph.optimize.check import compare, find_feeds
from egraph.optimize.check_noise import open_onnxruntime
from egraph.optimize.estimated import compile_options, open_program, open_session
from egraph.optimize.measuring import Job, Measurer
from egraph.tensor import format_fragment
from egraph.tensor.ops import apply
from egraph.tolerance import Tolerance
from lower.candidates import candidates
from lower.cost.model import FAILED_COST_US, CostModel
from lower.roofline import DeviceSpeed
from runtime.feeds import FeedSpec, random_feeds
from runtime.measure import Effort, Worker
from runtime.profile import Database, Record
from runtime.profile.tables import Status
from tests.support.fragments import leaf
from tests.support.implementations import GENERATED

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((3, 4)).astype(np.float32)
BYTES = RANDOM.integers(0, 9, (3, 4)).astype(np.uint8)


def model_of(text: str, constants: Mapping[str, Any] | None = None, opset: int = 18) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1, "ai.onnx.ml": 2]> g {text}')
    assert isinstance(model, onnx.ModelProto)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items())
    return model


CASES: Mapping[str, tuple[onnx.ModelProto, Mapping[str, Any]]] = {
    "what is not zero feeds what gathers it": (
        model_of("(float[3,4] x) => (float[n] y, float[1,m] z, float s) "
                 "{ r = Relu(x) i = NonZero(r) t = Transpose(i) y = GatherND(r, t) z = Unsqueeze(y, zero) s = ReduceSum<keepdims = 0>(z) }",
                 {"zero": [0]}), {"x": X},
    ),
    "unique with results that nothing reads": (
        model_of("(float[3,4] x) => (int64[n] v, float[3,4] e) { r = Round(x) y, i, v = Unique<sorted = 1>(r) e = Exp(x) }"), {"x": X},
    ),
    "boxes": (
        model_of("(float[1,6,4] b, float[1,1,6] s) => (int64[n,3] y, float[n] w) "
                 "{ q = Sigmoid(b) y = NonMaxSuppression(q, s, k) c = Gather<axis = 1>(y, two) f = Cast<to = 1>(c) w = Mul(f, f) }",
                 {"k": np.array([3]), "two": np.array(2)}),
        {"b": RANDOM.standard_normal((1, 6, 4)).astype(np.float32), "s": RANDOM.random((1, 1, 6)).astype(np.float32)},
    ),
    "branches of different sizes": (
        model_of("(float[3,4] x, bool c) => (float[n,4] y, float[3,4] z) { z = Relu(x) y = If (c) "
                 "<then_branch = t () => (float[3,4] a) { a = Exp(z) }, else_branch = e () => (float[2,4] b) { b = Slice(z, st, en) }> }",
                 {"st": [0], "en": [2]}), {"x": X, "c": np.array(False)},
    ),
    "a loop that gathers what it makes": (
        model_of("(float[3,4] x, int64 n) => (float[3,4] y, float[m,3,4] s) { z = Relu(x) c = Constant<value = bool {1}>() "
                 "y, s = Loop (n, c, z) <body = b (int64 i, bool d, float[3,4] a) => (bool e, float[3,4] o, float[3,4] p) "
                 "{ e = Identity(d) o = Add(a, x) p = Mul(a, x) }> }"), {"x": X, "n": np.array(3)},
    ),
    "a loop whose runs cut out parts of several sizes": (  # Regression: slices of one name shared one size and its memory
        model_of("(float[12,2] x, int64[3] s, int64[3] e) => (float[3,2] y) { y = Loop (n, c) <body = b (int64 i, bool d) => "
                 "(bool g, float[2] r) { g = Identity(d) f = Gather(s, i) t = Gather(e, i) u = Unsqueeze(f, z) v = Unsqueeze(t, z) "
                 "p = Slice(w, u, v, z) q = Gather(x, p) r = ReduceSum<keepdims = 0>(q, z) }> }",
                 {"n": np.array(3), "c": np.array(True), "z": [0], "w": np.arange(12)}),
        {"x": RANDOM.standard_normal((12, 2)).astype(np.float32), "s": np.array([0, 4, 9]), "e": np.array([4, 9, 12])},
    ),
    "a scan": (
        model_of("(float[3,4] x, float[4] i) => (float[4] y, float[3,4] s) { y, s = Scan <num_scan_inputs = 1, "
                 "body = b (float[4] a, float[4] v) => (float[4] o, float[4] p) { o = Add(a, v) p = Mul(o, v) }> (i, x) }"),
        {"x": X, "i": X[0]},
    ),
    "sequences between tensors": (
        model_of("(float[3,4] x) => (seq(float) s, float[3,4] y, int64 n) { z = Relu(x) s = SequenceConstruct(x, z) "
                 "one = Constant<value = int64 {1}>() y = SequenceAt(s, one) n = SequenceLength(s) }"),
        {"x": X},
    ),
    "a sequence as input": (
        model_of("(seq(float) s) => (float[a,b] y) { zero = Constant<value = int64 {0}>() q = SequenceAt(s, zero) y = Relu(q) }"),
        {"s": [X, X[:2]]},
    ),
    "strings": (
        model_of('(string[n] s) => (string[n] t, float[n] z) { t = Identity(s) '
                 'y = ai.onnx.ml.LabelEncoder<keys_strings = ["a", "b"], values_int64s = [1, 2]>(s) f = Cast<to = 1>(y) z = Relu(f) }'),
        {"s": np.array(["a", "b", "c"], object)},
    ),
    "no elements": (
        model_of("(float[0,4] x, float[3,4] q) => (float[0,2] y, float[3,4] c, float[1,4] r) { e = Exp(q) m = MatMul(x, w) y = Relu(m) "
                 "c = Concat<axis = 0>(x, e) s = Slice(e, zero, zero) r = ReduceSum(s, zero) }",
                 {"w": X[:2].T.copy(), "zero": [0]}), {"x": X[:0], "q": X},
    ),
    "no axes": (
        model_of("(float a, float b, float[3,4] x) => (float y, float z, int64 i) { y = Add(a, b) e = Exp(y) z = Mul(e, c) "
                 "f = Reshape(x, s) i = ArgMax<axis = 0, keepdims = 0>(f) }", {"c": np.float32(3), "s": [12]}),
        {"a": np.array(1, np.float32), "b": np.array(2, np.float32), "x": X},
    ),
    "outputs that are inputs, constants and each other": (
        model_of("(float[3,4] x) => (float[3,4] x, float[3,4] y, float[3,4] y2, float[2] w) { y = Relu(x) y2 = Relu(x) }",
                 {"w": np.ones(2, np.float32)}), {"x": X},
    ),
    "no nodes": (model_of("(float[3,4] x) => (float[3,4] x) { }"), {"x": X}),
    "operands left out": (
        model_of("(float[3,4] x) => (float[3,4] y, float[2,4] z) { y = Clip(x, , m) z = Slice(x, st, en, , sp) }",
                 {"m": np.float32(0.5), "st": [0, 0], "en": [4, 4], "sp": [2, 1]}), {"x": X},
    ),
    "half precision": (
        model_of("(float16[3,4] x) => (float16[3,2] y, float16[4,3] t) { m = MatMul(x, w) y = Relu(m) t = Transpose(x) }",
                 {"w": X[:2].T.astype(np.float16)}), {"x": X.astype(np.float16)},
    ),
    "double precision": (
        model_of("(double[3,4] x) => (double[3,2] y) { m = MatMul(x, w) y = Softmax(m) }", {"w": X[:2].T.astype(np.float64)}),
        {"x": X.astype(np.float64)},
    ),
    "integers": (
        model_of("(uint8[3,4] x, uint8 z) => (int32[3,2] y, float[3,2] f) { y = MatMulInteger(x, w, z) f = Cast<to = 1>(y) }",
                 {"w": np.arange(8, dtype=np.int8).reshape(4, 2)}), {"x": BYTES, "z": np.array(2, np.uint8)},
    ),
    "operators of onnxruntime's own": (
        model_of("(float[3,4] x) => (float[3,2] y, float[3,2] z) { y = com.microsoft.FusedMatMul<alpha = 2.0>(x, w) z = Relu(y) }",
                 {"w": X[:2].T.copy()}), {"x": X},
    ),
    "sizes that are computed": (
        model_of("(float[3,4] x, int64[2] s) => (float[a,b] y, int64[2] n) { e = Exp(x) r = Reshape(e, s) y = Relu(r) n = Shape(y) }"),
        {"x": X, "s": np.array([2, 6])},
    ),
}  # fmt: skip


def agrees(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> None:
    """Compare an optimised model with the original in onnxruntime, twice on one session."""
    session = open_onnxruntime(model.SerializeToString(), 1)
    wanted = session.run(None, dict(feeds))
    with open_session(model) as optimised:
        for _ in range(2):
            for output, want, got in zip(session.get_outputs(), wanted, optimised.run(None, feeds), strict=True):
                assert type(want) is type(got)
                compare(want, got, Tolerance(), where=output.name)


@pytest.mark.parametrize("name", CASES)
def test_an_odd_model_runs_as_in_onnxruntime(name: str) -> None:
    agrees(*CASES[name])


def test_an_output_may_be_a_constant_that_no_file_of_weights_holds() -> None:
    model = model_of("(float[3,4] x) => (string[2] t, float[3,4] y) { t = Identity(c) y = Exp(x) }")
    model.graph.initializer.append(numpy_helper.from_array(np.array(["a", "é"], object), "c"))
    agrees(model, {"x": X})


def recogniser(folder: Path) -> onnx.ModelProto:
    """Return a convolution, an LSTM and a product, quantised dynamically by onnxruntime; widths are unknown."""
    from onnxruntime.quantization import quantize_dynamic

    def weight(*shape: int) -> np.ndarray:
        return (RANDOM.standard_normal(shape) * 0.2).astype(np.float32)

    plain = model_of(
        "(float[1,3,16,w] x) => (float[1,seqlen] best, int64[1,seqlen] which, float[1,seqlen,10] all) "
        "{ c = Conv<pads = [1,1,1,1], strides = [2,1]>(x, k, bias) r = Relu(c) p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(r) "
        "m = ReduceMean<keepdims = 0>(p, two) t = Transpose<perm = [2,0,1]>(m) "
        'y = LSTM<hidden_size = 16, direction = "bidirectional">(t, a, b) u = Transpose<perm = [2,0,1,3]>(y) v = Reshape(u, rows) '
        "l = MatMul(v, f) all = Softmax<axis = 2>(l) which = ArgMax<axis = 2, keepdims = 0>(all) "
        "best = ReduceMax<keepdims = 0>(all, two) }",
        {"k": weight(8, 3, 3, 3), "bias": weight(8), "a": weight(2, 64, 8), "b": weight(2, 64, 16), "f": weight(32, 10),
         "rows": [0, 0, -1], "two": [2]},
    )  # fmt: skip
    onnx.save(plain, folder / "plain.onnx")
    quantize_dynamic(folder / "plain.onnx", folder / "quantised.onnx", op_types_to_quantize=["Conv", "MatMul", "LSTM"])
    return onnx.load(folder / "quantised.onnx")


def test_a_dynamically_quantised_recogniser_runs(tmp_path: Path) -> None:
    model = recogniser(tmp_path)
    assert {"DynamicQuantizeLSTM", "ConvInteger", "MatMulInteger"} <= {node.op_type for node in model.graph.node}
    agrees(model, {"x": RANDOM.standard_normal((1, 3, 16, 64)).astype(np.float32)})


def test_a_kernel_of_no_axes_with_a_weight_is_measured_and_right() -> None:
    """A scalar kernel with a weight is measured without failure.

    For example, the scale of a quantised product is a product of two scalars.
    """
    database = Database.in_memory()
    fragment = apply("Mul", leaf(0), leaf(1, constant=True))
    with Worker() as worker:
        measurer = Measurer(database, "cpu", compile_options(1), worker, effort=Effort(seconds=0.001))
        measurer.measure([Job(fragment, GENERATED, "scale")], lambda: 1.0, lambda text: None)
    (record,) = database.records()
    assert record.status == "ok", record.message


@pytest.mark.parametrize("status", ["wrong", "failed"])
def test_where_every_kernel_of_an_operator_is_of_no_use_onnxruntime_computes_it(status: Status) -> None:
    graph = importer.load(model_of("(float[3,4] x) => (float[3,4] y) { e = Exp(x) y = Atan(e) }")).graph
    frozen = saturate(graph, (), Limits()).frozen
    model, laid = CostModel(Database.in_memory(), "here", DeviceSpeed()), candidates(frozen)

    def of_exp() -> list[str]:
        (chosen,) = extract(frozen, model.price(laid), 1, 1.0, 0)
        assert chosen.cost_us < FAILED_COST_US
        program = to_program(frozen, chosen, graph)
        with open_program(program) as session:
            np.testing.assert_allclose(session.run(None, {"x": X})[0], np.arctan(np.exp(X)), rtol=1e-5)
        return [kernel.implementation.text for kernel in program.kernels if kernel.fragment.op == "Exp"]

    assert "opaque" not in of_exp()
    for one in [one for options in laid.values() for one in options if one.fragment.op == "Exp" and not one.implementation.is_opaque]:
        model.file(Record("here", format_fragment(one.fragment), one.implementation.text, status, (), "told by the test"))
    assert of_exp() == ["opaque"]


@pytest.mark.parametrize(("dtype", "kind"), [("seq(float32)", list), ("optional(float32)", np.ndarray), ("optional(seq(int64))", list)])
def test_inputs_that_are_no_plain_tensors_are_drawn(dtype: str, kind: type[Any]) -> None:
    drawn: Any = random_feeds([FeedSpec("s", dtype, (2, 3))], 0)["s"]
    assert isinstance(drawn, kind)
    elements: list[np.ndarray] = drawn if isinstance(drawn, list) else [drawn]
    for element in elements:
        assert element.shape == (2, 3) and element.dtype.name in dtype
    with pytest.raises(ValueError, match="no values of the type map"):
        random_feeds([FeedSpec("s", "map(int64,float32)", ())], 0)


def test_ranks_that_a_model_leaves_open_are_tried() -> None:
    model = model_of("(float[1,2,3,4] x) => (float[1,4,3,2] y) { y = Transpose<perm = [0,3,2,1]>(x) }")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    specs = find_feeds(open_onnxruntime(model.SerializeToString(), 1), importer.load(model).graph, 0)
    assert [len(spec.shape) for spec in specs] == [4]
