"""Mutants of rules: what the prover calls proved is right, and it is not because it proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from egraph.rule import Attributes, Equation, Steps, Tensor, Weight, require, rule
from egraph.rule_operators import concat, relu, transpose
from verify import mutation
from verify.budget import Exhausted, at_most, spend
from verify.mutation import main, mutants, run


@rule
def transposed_sum(x: Tensor, y: Tensor, p: Attributes) -> Equation:
    """(x + y)^p = x^p + y^p"""
    return transpose(x + y, p) == transpose(x, p) + transpose(y, p)


@rule(rounding="reassociates")
def parts_of_a_product(x: Tensor, y: Tensor, u: Weight, v: Weight) -> Steps:
    """[x y] [u; v] = x u + y v"""
    yield concat(x, y, axis=1) @ concat(u, v, axis=0)
    require(x.rank == 2, "matrices are joined")
    require(x.shape[1] == u.shape[0], "the parts must fit")
    yield x @ u + y @ v


@rule
def relu_of_concat(x: Tensor, y: Tensor, c: Attributes) -> Equation:
    """relu([x y]) = [relu(x) relu(y)]"""
    return relu(concat(x, y, a=c)) == concat(relu(x), relu(y), a=c)


@rule
def sum_of_matrices(x: Tensor, y: Tensor) -> Steps:
    """x + y = y + x"""
    yield x + y
    require(x.rank == 2, "only matrices are added in this order")
    yield y + x


RULES = (transposed_sum, parts_of_a_product, relu_of_concat, sum_of_matrices)


def test_every_mutant_changes_the_rule() -> None:
    for each in RULES:
        found = [mutant for mutant in mutants(each) if mutant is not None]
        assert len(found) > 1
        assert len({mutant.rule.name for mutant in found}) == len(found)
    changes = {mutant.change for each in RULES for mutant in mutants(each) if mutant is not None}
    assert {"guard dropped", "operands swapped", "operator replaced", "number off by one", "function replaced"} <= changes


def test_nothing_wrong_is_proved() -> None:
    tally = run(RULES, 40, seed=0, cases=16)
    assert tally.mutants >= 20
    assert not tally.wrong, tally.wrong
    assert tally.proved > 0, "a sum without its needless guard is true, and has to be proved"
    assert tally.rejected > tally.proved


def test_every_rule_has_its_turn() -> None:
    """One mutant of every rule comes before a second of any; how many of all are false is told."""
    tally = run(RULES, len(RULES), seed=1, cases=4)
    assert tally.mutated == tally.mutants == len(RULES)
    assert 0 < tally.false < tally.mutants
    assert tally.rejected + tally.slow + tally.proved == tally.mutants


def test_what_a_mutant_is_allowed_is_the_same_work_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without work nothing is proved, and what is given up does not depend on the clock."""
    monkeypatch.setattr(mutation, "UNITS", 60)
    one, other = (run(RULES, 12, seed=0, cases=4) for _ in range(2))
    assert one == other
    assert one.slow > 0
    with at_most(5):
        spend(5)
        with pytest.raises(Exhausted):
            spend()
    with at_most(5):
        with at_most(3):
            spend(3)
        spend(2)


def test_results_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "rules.py"
    source.write_text(
        "from egraph.rule import Equation, Tensor, rule\n"
        "@rule\ndef commute(x: Tensor, y: Tensor) -> Equation:\n    'x - y = -(y - x)'\n    return x - y == -(y - x)\n"
        "RULES = (commute,)\n"
    )
    assert main([str(source), "--mutants", "8", "--cases", "8", "--results", str(tmp_path)]) == 0
    assert "0 of the proved ones differ" in capsys.readouterr().out
    assert "Z3" in (tmp_path / "mutation.md").read_text()
    assert main([str(tmp_path / "missing.py")]) == 2
