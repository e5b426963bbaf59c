"""Values that are evaluated in parts equal values that are evaluated as a whole, and need little additional memory."""

from __future__ import annotations

import tracemalloc
from random import Random

import numpy as np
import pytest

from egraph.tensor import Node, TensorType, placeholder
from egraph.tensor.ops import OPS, OpSpec, apply
from egraph.tensor.ops.parts import evaluate_in_parts
from egraph.tensor.ops.reference import evaluate
from tests.egraph.tensor.test_ops import NAMED, draw

MB = 1 << 20


def compared(root: Node, leaves: dict[Node, np.ndarray], most_places: int) -> int:
    """Compare both evaluations; return the number of parts."""
    (whole,) = evaluate([root], leaves)
    parts = list(evaluate_in_parts(root, leaves, most_places))
    flat = np.concatenate([part.reshape(-1) for part in parts])
    np.testing.assert_allclose(flat, whole.reshape(-1), rtol=1e-12, atol=1e-12)
    assert all(part.dtype == np.float64 for part in parts)
    return len(parts)


@pytest.mark.parametrize("spec", NAMED, ids=lambda spec: spec.name)
def test_every_operator_has_the_same_value_in_parts(spec: OpSpec) -> None:
    random, generator = Random(spec.name), np.random.default_rng(7)
    most = 0
    for _ in range(12):
        shapes, values = spec.sample(random)
        dtypes = spec.sample_dtypes or ("float32",) * len(shapes)
        types = [TensorType(dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True)]
        node = apply(spec.name, *(placeholder(i, each) for i, each in enumerate(types)), **values)
        leaves = dict(zip(node.inputs, draw(generator, spec.name, types, values), strict=True))
        with np.errstate(all="ignore"):
            most = max(most, compared(node, leaves, 1))
    assert most > 1 or OPS[spec.name].evaluate is not None


def banded(rows: int, width: int = 64, heads: int = 2, band: int = 33) -> tuple[Node, dict[Node, np.ndarray]]:
    """Return weighted sums of rows that are gathered for each row of each head, and values for the leaves."""
    types = [(heads, rows, width), (heads, rows, 1, width), (rows, band)]
    values, query, places = (placeholder(i, TensorType("int64" if i == 2 else "float32", each)) for i, each in enumerate(types))
    gathered = apply("Gather", apply("Relu", values), places, axis=1)  # [heads, rows, band, width]
    scores = apply("Softmax", apply("MatMul", query, apply("Transpose", gathered, perm=(0, 1, 3, 2))), axis=3)
    generator = np.random.default_rng(0)
    leaves: dict[Node, np.ndarray] = {
        values: generator.standard_normal(types[0], dtype=np.float32), query: generator.standard_normal(types[1], dtype=np.float32),
        places: generator.integers(0, rows, types[2]),
    }  # fmt: skip
    return apply("MatMul", scores, gathered), leaves


def test_a_fragment_has_the_same_value_in_parts() -> None:
    root, leaves = banded(20)
    assert compared(root, leaves, 1) == 2
    image, taps = placeholder(0, TensorType("float32", (3, 4, 6, 6))), placeholder(1, TensorType("float32", (5, 4, 3, 3)))
    channels, ones = apply("Softmax", image, axis=1), (1, 1)
    convolved = apply("Conv", channels, taps, pads=(1, 1, 1, 1), strides=ones, dilations=ones, group=1, layout="NCHW")
    flipped = apply("Transpose", apply("Reshape", convolved, shape=(3, 5, 36)), perm=(2, 0, 1))
    generator = np.random.default_rng(0)
    values = {leaf: generator.standard_normal(leaf.type.sizes, dtype=np.float32) for leaf in (image, taps)}
    assert compared(flipped, values, 1) == 36
    assert compared(apply("Transpose", convolved, perm=(1, 0, 2, 3)), values, 200) == 5


@pytest.mark.parametrize("is_flat", [False, True])
def test_what_is_gathered_is_never_there_as_a_whole(is_flat: bool) -> None:
    """A gathered tensor is never held in memory as a whole.

    Each head needs only its own rows, also if the result has the rows of all heads one after another.
    """
    root, leaves = banded(512, heads=16, band=65)
    root = apply("Reshape", root, shape=(16 * 512, 64)) if is_flat else root
    gathered_bytes = 8 * 16 * 512 * 65 * 64
    tracemalloc.start()
    try:
        size = sum(part.size for part in evaluate_in_parts(root, leaves, 1 << 20))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == 16 * 512 * 64 and gathered_bytes > 250 * MB
    assert peak_bytes < gathered_bytes / 3, f"{peak_bytes / MB:.0f} MB"
