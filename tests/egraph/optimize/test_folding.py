"""Folding: values that depend only on weights are computed once, a few at a time on each core."""

from __future__ import annotations

import numpy as np
import pytest

from egraph.onnx.types import array_type, tensor_digest
from egraph.optimize import folding
from egraph.optimize.folding import evaluate_constants
from egraph.tensor import Graph, attributes, make
from egraph.tensor.ops import apply


@pytest.mark.parametrize("together_bytes", [1, 10_000, folding.BATCH_BYTES])
def test_each_value_is_that_of_its_own_weights(monkeypatch: pytest.MonkeyPatch, together_bytes: int) -> None:
    monkeypatch.setattr(folding, "BATCH_BYTES", together_bytes)
    random = np.random.default_rng(0)
    arrays = [random.normal(size=(8, 4 * (k + 1))).astype(np.float32) for k in range(40)]
    tensors = {tensor_digest(array): array for array in arrays}
    leaves = [make("Constant", (), attributes(digest=digest), array_type(array)) for digest, array in tensors.items()]
    nodes = [apply("Transpose", apply("Neg", leaf), perm=(1, 0)) for leaf in leaves]
    graph = Graph("g", (), tuple((f"c{k}", node) for k, node in enumerate(nodes)), tensors)
    values = evaluate_constants(graph, nodes)
    assert list(values) == nodes
    for node, array in zip(nodes, arrays, strict=True):
        np.testing.assert_array_equal(values[node], -array.T)


def test_there_may_be_nothing_to_compute() -> None:
    assert evaluate_constants(Graph("g", (), (), {}), []) == {}
