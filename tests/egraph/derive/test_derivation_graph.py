"""Derivations in the e-graph: proved programs are added, refused ones are reported, and nothing is derived twice."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from egraph.derive.derivation import Derivation, DerivationRule, Step
from egraph.derive.registry import DERIVATIONS
from egraph.engine.applications import RuleStatistics
from egraph.engine.saturate import Limits, saturate
from egraph.errors import RuleError
from egraph.inspect.command import why, why_text
from egraph.optimize.admission import choose_derivations, choose_rules, list_rules
from egraph.optimize.derivations import Deriver
from egraph.optimize.gate import Gate
from egraph.optimize.outcome import Derived, Offered, Outcome, RuleUse
from egraph.optimize.report import render
from egraph.policy import SaturationPolicy
from egraph.rules import RULES
from egraph.tensor import FrozenEGraph, Graph, Node, TensorType, attributes, format_fragment, make, placeholder, walk
from egraph.tensor.expr.index import Iterator, index
from egraph.tensor.expr.scope import Read, Scope, Tensor
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.text import parse_fragment
from egraph.tolerance import Tolerance
from runtime.profile import Database
from tests.egraph.optimize.test_report import outcome

TYPE = TensorType("float32", (3, 4))


def transposed_text(rows: int, columns: int, *, wrong: bool = False) -> str:
    """Return the expression of a transpose; the wrong one takes a square matrix and transposes nothing."""
    i, j = Iterator("i", 0, columns), Iterator("j", 0, rows)
    places = (index(i), index(j)) if wrong else (index(j), index(i))
    return text_of(Scope.pointwise((i, j), Read(Tensor("0", (rows, columns)), places)))


def derive_transpose(node: Node) -> Iterable[Derivation]:
    (x,) = node.inputs
    rows, columns = x.type.sizes
    yield Derivation("as an expression", apply("Expression", x, text=transposed_text(rows, columns)), (Step("meaning", "x[j,i]"),))
    if rows == columns:
        yield Derivation("not transposed", apply("Expression", x, text=transposed_text(rows, columns, wrong=True)), ())


def count(calls: list[str]) -> DerivationRule:
    def derive(node: Node) -> Iterable[Derivation]:
        calls.append(format_fragment(node))
        return derive_transpose(node)

    return DerivationRule("transposing", ("Transpose",), derive, rounding="exact")


def chain(*sizes: int) -> Graph:
    x = make("Input", (), attributes(name="x"), TensorType("float32", sizes))
    root = apply("Relu", apply("Transpose", apply("Relu", apply("Transpose", x, perm=(1, 0))), perm=(1, 0)))
    return Graph("chain", (x,), (("y", root),), {})


def names(frozen: FrozenEGraph) -> set[str]:
    return {node.rule for nodes in frozen.classes.values() for node in nodes if node.op == "Expression"}


def test_proved_programs_join_the_class_of_the_operator_and_keep_their_name() -> None:
    calls: list[str] = []
    deriver = Deriver((count(calls),))
    result = saturate(chain(3, 4), (), derivations=deriver.open())
    both = [nodes for nodes in result.frozen.classes.values() if {node.op for node in nodes} == {"Transpose", "Expression"}]
    assert len(both) == 2 and names(result.frozen) == {"as an expression"}
    assert len(calls) == 2 and deriver.gate.proved_now == 2
    (told,) = result.statistics
    assert (told.rule, told.matches, told.unions, told.e_nodes, told.refusals) == ("transposing", 2, 2, 2, ())


def test_what_is_not_proved_is_refused_with_its_reason_and_the_nodes_that_it_was_for() -> None:
    deriver = Deriver((count([]),))
    result = saturate(chain(3, 3), (), derivations=deriver.open())
    assert names(result.frozen) == {"as an expression"}
    (refusal,) = result.statistics[0].refusals
    assert refusal.reason.startswith("not transposed: ") and refusal.count == 2
    assert {node.op for node in refusal.nodes} == {"Transpose"}


def test_equal_operators_are_derived_from_once_in_a_run_and_once_for_all_runs(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    calls: list[str] = []
    for _ in range(2):
        database = Database.open(path)
        deriver = Deriver((count(calls),), Gate(database))
        result = saturate(chain(5, 5), (), derivations=deriver.open())
        database.close()
        assert names(result.frozen) == {"as an expression"} and len(result.statistics[0].refusals) == 1
        ((found, refused),) = deriver.judged.values()
        assert found.steps == (Step("meaning", "x[j,i]"),) and not found.reason and refused.reason
    assert len(calls) == 1 and deriver.gate.proved_now == 0


def test_what_was_kept_by_other_sources_or_is_damaged_is_derived_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    database = Database.in_memory()
    saturate(chain(3, 4), (), derivations=Deriver((count(calls),), Gate(database)).open())
    monkeypatch.setattr("egraph.optimize.derivations.sources_key", lambda: "another prover")
    saturate(chain(3, 4), (), derivations=Deriver((count(calls),), Gate(database)).open())
    assert len(calls) == 4
    monkeypatch.setattr("egraph.optimize.derivations.parse_fragment", lambda text: parse_fragment("[]"))
    saturate(chain(3, 4), (), derivations=Deriver((count(calls),), Gate(database)).open())
    assert len(calls) == 6


def test_a_derivation_that_fails_or_computes_another_type_is_refused() -> None:
    def derive(node: Node) -> Iterable[Derivation]:
        yield Derivation("untransposed", node.inputs[0], ())
        raise ValueError("no such size")

    deriver = Deriver((DerivationRule("broken", ("Transpose",), derive),))
    result = saturate(chain(3, 4), (), derivations=deriver.open())
    reasons = sorted(refusal.reason for refusal in result.statistics[0].refusals)
    assert not names(result.frozen) and len(reasons) == 3
    assert "deriving failed: ValueError: no such size" in reasons[0]
    assert all("float32[3,4]" in reason and "float32[4,3]" in reason for reason in reasons[1:])


def test_errors_above_the_tolerance_and_what_failed_a_check_are_left_out() -> None:
    def derive(node: Node) -> Iterable[Derivation]:
        (x,) = node.inputs
        yield Derivation("coarse", apply("Expression", x, text=transposed_text(*x.type.sizes)), (), error_bound=1e-3)

    deriver = Deriver((DerivationRule("coarse", ("Transpose",), derive),), tolerance=Tolerance(1e-4))
    result = saturate(chain(3, 4), (), derivations=deriver.open())
    assert not names(result.frozen) and "above the tolerance" in result.statistics[0].refusals[0].reason
    deriver = Deriver((DerivationRule("coarse", ("Transpose",), derive),), tolerance=Tolerance(1e-2))
    assert names(saturate(chain(3, 4), (), derivations=deriver.open()).frozen) == {"coarse"}
    assert deriver.leave_out(["coarse", "some_rule"], "the check failed") == ("coarse",)
    assert not names(saturate(chain(3, 4), (), derivations=deriver.open()).frozen)
    assert "coarse" in deriver.decisive()


def test_a_class_gets_so_many_programs_and_the_rest_is_refused() -> None:
    text = transposed_text(3, 4)

    def derive(node: Node) -> Iterable[Derivation]:
        (x,) = node.inputs
        for again in range(3):  # further pairs of transposes, which cancel
            for _ in range(2 * again):
                x = apply("Transpose", x, perm=(1, 0))
            yield Derivation("as an expression", apply("Expression", x, text=text), ())

    x = make("Input", (), attributes(name="x"), TensorType("float32", (3, 4)))
    graph = Graph("one", (x,), (("y", apply("Transpose", x, perm=(1, 0))),), {})
    rule = DerivationRule("transposing", ("Transpose",), derive, rounds=0)
    for most, refused in ((2, 1), (3, 0)):
        policy = SaturationPolicy(derived_programs=most)
        (statistics,) = saturate(graph, (), derivations=Deriver((rule,)).open(), policy=policy).statistics
        assert (statistics.matches, statistics.unions) == (1, most)
        reasons = [(refusal.reason, refusal.count) for refusal in statistics.refusals]
        assert reasons == [(f"as an expression: its class has {most} programs already", refused)] * refused


def test_an_operator_that_is_its_own_operand_gets_its_other_programs_all_the_same() -> None:
    def derive(node: Node) -> Iterable[Derivation]:
        (x,) = node.inputs
        yield Derivation("itself", x, ())
        yield Derivation("turned", apply("Transpose", apply("Transpose", x, perm=(1, 0)), perm=(1, 0)), ())

    x = make("Input", (), attributes(name="x"), TensorType("float32", (3, 4)))
    graph = Graph("one", (x,), (("y", apply("Transpose", x, perm=(0, 1))),), {})
    rule = DerivationRule("nothing moves", ("Transpose",), derive, rounds=0)
    result = saturate(graph, (), derivations=Deriver((rule,)).open())
    assert result.statistics[0].unions == 2
    (together,) = [nodes for nodes in result.frozen.classes.values() if any(node.op == "Input" for node in nodes)]
    assert {node.rule for node in together} == {"", "turned"}


def test_budgets_hold_for_derivations_too() -> None:
    calls: list[str] = []
    deriver = Deriver((count(calls),))
    assert saturate(chain(3, 4), (), Limits(iterations=1), derivations=deriver.open()).stop_reason == "saturated"
    assert not calls
    assert saturate(chain(3, 4), (), Limits(e_nodes=7), derivations=deriver.open()).stop_reason == "e-nodes"
    assert len(calls) == 2
    assert saturate(chain(3, 4), (), interrupted=lambda: True, derivations=deriver.open()).stop_reason == "interrupted"


def test_what_time_cut_short_is_neither_used_nor_kept() -> None:
    """A derivation that ran out of time is neither used nor stored, because its extent differs from run to run."""
    x = placeholder(0, TensorType("float32", (3, 3)))
    database, told = Database.in_memory(), iter([False, True, True])
    rule = count([])
    deriver = Deriver((rule,), Gate(database))
    assert deriver.programs(rule, (apply("Transpose", x, perm=(1, 0)),), lambda: next(told)) == ()
    assert len(deriver.programs(rule, (apply("Transpose", x, perm=(1, 0)),))) == 2
    assert len(Deriver((rule,), Gate(database)).programs(rule, (apply("Transpose", x, perm=(1, 0)),))) == 2


def test_proofs_outlive_a_derivation_that_time_cut_short() -> None:
    x = placeholder(0, TensorType("float32", (3, 3)))
    node, database, looks = apply("Transpose", x, perm=(1, 0)), Database.in_memory(), iter([False, True, True])
    rule = count([])
    short = Deriver((rule,), Gate(database))
    assert short.programs(rule, (node,), lambda: next(looks)) == () and short.gate.proved_now == 1
    long = Deriver((rule,), Gate(database))
    whole = long.programs(rule, (node,))
    assert long.gate.proved_now == sum(not one.reason for one in whole) - 1


class SlowClock:
    """A clock that advances by a second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


