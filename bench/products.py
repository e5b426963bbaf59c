"""Compute how long a model's products take at the machine's rate for large products: a limit for engines that multiply directly.

Products are matrix products, convolutions and recurrences; fast algorithms (Winograd, Strassen) need fewer multiplications than are
counted here and can be faster than the limit.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from egraph.onnx.importer import load
from egraph.optimize.check_noise import open_onnxruntime
from egraph.tensor import walk
from egraph.tensor.ops import OPS
from lower.roofline import node_flops

PRODUCTS = frozenset({"contraction", "recurrence"})
LARGE = 1024
"""Rows, columns and depth of the product whose rate is measured."""
RUNS = 30


def product_flops(model: Path, sizes: Mapping[str, tuple[int, ...]]) -> float:
    """Return the multiplications and additions of a model's products as written; four of bytes count as one."""
    nodes = walk(node for _, node in load(model, shapes=sizes).graph.outputs)
    return math.fsum(node_flops(node) for node in nodes if node.op in OPS and OPS[node.op].category in PRODUCTS)


@lru_cache(maxsize=1)
def _large_product() -> bytes:
    weight = np.random.default_rng(0).standard_normal((LARGE, LARGE), np.float32)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (LARGE, LARGE)) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", [x], [y], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def large_product_gigaflops_s(threads: int, folder: Path) -> float:
    """Measure the rate of a large product of 32-bit floats in onnxruntime, by the median of its runs."""
    path = folder / "large_product.onnx"
    onnx.save(onnx.load_from_string(_large_product()), path)
    session = open_onnxruntime(path, threads)
    x = np.random.default_rng(1).standard_normal((LARGE, LARGE), np.float32)
    times_s = []
    for _ in range(RUNS):
        started = time.perf_counter()
        session.run(None, {"x": x})
        times_s.append(time.perf_counter() - started)
    return 2 * LARGE**3 / statistics.median(times_s) / 1e9
