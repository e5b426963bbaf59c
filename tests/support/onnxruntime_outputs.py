"""Outputs of onnxruntime for operators over placeholders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime as ort

from egraph.onnx.exporter import export
from egraph.tensor import Graph, Node, attributes, make, placeholders, rewrite


def outputs_of_onnxruntime(region: Sequence[Node]) -> tuple[list[np.ndarray], dict[Node, np.ndarray]]:
    """Return onnxruntime's outputs for a region, and the values of its placeholders."""
    generator = np.random.default_rng(1)
    leaves = {each: generator.standard_normal(each.type.sizes).astype(np.float32) for each in placeholders(*region)}
    inputs = {each: make("Input", (), attributes(name=f"x{k}"), each.type) for k, each in enumerate(leaves)}
    built = rewrite(region, lambda old, new: inputs.get(old) or make(old.op, new, old.attributes, old.type))
    graph = Graph("region", tuple(inputs.values()), tuple((f"y{k}", built[root]) for k, root in enumerate(region)), {})
    session = ort.InferenceSession(export(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {f"x{k}": value for k, value in enumerate(leaves.values())}), leaves
