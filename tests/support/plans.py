"""Small hand-written plans and models for tests of the runtime: as text if all sizes are known, otherwise in parts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from lower.plan_text import parse_plan
from lower.views import row_major
from runtime.executable import Executable
from runtime.plan import Buffer, Plan, Port, Step

SAFETENSORS = {"float32": "F32", "int64": "I64", "float16": "F16"}
RANDOM = np.random.default_rng(3)
RELU = {"primitive": "eltwise", "arguments": {"src": 0}, "algorithm": "relu"}
MATMUL_RELU = """plan arena_bytes=80 {
  %0 = input 'x' : float32[4,6]
  %1 = weight 'w' : float32[6,5]
  %2 = arena : float32[4,5]
  %3 = output 'y' : float32[4,5]
  onednn 'multiply' (%0, %1) -> (%2) {"primitive": "matmul", "arguments": {"src": 0, "weights": 1}, "packed": ["weights"]}
  onednn 'activate' (%2) -> (%3) {"primitive": "eltwise", "arguments": {"src": 0}, "algorithm": "relu"}
  input 'x' : float32[4,6] = %0
  output 'y' : float32[4,5] = %3
}"""


def draw(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def matmul_relu(rows: int = 4) -> tuple[Plan, dict[str, np.ndarray]]:
    """y = relu(x w), with x w in the arena."""
    text = MATMUL_RELU.replace("[4,", f"[{rows},").replace("=80", f"={20 * rows}")
    return parse_plan(text), {"w": draw(6, 5)}


def model(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(proto.SerializeToString())


def opaque(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], input_names: list[str], output_names: list[str]) -> Step:
    return Step(
        "onnxruntime", name, inputs, outputs, {"model": f"opaque/{name}.onnx", "input_names": input_names, "output_names": output_names}
    )


def buffer(
    shape: Sequence[int], area: Any, key: str = "", *, strides: Sequence[int] | None = None, dtype: str = "float32", offset: int = 0
) -> Buffer:
    return Buffer(dtype, tuple(shape), tuple(strides) if strides is not None else row_major(shape), area, key, offset)


def transposed(shape: Sequence[int], perm: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape and strides of a row-major tensor's transpose."""
    strides = row_major(shape)
    return tuple(shape[axis] for axis in perm), tuple(strides[axis] for axis in perm)


def plan(buffers: Sequence[Buffer], steps: Sequence[Step], inputs: Sequence[Port], outputs: Sequence[Port]) -> Plan:
    """Return a plan with an arena that holds every arena buffer."""
    ends = [4 * (b.offset + sum((n - 1) * s for n, s in zip(b.shape, b.strides, strict=True)) + 1) for b in buffers if b.area == "arena"]
    return Plan(tuple(buffers), tuple(steps), tuple(inputs), tuple(outputs), arena_bytes=max([0, *ends]))


def one_step(
    spec: Mapping[str, Any], operands: Sequence[np.ndarray | tuple[np.ndarray, Buffer]], output: Buffer, *, weights: Sequence[int] = ()
) -> tuple[Plan, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return (plan, weights, feeds) of one onednn step; ``weights`` lists the constant operands."""
    buffers: list[Buffer] = []
    constants: dict[str, np.ndarray] = {}
    feeds: dict[str, np.ndarray] = {}
    for index, operand in enumerate(operands):
        array, window = operand if isinstance(operand, tuple) else (operand, None)
        area, key = ("weight" if index in weights else "input"), f"t{index}"
        shape, strides = (window.shape, window.strides) if window else (array.shape, None)
        buffers.append(buffer(shape, area, key, strides=strides, offset=window.offset if window else 0))
        (constants if index in weights else feeds)[key] = array
    ports = [Port(f"t{i}", "float32", buffers[i].shape, i) for i in range(len(operands)) if i not in weights]
    buffers.append(output)
    step = Step("onednn", "step", tuple(range(len(operands))), (len(operands),), dict(spec))
    result = Port("y", "float32", output.shape, len(operands))
    return plan(buffers, [step], ports, [result]), constants, feeds


def run(spec: Mapping[str, Any], operands: Sequence[Any], output: Buffer, *, weights: Sequence[int] = (), threads: int = 1) -> np.ndarray:
    """Run one onednn step."""
    made, constants, feeds = one_step(spec, operands, output, weights=weights)
    executable = Executable(made, constants, threads=threads)
    try:
        result: np.ndarray = executable.run(feeds)["y"]
        return result
    finally:
        executable.close()


def save(folder: Path, made: Plan, weights: Mapping[str, np.ndarray], models: Mapping[str, bytes] | None = None) -> Path:
    """Write an artefact folder by hand."""
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(made.to_json())
    header, data = {}, b""
    for name, array in weights.items():
        header[name] = {
            "dtype": SAFETENSORS[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    text = json.dumps(header).encode()
    (folder / "weights.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    for name, model in (models or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(model)
    return folder
