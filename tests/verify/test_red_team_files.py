"""Rules in tests/red_team are made to fool the prover: no false one is proved, and none is admitted where its sides differ.

These tests judge a few of each file; ``python -m bench.red_team`` judges all of them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from bench.red_team import FALSE, FOLDER, OUTSIDE, TRIES, TRUE, Judged, files, judged, record, recorded, table
from egraph.optimize.gate import Admission
from egraph.rewrite.file import read_rules
from egraph.rewrite.values import Refusal
from egraph.rule import Binding, Rule
from egraph.tensor import TensorType
from verify.comparison import compare_sides

QUICK = ("divide", "float_guard", "infinite", "merges", "negpow", "never_ends", "set_order", "types_and_infinities")
FEWER_TRIES = {"never_ends": 5}
"""Random draws for the gate by file, for rules that take a million steps per draw; these rules match no draw."""
SHARE = 12
"""In larger files, one of ``SHARE`` rules is judged, among those that take less than ``SECONDS`` according to the record."""
SECONDS = 1.0


judged_once = cache(judged)


def wrong(judgements: list[Judged]) -> list[str]:
    return [judgement.name for judgement in judgements if judgement.is_wrong]


@pytest.mark.parametrize("name", QUICK)
def test_no_false_rule_of_a_small_file_is_proved(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.red_team.TRIES", FEWER_TRIES.get(name, TRIES))
    assert wrong(judged_once(FOLDER / f"{name}.py", 20.0)) == []


@pytest.mark.parametrize("path", [path for path in files(()) if path.stem not in (*QUICK, "slow")], ids=lambda path: str(path.stem))
def test_no_false_rule_of_a_larger_file_is_proved(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {row["name"]: row["seconds"] for row in recorded().get(path.stem, {"rules": ()})["rules"]}
    few = [each for each in read_rules(path) if seconds.get(each.name, 0.0) < SECONDS][::SHARE]
    monkeypatch.setattr("bench.red_team.read_rules", lambda path: few)
    judgements = judged(path, 20.0)
    assert len(judgements) == len(few) and ("rounding" in path.stem or wrong(judgements) == [])


def test_there_are_300_rules_and_each_is_false_where_it_says() -> None:
    """A rule about sizes is applied to vectors of the size that its file names: the sides differ, and the gate detects it."""
    count = sum(len(read_rules(path)) for path in FOLDER.glob("second_*.py"))
    assert count >= 300
    space: dict[str, int] = dict(re.findall(r'\("(\w+)", lambda n: .*, (\d+)\),\n', (FOLDER / "second_sizes.py").read_text()))
    for each in read_rules(FOLDER / "second_sizes.py"):
        assert isinstance(each, Rule)
        size = int(space[each.name.partition("_")[2]])
        binding = Binding({variable.name: TensorType("float32", (size,)) for variable in each.variables}, {})
        left, right = each.apply(binding)
        assert compare_sides([left], [right], {}).reason, each.name
        assert Admission(each, covers=False, tried=True)([binding], [left], [right]), each.name


def test_every_file_is_read_and_what_is_refused_says_why() -> None:
    refused = [each for path in files(()) for each in read_rules(path) if isinstance(each, Refusal)]
    assert {each.name for each in refused} >= {"text_walrus", "remembers", "swallows_attribute_error"}
    assert all(each.error.where and each.error.fix for each in refused)


def test_rules_that_are_excused_exist() -> None:
    names = {each.name for path in files(()) for each in read_rules(path)}
    assert OUTSIDE.keys() | TRUE.keys() | FALSE.keys() <= names


def test_the_gate_is_asked_too() -> None:
    """A rule that is not proved is judged match by match and admitted only where it is right; a proved rule passes."""
    by_name = {judgement.name: judgement for judgement in judged_once(FOLDER / "merges.py", 20.0)}
    wrong, refused = by_name["merge_many_wrong"], by_name["text_require_only"]
    assert not wrong.passes and wrong.matches and not wrong.differing and refused.matches == 0
    assert Judged("f", "n", False, "unknown", "", "", "exact", 0.0, passes=True).is_wrong
    assert Judged("f", "n", True, "proved", "", "", "exact", 0.0, passes=True, matches=2, let_in=2, differing=1).is_wrong


def test_what_is_recorded_is_replaced_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.red_team.RESULTS", tmp_path)
    rows = [Judged(name, "rule", False, "refuted", "", "", "exact", 0.1) for name in ("divide", "slow", "gone")]
    record(rows, "first")
    record([Judged("slow", "rule", False, "proved", "", "", "exact", 0.1)], "second")
    rows_by_file = recorded()
    assert list(rows_by_file) == ["divide", "slow"] and rows_by_file["slow"]["about"]["command"] == "second"
    assert "2 false rules: 1 called proved or let in (rule)" in table(rows_by_file) == (tmp_path / "red_team.md").read_text()


def test_the_record_is_of_rules_that_exist_and_shows_nothing_wrong() -> None:
    """The record is written by `python -m bench.red_team --record`."""
    judgements = [Judged(**judgement) for row in recorded().values() for judgement in row["rules"]]
    existing = [path for path in files(()) if path.stem in recorded()]
    stated = {(path.stem, each.name) for path in existing for each in read_rules(path)}
    assert {(judgement.file, judgement.name) for judgement in judgements} == stated
    true = [judgement for judgement in judgements if judgement.true]
    assert not wrong(judgements) and sum(judgement.is_proved for judgement in true) >= 0.9 * len(true)
