"""A model above 2 GB, which needs external data, is read by mapping, optimised, saved and run.

    python -m pytest -m slow tests/egraph/onnx/test_large_model.py
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.paths import ROOT

WIDTH, LAYERS = 8192, 9
WEIGHT_BYTES = WIDTH * WIDTH * 4


def write_model(folder: Path) -> Path:
    """Write nine layers ``relu(x @ w)``, with 2.4 GB of different weights in a file beside the model."""
    random = np.random.default_rng(0)
    base = random.standard_normal((WIDTH, WIDTH), dtype=np.float32) * np.float32((2 / WIDTH) ** 0.5)
    weights, nodes, last = [], [], "x"
    with (folder / "large.bin").open("wb") as file:
        for layer in range(LAYERS):
            np.roll(base, 17 * layer).tofile(file)
            weight = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=(WIDTH, WIDTH), data_location=TensorProto.EXTERNAL)
            entries = {"location": "large.bin", "offset": layer * WEIGHT_BYTES, "length": WEIGHT_BYTES}
            weight.external_data.extend(onnx.StringStringEntryProto(key=key, value=str(value)) for key, value in entries.items())
            weights.append(weight)
            product, last_of_layer = f"a{layer}", f"r{layer}"
            nodes.append(helper.make_node("MatMul", [last, f"w{layer}"], [product]))
            nodes.append(helper.make_node("Relu", [product], [last_of_layer]))
            last = last_of_layer
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), folder / "large.onnx")
    return folder / "large.onnx"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_model_above_two_gigabytes_is_optimised(tmp_path: Path) -> None:
    import onnxruntime

    from runtime import Session

    model = write_model(tmp_path)
    assert (tmp_path / "large.bin").stat().st_size > 2**31
    done = subprocess.run(
        [sys.executable, "-m", "egraph.optimize", model, "-o", tmp_path / "out", "--threads", "2", "--budget", "60s", "--finalists", "1",
         "--check", "1", "--database", tmp_path / "p.sqlite", "--json", "-q"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    print(printed, f"peak of the optimizer: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20:.1f} GB")
    x = np.random.default_rng(1).standard_normal((1, WIDTH), dtype=np.float32)
    (want,) = onnxruntime.InferenceSession(model).run(None, {"x": x})
    with Session(tmp_path / "out" / "large.einsat", threads=2) as session:
        np.testing.assert_allclose(session.run(None, {"x": x})[0], want, atol=1e-4 * float(np.abs(want).max()))
    (saved,) = onnxruntime.InferenceSession(tmp_path / "out" / "large.opt.onnx").run(None, {"x": x})
    np.testing.assert_allclose(saved, want, atol=1e-4 * float(np.abs(want).max()))
