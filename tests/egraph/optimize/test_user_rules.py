"""A user's rules through a whole run: a wrong rule is blamed and excluded, and the artefact can still explain it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from egraph.engine.saturate import Limits
from egraph.errors import RuleError
from egraph.inspect.command import find_rule
from egraph.onnx import importer
from egraph.optimize.blame import wrong_rules
from egraph.optimize.estimated import shipped_rules
from egraph.optimize.options import Options
from egraph.optimize.outcome import Outcome, read_outcome
from egraph.optimize.pipeline import optimize
from egraph.optimize.progress import Progress
from egraph.optimize.repair import Repair
from egraph.rewrite.file import load_rules
from lower.cost.model import CostModel
from tests.support.commands import build_model, module_command

RULES = '''
from egraph.rule import Equation, Tensor, rule
from egraph.rule_operators import relu, tanh

@rule
def tanh_is_relu(x: Tensor) -> Equation:
    """tanh(x) = relu(x)"""
    return tanh(x) == relu(x)

@rule
def relu_of_tanh(x: Tensor) -> Equation:
    """relu(tanh(x)) = tanh(relu(x))"""
    return relu(tanh(x)) == tanh(relu(x))

RULES = (tanh_is_relu, relu_of_tanh)
'''


@pytest.fixture(scope="module")
def retried(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """Return the folder and outcome of a run in which a wrong rule is the cheapest and is believed to be fast."""
    folder = tmp_path_factory.mktemp("retried")
    (folder / "mine.py").write_text(RULES)
    cost_us = CostModel.cost_us
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CostModel, "cost_us", lambda self, one: cost_us(self, one) * (1e6 if "Tanh" in self.key(one)[0] else 1.0))
        patch.setattr("egraph.optimize.trial.winner", lambda preferred, timings, policy: "program 1")
        patch.setattr(Repair, "tested", lambda self, entry: None)  # otherwise the wrong program would not be timed
        options = Options(
            build_model(folder / "m.onnx"), folder / "out", budget_seconds=40.0, finalists=1, database=folder / "p.sqlite",
            verbosity=-1, rule_files=(folder / "mine.py",), unsafe_rules=True,
        )  # fmt: skip
        outcome = optimize(options, Progress(-1, 40.0))
    (folder / "mine.py").unlink()
    return folder, outcome


def test_a_wrong_rule_is_found_and_left_out(retried: tuple[Path, Outcome]) -> None:
    _, outcome = retried
    assert outcome.status == "faster" and 0 <= outcome.max_rel_err < 1e-5
    assert len(outcome.check_notes) == 1 and "tanh_is_relu" in outcome.check_notes[0] and "given up" in outcome.check_notes[0]
    assert "merge" not in outcome.check_notes[0]  # rules that were applied further up are not blamed
    assert "tanh_is_relu" not in {rule.name for rule in outcome.rules}
    assert any("Tanh" in row.fragment for row in outcome.kernels)


def inspect(folder: Path, rule: str, *more: object) -> subprocess.CompletedProcess[str]:
    return module_command("egraph.inspect", folder / "out/m.einsat", "--why-not", rule, "--model", folder / "m.onnx", *more)


def test_the_artefact_explains_its_own_rules(retried: tuple[Path, Outcome]) -> None:
    """The artefact has kept the rule file, which is removed."""
    folder, _ = retried
    assert [path.name for path in (folder / "out/m.einsat/rules").iterdir()] == ["0_mine.py"]
    told = inspect(folder, "relu_of_tanh", "--at", "relu")
    assert "operand 0 of Relu must be Tanh, it is MatMul" in told.stdout, told.stderr
    assert "it applies here" in inspect(folder, "tanh_is_relu", "--at", "tanh").stdout


def test_unknown_rules_and_unreadable_files_are_said(retried: tuple[Path, Outcome]) -> None:
    folder, _ = retried
    artefact = folder / "out/m.einsat"
    outcome = read_outcome(artefact)
    with pytest.raises(RuleError, match="--rules FILE"):
        find_rule(outcome, artefact, "no_such_rule", ())
    assert find_rule(outcome, artefact, "relu_twice", ()).name == "relu_twice"
    (artefact / "rules/1_other.py").write_text("import a_module_that_is_elsewhere\n")
    with pytest.raises(RuleError, match=r"no tuple RULES(.|\n)*--rules FILE"):
        find_rule(outcome, artefact, "no_such_rule", ())


def test_every_shipped_rule_is_right_where_a_model_uses_it(tmp_path: Path) -> None:
    graph = importer.load(build_model(tmp_path / "m.onnx")).graph
    (tmp_path / "mine.py").write_text(RULES)
    limits = Limits(e_nodes=500, iterations=3)
    assert wrong_rules(graph, shipped_rules(), limits, seed=0) == {}
    found = wrong_rules(graph, (*shipped_rules(), *load_rules(tmp_path / "mine.py")), limits, seed=0)
    assert list(found) == ["tanh_is_relu"] and "elements are wrong" in found["tanh_is_relu"]
