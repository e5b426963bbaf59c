"""Enumeration finds rules that are typed as generally as operators allow, proved, and stated once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from egraph.rewrite.file import load_rules
from egraph.rewrite.law import fields_of
from egraph.rule import Rule
from tests.support.paths import ROOT
from verify.certificates import parse
from verify.generate.__main__ import main
from verify.generate.command import certificates_beside, proved
from verify.generate.contexts import contexts
from verify.generate.derivation import derivable, is_instance
from verify.generate.dimensions import Unifier, canonical
from verify.generate.enumeration import World, candidates, lengths_of
from verify.generate.productions import PRODUCTIONS, Production, productions
from verify.generate.run import Settings, generate
from verify.generate.source import compile_rule, draft
from verify.generate.terms import Application, Equation, Term, joint_context, leaves, settled, to_node
from verify.generate.weaken import weakest
from verify.random_testing import check_rule

MATMUL = PRODUCTIONS["matmul"][0]
ADD, RELU, MUL = (PRODUCTIONS[name][0] for name in ("add", "relu", "mul"))
CONCAT = PRODUCTIONS["concat"]


def holds(rule: Rule) -> bool | None:
    """Judge a rule by random tests, which take less time than proofs."""
    return check_rule(rule, cases=12, tries=1000).passed or None


def apply(production: Production, *operands: Term) -> Application:
    return Application(production, operands)


DISTRIBUTES = (apply(ADD, apply(MATMUL, 0, 1), apply(MATMUL, 0, 2)), apply(MATMUL, 0, apply(ADD, 1, 2)))


def test_kernels_of_one_size_are_asked_for_where_enumeration_knows_only_one() -> None:
    """conv(x, y) + conv(z, w) = conv([x z], [y w]) is found with kernels of size 3, but holds for all kernels of equal size."""
    conv, add, joined = PRODUCTIONS["conv"][0], PRODUCTIONS["add"][1], CONCAT[3]
    sides = (apply(add, apply(conv, 0, 1), apply(conv, 2, 3)), apply(conv, apply(joined, 0, 2), apply(joined, 1, 3)))
    context = joint_context(sides, 4)
    assert context is not None
    drafted = draft(Equation(*sides, context), "sum_of_convolutions")
    accepted = weakest(drafted, proved)
    assert accepted is not None, "taso-098 and taso-105"
    conditions = {guard.condition for guard in accepted.guards}
    assert {"w.shape[2] == y.shape[2]", "w.shape[3] == y.shape[3]", "a.group == 1"} <= conditions
    assert not any("3" in condition.replace(".shape[3]", "") for condition in conditions), "any kernel, not three by three"


def test_typing_makes_no_two_extents_equal_that_need_not_be() -> None:
    assert joint_context(DISTRIBUTES, 3) == canonical([(("a",), ("b",)), (("b",), ("c",)), (("b",), ("c",))])
    assert joint_context((apply(MATMUL, 0, apply(MATMUL, 0, 0)),), 1) == canonical([(("a",), ("a",))])
    assert joint_context((apply(CONCAT[0], 0, 1), apply(CONCAT[1], 0, 1)), 2) is None, "a sum of extents equals none of them"


def test_unification_reads_sums_in_order() -> None:
    unifier = Unifier()
    assert unifier.unify(("a", "b"), ("c", "d")) and unifier.resolve(("a",)) == unifier.resolve(("c",))
    assert unifier.unify(("e",), ("a", "b")) and unifier.resolve(("e",)) == unifier.resolve(("c", "d"))
    assert not unifier.unify(("a",), ("a", "b"))
    assert not unifier.unify(("3",), ("1",))


def test_contexts_are_the_most_general_typings() -> None:
    typings = contexts(productions(["matmul", "add"]), 2, 3)
    assert len(typings) == len(set(typings))
    chain = canonical([(("a",), ("b",)), (("b",), ("c",)), (("d",), ("a",))])
    assert any(sorted(context) == sorted(canonical(chain)) or len(context) == 3 for context in typings)
    assert canonical([(("a",), ("b",))]) in typings and canonical([(("a",), ("a",))]) in typings


@pytest.mark.parametrize("names", ["matmul add relu", "conv add concat avgpool", "concat split transpose scale"])
def test_every_enumerated_equation_types_by_the_operators_own_rules(names: str) -> None:
    chosen = productions(names.split())
    every = contexts(chosen, 2, 3)
    count = 0
    for context in every[:25]:
        for equation in candidates(context, chosen, 2, frozenset(every), terms=400)[0]:
            lengths = lengths_of(equation.context, 2)
            inputs = leaves(equation.context, lengths)
            left, right = (to_node(side, equation.context, lengths, inputs) for side in (equation.left, equation.right))
            assert left.type == right.type
            count += 1
    assert count > 3


def test_sizes_differ_within_a_test_and_between_tests() -> None:
    context = canonical([(("a",), ("b",)), (("b",), ("c",))])
    first, second = (World(context, "prime", number) for number in (0, 1))
    assert len(set(first.lengths.values())) == 3
    assert first.lengths != second.lengths
    assert first.values[0].shape == (first.lengths["d0"], first.lengths["d1"])
    assert np.array_equal(World(context, "prime", 0).values[0], first.values[0]), "the same data in every run"


def test_equal_extents_by_chance_prove_nothing() -> None:
    """No false equation is generated: (A B)^T = A^T B^T and A B = B A never hold, relu(x + y) = relu x + relu y only on positive data."""
    transpose = PRODUCTIONS["transpose"][0]
    false = [
        (apply(transpose, apply(MATMUL, 0, 1)), apply(MATMUL, apply(transpose, 0), apply(transpose, 1))),
        (apply(MATMUL, 0, 1), apply(MATMUL, 1, 0)),
        (apply(RELU, apply(ADD, 0, 1)), apply(ADD, apply(RELU, 0), apply(RELU, 1))),
    ]
    generated = generate(Settings(("matmul", "transpose", "add", "relu"), 2, 2), lambda rule: True)
    stated = {str(settled(equation)) for equation, _ in generated.equations}
    for left, right in false:
        context = joint_context((left, right), 2)
        assert context is not None
        assert not {str(settled(Equation(*sides, context))) for sides in ((left, right), (right, left))} & stated
        assert not derivable([Equation(left, right, context)], generated.rules)[0]


def test_guards_are_as_weak_as_the_judge_accepts() -> None:
    context = joint_context(DISTRIBUTES, 3)
    assert context is not None
    written = draft(Equation(*DISTRIBUTES, context), "distributes")
    accepted = weakest(written, holds)
    assert accepted is not None and accepted.guards == () and "x @ (y + z)" in accepted.text
    strict = weakest(written, lambda rule: True if "rank" in fields_of(rule.law) else None)
    assert strict is not None and strict.guards and all(guard.kind == "rank" for guard in strict.guards)
    assert weakest(written, lambda rule: None) is None


def test_a_rule_needs_its_guard() -> None:
    """x z + y w = [x y] [z; w] needs a guard that the contracted extents are equal."""
    left = apply(MATMUL, apply(CONCAT[1], 0, 1), apply(CONCAT[0], 2, 3))
    right = apply(ADD, apply(MATMUL, 0, 2), apply(MATMUL, 1, 3))
    context = joint_context((left, right), 4)
    assert context is not None
    written = draft(Equation(left, right, context), "blocks")
    assert any(guard.kind == "equality" for guard in written.guards)
    rule = compile_rule(written, written.guards, "reassociates")
    assert check_rule(rule, tries=20_000, cases=3).passed


def test_names_of_attributes_are_shared_where_attributes_are_equal() -> None:
    left = apply(CONCAT[0], apply(RELU, 0), apply(RELU, 1))
    context = joint_context((left,), 2)
    assert context is not None
    text = draft(Equation(left, apply(RELU, apply(CONCAT[0], 0, 1)), context), "f").text((), "exact")
    assert "return concat(relu(x), relu(y), a=a) == relu(concat(x, y, a=a))" in text and text.startswith("@rule\n")


def test_instances_are_recognised_both_ways_round() -> None:
    left, right = apply(ADD, 0, 1), apply(ADD, 1, 0)
    general = Equation(left, right, ((), ()))
    assert is_instance(Equation(apply(ADD, apply(RELU, 0), 1), apply(ADD, 1, apply(RELU, 0)), ((), ())), general)
    assert not is_instance(Equation(apply(ADD, 0, 1), apply(ADD, 0, 1), ((), ())), Equation(apply(MUL, 0, 1), apply(MUL, 1, 0), ((), ())))


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[Rule, ...], str]:
    path = tmp_path_factory.mktemp("generated") / "rules.py"
    arguments = ["--ops", "matmul,relu,concat", "--depth", "2", "-o", str(path), "--quiet"]
    assert main(arguments) == 0
    return path, tuple(rule for rule in load_rules(path) if isinstance(rule, Rule)), path.read_text()


def test_a_generated_file_loads_and_holds(generated: tuple[Path, tuple[Rule, ...], str]) -> None:
    _, rules, text = generated
    assert {"relu(relu(x)) = relu(x)", "(x @ y) @ z = x @ (y @ z)"} <= {rule.text for rule in rules}
    assert all(check_rule(rule, seed=7, tries=4000).passed for rule in rules)
    assert text.count("@rule") == len(rules) == text.count("# proved for all sizes")
    assert "return (x @ y) @ z == x @ (y @ z)" in text, "no guard is stated that the proof does without"


def test_certificates_lie_beside_the_file(generated: tuple[Path, tuple[Rule, ...], str]) -> None:
    path, rules, _ = generated
    certificates = parse(certificates_beside(path).read_text(), str(path))
    for rule in rules:
        certificate = certificates.current(rule)
        assert certificate is not None and certificate.is_proved, rule.name


def test_generation_is_deterministic(tmp_path: Path) -> None:
    arguments = ["--ops", "relu,concat", "-q", "-o"]
    assert main([*arguments, str(tmp_path / "once.py")]) == 0
    command = [sys.executable, "-m", "verify.generate", *arguments, str(tmp_path / "again.py")]
    subprocess.run(command, check=True, cwd=ROOT, env={"PYTHONHASHSEED": "5", "PATH": ""}, capture_output=True)
    once = (tmp_path / "once.py").read_text()
    assert once.count("@rule") > 2 and (tmp_path / "again.py").read_text() == once


def test_no_rule_follows_from_the_others(generated: tuple[Path, tuple[Rule, ...], str]) -> None:
    result = generate(Settings(("matmul", "add", "relu", "concat")), holds)
    assert result.stop_reason == "complete" and len(result.rules) > len(generated[1])
    for equation, variants in result.equations:
        names = {accepted.rule.name for accepted in variants}
        assert not derivable([equation], [rule for rule in result.rules if rule.name not in names])[0], str(equation)


def test_an_interruption_keeps_what_was_accepted() -> None:
    seen: list[str] = []

    def judge(rule: Rule) -> bool:
        if rule.name not in seen and len(set(seen)) == 2:
            raise KeyboardInterrupt
        seen.append(rule.name)
        return True

    generated = generate(Settings(("matmul", "add", "relu", "concat")), judge)
    assert generated.stop_reason == "interrupted" and [rule.name for rule in generated.rules] == sorted(set(seen), key=seen.index)


def test_a_budget_ends_the_run_early() -> None:
    generated = generate(Settings(("matmul", "add"), seconds=1e-9), holds)
    assert generated.stop_reason == "budget" and generated.terms == 0


def test_mistakes_on_the_command_line_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ops", "matmul,convolve"]) == 2
    assert "choose among matmul" in capsys.readouterr().err


def test_json_says_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ops", "add,relu", "--json", "--quiet"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["stop_reason"] == "complete" and {"x + y = y + x"} <= {rule["equation"] for rule in report["rules"]}


def test_float_data_have_both_signs() -> None:
    """If all data were negative, every relu would be the same zero."""
    every = contexts(productions(["add", "relu"]), 2, 2)
    assert every and all(every)
    for context in every:
        for number in (0, 1):
            for variable, value in World(context, "float64", number).values.items():
                assert (value > 0).sum() == value.size // 2 and (value != 0).all(), variable


def test_an_equation_is_stated_in_its_most_general_context() -> None:
    """Terms that are equal for all matrices are equal for square ones too, so the latter is not stated separately."""
    chosen = productions(["matmul", "add"])
    every, stated = contexts(chosen, 2, 3), 0
    for context in every:
        for equation in candidates(context, chosen, 2, frozenset(every), terms=2000)[0]:
            count = len(context)
            assert joint_context((equation.left, equation.right), count) == context, f"{equation} holds more generally than in {context}"
            stated += 1
    assert stated > 5


def test_of_two_contexts_the_general_one_is_kept() -> None:
    generated = generate(Settings(("concat",), 2, 3), lambda rule: True)
    associates = [equation for equation, _ in generated.equations if "axis=0" in str(equation)]
    assert associates and all(len({size for shape in equation.context for size in shape}) == 4 for equation in associates)
