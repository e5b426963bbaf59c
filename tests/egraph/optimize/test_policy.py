"""The policy: every field reaches a stage, is recorded and has a valid range; a sweep compares values of a field."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.policy import Swept, means, option, table, values_of
from egraph.engine.saturate import Limits, saturate
from egraph.extract import extract
from egraph.optimize.__main__ import main
from egraph.optimize.arguments import parse, to_options
from egraph.optimize.options import Options
from egraph.optimize.race import still_running
from egraph.optimize.records import memo_path, search_key
from egraph.policy import ExtractPolicy, Policy, PolicyError, RacePolicy, SaturationPolicy, changes, tunings
from egraph.tensor import Graph, Node, TensorType, attributes, make
from egraph.tensor.ops import apply
from lower.candidates import candidates
from runtime.measure import Timing
from tests.egraph.engine.test_saturate import associate, commute
from tests.egraph.extract.test_extract import SHARED, candidates_of, frozen_of
from tests.support.paths import ROOT

X, Y = (make("Input", (), attributes(name=name), TensorType("float32", (4, 8))) for name in "xy")


def sum_of(left: Node, right: Node) -> Graph:
    return Graph("sum", (X, Y), (("z", apply("Relu", apply("Add", left, right))),), {})


FIELDS = {each.name: each for each in tunings(Policy())}


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_is_read_by_a_stage_and_keeps_to_its_range(name: str) -> None:
    """A field that no code reads could be changed without effect."""
    tuning = FIELDS[name]
    sources = [path for top in ("egraph", "lower") for path in (ROOT / top).rglob("*.py") if path.name != "policy.py"]
    read = re.compile(rf"(policy|{tuning.stage}|Policy)\.{tuning.field}\b")
    assert any(read.search(path.read_text()) for path in sources)
    assert tuning.least <= tuning.value <= tuning.most and tuning.unit and tuning.reason.endswith(".")
    assert FIELDS[name].parsed(tuning.text) == tuning.value
    for wrong in ("", "much", "nan", "inf", str(tuning.least - 1)):
        with pytest.raises(PolicyError, match=re.escape(tuning.stage)):
            tuning.parsed(wrong)


def test_settings_change_fields_and_are_recorded() -> None:
    changed = Policy().changed(["extract.share=0.5", "race.rounds=9", "extract.share = 0.25"])
    assert changed == replace(Policy(), extract=ExtractPolicy(share=0.25), race=RacePolicy(rounds=9))
    assert changes(changed.stored()) == "extract.share=0.25 race.rounds=9" and changes(Policy().stored()) == ""
    with pytest.raises(PolicyError, match=r"did you mean extract\.share") as error:
        Policy().changed(["extract.shar=0.5"])
    assert all(name in str(error.value) for name in FIELDS)
    with pytest.raises(PolicyError, match=r"not STAGE\.FIELD=VALUE"):
        Policy().changed(["extract.share"])
    with pytest.raises(PolicyError, match="whole number"):
        Policy().changed(["race.rounds=2.5"])


def test_a_policy_decides_what_is_remembered(tmp_path: Path) -> None:
    """A search and its program are found again only under the policy that they were made with."""
    model = tmp_path / "m.onnx"
    plain, tuned = (to_options(parse([str(model), *more])) for more in ([], ["--policy", "extract.share=0.1"]))
    assert plain.policy == Policy() and tuned.stored()["policy"]["extract"]["share"] == 0.1
    assert search_key(sum_of(X, Y), (), plain) != search_key(sum_of(X, Y), (), tuned)
    assert memo_path("d", "cpu", plain) != memo_path("d", "cpu", tuned) == memo_path("d", "cpu", replace(tuned, budget_seconds=9.0))


def test_the_command_lists_all_fields(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["egraph.optimize", "--policy", "help"])
    assert main() == 0
    told = capsys.readouterr().out
    assert all(name in told and each.reason in told and each.unit in told for name, each in FIELDS.items())
    monkeypatch.setattr(sys, "argv", ["egraph.optimize", "m.onnx", "--policy", "race.round=1"])
    assert main() == 2 and "race.rounds" in capsys.readouterr().err


def test_stages_do_as_the_policy_says() -> None:
    assert Limits().iterations == SaturationPolicy.iterations
    sums = sum_of(X, apply("Add", Y, apply("Add", X, Y)))
    ends = [saturate(sums, [commute, associate], policy=SaturationPolicy(largest_join=most)) for most in (1, 1_000_000)]
    assert [end.stop_reason for end in ends] == ["matches", "saturated"]
    (greedy,) = extract(frozen_of(SHARED, (0,), (9,)), candidates_of(SHARED), 1, 0.0, policy=ExtractPolicy(moves=0))
    (improved,) = extract(frozen_of(SHARED, (0,), (9,)), candidates_of(SHARED), 1, 0.0)
    assert greedy.cost_us == 21.0 and improved.cost_us == 18.0
    frozen = saturate(sums, ()).frozen
    single, fused = (candidates(frozen, policy=replace(Policy().candidates, operators=most)) for most in (1, 24))
    longest = [max(len(one.covered) for options in laid.values() for one in options) for laid in (single, fused)]
    assert longest[0] < longest[1]
    timings = {name: Timing("ok", (us,)) for name, us in (("original", 100.0), ("near", 140.0), ("far", 190.0))}
    assert still_running([*timings], timings, 0, "original") == ["original", "near", "far"]
    assert still_running([*timings], timings, 0, "original", RacePolicy(first_gap=1.5)) == ["original", "near"]
    assert still_running([*timings], timings, 1, "original", RacePolicy(gap_rounds=2)) == ["original"]


def test_a_sweep_compares_values_with_the_default() -> None:
    assert values_of("race.rounds", ["3", "40"]) == ("40", "3")
    with pytest.raises(PolicyError):
        values_of("race.rounds", ["0"])
    with pytest.raises(PolicyError, match=r"race\.rounds"):
        values_of("race.turns", ["1"])
    swept = [Swept("7", 10.0, 95.0, 100.0), Swept("3", 9.0, None, 80.0), Swept("1", 0.0, None, None, "it hung")]
    lines = table("race.rounds", {"m": swept}).splitlines()[2:]
    assert [line.split(" | ")[-1] for line in lines] == ["1.000 |", "1.250 |", "- |"] and "it hung" in lines[2]
    (sentence,) = means({"m": swept, "n": [Swept("7", 10.0, 95.0, 90.0), Swept("3", 9.0, None, 100.0)]})
    assert sentence == "3: 1.061 in the geometric mean of 2 models, at least 0.900 (n)."


def test_a_sweep_of_the_budget_compares_with_the_default_one() -> None:
    assert values_of("budget", ["10s", f"{Options.budget_seconds:g}s"]) == (f"{Options.budget_seconds:g}s", "10s")
    assert option("budget", "10s") == ("--budget", "10s") and option("race.rounds", "3") == ("--policy", "race.rounds=3")


def test_options_begin_with_the_shipped_policy() -> None:
    assert Options(Path("m.onnx")).policy == Policy()
