"""Test the ONNX backend interface, and on a sample of the ONNX backend test suite that Einsat passes what onnxruntime passes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bench.conformance import ANY_OPSET, Verdict, as_markdown, collect, failure, model_of, run_einsat, run_onnxruntime, summary, warm
from egraph.errors import ModelError
from egraph.onnx import importer
from egraph.optimize import backend, estimated
from egraph.tensor import Graph, Program
from runtime.devices import HOST
from runtime.errors import InvalidArgument
from tests.support.onnx_cases import is_complete, without_large_pools
from tests.support.paths import ROOT


def operators(case: Any) -> frozenset[str]:
    """Return the operators of a case: those of the node test's family, or of the small model."""
    return frozenset(f"{node.domain}:{node.op_type}" for node in model_of(case).graph.node)


def sample() -> list[Any]:
    """Return the first cases of the suite that together contain every operator."""
    seen: set[str] = set()
    chosen = []
    with without_large_pools():
        cases = collect()
    for case in cases:
        if new := operators(case) - seen:
            seen |= new
            chosen.append(case)
    assert all(map(is_complete, chosen))
    return chosen


@pytest.fixture
def one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import each model and search its program only once, although both its kernels and its run need it."""
    load, search = importer.load, estimated.estimated_program
    models: dict[bytes, importer.ImportResult] = {}
    programs: dict[int, Program] = {}

    def load_once(model: onnx.ModelProto) -> importer.ImportResult:
        content = model.SerializeToString()
        if content not in models:
            models[content] = load(model)
        return models[content]

    def search_once(graph: Graph, *, device: str = HOST) -> Program:
        if id(graph) not in programs:
            programs[id(graph)] = search(graph, device=device)
        return programs[id(graph)]

    monkeypatch.setattr(importer, "load", load_once)
    monkeypatch.setattr(estimated, "estimated_program", search_once)


@pytest.fixture
def cases(one_search: None) -> dict[str, Any]:
    found = {case.name: case for case in sample()}
    warm(found.values())
    return found


@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore")
def test_what_onnxruntime_passes_einsat_passes(cases: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample contains every operator of the suite; `make conformance` runs the whole suite."""
    monkeypatch.setenv(ANY_OPSET, "0")
    behind, passed = {}, 0
    for name, case in cases.items():
        own = failure(case, run_einsat)
        passed += not own
        if own and not failure(case, run_onnxruntime):
            behind[name] = own
    assert not behind
    assert passed > 0.6 * len(cases)


def difference_model() -> onnx.ModelProto:
    """Return x - y and its absolute value."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "y", "less", "size")]
    nodes = [helper.make_node("Sub", ["x", "y"], ["less"]), helper.make_node("Abs", ["less"], ["size"])]
    graph = helper.make_graph(nodes, "difference", values[:2], values[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


X, Y = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 2.5, np.float32)


def test_outputs_come_by_position_and_by_name() -> None:
    outputs: Any = backend.run_model(difference_model(), [X, Y])
    np.testing.assert_array_equal(outputs[0], X - Y)
    np.testing.assert_array_equal(outputs.size, np.abs(X - Y))


def test_inputs_come_by_position_or_by_name() -> None:
    prepared = backend.prepare(difference_model())
    np.testing.assert_array_equal(prepared.run({"y": Y, "x": X})[0], X - Y)
    np.testing.assert_array_equal(prepared.run((Y, X))[0], Y - X)


def test_wrong_inputs_are_refused() -> None:
    prepared = backend.prepare(difference_model())
    with pytest.raises(ModelError, match="3 inputs were given, the model has 2"):
        prepared.run([X, Y, Y])
    with pytest.raises(InvalidArgument, match="missing"):
        prepared.run([X])


def test_nodes_run_alone() -> None:
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    np.testing.assert_array_equal(backend.run_node(node, [X, np.float32(3)])[0], np.minimum(X, 3))
    twice = helper.make_node("Add", ["x", "x"], ["y"])
    np.testing.assert_array_equal(backend.run_node(twice, [X, X])[0], 2 * X)
    old = helper.make_node("Softmax", ["x"], ["y"])  # before opset 13: over all axes from the second one
    cube = np.zeros((2, 2, 2), np.float32)
    assert backend.run_node(old, [cube], opset_version=11)[0][0, 0, 0] == pytest.approx(0.25)
    assert backend.run_node(old, [cube])[0][0, 0, 0] == pytest.approx(0.5)
    with pytest.raises(ModelError, match="1 inputs were given, the node has 2"):
        backend.run_node(twice, [X])


def test_only_the_cpu_is_supported() -> None:
    assert backend.supports_device("CPU") and backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA")
    with pytest.raises(ModelError, match="CUDA"):
        backend.prepare(difference_model(), "CUDA")


def test_the_report_names_what_only_onnxruntime_passes() -> None:
    verdicts = [Verdict("good", "", "", 0.1), Verdict("behind", "", "wrong", 0.1), Verdict("ahead", "refused", "", 0.1)]
    found = summary(verdicts, "command")
    assert (found["onnxruntime_passes"], found["einsat_passes"], found["both_pass"]) == (2, 2, 1)
    assert found["only_onnxruntime_passes"] == {"behind": "wrong"}
    assert "- `behind`: wrong" in as_markdown(found) and "| 3 | 2 | 2 | 1 | 1 | 1 |" in as_markdown(found)


CRASHING = """
import os, types, numpy as np, onnx
from bench import conformance

X, Y = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)

def difference_model():
    return onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 20]> g (float[2,3] x, float[2,3] y) => (float[2,3] d, float[2,3] a)'
                                   '{ d = Sub(x, y) a = Abs(d) }')

def case(name, expected):
    return types.SimpleNamespace(name=name, model=difference_model(), data_sets=[([X, Y], expected)], rtol=1e-3, atol=1e-7)

class Deadly:
    name, rtol, atol, model_dir = "deadly", 1e-3, 1e-7, None
    model = difference_model()
    @property
    def data_sets(self):
        os._exit(3)

cases = [case("right", [X - Y, abs(X - Y)]), Deadly(), case("wrong", [X, Y])]
verdicts = {v.name: v for v in conformance.run_all(cases, 1, lambda done: None)}
assert verdicts["deadly"].einsat == "the process died", verdicts
assert (verdicts["right"].einsat, verdicts["right"].onnxruntime) == ("", ""), verdicts
assert "Mismatched" in verdicts["wrong"].einsat and "Mismatched" in verdicts["wrong"].onnxruntime, verdicts
"""


def test_a_case_that_kills_its_process_fails_alone() -> None:
    done = subprocess.run([sys.executable, "-c", CRASHING], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
