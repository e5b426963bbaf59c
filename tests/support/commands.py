"""Run the command line as a user does, on a small model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from egraph.optimize.trial import ORIGINAL
from egraph.policy import RacePolicy
from runtime.measure import Timing
from tests.support.forked import run_forked
from tests.support.paths import ROOT

SAME_PRICES = ("--policy", "prediction.factor=1000")
"""Options that keep times of kernels measured in place out of the database.

They would be stored after a search has chosen, and a repeated run would read them. Kernels are timed in place if a program takes longer
than was predicted, which may happen to any program on a busy machine.
"""


def first_program(preferred: Sequence[str], timings: Mapping[str, Timing], policy: RacePolicy) -> str:
    """Let the first program that has a time win, whatever was measured."""
    return next((name for name in preferred if name != ORIGINAL and timings[name].status == "ok"), ORIGINAL)


def build_model(path: Path, *, dynamic: bool = False, activations: tuple[str, str] = ("Relu", "Tanh")) -> Path:
    """Write two layers that share an input, with sizes that occur nowhere else."""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(random.standard_normal(shape).astype(np.float32) * 0.2, name)

    nodes = [
        helper.make_node("MatMul", ["x", "u"], ["a"], name="left"),
        helper.make_node("MatMul", ["x", "v"], ["b"], name="right"),
        helper.make_node(activations[0], ["a"], ["c"], name="relu"),
        helper.make_node(activations[1], ["b"], ["d"], name="tanh"),
        helper.make_node("Concat", ["c", "d"], ["y"], name="join", axis=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n" if dynamic else 5, 12])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n" if dynamic else 5, 18])
    graph = helper.make_graph(nodes, "two_layers", [x], [y], [weight("u", 12, 7), weight("v", 12, 11)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def command(*arguments: object, is_forked: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m egraph.optimize` with these arguments to its end; a process that is not forked has another hash seed."""
    texts, variables = [*map(str, arguments)], {**os.environ, **environment}
    if is_forked:
        return run_forked(texts, variables, 120)
    return subprocess.run(
        [sys.executable, "-m", "egraph.optimize", *texts],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120, env=variables,
    )  # fmt: skip


def module_command(module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE` with these arguments to its end, as a fork of a process that has imported common modules."""
    script = f"import runpy\nrunpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return run_forked([*map(str, arguments)], os.environ, 120, script)


def files_below(folder: Path) -> dict[str, bytes]:
    """Return the contents of every file below a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def model_of_bytes(folder: Path) -> Path:
    """Save a model that rounds to bytes between products: a value between two steps may go either way, and changes later values."""
    generator = np.random.default_rng(1)
    nodes, tensors, value = [], [], "x"
    for layer in range(8):
        weight = generator.standard_normal((320, 320)).astype(np.float32) / 16
        tensors += [numpy_helper.from_array(weight, f"w{layer}")]
        nodes += [
            helper.make_node("MatMul", [value, f"w{layer}"], [f"m{layer}"]),
            helper.make_node("DynamicQuantizeLinear", [f"m{layer}"], [f"q{layer}", f"s{layer}", f"z{layer}"]),
            helper.make_node("DequantizeLinear", [f"q{layer}", f"s{layer}", f"z{layer}"], [f"d{layer}"]),
        ]
        value = f"d{layer}"
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [256, 320]) for name in ("x", value))
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], tensors), opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, folder / "bytes.onnx")
    return folder / "bytes.onnx"
