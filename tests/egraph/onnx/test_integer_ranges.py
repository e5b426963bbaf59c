"""Ranges of integer inputs, derived from models as exporters write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from egraph.onnx import importer
from egraph.onnx.integer_ranges import integer_ranges
from egraph.optimize.check import find_feeds
from egraph.optimize.check_noise import open_onnxruntime


def load(nodes: Sequence[Any], constants: dict[str, Any], dtype: int = TensorProto.INT64) -> importer.ImportResult:
    """Return the model of these nodes from the integers ``i`` [2, 6] to ``y``, which may have any type."""
    graph = helper.make_graph(
        nodes, "m", [helper.make_tensor_value_info("i", dtype, [2, 6])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return importer.load(onnx.shape_inference.infer_shapes(model))


def interval(nodes: Sequence[Any], constants: dict[str, Any], dtype: int = TensorProto.INT64) -> tuple[int, int] | None:
    graph = load(nodes, constants, dtype).graph
    return integer_ranges(graph.roots, graph.tensors).get(graph.inputs[0])


TABLE = {"t": np.zeros((9, 3), np.float32)}
N = helper.make_node
ONE_HOT = N("OneHot", ["c", "depth", "v"], ["y"])
VALUES = {"depth": np.int64(257), "v": np.array([0, 1], np.float32)}


@pytest.mark.parametrize(
    ("nodes", "constants", "dtype", "expected"),
    [
        ([N("Gather", ["t", "i"], ["y"])], TABLE, TensorProto.INT64, (0, 8)),
        ([N("Gather", ["t", "i"], ["y"], axis=1)], TABLE, TensorProto.INT32, (0, 2)),
        ([N("Cast", ["i"], ["c"], to=TensorProto.INT64), ONE_HOT], VALUES, TensorProto.INT32, (0, 256)),
        ([N("Cast", ["i"], ["c"], to=TensorProto.INT64), ONE_HOT], VALUES, TensorProto.UINT8, (0, 255)),
        (
            [N("Reshape", ["i", "s"], ["r"]), N("Add", ["r", "k"], ["a"]), N("Gather", ["t", "a"], ["y"])],
            TABLE | {"s": np.array([12]), "k": np.int64(2)}, TensorProto.INT64, (-2, 6),
        ),
        ([N("Sub", ["i", "k"], ["a"]), N("Gather", ["t", "a"], ["y"])], TABLE | {"k": np.int64(3)}, TensorProto.INT64, (3, 11)),
        ([N("Mul", ["i", "k"], ["a"]), N("Gather", ["t", "a"], ["y"])], TABLE | {"k": np.int64(3)}, TensorProto.INT64, (0, 2)),
        ([N("Div", ["i", "k"], ["a"]), N("Gather", ["t", "a"], ["y"])], TABLE | {"k": np.int64(4)}, TensorProto.INT64, (0, 32)),
        (  # exporters turn indices from the end into usual ones like this
            [
                N("Less", ["i", "z"], ["c"]), N("Add", ["i", "n"], ["a"]), N("Where", ["c", "a", "i"], ["w"]),
                N("Gather", ["t", "w"], ["y"]),
            ],
            TABLE | {"z": np.int64(0), "n": np.int64(9)}, TensorProto.INT64, (0, 8),
        ),
        ([N("Equal", ["i", "k"], ["y"])], {"k": np.int64(5)}, TensorProto.INT64, (4, 6)),
        ([N("Equal", ["i", "k"], ["y"])], {"k": np.arange(6)}, TensorProto.INT64, (0, 5)),
        ([N("Greater", ["i", "k"], ["y"])], {"k": np.int64(0)}, TensorProto.INT64, (0, 1)),
        (
            [N("Cast", ["i"], ["c"], to=TensorProto.FLOAT), N("Div", ["c", "k"], ["y"])],
            {"k": np.float32(255)}, TensorProto.INT32, (0, 255),
        ),
        ([N("Cast", ["i"], ["y"], to=TensorProto.FLOAT)], {}, TensorProto.UINT8, (0, 255)),
        ([N("Cast", ["i"], ["y"], to=TensorProto.FLOAT)], {}, TensorProto.INT8, (-128, 127)),
        ([N("Cast", ["i"], ["y"], to=TensorProto.FLOAT)], {}, TensorProto.INT64, None),
        (  # rows of one index address only the first axis, which limits the range that the comparison prefers
            [
                N("Less", ["i", "k"], ["c"]), N("Unsqueeze", ["i", "e"], ["r"]), N("Expand", ["c", "s"], ["x"]),
                N("ScatterND", ["t", "r", "x"], ["y"]),
            ],
            {"k": np.int64(16), "e": np.array([2]), "t": np.zeros((16, 2), bool), "s": np.array([2, 6])}, TensorProto.INT64, (0, 15),
        ),
        ([N("GatherND", ["t", "i"], ["y"])], {"t": np.zeros((9, 8, 7, 6, 5, 4, 3))}, TensorProto.INT64, (0, 3)),
        ([N("Mod", ["k", "i"], ["y"])], {"k": np.int64(3)}, TensorProto.INT64, (1, 8)),
        ([N("Div", ["k", "i"], ["y"])], {"k": np.arange(6, dtype=np.int32)}, TensorProto.INT32, (1, 8)),
        (  # a comparison shows which divisors matter
            [N("Div", ["k", "i"], ["q"]), N("Less", ["i", "l"], ["c"]), N("Where", ["c", "q", "i"], ["y"])],
            {"k": np.int64(7), "l": np.int64(20)}, TensorProto.INT64, (1, 21),
        ),
        (  # and none is 0, whatever the comparison's constant
            [N("Div", ["k", "i"], ["q"]), N("Less", ["i", "l"], ["c"]), N("Where", ["c", "q", "i"], ["y"])],
            {"k": np.int64(7), "l": np.int64(-5)}, TensorProto.INT64, (1, 8),
        ),
        (  # the smaller table limits the range
            [N("Gather", ["t", "i"], ["a"]), N("Gather", ["u", "i"], ["b"]), N("Add", ["a", "b"], ["y"])],
            TABLE | {"u": np.zeros((4, 3), np.float32)}, TensorProto.INT64, (0, 3),
        ),
    ],
)  # fmt: skip
def test_ranges_are_read_off_the_graph(
    nodes: Sequence[Any], constants: dict[str, Any], dtype: int, expected: tuple[int, int] | None
) -> None:
    assert interval(nodes, constants, dtype) == expected


def test_bytes_are_drawn_over_the_whole_depth() -> None:
    nodes = [N("Cast", ["i"], ["c"], to=TensorProto.INT64), ONE_HOT]
    imported = load(nodes, VALUES, TensorProto.INT32)
    graph = helper.make_graph(
        nodes, "m", [helper.make_tensor_value_info("i", TensorProto.INT32, [2, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 6, 257])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in VALUES.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = open_onnxruntime(model.SerializeToString(), 1)
    ran: list[np.ndarray] = []
    (spec,) = find_feeds(session, imported.graph, 0, lambda feeds, outputs: ran.append(feeds["i"]))
    assert (spec.low, spec.bound) == (0, 257) and ran[0].max() > 100 and ran[0].min() >= 0