LAYERS = tuple(rule for rule in RULES if rule.name in ("transpose_twice", "transpose_into_relu", "transpose_out_of_relu"))


@pytest.mark.parametrize("seconds", [2.0, 5.0, 9.0, 14.0, 20.0, 30.0])
def test_a_saturation_that_time_cut_short_is_repeated_exactly(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A saturation that ran out of time is repeated exactly, wherever it stopped.

    This holds although the repetition reads earlier derivations from the database, which takes no time.
    """
    database = Database.in_memory()
    with monkeypatch.context() as patched:
        patched.setattr("egraph.engine.saturate.time", SlowClock())
        cut = saturate(chain(3, 4), LAYERS, Limits(seconds), derivations=Deriver((count([]),), Gate(database)).open())
    assert any(cut.looks)
    for known in (database, Database.in_memory()):
        limits = Limits(float("inf"), looks=cut.looks)
        again = saturate(chain(3, 4), LAYERS, limits, derivations=Deriver((count([]),), Gate(known)).open())
        assert repr(again.frozen.classes) == repr(cut.frozen.classes)
        assert repr(again.by_rules) == repr(cut.by_rules)
        assert (again.looks, again.stop_reason, len(again.iterations)) == (cut.looks, cut.stop_reason, len(cut.iterations))


def test_the_rules_alone_are_the_same_with_and_without_derivations(monkeypatch: pytest.MonkeyPatch) -> None:
    derivations = Deriver((count([]),)).open()
    alone, both = saturate(chain(3, 4), LAYERS), saturate(chain(3, 4), LAYERS, derivations=derivations)
    assert alone.by_rules is None and both.by_rules is not None
    assert repr(both.by_rules.classes) == repr(alone.frozen.classes) != repr(both.frozen.classes)
    monkeypatch.setattr("egraph.engine.saturate.time", SlowClock())
    early = saturate(chain(3, 4), LAYERS, Limits(seconds=6.0))
    monkeypatch.setattr("egraph.engine.saturate.time", SlowClock())
    cut = saturate(chain(3, 4), LAYERS, Limits(seconds=6.0), derivations=derivations)
    assert cut.by_rules is not None and repr(cut.by_rules.classes) == repr(early.frozen.classes)


def test_saturation_with_derivations_is_the_same_each_time() -> None:
    pictures = {
        repr(dict(saturate(chain(6, 6), (), derivations=Deriver((count([]),)).open()).frozen.classes)) for _ in range(2)
    }
    assert len(pictures) == 1


def test_derivation_rules_are_chosen_by_name_and_by_what_they_may_change() -> None:
    known = {rule.name for rule in DERIVATIONS}
    assert {rule.name for rule in choose_derivations([], allow="finite")} == known
    assert not choose_derivations([], allow="finite", enabled=False)
    assert not choose_derivations([], allow="exact")  # all of them change the order of summation
    name = DERIVATIONS[0].name
    assert name not in {rule.name for rule in choose_derivations([name], allow="finite")}
    assert choose_rules([], [name], allow="finite", unsafe=False)
    with pytest.raises(RuleError, match=f"did you mean {name}"):
        choose_rules([], [f"{name}s"], allow="finite", unsafe=False)
    assert f"{name} " in list_rules([])


def convolution(path: Path, channels: int, size: int) -> None:
    """Write the model relu(conv(x) + b) with a 3x3 window."""
    generator = np.random.default_rng(0)
    weight = (generator.standard_normal((channels, channels, 3, 3)) / np.sqrt(9 * channels)).astype(np.float32)
    bias = generator.standard_normal(channels).astype(np.float32)
    tensors = [onnx.numpy_helper.from_array(weight, "w"), onnx.numpy_helper.from_array(bias, "b")]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    shape = [1, channels, size, size]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def test_a_program_by_derivation_is_extracted_folded_exported_run_and_explained(tmp_path: Path) -> None:
    """A derived program passes all steps from a model to its artefact; its cost is lowered so that it is chosen."""
    from egraph.extract import extract, to_program
    from egraph.inspect.derivation import derivation_rule, derivation_text, explain_derivation
    from egraph.onnx import exporter, importer
    from egraph.optimize.check_noise import open_onnxruntime
    from egraph.optimize.estimated import estimate, open_program, shipped_rules
    from egraph.optimize.folding import Folder
    from lower.candidates import candidates

    path = tmp_path / "net.onnx"
    convolution(path, 16, 20)
    graph = importer.load(path).graph
    deriver = Deriver(DERIVATIONS)
    frozen = saturate(graph, shipped_rules(), Limits(), derivations=deriver.open()).frozen
    laid = estimate(candidates(frozen))
    without = {
        number: tuple(one for one in options if one.implementation.text != "onednn.convolution" and not one.fragment.op.startswith("Conv"))
        for number, options in laid.items()
    }
    program = Folder(graph).fold(to_program(frozen, extract(frozen, without, 1, 0.0)[0], graph))
    launched = [kernel for kernel in program.kernels if not kernel.implementation.is_free]
    uses = deriver.uses(launched)
    assert uses and all(use.verdict == "proved for these sizes" for use in uses)
    derived = deriver.derived(launched)
    assert {one.name for one in derived} == {use.name for use in uses}
    assert all(one.steps and one.kernels for one in derived)
    assert all(step in "\n".join(derivation_text(derived[0])) for _, step in derived[0].steps)
    data = np.random.default_rng(1).standard_normal((1, 16, 20, 20)).astype(np.float32)
    wanted = open_onnxruntime(path, 1).run(None, {"x": data})[0]
    model = exporter.export(program)
    onnx.checker.check_model(model, full_check=True)
    constants = [node for node in walk(program.graph.roots) if node.op == "Constant" and len(node.type.sizes) == 3]
    assert constants, "the transformed weights are computed ahead of time"
    assert len(model.graph.initializer) == len({tensor.raw_data for tensor in model.graph.initializer}), "each is stored once"
    for got in (open_onnxruntime(model.SerializeToString(), 1).run(None, {"x": data})[0], open_program(program).run(None, {"x": data})[0]):
        np.testing.assert_allclose(got, wanted, atol=1e-4 * np.abs(wanted).max())
    rule = derivation_rule("winograd")
    assert rule is not None and derivation_rule("winogra") is None
    (node,) = (node for node in walk(graph.roots) if node.op == "Conv")
    told = explain_derivation(rule, "winograd", node, graph, Tolerance())
    assert told["applies"] and "proved equal at these sizes" in told["reason"]
    (relu,) = (node for node in walk(graph.roots) if node.op == "Relu")
    assert not explain_derivation(rule, "winograd", relu, graph, Tolerance())["applies"]
    assert json.dumps(told)


def test_derivations_are_in_the_manifest_the_report_and_what_is_printed() -> None:
    told = (Derived("winograd F(2x2)", "winograd", "Conv{}(%0, $1)", (("bilinear algorithm: V", "{i0<4} $0[i0]"),), (1, 3)),)
    uses = RuleUse("winograd F(2x2)", "proved for these sizes", 2, "a program that winograd derives", "reassociates")
    kept = replace(outcome(), rules=(uses,), derived=told)
    read = Outcome.from_manifest(json.loads(json.dumps(kept.to_manifest())))
    assert read.derived == told
    page = render(read)
    assert "how winograd F(2x2) was derived" in page and "bilinear algorithm: V" in page
    assert kept.to_json()["derivations"] == [{"name": "winograd F(2x2)", "uses": 2, "operators": ["Conv{}(%0, $1)"]}]
    assert "derivations" not in outcome().to_json() and kept.to_json()["predicted_us"] == 900.0
    shown = why_text(why(read, "1"))
    assert "derivation winograd F(2x2) of Conv{}(%0, $1)" in shown and "{i0<4} $0[i0]" in shown
    assert "derivation winograd" not in why_text(why(read, "0"))


def test_programs_that_derivations_joined_are_counted_and_those_of_rules_are_not() -> None:
    deriver = Deriver((count([]),))
    own, other = RuleStatistics(count([]).name, 3, 2, 9, ()), RuleStatistics("some rule", 7, 5, 9, ())
    assert deriver.offered((own, other), is_compared=True) == Offered(2) and not deriver.offered((own,), is_compared=False).is_compared
