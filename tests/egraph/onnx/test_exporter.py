"""Export: core operators in several opsets, programs with fused kernels, opaque nodes, external data, and folding."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from egraph.errors import LowerError
from egraph.onnx import exporter, importer
from egraph.onnx.exporter.build import DOMAIN, Builder
from egraph.onnx.exporter.store import Inline
from egraph.onnx.types import array_type, tensor_digest
from egraph.optimize.check_noise import open_exported
from egraph.optimize.search import plain_program
from egraph.tensor import Graph, Kernel, Node, OnnxContext, Program, TensorType, attributes, make, numpy_dtype, placeholder, walk
from egraph.tensor.ops import OPS, apply
from egraph.tensor.ops.reference import evaluate
from lower.cost.model import CostModel
from lower.roofline import DeviceSpeed
from runtime.profile import Database
from tests.support.implementations import GENERATED, PRODUCT

FORMS_SINCE = {"ArgMax": 12, "ArgMin": 12, "Celu": 12, "GatherElements": 11, "GatherND": 12, "Round": 11, "Resize": 18,
               "ThresholdedRelu": 10, "Saturate": 10, "Quantize": 11, "DequantizeBlocks": 11}
"""Operators that an older opset lacks, so that models of that opset cannot contain them."""

POSITIVE = frozenset({"Log", "Sqrt", "Pow", "Div", "Reciprocal", "Quantize"})


def run(model: onnx.ModelProto | Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return list(onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"]).run(None, feeds))


def leaf(name: str, shape: tuple[int, ...], dtype: str = "float32") -> Node:
    return make("Input", (), attributes(name=name), TensorType(dtype, shape))


def constant(array: np.ndarray) -> tuple[Node, dict[str, np.ndarray]]:
    digest = tensor_digest(array)
    return make("Constant", (), attributes(digest=digest), array_type(array)), {digest: array}


def draw(kind: str, shape: tuple[int, ...], source: np.random.Generator, *, limit: int, positive: bool) -> np.ndarray:
    if kind == "bool":
        return np.asarray(source.random(shape) < 0.5)
    if kind in ("int64", "int32"):
        return np.asarray(source.integers(-limit, limit, shape)).astype(kind)
    if kind in ("int8", "uint8"):
        return source.integers(0, 100, shape).astype(kind)
    return np.asarray(source.random(shape) + (0.25 if positive else -0.5)).astype(kind)


@pytest.mark.parametrize("opset", [9, 13, 18, 21])
@pytest.mark.parametrize("op", sorted(OPS))
def test_every_operator_in_every_opset_means_what_its_specification_says(op: str, opset: int) -> None:
    spec = OPS[op]
    if opset < FORMS_SINCE.get(op, 9):
        pytest.skip("no model of this opset can contain it")
    for seed in range(4):
        source = np.random.default_rng(seed)
        shapes, values = spec.sample(random.Random(f"{op}{seed}"))
        kinds = spec.sample_dtypes or ("float32",) * len(shapes)
        limit = shapes[0][values["axis"]] if "axis" in values and len(shapes) > 1 else min(shapes[0], default=3) if op == "GatherND" else 3
        operands = [leaf(f"x{k}", shape, kind) for k, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))]
        drawn = [draw(kind, shape, source, limit=limit, positive=op in POSITIVE) for shape, kind in zip(shapes, kinds, strict=True)]
        feeds = {f"x{k}": value for k, value in enumerate(drawn)}
        root = apply(op, *operands, **values)
        graph = Graph("one", tuple(dict.fromkeys(operands)), (("y", root),), {})
        builder = Builder.start(graph, graph.roots, Inline(), {})
        builder.emitter.opset = opset
        if opset < 19 and (values.get("mode") == "wrap" or (op == "AveragePool" and set(values["dilations"]) != {1})):
            continue  # only a newer model can hold this operator
        if opset < 10 and op == "MaxPool" and set(values["dilations"]) != {1}:
            with pytest.raises(LowerError, match="newer opset"):
                builder.finish()
            continue
        model = builder.finish()
        model.opset_import[0].version = opset
        onnx.checker.check_model(model)
        (expected,) = evaluate([root], {operand: feeds[f"x{k}"] for k, operand in enumerate(operands)})
        (found,) = run(model, feeds)
        assert found.shape == root.type.shape
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5, err_msg=f"{op} {shapes} {values}")


F43 = "table(6x3: 64/81 0 0 32/243 16/81 8/27 32/243 -16/81 8/27 -128/243 -32/81 -8/27 -128/243 32/81 -8/27 0 0 1)"
WEIGHTS = f"{{i0<36,i1<7,i2<5}} sum(r0<3,r1<3) (($0[i2,i1,r1,r0] * {F43}[((i0)%6),r0]) * {F43}[((i0)//6),r1])"
SIGNS = "table(4x4: 1 0 -1 0 0 1 1 0 0 -1 1 0 0 1 0 -1)"
TRANSFORMS: dict[str, tuple[tuple[int, ...], str, list[str]]] = {
    "weights": ((5, 7, 3, 3), WEIGHTS, ["Transpose", "Reshape", "MatMul", "Reshape", "Reshape"]),
    "one axis": (
        (9, 3, 4), f"{{i0<9,i1<6,i2<4}} sum(r0<3) ($0[i0,r0,i2] * {F43}[i1,r0])",
        ["Transpose", "Reshape", "MatMul", "Reshape", "Transpose", "Reshape"],
    ),
    "overlapping tiles": (
        (10, 6), f"{{i0<4,i1<4,i2<6}} sum(r0<4) ($0[2*i1+r0,i2] * {SIGNS}[i0,r0])",
        ["Gather", "Transpose", "Reshape", "MatMul", "Reshape", "Reshape"],
    ),
    "a matrix": ((9, 3), f"{{i0<6,i1<9}} sum(r0<3) ($0[i1,r0] * {F43}[i0,r0])", ["Transpose", "Reshape", "MatMul", "Reshape", "Reshape"]),
    "a coefficient": (
        (9, 3), f"{{i0<6,i1<9}} sum(r0<3) (($0[i1,r0] * 3) * {F43}[i0,r0])",
        ["Transpose", "Reshape", "MatMul", "Reshape", "Mul", "Reshape"],
    ),
    "a table of a shared axis": ((6, 3), f"{{i0<6}} sum(r0<3) ($0[i0,r0] * {F43}[i0,r0])", ["Einsum", "Reshape"]),
    "a sum that no table reads": ((4, 3, 5), f"{{i0<6,i1<4}} sum(r0<3,r1<5) ($0[i1,r0,r1] * {F43}[i0,r0])", ["Einsum", "Reshape"]),
    "nothing is summed": ((6,), f"{{i0<6,i1<3}} ($0[i0] * {F43}[i0,i1])", ["Einsum", "Reshape"]),
}  # fmt: skip
"""Operand sizes, expression, and the nodes that it becomes."""


@pytest.mark.parametrize("name", TRANSFORMS)
def test_tables_that_transform_one_tensor_are_one_matrix(name: str) -> None:
    """An Einsum transposes its operands for each table: the weights of fast convolutions took 4 times as long to transform."""
    sizes, text, operators = TRANSFORMS[name]
    x = leaf("x", sizes)
    graph = Graph("one", (x,), (("y", apply("Expression", x, text=text)),), {})
    model = Builder.start(graph, graph.roots, Inline(), {}).finish()
    assert [node.op_type for node in model.graph.node] == operators
    values = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
    np.testing.assert_allclose(run(model, {"x": values})[0], evaluate(graph.roots, {x: values})[0], rtol=1e-5, atol=1e-5)


def test_tables_that_transform_a_product_of_tensors_stay_apart() -> None:
    x, y = leaf("x", (9, 3)), leaf("y", (9, 3))
    text = f"{{i0<6,i1<9}} sum(r0<3) (($0[i1,r0] * $1[i1,r0]) * {F43}[i0,r0])"
    graph = Graph("one", (x, y), (("z", apply("Expression", x, y, text=text)),), {})
    model = Builder.start(graph, graph.roots, Inline(), {}).finish()
    feeds = {name: np.random.default_rng(seed).standard_normal((9, 3)).astype(np.float32) for seed, name in enumerate("xy")}
    expected = evaluate(graph.roots, {x: feeds["x"], y: feeds["y"]})[0]
    np.testing.assert_allclose(run(model, feeds)[0], expected, rtol=1e-5, atol=1e-5)


def test_tables_whose_product_would_be_large_stay_apart() -> None:
    def operators(rows: int) -> list[str]:
        table = f"table({rows}x3: {' '.join('1' * (3 * rows))})"
        x = leaf("x", (5, 3, 3))
        text = f"{{i0<{rows},i1<{rows},i2<5}} sum(r0<3,r1<3) (($0[i2,r1,r0] * {table}[i0,r0]) * {table}[i1,r1])"
        graph = Graph("one", (x,), (("y", apply("Expression", x, text=text)),), {})
        return [node.op_type for node in Builder.start(graph, graph.roots, Inline(), {}).finish().graph.node]

    assert "MatMul" in operators(21) and "Einsum" in operators(22), "9 * 21^2 = 3,969 elements, 9 * 22^2 = 4,356"


def fused_program() -> Program:
    x, w = leaf("x", (2, 3)), np.arange(6, dtype=np.float32).reshape(3, 2)
    weight, tensors = constant(w)
    product = apply("MatMul", x, weight)
    total = apply("Add", apply("Relu", product), apply("Tanh", product))
    graph = Graph("fused", (x,), (("y", total),), tensors, origins={product: ("project",), total: ("total",)}, names={product: "hidden"})
    p, q = placeholder(0, x.type), placeholder(1, weight.type, constant=True)
    h = placeholder(0, product.type)
    kernels = (
        Kernel(apply("MatMul", p, q), (x, weight), product, PRODUCT),
        Kernel(apply("Add", apply("Relu", h), apply("Tanh", h)), (product,), total, GENERATED, rules=("fuse",)),
    )
    return Program(graph, kernels, 0.0)


def test_a_fused_kernel_is_a_function_that_any_runtime_can_run() -> None:
    model = exporter.export(fused_program())
    onnx.checker.check_model(model, full_check=True)
    fused = [node for node in model.graph.node if node.domain == DOMAIN]
    assert [function.name for function in model.functions] == [fused[0].op_type]
    assert [node.op_type for node in model.graph.node if node.domain == ""] == ["MatMul"]
    assert model.graph.node[0].output[0] == "hidden"
    assert {entry.key: entry.value for entry in fused[0].metadata_props} == {"einsat.rules": "fuse", "einsat.source_nodes": "total"}
    x = np.array([[1, -2, 3], [-4, 5, -6]], dtype=np.float32)
    hidden = x @ np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_allclose(run(model, {"x": x})[0], np.maximum(hidden, 0) + np.tanh(hidden), rtol=1e-5)


def test_equal_programs_export_to_equal_bytes() -> None:
    first, second = (exporter.export(fused_program()).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_constants_above_the_limit_go_beside_the_model(tmp_path: Path) -> None:
    x, array = leaf("x", (1, 64)), np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    weight, tensors = constant(array)
    graph = Graph("g", (x,), (("y", apply("MatMul", x, weight)),), tensors)
    path = tmp_path / "model.onnx"
    assert exporter.save(graph, path, external_above_bytes=100) == (path, tmp_path / "model.onnx.data")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    feed = np.ones((1, 64), dtype=np.float32)
    np.testing.assert_allclose(run(path, {"x": feed})[0], feed @ array)
    again = importer.load(path).graph
    assert [isinstance(data, np.memmap) for data in again.tensors.values()] == [True]
    assert again.tensors.keys() == tensors.keys()


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(LowerError, match="cannot be written"):
        exporter.save(fused_program(), tmp_path / "missing" / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("egraph.onnx.exporter.os.fsync", full)
    with pytest.raises(LowerError, match="No space left"):
        exporter.save(fused_program(), path)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("model.onnx", b"old")]


def test_outputs_that_are_inputs_constants_or_each_other() -> None:
    x = leaf("x", (2,))
    weight, tensors = constant(np.array([3.0, 4.0], dtype=np.float32))
    y = apply("Relu", x)
    model = exporter.export(Graph("g", (x, leaf("unused", (1,))), (("a", x), ("b", weight), ("c", y), ("d", y)), tensors))
    onnx.checker.check_model(model, full_check=True)
    found = run(model, {"x": np.array([-1, 2], dtype=np.float32), "unused": np.zeros(1, np.float32)})
    assert [value.tolist() for value in found] == [[-1, 2], [3, 4], [0, 2], [0, 2]]


def test_opaque_nodes_keep_an_old_opset_that_their_meaning_needs() -> None:
    model = parser.parse_model(
        '<ir_version: 7, opset_import: ["": 11]> g (float[3,4] x) => (float[3,4] y, int64[1,4] i) '
        "{ r = Relu(x) y = Hardmax<axis = 1>(r) i = ArgMax<axis = 0>(y) }"
    )
    kept = exporter.export(importer.load(model).graph)
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    for a, b in zip(run(model, {"x": x}), run(kept, {"x": x}), strict=True):
        np.testing.assert_array_equal(a, b)
    split = parser.parse_model(
        '<ir_version: 7, opset_import: ["": 11]> g (int64[4] x) => (int64[2] a, int64[2] b) { a, b = Split<axis = 0, split = [2, 2]>(x) }'
    )
    assert exporter.export(importer.load(split).graph).opset_import[0].version == 18  # an integer Split is core


def test_programs_read_several_results_of_opaque_kernels() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (int64[3,4] ids) => (float[3,2] y, int64[3,2] places, float[3,4] real) '
        "<int64[1] k = {2}> { real = Cast<to = 1>(ids) top, places = TopK(real, k) y = Relu(top) }"
    )
    program = plain_program(importer.load(model).graph, CostModel(Database.in_memory(), "", DeviceSpeed()), seed=0)
    assert {"Opaque", "OpaqueOutput", "Relu"} <= {kernel.fragment.op for kernel in program.kernels}
    exported = exporter.export(program)
    onnx.checker.check_model(exported, full_check=True)
    ids = np.random.default_rng(0).permutation(12).reshape(3, 4) - 6
    for a, b in zip(run(model, {"ids": ids}), run(exported, {"ids": ids}), strict=True):
        np.testing.assert_array_equal(a, b)


def test_opaque_kernels_may_read_one_tensor_twice() -> None:
    """An opaque kernel may read one tensor twice.

    For example, both initial states of an LSTM may be the same zeros.
    """
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[2,1,3] x) => (float[2,1,1,4] y) '
        "{ y = LSTM<hidden_size = 4, clip = 9.0>(x, w, r, b, , h, c) }"
    )
    random = np.random.default_rng(0)
    states = {name: np.zeros((1, 1, 4)) for name in "hc"}
    weights = {"w": random.normal(size=(1, 16, 3)), "r": random.normal(size=(1, 16, 4)), "b": random.normal(size=(1, 32))} | states
    model.graph.initializer.extend(numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items())
    program = plain_program(importer.load(model).graph, CostModel(Database.in_memory(), "", DeviceSpeed()), seed=0)
    (kernel,) = [kernel for kernel in program.kernels if kernel.fragment.op == "Opaque"]
    assert len(kernel.inputs) == 5 and len(kernel.fragment.inputs) == 6
    feeds = {"x": random.normal(size=(2, 1, 3)).astype(np.float32)}
    for a, b in zip(run(model, feeds), run(exporter.export(program), feeds), strict=True):
        np.testing.assert_array_equal(a, b)


def test_random_operators_are_never_folded_or_merged() -> None:
    """Random operators are not folded or merged, even if their operand is a constant."""
    nodes = [helper.make_node("RandomNormalLike", ["shaped"], [name]) for name in ("a", "b")]
    nodes.append(helper.make_node("Sub", ["a", "b"], ["y"]))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])]
    shaped = [numpy_helper.from_array(np.zeros(2, dtype=np.float32), "shaped")]
    made = helper.make_graph(nodes, "g", [], outputs, shaped)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    graph = importer.load(model).graph
    assert len([node for node in walk(graph.roots) if node.op == "Opaque"]) == 2
    assert np.abs(run(exporter.export(graph), {})[0]).min() > 0


def test_functions_of_the_source_model_survive_when_they_cannot_be_inlined() -> None:
    context = OnnxContext((("", 18), ("local", 1)), (), 10)
    x = leaf("x", (2,))
    assert exporter.export(Graph("g", (x,), (("y", apply("Relu", x)),), {}, context=context)).opset_import[1].domain == "local"


def test_large_constants_lie_apart_from_a_model_that_is_only_opened() -> None:
    """A model that is only opened leaves its large constants outside the file, and the session reads them in place.

    They may have any memory order, and any type that a session accepts. Other constants are stored in the model.
    """
    random = np.random.default_rng(0)
    transposed = random.normal(size=(64, 32)).astype(np.float32).T
    arrays: dict[str, np.ndarray] = {
        "large": transposed, "small": random.normal(size=64).astype(np.float32), "ids": random.integers(0, 32, (1 << 10,)),
        "coarse": random.normal(size=(64, 64)).astype(numpy_dtype("bfloat16")),
    }  # fmt: skip
    nodes, tensors = {}, dict[str, np.ndarray]()
    for name, array in arrays.items():
        nodes[name], tensor = constant(array)
        tensors |= tensor
    x = leaf("x", (4, 32))
    product = apply("Add", apply("MatMul", x, nodes["large"]), nodes["small"])
    rounded = apply("MatMul", product, make("Cast", (nodes["coarse"],), (), TensorType("float32", (64, 64))))
    taken = apply("Gather", nodes["large"], nodes["ids"], axis=0)
    graph = Graph("g", (x,), (("y", rounded), ("z", taken)), tensors)
    model, apart = exporter.parts(graph)
    assert sorted(array.dtype.name for array in apart.values()) == ["float32", "int64"]
    assert len(model) < sum(array.nbytes for array in apart.values())
    feeds = {"x": random.normal(size=(4, 32)).astype(np.float32)}
    for optimise in (True, False):
        session = open_exported(graph, 1, optimise=optimise)
        assert session.constants.keys() == apart.keys(), "the memory that it reads stays as long as it does"
        for ours, expected in zip(session.run(None, feeds), run(exporter.export(graph), feeds), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-6)
