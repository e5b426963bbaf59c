"""The search finds what makes an optimised model wrong: a user's rule, two wrong rules at once, or a kernel."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from egraph.onnx import importer
from egraph.optimize.estimated import shipped_rules
from egraph.rule import Equation, Rule, Tensor, rule
from egraph.rule_operators import relu, tanh
from lower.calls import epilogue
from lower.cost.model import CostModel
from tests.support.commands import build_model
from verify.bisect.__main__ import main
from verify.bisect.search import AnyRule, Settings, bisect, first_wrong, programs

RULES = '''from egraph.rule import Equation, Tensor, rule
from egraph.rule_operators import relu


@rule
def relu_idle(x: Tensor) -> Equation:
    """relu(x) = relu(relu(x))"""
    return relu(x) == relu(relu(x))


@rule
def relu_before_product(x: Tensor, y: Tensor) -> Equation:
    """relu(x y) = relu(x) y"""
    return relu(x @ y) == relu(x) @ y


RULES = (relu_idle, relu_before_product)
'''


@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_what_estimates_do_not_choose_is_compared(tmp_path: Path, seed: int) -> None:
    """A program made with the false rule is among those compared, for every seed."""
    graph = importer.load(build_model(tmp_path / "m.onnx")).graph
    compared = programs(graph, (*shipped_rules(), relu_first), Settings(seed=seed))
    assert any("relu_first" in kernel.rules for program in compared for kernel in program.kernels)


def test_a_wrong_rule_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, rules = build_model(tmp_path / "m.onnx"), tmp_path / "mine.py"
    rules.write_text(RULES)
    assert main([str(model), "--rules", str(rules), "--unsafe-rules", "--json", "-q"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["rules"] == ["relu_before_product"] and report["error"] > 0.1 and "relu" in report["source_nodes"]
    assert main([str(model), "--rules", str(rules), "--unsafe-rules", "--skip-rule", "relu_before_product", "-q"]) == 0
    assert "nothing to find" in capsys.readouterr().out
    assert main([str(model), "--rules", str(rules), "-q"]) == 2, "without --unsafe-rules a wrong rule does not even load"


def test_a_model_of_dynamic_sizes_is_searched_at_given_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, rules = build_model(tmp_path / "m.onnx", dynamic=True), tmp_path / "mine.py"
    rules.write_text(RULES)
    assert main([str(model), "--rules", str(rules), "--unsafe-rules", "--shape", "x:5,12", "-q"]) == 1
    assert "to blame: relu_before_product" in capsys.readouterr().out


@rule
def relu_first(x: Tensor, y: Tensor) -> Equation:
    """relu(x y) = relu(x) y"""
    return relu(x @ y) == relu(x) @ y


@rule
def tanh_first(x: Tensor, y: Tensor) -> Equation:
    """tanh(x y) = tanh(x) y"""
    return tanh(x @ y) == tanh(x) @ y


def search(folder: Path, rules: tuple[AnyRule, ...]) -> tuple[str, ...]:
    graph = importer.load(build_model(folder / "m.onnx")).graph
    feeds = {"x": np.random.default_rng(0).standard_normal((5, 12)).astype(np.float32)}
    arrays = {node: graph.tensors[node.string("digest")] for node in graph.names if node.op == "Constant"}
    u, v = (next(array for array in arrays.values() if array.shape[1] == width) for width in (7, 11))
    expected = {"y": np.concatenate([np.maximum(feeds["x"] @ u, 0), np.tanh(feeds["x"] @ v)], axis=1)}
    settings = Settings(programs=8)
    assert first_wrong(graph, shipped_rules()[:20], feeds, expected, settings) is None
    return bisect(graph, rules, feeds, expected, settings, lambda text: None).rules


def test_two_wrong_rules_are_both_to_blame(tmp_path: Path) -> None:
    """Each rule alone makes a program wrong, so that leaving out only one does not help."""
    assert set(search(tmp_path, (relu_first, tanh_first))) == {"relu_first", "tanh_first"}


@rule
def relu_of_product_is_nothing(x: Tensor, y: Tensor) -> Equation:
    """relu(x y) = x y"""
    return relu(x @ y) == x @ y


def test_a_wrong_rule_that_makes_no_node_is_found(tmp_path: Path) -> None:
    """Both sides of the rule are values of the model, so that no kernel names the rule."""
    assert search(tmp_path, (*shipped_rules()[:20], relu_of_product_is_nothing)) == ("relu_of_product_is_nothing",)


def test_one_wrong_rule_among_right_ones(tmp_path: Path) -> None:
    assert search(tmp_path, (*(shipped for shipped in shipped_rules()[:10] if isinstance(shipped, Rule)), tanh_first)) == ("tanh_first",)


def test_a_wrong_kernel_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cost_us = CostModel.cost_us
    monkeypatch.setattr(
        CostModel, "cost_us", lambda self, each: cost_us(self, each) / (1e6 if self.key(each)[0].startswith("Relu(MatMul") else 1)
    )
    monkeypatch.setitem(epilogue.ELTWISE, "Relu", lambda a: ("linear", 1.0, 0.25))
    assert main([str(build_model(tmp_path / "m.onnx")), "-q"]) == 1
    output = capsys.readouterr().out
    assert "to blame: kernel onednn.matmul" in output and "relu" in output
