"""Constants are stored in the order in which generated kernels read them: with equal values, at most twice in an artefact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from egraph.onnx.exporter import serialized
from egraph.optimize.kernels import compile_batch, feed_specs, kernel_program
from egraph.optimize.measuring import write_reference
from egraph.tensor import Node, TensorType, placeholder
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate
from lower.compile import CompileOptions, compile_program, plan_program
from lower.eoperator.request import constant_orders
from lower.targets import lowering
from runtime import Session
from runtime.measure import Effort, Load, Worker, measure

OPTIONS = CompileOptions(threads=1, export_graph=serialized)
RANDOM = np.random.default_rng(3)


def convolution(channels: int, outputs: int, group: int, *, op: str = "Conv", layout: str = "NHWC", stride: int = 1) -> Node:
    shape = (1, 9, 7, channels) if layout == "NHWC" else (1, channels, 9, 7)
    weights = (outputs, channels // group, 3, 2) if op == "Conv" else (channels, outputs // group, 3, 2)
    leaves = placeholder(0, TensorType("float32", shape)), placeholder(1, TensorType("float32", weights), constant=True)
    more: dict[str, Any] = {"output_padding": (0, 0)} if op == "ConvTranspose" else {}
    kernel = apply(op, *leaves, strides=(stride, stride), pads=(1, 0, 1, 1), dilations=(1, 1), group=group, layout=layout, **more)
    return apply("Relu", kernel)


CASES = {
    "each channel": convolution(24, 24, 24),
    "each channel, strides": convolution(40, 40, 40, stride=2),
    "several of each channel": convolution(8, 24, 8),
    "groups": convolution(8, 12, 4),
    "all channels": convolution(3, 20, 1),
    "transposed": convolution(4, 6, 1, op="ConvTranspose", stride=2),
}


@pytest.mark.parametrize("fragment", CASES.values(), ids=CASES)
def test_what_is_stored_otherwise_computes_the_same(fragment: Node, tmp_path: Path) -> None:
    program = kernel_program(fragment, lowering().generated, seed=1)
    (constant,) = (node for node in program.kernels[0].inputs if node.op == "Constant")
    plan, writer = plan_program(program, OPTIONS)
    (weights,) = (buffer for buffer in plan.buffers if buffer.area == "weight")
    order = constant_orders(fragment)[1]
    stored = writer.program.graph.tensors[weights.key]
    assert stored.flags.c_contiguous and np.array_equal(stored, program.graph.tensors[constant.string("digest")].transpose(order))
    outputs = 0 if fragment.inputs[0].op == "Conv" else 1
    assert weights.shape == constant.type.shape and weights.strides[outputs] == 1
    compile_program(program, tmp_path, OPTIONS)
    (feed,) = program.graph.inputs
    x = RANDOM.standard_normal(feed.type.sizes).astype(np.float32)
    with Session(tmp_path, threads=1) as session:
        (result,) = session.run(None, {feed.string("name"): x})
    (expected,) = evaluate(program.graph.roots, {feed: x, constant: program.graph.tensors[constant.string("digest")]})
    np.testing.assert_allclose(result, expected, atol=1e-4)


def test_a_kernel_that_is_measured_is_compared_with_weights_as_they_are_given(tmp_path: Path) -> None:
    program, implementation = kernel_program(CASES["each channel"], lowering().generated, seed=1), lowering().generated
    (folder,) = compile_batch([program], tmp_path, OPTIONS)
    assert isinstance(folder, Path)
    write_reference(program, implementation, folder, OPTIONS)
    with Worker() as worker:
        timing = measure(worker, Load("kernel", str(folder), feed_specs(program), 1), Effort(seconds=0.001))
    assert timing.status == "ok", timing.message


def test_nothing_else_is_stored_otherwise() -> None:
    first = convolution(8, 8, 8, layout="NCHW")
    assert not constant_orders(first)
    library = kernel_program(CASES["all channels"], lowering().implementation("onednn.convolution"), seed=1)
    (constant,) = (node for node in library.kernels[0].inputs if node.op == "Constant")
    plan, _ = plan_program(library, OPTIONS)
    assert [buffer.key for buffer in plan.buffers if buffer.area == "weight"] == [constant.string("digest")]
