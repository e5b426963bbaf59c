"""A user's rules that hold in part: they are corrected at every match and proved as a whole, or refused if that fails."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime
import pytest

from egraph.engine.saturate import Limits, saturate
from egraph.errors import RuleError
from egraph.inspect.command import kernels_table
from egraph.onnx import importer
from egraph.optimize.admission import admitted, notes
from egraph.optimize.gate import Correction
from egraph.optimize.options import Options
from egraph.optimize.outcome import Outcome, read_outcome
from egraph.optimize.pipeline import optimize
from egraph.optimize.progress import Progress
from egraph.optimize.stitched import picture
from egraph.rewrite.file import load_rules
from egraph.rule import Rule
from egraph.tensor import Node
from egraph.tensor.expr.scope import Scope
from lower.cost.model import CostModel
from runtime import Session
from tests.support.commands import first_program, module_command
from tests.support.fragments import conv, leaf, reshape
from tests.support.partial_rules import rule_file
from verify.corrected import corrected, prove_corrected
from verify.disagreement import Disagreement, disagreement
from verify.prove import Effort

NOTHING_TO_KEEP = '''
@rule
def nothing_to_keep(x: Tensor) -> Steps:
    """tanh(x) = relu(x)"""
    yield tanh(x)
    yield relu(x)
'''
RULES = rule_file(NOTHING_TO_KEEP, corrected=True)

MODEL = """
    <ir_version: 9, opset_import: ["" : 20]>
    images (float[4, 1, 6, 8] x) => (float[4, 1, 6, 8] y)
    <float[1, 1, 3, 3] w = {-4, -3, -2, -1, 0, 1, 2, 3, 4}> {
        c = Conv <pads = [1, 1, 1, 1]> (x, w)
        y = Tanh(c)
    }"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(RULES, encoding="utf-8")
    return path


def named(path: Path, name: str) -> Rule:
    (found,) = [each for each in load_rules(path) if each.name == name]
    assert isinstance(found, Rule)
    return found


def of_pairs() -> tuple[Node, Node]:
    x, w = leaf(0, 4, 1, 6, 8), leaf(1, 1, 1, 3, 3, constant=True)
    tall = conv(reshape(x, 2, 1, 12, 8), w, (1, 1, 1, 1), layout="NCHW")
    return conv(x, w, (1, 1, 1, 1), layout="NCHW"), reshape(tall, 4, 1, 6, 8)


def test_a_corrected_rule_is_proved_application_by_application(mine: Path) -> None:
    for name in ("edges_are_zeros", "under_each_other"):
        proof = prove_corrected(named(mine, name), Effort(tests=8))
        assert proof.verdict == "proved for these sizes" and "corrected where its sides differ" in proof.scope
        assert proof.where.startswith("equal except where")


def test_the_command_tells_the_boxes_of_a_corrected_rule_whenever_it_is_asked(mine: Path) -> None:
    """The boxes are also printed the second time, when the verdict comes from a certificate."""
    for _ in range(2):
        done = module_command("verify", mine, "--rule", "edges_are_zeros", "--jsonl", "--cases", 8)
        told = json.loads(done.stdout)
        assert done.returncode == 0 and told["verdict"] == "proved for these sizes", done.stderr
        assert told["where"].startswith("equal except where axis 0 < p.before[0]") and told["boxes"][0]["sizes"] == "all"


def test_a_rule_that_differs_everywhere_is_not_corrected(mine: Path) -> None:
    proof = prove_corrected(named(mine, "nothing_to_keep"), Effort(tests=8))
    assert not proof.is_proved and proof.counterexample is not None
    assert proof.reason == "it cannot be corrected: the sides differ everywhere: there is nothing of the right side to keep"


def test_a_rule_that_holds_everywhere_is_proved_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "true.py").write_text(
        "from egraph.rule import Equation, Tensor, rule\nfrom egraph.rule_operators import relu\n@rule(corrected=True)\n"
        'def twice(x: Tensor) -> Equation:\n    """relu(relu(x)) = relu(x)"""\n    return relu(relu(x)) == relu(x)\nRULES = (twice,)\n'
    )
    assert prove_corrected(named(tmp_path / "true.py", "twice")).verdict == "proved"


