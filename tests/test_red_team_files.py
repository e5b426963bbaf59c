"""Rules made to fool the prover, in tests/red_team: none that is false is proved, none is let in where its sides differ.

All of them are judged by ``python -m bench.red_team``; here a few of each file are.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.red_team import FOLDER, OUTSIDE, Judged, files, judged
from egraph.rewrite.file import read_rules
from egraph.rewrite.values import Refusal
from egraph.rule import Binding, Rule
from egraph.tensor import TensorType
from verify.comparison import compare_sides

QUICK = ("divide", "float_guard", "infinite", "merges", "negpow", "never_ends", "set_order")
SHARE = 12
"""Of the rules of larger files, one of so many is judged here."""


def wrong(found: list[Judged]) -> list[str]:
    return [one.name for one in found if one.is_wrong]


@pytest.mark.parametrize("name", QUICK)
def test_no_false_rule_of_a_small_file_is_proved(name: str) -> None:
    assert wrong(judged(FOLDER / f"{name}.py", 20.0)) == []


@pytest.mark.parametrize("path", [path for path in files(()) if path.stem not in (*QUICK, "slow")], ids=lambda path: str(path.stem))
def test_no_false_rule_of_a_larger_file_is_proved(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = read_rules(path)[::SHARE]
    monkeypatch.setattr("bench.red_team.read_rules", lambda path: few)
    found = judged(path, 20.0)
    assert len(found) == len(few) and [one for one in found if one.is_wrong and "rounding" not in path.stem] == []


def test_there_are_200_new_rules_and_each_is_false_where_it_says() -> None:
    """A rule of sizes is applied to vectors of the size that its file names: the sides differ there, and the gate sees it."""
    count = sum(len(read_rules(path)) for path in FOLDER.glob("second_*.py"))
    assert count >= 200
    space: dict[str, int] = dict(re.findall(r'\("(\w+)", lambda n: .*, (\d+)\),\n', (FOLDER / "second_sizes.py").read_text()))
    for each in read_rules(FOLDER / "second_sizes.py"):
        assert isinstance(each, Rule)
        size = int(space[each.name.partition("_")[2]])
        left, right = each.apply(Binding({variable.name: TensorType("float32", (size,)) for variable in each.variables}, {}))
        assert compare_sides([left], [right], {}).reason, each.name


def test_every_file_is_read_and_what_is_refused_says_why() -> None:
    refused = [each for path in files(()) for each in read_rules(path) if isinstance(each, Refusal)]
    assert {each.name for each in refused} >= {"text_walrus", "remembers", "swallows_attribute_error"}
    assert all(each.error.where and each.error.fix for each in refused)


def test_rules_that_are_excused_exist() -> None:
    names = {each.name for path in files(()) for each in read_rules(path)}
    assert OUTSIDE.keys() <= names
