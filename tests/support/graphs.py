"""Random ONNX models over the core operators and the composites that the importer takes apart.

``random_model(random, nodes)`` works with ``random.Random(seed)`` and, so that failures shrink, with hypothesis's
``st.randoms()``. Values stay moderate: denominators, logarithms and roots are kept away from their poles, so that a
difference between two programs is a defect and not rounding.
"""

from __future__ import annotations

import math
from random import Random

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.support.graph_build import ELEMENTS, SIZES, Build, Shape, Unsuitable
from tests.support.graph_operators import MAKERS

OPSET = 21
_WEIGHTED = tuple(maker for maker, times in MAKERS for _ in range(times))


def random_model(random: Random, nodes: int = 8) -> onnx.ModelProto:
    """Return a model of about ``nodes`` operators; its outputs are all values that nothing reads, and some others."""
    b = Build(random)
    for _ in range(b.integer(1, 2)):
        b.input(_shape(b))
    for _ in range(nodes):
        _grow(b)
    outputs = [v for v in b.values if v.name not in b.used and not v.constant]
    outputs += [v for v in b.values if v.name in b.used and v not in b.inputs and not v.constant and b.chance(6)]
    outputs = outputs or [b.values[-1]]
    if all(v in b.inputs for v in outputs):
        outputs.append(b.node("Relu", [b.values[0]], b.values[0].shape))
    graph = helper.make_graph(
        b.nodes, "fuzz", [helper.make_tensor_value_info(v.name, TensorProto.FLOAT, v.shape) for v in b.inputs],
        [helper.make_tensor_value_info(v.name, TensorProto.FLOAT, v.shape) for v in outputs], b.weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def _shape(b: Build) -> Shape:
    rank = b.one_of([0, 1, 2, 2, 2, 3, 3, 4, 4, 4, 4, 5])
    shape = [b.one_of(SIZES) for _ in range(rank)]
    while math.prod(shape) > ELEMENTS // 3:
        shape[shape.index(max(shape))] //= 2
    if rank == 4 and b.chance(50):
        shape[1] = b.one_of([4, 6, 8])
    return tuple(shape)


def _grow(b: Build) -> None:
    """Add one operator, usually to a recent value."""
    for _ in range(12):
        position = max(b.integer(0, len(b.values) - 1), b.integer(0, len(b.values) - 1))
        nodes, weights = len(b.nodes), len(b.weights)
        try:
            made = b.one_of(_WEIGHTED)(b, b.values[position])
        except Unsuitable:
            del b.nodes[nodes:], b.weights[weights:]
            continue
        b.values.append(made)
        return


def models(nodes: int = 8) -> st.SearchStrategy[onnx.ModelProto]:
    """Draw random models; hypothesis shrinks the random choices."""
    return st.builds(random_model, st.randoms(use_true_random=False), st.integers(1, nodes))


def random_feeds(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    """Return inputs of moderate size and both signs."""
    generator = np.random.default_rng(seed)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return {name: generator.uniform(-1.5, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}
