"""Mutants of rules that the prover proves are right, and the prover does prove some."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.mutation import campaign, judging
from bench.mutation.__main__ import main
from bench.mutation.campaign import run
from bench.mutation.mutants import made, mutants, sites
from bench.mutation.progress import Progress, campaign_key
from egraph.rule import Attributes, Equation, MergeRule, Rule, Steps, Tensor, Weight, require, rule
from egraph.rule_operators import concat, relu, transpose
from egraph.rules import RULES as SHIPPED
from verify.budget import Exhausted, at_most, spend


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
        changed = [mutant for mutant in mutants(each) if mutant is not None]
        assert len(changed) > 1
        assert len({mutant.rule.name for mutant in changed}) == len(changed)
    changes = {mutant.change for each in RULES for mutant in mutants(each) if mutant is not None}
    assert {
        "guard dropped", "guard turned round", "arguments swapped", "operator replaced", "operand dropped", "operand replaced",
        "number off by one", "function replaced", "function left out", "axis changed", "permutation changed",
    } <= changes  # fmt: skip


def named(name: str) -> Rule | MergeRule:
    return next(rule for rule in SHIPPED if rule.name == name)


def test_nearly_every_shipped_rule_can_be_changed() -> None:
    counts = {rule.name: len(sites(rule)) for rule in SHIPPED}
    assert min(counts.values()) >= 1, min(counts, key=counts.__getitem__)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("concat_of_relu_2", {"name replaced", "order turned round"}),  # a function of lists, inside a family
        ("transpose_out_of_exp", {"name replaced", "permutation changed", "function left out"}),
        ("merge_matmuls_with_bias", {"order turned round", "operator replaced", "arguments swapped", "number off by one"}),
        ("slice_into_add", {"branches swapped", "slice changed", "stride changed"}),  # in a function that it calls
    ],
)
def test_what_a_rule_is_made_of_is_changed_too(name: str, changes: set[str]) -> None:
    changed = [mutant for mutant in mutants(named(name)) if mutant is not None]
    assert changes <= {mutant.change for mutant in changed}
    assert all(mutant.rule.name.startswith(f"{name}~") for mutant in changed)


def test_a_change_of_a_function_that_a_rule_calls_reaches_the_rule() -> None:
    """A merge becomes false if a helper cuts its results at other places, although the rule's own text is unchanged."""
    merge = named("merge_matmuls")
    for site in sites(merge):
        if site.function.name == "split" and (mutant := made(merge, site)) is not None and mutant.change == "statement dropped":
            assert judging.seen(mutant, 0).difference
            assert judging.judged(mutant, 0, 8, false=True).fate == "rejected"
            return
    pytest.fail("the places are not moved on: that is a statement")


def test_a_limit_on_memory_ends_with_its_block() -> None:
    """The limit ends with its block: later judgements in the same process may map as much memory as before."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(MemoryError), judging.limited_memory(64 << 20):
        np.empty(256 << 20, np.uint8)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert np.empty(256 << 20, np.uint8).size == 256 << 20


def test_the_left_side_stays_what_its_pattern_says() -> None:
    """Attributes are changed on the right side only."""
    changed = [mutant.rule for mutant in mutants(transposed_sum) if mutant is not None and mutant.change == "permutation changed"]
    assert len(changed) == 4
    for tried in changed:
        assert isinstance(tried, Rule) and tried.pattern == transposed_sum.pattern


def test_nothing_wrong_is_proved() -> None:
    tally = run(RULES, 24, seed=0, cases=12)
    assert tally.mutants >= 20
    assert not tally.wrong, tally.wrong
    assert tally.proved > 0, "a sum without its needless guard is true, and has to be proved"
    assert tally.rejected > tally.proved


def test_every_rule_has_its_turn() -> None:
    """Every rule gets one mutant before any gets a second; the number of false mutants is reported."""
    tally = run(RULES, len(RULES), seed=1, cases=4)
    assert tally.mutated == tally.mutants == len(RULES)
    assert not tally.without
    assert 0 < tally.false <= tally.mutants
    assert sum(row["mutants"] for row in tally.by_change.values()) == tally.mutants
    assert sum(row["false"] for row in tally.by_change.values()) <= tally.false
    assert tally.rejected + tally.slow + tally.proved == tally.mutants


def test_what_a_mutant_is_allowed_is_the_same_work_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With too little work nothing is proved, and the mutants that are abandoned do not depend on the clock."""
    monkeypatch.setattr(judging, "UNITS", 60)
    first, second = (run(RULES, 12, seed=0, cases=4) for _ in range(2))
    assert first == second
    assert first.slow > 0
    with at_most(5):
        spend(5)
        with pytest.raises(Exhausted):
            spend()
    with at_most(5):
        with at_most(3):
            spend(3)
        spend(2)
    with at_most(math.inf):
        spend(2)
    with pytest.raises(Exhausted), at_most(5):  # an earlier infinite limit must not remove a later limit
        spend(6)


def test_an_interrupt_keeps_what_was_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    monkeypatch.setattr(campaign, "CHUNK", 2)
    monkeypatch.setattr(campaign, "_together", interrupted(campaign._together))
    tally = run((RULES[0], RULES[1]), 4, seed=0, cases=4, say=texts.append)
    assert tally.mutants == tally.rejected + tally.slow + tally.proved == 2 and "interrupted after 2 of 4" in texts[-1]


def test_a_campaign_that_was_ended_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Results in the file are reused only for the same rules and prover; a line that was cut off is judged again."""
    few, path = (RULES[0], RULES[1]), tmp_path / "kept" / "progress.jsonl"
    monkeypatch.setattr(campaign, "CHUNK", 2)
    whole = run(few, 4, seed=0, cases=4)
    key = campaign_key(few, 4, 0, 4)
    with monkeypatch.context() as patch:
        patch.setattr(campaign, "_together", interrupted(campaign._together))
        assert run(few, 4, seed=0, cases=4, progress=Progress.read(path, key)).mutants == 2
    kept = Progress.read(path, key)
    assert len(kept.judged) == 2 and len(kept.chosen) == 2 and kept.seconds > 0
    with path.open("a") as file:
        file.write('{"campaign": "' + key)
    monkeypatch.setattr(campaign, "_together", interrupted(campaign._together))  # one more call, for the other two
    assert run(few, 4, seed=0, cases=4, progress=Progress.read(path, key)) == whole
    assert not Progress.read(path, campaign_key(few, 4, 0, 5)).judged


def interrupted(judge: Callable[..., list[judging.Judged]]) -> Callable[..., list[judging.Judged]]:
    """Return a function that calls another once, and raises KeyboardInterrupt afterwards."""
    calls: list[object] = []

    def once(*arguments: object) -> list[judging.Judged]:
        calls.append(arguments)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return judge(*arguments)

    return once


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
