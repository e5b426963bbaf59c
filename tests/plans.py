"""Small plans written by hand, for the tests of the runtime."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runtime.executable import Executable
from runtime.plan import Buffer, Plan, Port, Step

SAFETENSORS = {"float32": "F32", "int64": "I64", "float16": "F16"}


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


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
    """Return (plan, weights, feeds) of one onednn step; ``weights`` says which operands are constants."""
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