def test_a_corrected_rule_is_never_exact(tmp_path: Path) -> None:
    (tmp_path / "exact.py").write_text(RULES.replace("corrected=True", 'corrected=True, rounding="exact"'))
    with pytest.raises(RuleError, match="a corrected rule is not exact"):
        load_rules(tmp_path / "exact.py")
    assert named(_written(tmp_path), "edges_are_zeros").rounding == "reassociates"


def _written(folder: Path) -> Path:
    (folder / "mine.py").write_text(RULES, encoding="utf-8")
    return folder / "mine.py"


def test_whatever_is_joined_is_proved_and_the_uncorrected_side_never_is(mine: Path) -> None:
    """Only the gate decides: without it, a rule that holds in part applies nowhere."""
    graph = importer.load(onnx.parser.parse_model(MODEL)).graph
    bare = named(mine, "under_each_other")
    (gated,) = admitted([bare], where={bare.name: mine})
    assert isinstance(gated, Rule) and isinstance(gated.corrects, Correction)
    (bare_statistics,) = saturate(graph, [bare], Limits()).statistics
    assert not bare_statistics.unions and bare_statistics.refusals[0].reason.startswith("it holds in part")
    (statistics,) = saturate(graph, [gated], Limits()).statistics
    assert statistics.unions == 2  # a choice, and a concatenation
    told = "\n".join(notes([gated]))
    assert "under_each_other is corrected, and proved as a whole: Conv" in told
    assert "equal except where n in {0, 2}, h = 5 or n in {1, 3}, h = 0" in told and "compared on random operands" in told


def test_a_false_correction_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If boxes do not cover the whole difference, as after a defect in the code that finds them, the proof of the whole fails."""
    assert corrected(*of_pairs(), {}, "reassociates").programs

    def partly(left: Scope, right: Scope) -> Disagreement:
        found = disagreement(left, right)
        assert found is not None
        return replace(found, boxes=found.boxes[1:])

    monkeypatch.setattr("verify.corrected.disagreement", partly)
    result = corrected(*of_pairs(), {}, "reassociates")
    assert not result.programs and result.reason.startswith("corrected, it could not be proved: ")


def is_single(fragment: str) -> bool:
    """Return whether a kernel convolves the four images one by one."""
    return re.search(r"Conv\{[^}]*\}\([%$]0:float32\[4,", fragment) is not None


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Outcome]]:
    """Yield the folder and outcome of a run in which convolutions of single images are estimated to be slow."""
    folder = tmp_path_factory.mktemp("corrected")
    onnx.save(onnx.parser.parse_model(MODEL), folder / "m.onnx")
    mine = _written(folder)
    cost_us = CostModel.cost_us
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CostModel, "cost_us", lambda self, one: cost_us(self, one) * (1e6 if is_single(self.key(one)[0]) else 1.0))
        patch.setattr("egraph.optimize.trial.winner", first_program)
        options = Options(
            folder / "m.onnx", folder / "out", budget_seconds=120.0, finalists=1, database=folder / "p.sqlite", verbosity=-1,
            rule_files=(mine,), derivations=False, skip_rules=("nothing_to_keep",),
        )  # fmt: skip
        yield folder, optimize(options, Progress(-1, 120.0))


def test_a_corrected_rule_computes_what_onnxruntime_computes(shipped: tuple[Path, Outcome]) -> None:
    folder, outcome = shipped
    assert "under_each_other" in {rule.name for rule in outcome.rules}, [row.fragment for row in outcome.kernels]
    x = np.random.default_rng(0).standard_normal((4, 1, 6, 8)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(str(folder / "m.onnx"), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    (computed,) = Session(str(folder / "out" / "m.einsat")).run(None, {"x": x})
    np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=1e-5)


def test_inspect_and_the_report_draw_what_was_corrected(shipped: tuple[Path, Outcome]) -> None:
    folder, outcome = shipped
    (one,) = outcome.stitched
    told = kernels_table(read_outcome(folder / "out" / "m.einsat"))
    assert told.endswith("\n".join(picture(one))) and "n in {0, 2}, h = 5" in told and "n in {1, 3}, h = 0" in told
    assert all(part.kernel is not None for part in one.parts)
    assert "under_each_other is corrected, and proved as a whole" in told
    (page,) = (folder / "out").rglob("report.html")
    assert '<svg class="stitched"' in page.read_text(encoding="utf-8")
