"""Plans and models that several tests of the runtime share."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from runtime.plan import Plan, Port, Step
from tests.plans import buffer, plan

RANDOM = np.random.default_rng(3)
RELU = {"primitive": "eltwise", "arguments": {"src": 0}, "algorithm": "relu"}


def draw(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def matmul_relu(rows: int = 4) -> tuple[Plan, dict[str, np.ndarray]]:
    """y = relu(x w), with x w in the arena."""
    buffers = [buffer((rows, 6), "input", "x"), buffer((6, 5), "weight", "w"), buffer((rows, 5), "arena"), buffer((rows, 5), "output", "y")]
    multiply = Step(
        "onednn", "multiply", (0, 1), (2,), {"primitive": "matmul", "arguments": {"src": 0, "weights": 1}, "packed": ["weights"]}
    )
    steps = [multiply, Step("onednn", "activate", (2,), (3,), RELU)]
    made = plan(buffers, steps, [Port("x", "float32", (rows, 6), 0)], [Port("y", "float32", (rows, 5), 3)])
    return made, {"w": draw(6, 5)}


def model(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(proto.SerializeToString())


def opaque(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], input_names: list[str], output_names: list[str]) -> Step:
    return Step(
        "onnxruntime", name, inputs, outputs, {"model": f"opaque/{name}.onnx", "input_names": input_names, "output_names": output_names}
    )
