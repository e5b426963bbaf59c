"""Timing finalists: rounds alternate; programs that do not fit into memory together are loaded one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from egraph.optimize import race as finalists
from egraph.optimize.options import Options
from egraph.optimize.pipeline import optimize
from egraph.optimize.progress import Progress
from egraph.optimize.race import Contender, Race, engine_for, race, recorded_race, still_running
from egraph.policy import RacePolicy
from runtime.feeds import FeedSpec
from runtime.measure import Load, Timing, Worker
from runtime.profile import Database
from tests.support.commands import build_model

FEEDS = (FeedSpec("x", "float32", (4, 8)),)


def _model(folder: Path) -> Path:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), folder / "m.onnx")
    return folder / "m.onnx"


def _race(folder: Path, size_bytes: int, policy: RacePolicy = RacePolicy()) -> Race:
    path = str(_model(folder))
    contenders = [Contender("one", "1", "onnxruntime", path, size_bytes), Contender("two", "2", "onnxruntime", path, size_bytes)]
    database = Database.in_memory()
    assert recorded_race(contenders, FEEDS, database=database, device="d", frozen=False) is None
    raced = race(
        contenders, FEEDS, failed={}, preferred=["one", "two"], essential="one", threads=1, seed=0, database=database,
        device="d", seconds=30.0, policy=policy,
    )  # fmt: skip
    again = recorded_race(contenders, FEEDS, database=database, device="d", frozen=True)
    assert again is not None and again.timings == raced.timings
    return raced


def test_whoever_was_timed_sleeps_before_the_next_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that spins on takes a core from the next contender.

    Regression: a quantised network took twice as long after onnxruntime's turns.
    """
    happened: list[tuple[str, int]] = []
    load, timed, settle = Worker.load, Worker.time, Worker.settle

    def noted(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Worker, *arguments: Any) -> Any:
            happened.append((what, id(self)))
            return function(self, *arguments)

        return call

    for name, function in (("load", load), ("time", timed), ("settle", settle)):
        monkeypatch.setattr(Worker, name, noted(name, function))
    _race(tmp_path, 1 << 20)
    worked = [each for each in happened if each[0] != "settle"]
    assert happened == [step for what, worker in worked for step in ((what, worker), ("settle", worker))] and len(worked) > 4


@pytest.mark.parametrize("free_bytes", [1 << 40, 0])
def test_everyone_is_timed_whether_or_not_all_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    """All contenders have the same number of samples; without memory for both, no two processes live at once."""
    alive: set[int] = set()
    most = [0]
    load, close = Worker.load, Worker.close

    def counted_load(self: Worker, what: Load) -> Timing:
        alive.add(id(self))
        most[0] = max(most[0], len(alive))
        return load(self, what)

    def counted_close(self: Worker) -> None:
        alive.discard(id(self))
        close(self)

    monkeypatch.setattr(Worker, "load", counted_load)
    monkeypatch.setattr(Worker, "close", counted_close)
    monkeypatch.setattr(finalists, "available_bytes", lambda: free_bytes)
    result = _race(tmp_path, 1 << 20, RacePolicy(first_gap=1e9, gap=1e9))  # so short a run may take any time on a busy machine
    assert all(timing.status == "ok" for timing in result.timings.values())
    assert all(RacePolicy.least_rounds <= len(timing.samples_us) <= RacePolicy.rounds for timing in result.timings.values())
    assert most[0] == (2 if free_bytes else 1)


def test_who_is_far_behind_is_given_up_except_the_essential_one() -> None:
    timings = {name: Timing("ok", (time_us,)) for name, time_us in (("fast", 1.0), ("near", 1.2), ("slow", 1.9), ("original", 9.0))}
    assert still_running(list(timings), timings, 0, "original") == ["fast", "near", "slow", "original"]
    assert still_running(list(timings), timings, 3, "original") == ["fast", "near", "original"]
    timings["near"] = Timing("failed")
    assert still_running(list(timings), timings, 3, "original") == ["fast", "original"]


def test_onnxruntime_does_without_its_arena_where_that_would_fill_the_memory() -> None:
    large = Contender("one", "1", "onnxruntime", "m.onnx", 8 << 30)
    assert engine_for(large, 64 << 30) == "onnxruntime" and engine_for(large, 16 << 30) == "onnxruntime without arena"
    assert engine_for(Contender("two", "2", "einsat", "m", 8 << 30), 16 << 30) == "einsat"


@pytest.mark.parametrize("shipped", ["onnxruntime", "program 1"])
def test_a_model_that_is_kept_although_a_program_was_ahead_is_told_so(
    shipped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("egraph.optimize.finalists.fastest", lambda preferred, raced, policy: shipped)
    monkeypatch.setattr("egraph.optimize.finalists.doubt", lambda preferred, timings, policy: f"{preferred[1]} was ahead of {preferred[0]}")
    model = build_model(tmp_path / "layers.onnx")
    outcome = optimize(Options(model, threads=1, budget_seconds=15, derivations=False, database=tmp_path / "profiles"), Progress(-1, 15.0))
    notes = [note for note in outcome.notes if "was ahead of onnxruntime: too uncertain to ship it" in note]
    assert len(notes) == (shipped == "onnxruntime") and all("--budget 30s" in note for note in notes)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_race_that_ended_in_doubt_is_run_again(is_open: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command again, which repeats the search, repeats a race that ended in doubt.

    Regression: a program that took 0.76 of the model's time was rejected for good.
    """
    raced: list[list[str]] = []

    def counted(contenders: Sequence[Contender], *arguments: Any, **options: Any) -> Race:
        raced.append([contender.name for contender in contenders])
        return race(contenders, *arguments, **options)

    monkeypatch.setattr("egraph.optimize.finalists.race", counted)
    monkeypatch.setattr("egraph.optimize.finalists.doubt", lambda preferred, timings, policy: "a program was ahead" if is_open else "")
    model = build_model(tmp_path / "layers.onnx")
    options = Options(model, threads=1, budget_seconds=15, derivations=False, database=tmp_path / "profiles")
    for each in (options, options, replace(options, frozen=True)):
        optimize(each, Progress(-1, 15.0))
    assert len(raced) == 1 + is_open and all("onnxruntime" in names for names in raced)
