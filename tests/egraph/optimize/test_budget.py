"""The budget holds: the time after a search is predicted, and work that takes seconds is done only as often as time allows."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest

from egraph.errors import CheckFailed, EinsatError, LowerError
from egraph.optimize import budget, finalists, measuring, pipeline, repair, saving, trial
from egraph.optimize import race as racing
from egraph.optimize.budget import RUNS_OF_A_CONTENDER, SETTLE_SECONDS, WORKER_SECONDS, Budget, slowdown_of, worked_here
from egraph.optimize.byte_ranges import compared_within
from egraph.optimize.check import CheckResult, Disagreement, check, find_feeds
from egraph.optimize.compiling_ahead import CompilingAhead, compiling_ahead
from egraph.optimize.folding import Folder
from egraph.optimize.kernels import compile_batch, compile_work, kernel_program, uncompiled_work
from egraph.optimize.measuring import Job, Measurer
from egraph.optimize.options import Options
from egraph.optimize.pipeline import optimize
from egraph.optimize.progress import Progress, process_started
from egraph.optimize.race import NO_TIME_TO_RACE, Contender, race
from egraph.optimize.records import read_checked, write_checked
from egraph.optimize.reference import Answers
from egraph.optimize.run import Run
from egraph.optimize.search import Search, is_cut_short, plain_program, resume_search, search
from egraph.optimize.trial import NO_TIME_TO_COMPILE, ORIGINAL
from egraph.policy import CheckPolicy, MeasurePolicy, RacePolicy
from egraph.tensor import Candidate, Graph, Implementation, Program, TensorType, attributes, make, placeholder
from egraph.tensor.ops import apply
from egraph.tolerance import Tolerance
from lower.compile import CompileOptions
from lower.cost.model import CostModel
from lower.eoperator import KernelRequest
from lower.roofline import DeviceSpeed
from lower.targets import lowering
from lower.targets.cpu.generator.library import Library
from lower.targets.cpu.generator.process import Compiler
from runtime.feeds import FeedSpec
from runtime.measure import Effort, Load, Timing, Worker
from runtime.profile import Database
from runtime.profile.tables import SearchRow
from tests.support.commands import build_model
from tests.support.implementations import GENERATED

FEEDS = (FeedSpec("x", "float32", (4,)),)


def schedule(*, budget_seconds: float = 60.0, open_seconds: float = 0.5, run_seconds: float = 0.01, spent_seconds: float = 0.0) -> Budget:
    progress = Progress(-1, budget_seconds, time.monotonic() - spent_seconds)
    return Budget(progress, contenders=6, checks=3, quiet_open_seconds=open_seconds, quiet_run_seconds=run_seconds)


def test_compiling_is_foreseen_by_its_pace_without_what_started_the_compiler() -> None:
    known = schedule()
    assert known.seconds_to_compile(10) == 0.0, "nothing is known yet"
    known.compiled(16, 12.0)
    assert known.seconds_to_compile(8) == pytest.approx(6.0)
    known.compiled(8, 1.0)
    known.compiled(0, 5.0)
    known.compiled(24, 3.0)
    assert known.seconds_to_compile(8) == pytest.approx(1.0)
    known.compiled(40, 20.0)
    assert known.seconds_to_compile(8) == pytest.approx(4.0), "the last ones were larger"
    known.compilations.pop()
    assert known.after_search_seconds(8) == pytest.approx(1.0 + known.race_seconds + known.check_seconds)


def test_a_few_slow_kernels_are_no_pace() -> None:
    """A few slow kernels do not set the pace of compilation.

    Regression: three kernels took 9 s together, so forty others were predicted to take 33 s. The gain was discarded with 15 s left.
    """
    known = schedule()
    known.compiled(4, 0.1)
    known.compiled(5, 9.0)
    usual_seconds = MeasurePolicy.kernel_seconds
    assert known.seconds_to_compile(32) == pytest.approx(2 * (9.0 + 11 * usual_seconds))
    busy = replace(known, slowdown=3.0)
    assert busy.seconds_to_compile(32) == pytest.approx(2 * (9.0 + 11 * 3.0 * usual_seconds))
    known.compiled(11, 1.0)
    assert known.seconds_to_compile(32) == pytest.approx(2 * 10.0), "as many tell by themselves"


def test_a_machine_that_was_busy_for_a_moment_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet, busy = schedule(), replace(schedule(), slowdown=8.0)
    quiet.look_again(lambda: pytest.fail("nothing is run where nothing was slow"))
    before_seconds = busy.after_search_seconds()
    runs: list[float] = []
    monkeypatch.setattr(budget, "timed", lambda run: (run(), 0.03, 0.06))
    busy.look_again(lambda: runs.append(0.06))
    assert len(runs) == 2 and busy.slowdown == pytest.approx(2.0) and busy.after_search_seconds() < before_seconds
    waiting = replace(schedule(), slowdown=2.0)
    monkeypatch.setattr(budget, "timed", lambda run: (run(), 0.0, 0.2))
    waiting.look_again(lambda: None)
    assert waiting.slowdown == 2.0, "it is not busier than it was"


def test_the_best_program_is_given_the_time_that_folding_and_planning_it_take() -> None:
    known = schedule()
    before_seconds = known.after_search_seconds()
    known.folded(1.5)
    known.folded(0.5)
    known.chosen_kernels = 2000
    assert known.after_search_seconds() == pytest.approx(before_seconds + 1.5 + 2000 * known.policy.budget.plan_seconds)


def test_no_program_is_folded_that_would_be_compiled_too_late(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program that would be compiled too late is not folded.

    Regression: folding two more programs took the seconds in which the best one, eight times as fast as the model, could have been raced.
    """
    clock, folded = Clockwork(), list[str]()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    monkeypatch.setattr(trial, "compile_entry", lambda entry, options: 1000)
    monkeypatch.setattr(budget, "uncompiled", lambda programs, options: [])
    known = schedule()
    program = _plain()
    names = ["program 1", "program 2", trial.PLAIN]
    entries = [trial.Entry(Contender(name, name, "einsat", str(tmp_path / name)), program) for name in names]

    def fold(entry: trial.Entry, folder: Folder) -> trial.Entry:
        folded.append(entry.contender.name)
        clock.now += 2.0
        return entry

    monkeypatch.setattr(trial.Entry, "folded", fold)
    folder = Folder(program.graph)
    clock.now = 60.0 - known.check_seconds - known.fair_race_seconds(3) - 3.5
    sizes_bytes, failed = trial.compile_all(entries, folder, known, tmp_path, CompileOptions(threads=1))
    assert folded == ["program 1"] == [*sizes_bytes] and known.fold_seconds == 2.0
    assert failed == dict.fromkeys(["program 2", trial.PLAIN], NO_TIME_TO_COMPILE)
    folded.clear()
    clock.now = 0.0
    sizes_bytes, failed = trial.compile_all(entries, folder, known, tmp_path, CompileOptions(threads=1))
    assert folded == names and not failed


def test_a_program_that_is_compiled_already_does_not_wait_for_one_that_takes_all_the_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A program that needs no compilation does not wait for one that takes all the time.

    Regression: the derived program of an Inception had kernels to compile when the time for that was over; the rules' program had none.
    """
    clock, compiled = Clockwork(), list[str]()
    program = _plain()
    names = ["program 1", "program 2", "program 3", trial.PLAIN]
    programs = {name: replace(program, cost_us=float(k)) for k, name in enumerate(names)}
    kernels = {0.0: 40, 1.0: 30, 2.0: 2, 3.0: 0}

    def uncompiled(some: Sequence[Program], options: CompileOptions) -> list[object]:
        return [None] * sum(kernels[each.cost_us] for each in some)

    def compile_requests(batch: Sequence[object], path: Path, options: CompileOptions) -> tuple[Library, float]:
        clock.now += 0.5 * len(batch)
        return Library(path, {}, {}, len(batch), 0.5 * len(batch)), float(len(batch))

    def compile_entry(entry: trial.Entry, options: CompileOptions) -> int:
        compiled.append(entry.contender.name)
        return 1000

    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    for module in (budget, trial):
        monkeypatch.setattr(module, "uncompiled", uncompiled)
        monkeypatch.setattr(module, "compile_work", len)
    monkeypatch.setattr(budget, "compile_requests", compile_requests)
    monkeypatch.setattr(trial, "compile_entry", compile_entry)
    monkeypatch.setattr(trial.Entry, "folded", lambda entry, folder: entry)
    entries = [trial.Entry(Contender(name, name, "einsat", str(tmp_path / name)), programs[name]) for name in names]

    def compile_at(left_seconds: float, pace_seconds: float) -> dict[str, str]:
        clock.now = 0.0
        known = schedule()
        known.compiled(16, 16 * pace_seconds)
        clock.now = 60.0 - known.check_seconds - known.least_race_seconds - left_seconds
        compiled.clear()
        return trial.compile_all(entries, Folder(program.graph), known, tmp_path, CompileOptions(threads=1))[1]

    failed = compile_at(8.0, 0.5)
    assert compiled[0] == "program 3", "the first one would take 20 s"
    assert failed["program 1"] == NO_TIME_TO_COMPILE
    compile_at(30.0, 0.5)
    assert compiled[:2] == ["program 3", "program 1"], "it may take them all, where each takes longer than those before"
    kernels[2.0] = 39
    compile_at(90.0, 0.5)
    assert compiled[0] == "program 1", "the last one has many to compile, too"
    compile_at(30.0, 0.5)
    assert compiled[0] == "program 3", "the first one may take twice the predicted 20 s"
    kernels[2.0] = 40
    compile_at(30.0, 0.5)
    assert compiled[0] == "program 1", "the last one takes as long"
    kernels.update({0.0: 240, 1.0: 240, 2.0: 2})
    failed = compile_at(20.5, 0.5)
    assert compiled == ["program 3", trial.PLAIN] and failed == dict.fromkeys(("program 1", "program 2"), NO_TIME_TO_COMPILE)
    assert clock.now == pytest.approx(60.0 - schedule().check_seconds - schedule().least_race_seconds - 19.5), "nothing begins in vain"
    kernels.update({0.0: 40, 1.0: 30})
    compile_at(50.0, 0.05)
    assert compiled == names, "there is time for all: the order is that of their importance"


def test_the_program_without_rules_comes_last(tmp_path: Path) -> None:
    contenders = [Contender(name, name, "einsat", str(tmp_path)) for name in (trial.PLAIN, "program 1", "program 2")]
    plain, *others = [trial.Entry(contender, _plain()) for contender in contenders]
    assert trial.by_importance([plain, *others]) == [*others, plain]


def test_a_slow_model_leaves_more_time_for_what_comes_after_its_search() -> None:
    quick, slow = schedule(), schedule(run_seconds=4.0)
    assert quick.after_search_seconds() < 10.0 < slow.after_search_seconds() < 60.0
    assert slow.check_seconds == pytest.approx(3 * 0.5 + slow.input_seconds), "one input at least"
    more = replace(quick, contenders=quick.contenders + 1)
    runs = 1 + RacePolicy.least_rounds * RacePolicy.runs
    settle_seconds = RacePolicy.least_rounds * SETTLE_SECONDS
    each_seconds = quick.open_seconds + WORKER_SECONDS + runs * quick.run_seconds + settle_seconds
    assert more.race_seconds - quick.race_seconds == pytest.approx(each_seconds), "each contender is opened, and run as a race asks for"
    open_seconds, runs_seconds = slow.open_seconds + WORKER_SECONDS, 2 * RUNS_OF_A_CONTENDER * slow.run_seconds
    assert slow.race_seconds == pytest.approx(slow.contenders * open_seconds + runs_seconds + 2 * SETTLE_SECONDS)
    assert slow.least_race_seconds == pytest.approx(2 * open_seconds + runs_seconds + 2 * SETTLE_SECONDS)


def test_the_check_takes_as_long_as_opening_the_program_that_is_saved() -> None:
    """The check opens the program that is saved, not the model.

    Regression: onnxruntime opened a network in 0.2 s, and its program with fast convolutions in 1.0 s, so the check ended 1.7 s too late.
    """
    known = schedule(open_seconds=0.2)
    runs_seconds = known.check_seconds - 3 * 0.2
    known.opened(1.0)
    known.opened(0.5)
    assert known.check_seconds == pytest.approx(3 * 1.0 + runs_seconds), "the program that took longest"
    assert known.open_seconds == 0.2, "contenders of a race are opened by the runtime"
    busy = replace(known, slowdown=2.0)
    assert busy.check_seconds > 3 * 2.0
    known.quiet_saved_open_seconds = 0.1
    assert known.check_seconds == pytest.approx(3 * 0.2 + runs_seconds), "the model itself may be saved"


def test_opening_every_contender_of_a_large_model_gives_way_to_measuring() -> None:
    large = schedule(open_seconds=2.0)
    runs = large.contenders * (1 + RacePolicy.least_rounds * RacePolicy.runs)
    turns_seconds = runs * large.run_seconds + large.contenders * RacePolicy.least_rounds * SETTLE_SECONDS
    assert large.race_seconds == pytest.approx(RacePolicy.open_share * 60.0 + turns_seconds)
    huge = schedule(open_seconds=10.0)
    assert huge.race_seconds == pytest.approx(2 * (10.0 + WORKER_SECONDS) + turns_seconds), "the original and the best are opened"


def test_measuring_ends_in_time_for_what_is_simulated_after_it() -> None:
    """Measuring ends earlier by the time that simulations take.

    A large share of the budget is left for later stages anyway, so the last extractions take more than that share here.
    """
    known = replace(schedule(), ending_seconds=22.0)
    later = replace(known, simulating_seconds=4.0)
    assert known.measuring_seconds() - later.measuring_seconds() == pytest.approx(4.0, abs=0.1)


def test_a_race_leaves_the_time_that_comparing_the_other_inputs_takes() -> None:
    """A race leaves time for comparing the other inputs.

    Regression: a model whose outputs rounding did not explain was checked for 12 s after a race that left 0.6 s for it.
    """
    known = replace(schedule(), given=3)
    all_seconds = known.racing_seconds
    assert all_seconds == pytest.approx(60.0 - known.check_seconds, abs=0.5)
    known.compared(4.0)
    known.compared(1.0)
    assert all_seconds - known.racing_seconds == pytest.approx(8.0, abs=0.5), "the first input was compared before the race"
    known.compared(100.0)
    assert known.racing_seconds == pytest.approx(known.least_race_seconds), "the gain is worth more than the seconds of a check"
    known.progress.started -= 59.0
    assert known.racing_seconds < known.least_race_seconds


def test_a_race_is_given_what_the_budget_leaves_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = replace(schedule(), given=3)
    known.compared(10.0)
    given: list[float] = []
    monkeypatch.setattr("egraph.optimize.finalists.race", lambda *arguments, **values: given.append(values["most_seconds"]))
    run: Any = SimpleNamespace(
        options=Options(tmp_path / "m.onnx", tmp_path / "out", threads=1), budget=known, database=None,
        reference=SimpleNamespace(runs=SimpleNamespace(specs=()), given=SimpleNamespace(raced=())),
        lowering=SimpleNamespace(generator_digest=""), device_key="here",
    )  # fmt: skip
    finalists._race(run, [], {}, [])
    assert given == [pytest.approx(60.0 - known.check_seconds - 2 * 10.0, abs=0.5)]


@pytest.mark.parametrize("differs", [False, True])
def test_how_long_a_finalist_is_compared_is_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, differs: bool) -> None:
    known, unused, reference = schedule(), cast(Any, None), cast(Any, SimpleNamespace(opening_seconds=1.0))
    options = Options(tmp_path / "m.onnx", tmp_path / "out", threads=1)
    tester = repair.Repair(options, known.progress, unused, reference, unused, known, unused, tmp_path, keep_subnormals=True)

    def compared(*arguments: Any, **values: Any) -> None:
        known.progress.started -= 5.0
        reference.opening_seconds += 2.0  # opening happens once, and not for every input
        if differs:
            raise Disagreement(CheckFailed("other numbers"), {})

    monkeypatch.setattr(repair.Repair, "compared", compared)
    monkeypatch.setattr(repair, "Session", lambda *arguments, **values: nullcontext(SimpleNamespace(run=len)))
    error = tester.tested(cast(Any, SimpleNamespace(contender=SimpleNamespace(path="p", name="program 1"))))
    assert (error is not None) == differs and known.compared_seconds == pytest.approx(3.0, abs=0.5)


@pytest.mark.parametrize(("given", "seconds", "is_tested"), [(1, 20.0, True), (1, 58.0, False), (2, 25.0, True), (3, 25.0, False)])
def test_a_finalist_is_compared_where_that_leaves_time_for_the_other_inputs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: int, seconds: float, is_tested: bool
) -> None:
    known, unused = replace(schedule(), given=given, contenders=0), cast(Any, None)
    options = Options(tmp_path / "m.onnx", tmp_path / "out", threads=1)
    tester = repair.Repair(options, known.progress, unused, unused, unused, known, unused, tmp_path, keep_subnormals=True)
    tested: list[object] = []
    monkeypatch.setattr(repair.Repair, "_difference", lambda self, entry: tested.append(entry))
    known.compared(seconds)
    assert tester.tested(unused) is None and len(tested) == is_tested


def test_a_check_of_a_quick_model_is_never_shortened() -> None:
    assert schedule(spent_seconds=100.0).may_check()
    late, early = schedule(run_seconds=4.0, spent_seconds=50.0), schedule(run_seconds=4.0)
    assert late.checks * late.input_seconds > CheckPolicy.seconds
    assert early.may_check() and not late.may_check()


def test_a_check_that_compares_parts_asks_for_the_time_that_it_took() -> None:
    quick = schedule(spent_seconds=55.0)
    assert quick.may_check() and quick.may_check(compared_seconds=4.0) and not quick.may_check(compared_seconds=6.0)


@pytest.mark.parametrize(("compared_seconds", "goes_on"), [(0.1, True), (6.0, False)])
def test_the_check_knows_how_long_finalists_were_compared(compared_seconds: float, goes_on: bool, tmp_path: Path) -> None:
    """The check's first input takes no time, because the comparison before the race was on it; the next ones take as long as that did."""
    known, database, asked = schedule(spent_seconds=55.0), Database.in_memory(), list[bool]()
    known.compared(compared_seconds)

    def compared(candidates: Any, goes_on: Callable[[int], bool], *arguments: Any) -> Any:
        asked.append(goes_on(1))
        return SimpleNamespace(is_short=True, inputs=1)

    run: Any = SimpleNamespace(
        options=Options(tmp_path / "m.onnx", tmp_path / "out", threads=1), budget=known, database=database, device_key="here",
        reference=SimpleNamespace(given=SimpleNamespace(key="")), model_digest=SimpleNamespace(result=lambda: "model"),
        artefact=tmp_path / "m.einsat", model_file=tmp_path / "m.opt.onnx", repair=SimpleNamespace(compared=compared),
    )  # fmt: skip
    saving.check(run, cast(Any, None), None, None, is_repeated=False)
    assert asked == [goes_on]


def test_a_rehearsal_tells_how_long_its_program_took_to_open(tmp_path: Path) -> None:
    known, unused = schedule(open_seconds=0.2), cast(Any, None)
    given: Any = SimpleNamespace(samples=lambda: (), errors=dict, model=None, originals=None)
    options = Options(tmp_path / "m.onnx", tmp_path / "out", threads=1)
    tester = repair.Repair(options, known.progress, given, given, unused, known, given, tmp_path, keep_subnormals=True)
    assert tester.rehearsal().open_seconds == 0.2
    tester.rehearsal().opened(1.0)
    assert tester.rehearsal().open_seconds == 1.0 == known.saved_open_seconds


def test_a_run_tells_its_budget_what_it_has_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the slowdown of a busy machine was passed as the time to open a program, for which 3 s of every budget were kept."""
    told: dict[str, Any] = {}

    def stop(progress: Progress, **fields: Any) -> None:
        told.update(fields)
        raise InterruptedError

    monkeypatch.setattr(pipeline, "compared_within", lambda *given: replace(compared_within(*given), slowdown=3.0, run_seconds=0.125))
    monkeypatch.setattr(pipeline, "Budget", stop)
    options = Options(build_model(tmp_path / "m.onnx"), tmp_path / "out", threads=1, checks=2, database=tmp_path / "p.sqlite")
    with pytest.raises(InterruptedError):
        optimize(options, Progress(-1, 20.0))
    assert told["slowdown"] == 3.0 and told["quiet_run_seconds"] == 0.125 and told["checks"] == 2
    assert 0.0 < told["quiet_open_seconds"] < 5.0 and "quiet_saved_open_seconds" not in told


def test_nothing_is_compiled_ahead_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC compiles a kernel again for each program: time is kept for it, and nothing is compiled beside the search."""
    options = CompileOptions(threads=1, target=lowering("cuda:h100").target)
    fragment = apply("Exp", placeholder(0, TensorType("float32", (64,))))
    program = kernel_program(fragment, lowering("cuda:h100").generated, seed=0)
    monkeypatch.setattr(budget, "compile_requests", _never)
    monkeypatch.setattr("egraph.optimize.compiling_ahead.compile_requests", _never)
    known = schedule()
    known.compiled(16, 16 * 2.0)
    assert uncompiled_work([(fragment, program.kernels[0].implementation)], options) == 1.0
    assert known.compile([program], tmp_path, options) and not known.compile([program], tmp_path, options, kept_seconds=58.5)
    with compiling_ahead(tmp_path, options, lambda work, seconds: None) as ahead:
        ahead.start([program])
        assert not ahead.is_building


def test_kernels_that_the_cache_has_are_not_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program, options, known = _plain(), CompileOptions(threads=1), schedule()
    known.compile([program], tmp_path, options)
    assert known.compilations and known.compilations[0][0] == 2
    kernels = [Candidate(kernel.fragment, (), (), kernel.implementation) for kernel in program.kernels]
    other = replace(kernels[0], fragment=apply("Exp", placeholder(0, TensorType("float32", (7,)))), implementation=GENERATED)
    library = replace(other, fragment=apply("Tanh", placeholder(0, TensorType("float32", (8,)))), implementation=LIBRARY)
    assert uncompiled_work([(each.fragment, each.implementation) for each in (*kernels, library, other, other)], options) == 1.0
    assert known.seconds_of(program, options) == pytest.approx(0.5 + WORKER_SECONDS + 3 * 0.01)


def test_a_program_is_compiled_as_far_as_there_is_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program is compiled batch by batch, as far as the pace of earlier kernels allows.

    Delays by other processes cost the program, not the budget.
    """
    clock, batches = Clockwork(), list[int]()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    monkeypatch.setattr(budget, "uncompiled", lambda programs, options: list(range(40)))
    monkeypatch.setattr(budget, "compile_work", len)

    def compile_slowly(requests: list[int], path: Path, options: CompileOptions) -> tuple[SimpleNamespace, float]:
        batches.append(len(requests))
        clock.now += 1.0 * len(requests)
        return SimpleNamespace(seconds=1.0 * len(requests)), float(len(requests))

    monkeypatch.setattr(budget, "compile_requests", compile_slowly)
    options = CompileOptions(threads=1)
    assert schedule().compile([_plain()], tmp_path, options) and batches == [4, 8, 16, 12]
    clock.now = 0.0
    assert not schedule().compile([_plain()], tmp_path, options, kept_seconds=25.0) and clock.now == 28.0
    late = schedule()
    late.compiled(20, 20.0)
    assert not late.compile([_plain()], tmp_path, options, kept_seconds=57.0) and clock.now == 28.0, "none begins that would end late"


def test_what_is_compiled_ahead_is_waited_for_while_there_is_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A compiler that other processes delay is stopped when no program can be raced any more."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    held_up, stopped = threading.Event(), threading.Event()

    def hold_up(compiler: Compiler, *_: object) -> tuple[list[str], str]:
        held_up.set()
        assert stopped.wait(60.0)
        return [], "compiling was interrupted"

    monkeypatch.setattr(Compiler, "compile", hold_up)
    monkeypatch.setattr(Compiler, "start", lambda self: None)
    monkeypatch.setattr(Compiler, "stop", lambda self: stopped.set())
    compiled: list[float] = []
    with compiling_ahead(
        tmp_path, CompileOptions(threads=1), lambda count, seconds: compiled.append(count), time_left=lambda: 0.05
    ) as ahead:
        ahead.start([_plain()])
        assert held_up.wait(60.0), "what ends before anything is compiled ends by itself"
        ahead.end()
        assert stopped.is_set() and not sum(compiled)


LIBRARY = Implementation.parse("onednn.eltwise", GENERATED.target)


def _plain() -> Program:
    x = make("Input", (), attributes(name="x"), TensorType("float32", (5, 7)))
    graph = Graph("two", (x,), (("y", apply("Tanh", apply("Exp", x))),), {})
    return plain_program(graph, CostModel(Database.in_memory(), "", DeviceSpeed()), seed=0)


def test_the_budget_begins_with_the_process() -> None:
    with open("/proc/self/stat", encoding="utf-8") as file:
        assert int(file.read().split()[0]) == os.getpid()
    age_seconds = time.monotonic() - process_started()
    assert 0.0 < age_seconds < 86_400.0
    time.sleep(0.05)
    assert time.monotonic() - process_started() > age_seconds


def test_what_waits_or_works_beside_a_call_does_not_make_it_slow() -> None:
    ends = threading.Event()
    beside = threading.Thread(target=lambda: all(not ends.is_set() for _ in range(1 << 40)))
    beside.start()
    _, seconds = worked_here(lambda: time.sleep(0.3))
    ends.set()
    beside.join()
    assert seconds < 0.1


@dataclass
class Clockwork:
    """A clock whose seconds pass only when something runs."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clockwork(monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    clock = Clockwork()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    return clock


def _raced(
    clock: Clockwork, monkeypatch: pytest.MonkeyPatch, seconds: float, run_seconds: dict[str, float], *,
    most_seconds: float = 0.0, first_turn_seconds: float = 0.0, load_seconds: float = 0.0,
) -> tuple[racing.Race, list[str]]:  # fmt: skip
    """Race engines with these seconds per run, of which loading includes one; return the race and its events in order."""
    happened: list[str] = []
    names: dict[int, str] = {}
    timed: set[int] = set()

    def load(self: Worker, what: Load) -> Timing:
        names[id(self)] = what.path
        clock.now += load_seconds + run_seconds[what.path]
        happened.append(f"load {what.path}")
        return Timing("ok")

    def time_it(self: Worker, effort: Effort) -> Timing:
        each = run_seconds[names[id(self)]]
        count = max(effort.least, min(effort.most, int(effort.seconds / each)))
        clock.now += count * each + (0.0 if id(self) in timed else first_turn_seconds)
        timed.add(id(self))
        happened.append(f"time {names[id(self)]}")
        return Timing("ok", (each * 1e6,) * count)

    for name, function in (("load", load), ("time", time_it), ("start", lambda self, threads: None)):
        monkeypatch.setattr(Worker, name, function)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    contenders = [Contender(name, name, "onnxruntime", name) for name in run_seconds]
    raced = race(
        contenders, FEEDS, failed={}, preferred=list(run_seconds), essential="original", threads=1, seed=0,
        database=Database.in_memory(), device="d",
        seconds=seconds, most_seconds=most_seconds, run_seconds=run_seconds["original"],
    )  # fmt: skip
    return raced, happened


def test_a_race_has_its_rounds_though_its_share_is_over(clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    """A race goes on beyond its share while the budget has time, because one round is no verdict.

    For example, threads that lie on one core are timed again for seconds.
    """
    run_seconds = {"original": 0.03, "best": 0.02, "plain": 0.025}
    raced, _ = _raced(clockwork, monkeypatch, 5.0, run_seconds, most_seconds=13.0, first_turn_seconds=3.0)
    assert len(raced.timings["best"].samples_us) >= 5 and clockwork.now < 13.0
    clockwork.now = 0.0
    raced, _ = _raced(clockwork, monkeypatch, 5.0, run_seconds, most_seconds=6.0, first_turn_seconds=3.0)
    assert len(raced.timings["best"].samples_us) == 1 and clockwork.now < 10.0


def test_a_race_of_slow_programs_ends_in_time(clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program that matters is run once when loaded and once timed; the others are reported as not raced for lack of time."""
    raced, happened = _raced(clockwork, monkeypatch, 10.0, {"original": 5.0, "best": 6.0, "plain": 5.0, "other": 2.0})
    assert happened == ["load original", "load best", "time original", "time best"] and clockwork.now == 22.0
    assert {name: len(timing.samples_us) for name, timing in raced.timings.items()} == {"original": 1, "best": 1, "plain": 0, "other": 0}
    assert raced.timings["plain"].message == raced.timings["other"].message == NO_TIME_TO_RACE


def test_a_race_of_slow_programs_goes_on_while_there_is_time(clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    raced, _ = _raced(clockwork, monkeypatch, 60.0, {"original": 4.0, "best": 3.5, "plain": 4.2})
    assert len(raced.timings["best"].samples_us) >= 3 and clockwork.now <= 60.0


def test_a_race_of_quick_programs_ends_in_time(clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that would end late does not begin, however few there were, because the check needs the remaining time."""
    run_seconds = {"original": 0.01, "best": 0.009, "plain": 0.011}
    raced, _ = _raced(clockwork, monkeypatch, 0.15, run_seconds)
    assert clockwork.now <= 0.15 and 1 < len(raced.timings["best"].samples_us) < RacePolicy.least_rounds
    clockwork.now = 0.0
    raced, happened = _raced(clockwork, monkeypatch, 0.0, run_seconds)
    assert happened == ["load original", "load best", "time original", "time best"], "what decides is timed once"
    assert raced.timings["plain"].message == NO_TIME_TO_RACE


def test_a_contender_that_opens_slowly_is_not_opened_late(clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine starts processes slowly, so the next contender is expected to open as slowly as the one before."""
    run_seconds = {"original": 2.0, "best": 2.0, "plain": 2.0, "second": 2.0}
    raced, happened = _raced(clockwork, monkeypatch, 13.0, run_seconds)
    assert [each for each in happened if each.startswith("load")] == ["load original", "load best", "load plain"]
    assert raced.timings["second"].message == NO_TIME_TO_RACE


def test_contenders_that_take_long_to_open_leave_the_others_their_rounds(clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    """If contenders open slowly, fewer of them are opened, so that the others have their rounds.

    Regression: six contenders of 430 MB were opened in 9 of 12 seconds. One round proved nothing of a program 1.3 times as fast as the
    model.
    """
    run_seconds = {"original": 0.14, "best": 0.11, "plain": 0.14, "second": 0.11, "third": 0.11, "fourth": 0.11}
    raced, _ = _raced(clockwork, monkeypatch, 12.0, run_seconds, load_seconds=1.5)
    assert clockwork.now <= 12.0 and len(raced.timings["best"].samples_us) >= RacePolicy.least_rounds
    assert raced.timings["plain"].samples_us and raced.timings["third"].message == NO_TIME_TO_RACE
    known = schedule(open_seconds=1.2, run_seconds=0.14)
    least_seconds = (1 + RacePolicy.least_rounds * RacePolicy.runs) * 0.14
    assert known.fair_race_seconds(3) == pytest.approx(3 * (1.2 + WORKER_SECONDS + least_seconds))
    slow = schedule(open_seconds=1.2, run_seconds=2.0)
    assert slow.fair_race_seconds(3) == pytest.approx(3 * (1.2 + WORKER_SECONDS + 2 * 2.0)), "once loaded, and once timed"


def test_a_race_of_many_programs_that_do_not_fit_ends_in_time(clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run is short, but three rounds of three runs of six contenders do not fit.

    The last contenders are not timed, and the others are timed less often.
    """
    run_seconds = dict.fromkeys(["original", "best", "plain", "second", "third", "fourth"], 0.3)
    raced, happened = _raced(clockwork, monkeypatch, 1.0, run_seconds)
    assert clockwork.now <= 3.0 and happened[:2] == ["load original", "load best"]
    assert raced.timings["original"].samples_us and raced.timings["best"].samples_us
    assert raced.timings["fourth"].message == NO_TIME_TO_RACE


def test_a_busy_machine_makes_everything_take_longer() -> None:
    assert slowdown_of([0.5, 0.5], [1.0, 2.0]) == pytest.approx(3.0)
    assert slowdown_of([0.01], [0.05]) == 1.0, "too short to tell"
    assert slowdown_of([1.0], [0.9]) == 1.0 and slowdown_of([0.0], [1.0]) == 8.0
    quiet = schedule(run_seconds=0.5)
    busy = replace(quiet, slowdown=3.0)
    assert busy.after_search_seconds() > 1.4 * quiet.after_search_seconds(), "the least runs of all are kept time for up to a share"
    assert busy.measuring_seconds() < quiet.measuring_seconds() and busy.seconds_of(_plain(), CompileOptions(threads=1)) > 1.5 + 4.0


def test_what_is_shipped_is_compiled_in_the_time_that_is_kept() -> None:
    known = schedule()
    known.compiled(20, 20.0)
    assert known.after_search_seconds(40) == pytest.approx(40.0 + known.race_seconds + known.check_seconds)


def test_inputs_of_other_kinds_are_not_tried_late() -> None:
    """Outputs that tell little ask for more inputs. If there is no time for them, the result says so."""
    ran: list[float] = []

    def saturated(feeds: object) -> list[np.ndarray]:
        x = cast("dict[str, np.ndarray]", feeds)["x"]
        ran.append(float(x[0]))
        return [np.ones_like(x)]

    def checked(most: int) -> CheckResult:
        ran.clear()
        files = {"file": saturated}
        return check(saturated, files, ["y"], FEEDS, tolerance=Tolerance(), count=2, seed=0, goes_on=lambda compared: compared < most)

    late, early = checked(3), checked(9)
    assert late.inputs == 3 and late.is_short and late.weak
    assert early.inputs == 4 and not early.is_short


@pytest.mark.parametrize("inputs", [1, 2, 4])
def test_a_check_compares_as_many_inputs_as_it_may(inputs: int) -> None:
    """A check compares at least one input, and reports the number of inputs that it compared."""
    ran: list[float] = []

    def run(feeds: object) -> list[np.ndarray]:
        x = cast("dict[str, np.ndarray]", feeds)["x"]
        ran.append(float(x[0]))
        return [x * 2]

    result = check(run, {"file": run}, ["y"], FEEDS, tolerance=Tolerance(), count=4, seed=0, goes_on=lambda compared: compared < inputs)
    assert result.inputs == inputs and result.is_short and len(ran) == 2 * inputs == 2 * len(set(ran))
    whole = check(run, {"file": run}, ["y"], FEEDS, tolerance=Tolerance(), count=4, seed=0)
    assert whole.inputs == 4 and not whole.is_short


def test_a_short_check_is_remembered_until_a_whole_one_was_made() -> None:
    database = Database.in_memory()
    write_checked(database, "here", "model", None)
    assert not list(database.records()), "a whole check needs no record"
    write_checked(database, "here", "model", 2)
    assert read_checked(database, "here", "model") == 2 and read_checked(database, "here", "other") is None
    write_checked(database, "here", "model", None)
    assert read_checked(database, "here", "model") is None


def _measured(monkeypatch: pytest.MonkeyPatch, answer: Timing, *, left_seconds: float, seconds: float) -> tuple[Database, list[float]]:
    """Measure a kernel that is expected to take ``seconds``; return the database and the timeouts of the measurements."""
    waited: list[float] = []

    def give(worker: Worker, load: Load, effort: Effort) -> Timing:
        waited.append(worker.time_out_seconds)
        return answer

    monkeypatch.setattr("egraph.optimize.measuring.measure", give)
    monkeypatch.setattr("egraph.optimize.measuring.compile_batch", _no_folders)
    database = Database.in_memory()
    measurer = Measurer(database, "here", CompileOptions(threads=1), Worker(time_out_seconds=20.0))
    job = Job(apply("Exp", placeholder(0, TensorType("float32", (8,)))), GENERATED, "kernel", seconds=seconds)
    for _ in range(2):
        measurer.measure([job], _always(left_seconds), lambda told: None)
    assert measurer.worker.time_out_seconds == 20.0
    return database, waited


def _always(seconds: float) -> Callable[[], float]:
    return lambda: seconds


def _no_folders(programs: list[Program], folder: Path, options: CompileOptions, *_: object) -> list[Path | EinsatError]:
    return [folder for _ in programs]


def test_kernels_are_waited_for_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _measured(monkeypatch, Timing("ok", (1.0,)), left_seconds=500.0, seconds=10.0)[1] == [60.0, 60.0]
    assert _measured(monkeypatch, Timing("ok", (1.0,)), left_seconds=500.0, seconds=0.0)[1] == [20.0, 20.0]
    database, waited = _measured(monkeypatch, Timing("ok", (1.0,)), left_seconds=5.0, seconds=10.0)
    assert not waited and not list(database.records()), "there is no time for it"


def test_a_kernel_is_not_said_to_hang_where_time_was_short(monkeypatch: pytest.MonkeyPatch) -> None:
    database, waited = _measured(monkeypatch, Timing("hung"), left_seconds=8.0, seconds=0.0)
    assert waited == [8.0, 8.0] and not list(database.records())
    database, waited = _measured(monkeypatch, Timing("hung"), left_seconds=30.0, seconds=0.0)
    assert waited == [20.0, 20.0] and [record.status for record in database.records()] == ["hung"]


def test_the_check_begins_with_the_inputs_that_the_original_was_first_run_on() -> None:
    """The check reuses the outputs that the original gave when it was first run, and runs it only on the other inputs."""
    ran: list[float] = []

    class Original:
        def run(self, names: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
            ran.append(float(feeds["x"][0]))
            return [feeds["x"] * 2]

    x = make("Input", (), attributes(name="x"), TensorType("float32", (4,)))
    answers, original = Answers(), Original()
    specs = find_feeds(original, Graph("one", (x,), (("y", apply("Exp", x)),), {}), 3, answers.keep)
    assert len(ran) == 1

    def reference(feeds: object) -> list[np.ndarray]:
        given = cast("dict[str, np.ndarray]", feeds)
        return list(answers.of(given) or original.run(None, given))

    asked: list[float] = []

    def saved(feeds: object) -> list[np.ndarray]:
        given = cast("dict[str, np.ndarray]", feeds)
        asked.append(float(given["x"][0]))
        return [given["x"] * 2]

    check(reference, {"file": saved}, ["y"], specs, tolerance=Tolerance(), count=3, seed=3)
    assert len(ran) == 3 and ran == asked, "three inputs, and three runs in all"


def test_answers_are_found_by_all_that_is_in_the_inputs() -> None:
    answers = Answers()
    inputs = {"x": np.arange(4, dtype=np.float32), "s": np.array(["a", "b"], dtype=object), "n": np.array(3)}
    assert answers.of({}) is None and answers.of(inputs) is None
    answers.keep(inputs, ["y"])
    assert answers.of(dict(reversed(inputs.items()))) == ["y"]
    others = [{"x": inputs["x"].reshape(2, 2)}, {"x": inputs["x"].astype(np.float64)}, {"n": np.array(4)}]
    others += [{"x": inputs["x"] + 1}, {"s": np.array(["a", "c"], dtype=object)}]
    assert all(answers.of(inputs | other) is None for other in others)


def test_kernels_are_compiled_together_as_far_as_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pace of the compiler limits a batch: it is smaller if it would end late, and none begins that cannot end in time."""
    left_seconds, batches = 100.0, list[int]()

    def slowly(programs: list[Program], folder: Path, options: CompileOptions, tell: object) -> list[Path | EinsatError]:
        nonlocal left_seconds
        batches.append(len(programs))
        left_seconds -= 2.0 * len(programs)
        return [LowerError("not compiled") for _ in programs]

    monkeypatch.setattr(measuring, "compile_batch", slowly)
    monkeypatch.setattr(measuring, "uncompiled_work", lambda kernels, options: float(len(kernels)))
    measurer = Measurer(Database.in_memory(), "here", CompileOptions(threads=1), Worker(), seconds_to_compile=lambda work: 2.0 * work)
    jobs = [Job(apply("Exp", placeholder(0, TensorType("float32", (size,)))), GENERATED, str(size)) for size in range(1, 101)]
    measurer.measure(jobs, lambda: left_seconds, lambda told: None)
    assert batches == [32, 18] and left_seconds == 0.0 and measurer.measured == 32
    measurer.measure(jobs, lambda: 1.0, lambda told: None)
    assert len(batches) == 2, "one takes two seconds"


def test_what_is_compiled_together_can_be_timed_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A batch holds no more kernels than can also be timed, because compiling others would be in vain."""
    clock_seconds, batches = 0.0, list[int]()

    def compiles(programs: list[Program], folder: Path, options: CompileOptions, *_: object) -> list[Path | EinsatError]:
        nonlocal clock_seconds
        batches.append(len(programs))
        clock_seconds += 1.0 * len(programs)
        return [tmp_path for _ in programs]

    def times(*_: object) -> Timing:
        nonlocal clock_seconds
        clock_seconds += 3.0
        return Timing("ok", (1.0,))

    monkeypatch.setattr(measuring, "compile_batch", compiles)
    monkeypatch.setattr(measuring, "uncompiled_work", lambda kernels, options: float(len(kernels)))
    monkeypatch.setattr(Measurer, "_timing", times)
    monkeypatch.setattr("egraph.optimize.measuring.time.monotonic", lambda: clock_seconds)
    measurer = Measurer(Database.in_memory(), "here", CompileOptions(threads=1), Worker(), seconds_to_compile=lambda work: work)
    jobs = [Job(apply("Exp", placeholder(0, TensorType("float32", (size,)))), GENERATED, str(size)) for size in range(1, 101)]
    measurer.measure(jobs[:2], lambda: float("inf"), lambda told: None)
    start_seconds = clock_seconds
    measurer.measure(jobs[2:], lambda: 40.0 - (clock_seconds - start_seconds), lambda told: None)
    assert batches == [2, 10] and measurer.measured == 12


def _compiled_sizes(monkeypatch: pytest.MonkeyPatch, cache: Path) -> list[int]:
    """Let no kernel compile, and return a list to which the elements of the operands of those that are compiled are added."""
    sizes: list[int] = []

    def compiles(programs: list[Program], *_: object) -> list[Path | EinsatError]:
        sizes.extend(program.graph.inputs[0].type.elements for program in programs)
        return [LowerError("not compiled") for _ in programs]

    monkeypatch.setattr(measuring, "compile_batch", compiles)
    monkeypatch.setenv("EINSAT_CACHE", str(cache))
    return sizes


def test_a_kernel_that_takes_longer_to_compile_than_there_is_time_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Regression: one kernel of 22 operators took 1.3 of the 10 s of a search, and 14 others were not measured for it."""
    sizes = _compiled_sizes(monkeypatch, tmp_path)
    chains = {number: placeholder(0, TensorType("float32", (number,))) for number in (1, 2, 3)}
    for number, count in ((1, 1), (2, 22), (3, 2)):
        for _ in range(count):
            chains[number] = apply("Tanh", chains[number])
    measurer = Measurer(Database.in_memory(), "here", CompileOptions(threads=1), Worker(), seconds_to_compile=lambda work: 0.05 * work)
    jobs = [Job(node, GENERATED, str(number)) for number, node in chains.items()]
    measurer.measure(jobs, lambda: 1.0, lambda told: None)
    assert sizes == [1, 3] and measurer.measured == 2
    measurer.measure(jobs, lambda: math.inf, lambda told: None)
    assert sizes == [1, 3, 1, 2, 3]
    library = Job(apply("MatMul", *(placeholder(k, TensorType("float32", (4, 4)), constant=k == 1) for k in range(2))), LIBRARY, "product")
    assert measurer._fitting([library], 1e-3) == ([library], []), "there is nothing to compile"
    assert measurer._fitting([library], 0.0) == ([], [])
    one, many, two = jobs
    assert measurer._fitting([one, two, many], 10.0)[0] == [one, two, many]
    assert measurer._fitting([one, two, many], 0.05 * 30.5) == ([one, two], [many]), "each takes as long as its operators"


def test_kernels_are_measured_batch_by_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes = _compiled_sizes(monkeypatch, tmp_path)
    measurer = Measurer(Database.in_memory(), "here", CompileOptions(threads=1), Worker(), policy=MeasurePolicy(batch=2))
    jobs = [Job(apply("Exp", placeholder(0, TensorType("float32", (size,)))), GENERATED, str(size)) for size in range(1, 6)]
    measurer.measure(jobs, lambda: math.inf, lambda told: None)
    assert sizes == [1, 2, 3, 4, 5]


def test_kernels_of_many_operators_take_longer_to_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EINSAT_CACHE", str(tmp_path))
    node = placeholder(0, TensorType("float32", (5,)))
    works = []
    for _ in range(22):
        node = apply("Tanh", node)
        works.append(compile_work([KernelRequest(node)]))
    assert works[0] == 1.0 and works[21] == pytest.approx(30.4) and works == sorted(works)
    assert compile_work([KernelRequest(node)] * 2) == 2 * works[21] and compile_work([]) == 0.0
    assert uncompiled_work([(node, GENERATED), (node, LIBRARY)], CompileOptions(threads=1)) == works[21]
    exp = apply("Exp", placeholder(0, TensorType("float32", (5,))))
    small = kernel_program(exp, GENERATED, seed=0)
    told: list[float] = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        compile_batch([small], tmp_path / name, CompileOptions(threads=1), lambda work, seconds: told.append(work))
    assert told == [1.0, 0.0], "it is compiled once"


def test_a_run_that_is_late_keeps_the_model_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late run compiles, times and proves nothing any more, but it checks what it writes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("race", "compile_entry"):
        monkeypatch.setattr(f"egraph.optimize.finalists.{name}", _never)
    monkeypatch.setattr("egraph.optimize.trial.compile_entry", _never)
    monkeypatch.setattr(Measurer, "_timing", _never)
    built: list[str] = []
    monkeypatch.setattr(CompilingAhead, "start", lambda self, programs, sources=(): built.extend(source.stem for source in sources))
    model = build_model(tmp_path / "m.onnx")
    options = Options(model, tmp_path / "out", threads=1, budget_seconds=20.0, database=tmp_path / "p.sqlite")
    outcome = optimize(options, Progress(-1, 20.0, time.monotonic() - 25.0))
    assert "products" in built, "the library of a part of the model is built ahead"
    assert outcome.shipped == ORIGINAL and outcome.inputs == {"given": 0, "random": 3}
    assert {each.message for each in outcome.finalists} == {NO_TIME_TO_COMPILE}
    onnx.checker.check_model(str(tmp_path / "out" / "m.opt.onnx"))


def test_a_search_that_was_not_timed_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command continues a search whose time was over before a program was raced."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = build_model(tmp_path / "m.onnx")
    options = Options(model, tmp_path / "out", threads=1, budget_seconds=20.0, database=tmp_path / "p.sqlite")
    for late_seconds, budget_seconds in ((25.0, {0.0}), (0.0, {20.0})):
        optimize(options, Progress(-1, 20.0, time.monotonic() - late_seconds))
        with closing(Database.open(tmp_path / "p.sqlite")) as database:
            assert {row.budget_seconds for row in database.rows(SearchRow)} == budget_seconds


@pytest.mark.parametrize("is_hurried", [True, False])
def test_a_search_that_time_ended_is_resumed_where_time_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_hurried: bool) -> None:
    """A search that time ended is resumed if time is left later.

    Regression: a busy moment ended a search after 25 s of 55, with 37 of its kernels estimated, and the run after 35 s.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    measuring_seconds, first, later = Budget.measuring_seconds, list[Search](), list[Search]()
    measurers: list[Measurer] = []

    def search_first(*arguments: Any, **more: Any) -> Search:
        if is_hurried:
            monkeypatch.setattr(Budget, "measuring_seconds", lambda self: 0.0)
        first.append(search(*arguments, **more))
        measurers.extend(each for each in (*arguments, *more.values()) if isinstance(each, Measurer))
        monkeypatch.setattr(Budget, "measuring_seconds", measuring_seconds)
        return first[-1]

    def search_later(*arguments: Any, **more: Any) -> Search:
        later.append(resume_search(*arguments, **more))
        return later[-1]

    monkeypatch.setattr("egraph.optimize.pipeline.search", search_first)
    monkeypatch.setattr("egraph.optimize.pipeline.resume_search", search_later)
    model = build_model(tmp_path / "m.onnx")
    options = Options(model, tmp_path / "out", threads=1, budget_seconds=60.0, database=tmp_path / "p.sqlite")
    outcome = optimize(options, Progress(-1, 60.0, time.monotonic()))
    (measurer,) = measurers
    paces = [getattr(method, "__self__", None) for method in (measurer.tell_compiled, measurer.seconds_to_compile)]
    assert isinstance(paces[0], Budget) and paces[0] is paces[1], "the budget learns the compiler's pace, and predicts by it"
    assert is_cut_short(first[0]) == is_hurried and len(first) == 1 and bool(later) == is_hurried
    if is_hurried:
        assert not is_cut_short(later[-1]) and later[0].saturation is first[0].saturation, "nothing grows"
        with closing(Database.open(tmp_path / "p.sqlite")) as database:
            assert any(record.status == "ok" for record in database.records())
    assert outcome.max_rel_err < 1e-4


@pytest.mark.parametrize(
    ("measuring_seconds", "rival_us", "is_new", "races", "is_better"),
    [(9.0, 50.0, True, 1, True), (9.0, 90.0, True, 1, False), (9.0, 50.0, False, 0, False), (1.0, 50.0, True, 0, False)],
)
def test_a_resumed_search_gives_another_program_where_that_is_faster(
    monkeypatch: pytest.MonkeyPatch, measuring_seconds: float, rival_us: float, is_new: bool, races: int, is_better: bool
) -> None:
    cut_short = SimpleNamespace(saturation=SimpleNamespace(by_rules=None), choice=SimpleNamespace(kernels_unmeasured=3, selections=(1,)))
    whole = SimpleNamespace(
        saturation=cut_short.saturation, choice=SimpleNamespace(kernels_unmeasured=0, selections=(1,)), programs=("b" if is_new else "a",)
    )
    measurer = SimpleNamespace(measured=5)

    def resumed(*_: object, **__: object) -> SimpleNamespace:
        measurer.measured += 1
        return whole

    def trial_of(time_us: float) -> Any:
        times_us = {ORIGINAL: 100.0, "program 1": time_us}
        entry = SimpleNamespace(contender=SimpleNamespace(name="program 1"), program="a")
        raced = SimpleNamespace(median_us=times_us.__getitem__)
        return SimpleNamespace(searched=cut_short, entries=(entry,), raced=raced, plain=None, search_key="")

    raced: list[object] = []

    def race_again(run: object, searched: object, *_: object, **__: object) -> Any:
        raced.append(searched)
        return trial_of(rival_us)

    for name, function in (("timed", race_again), ("resume_search", resumed), ("replace", lambda value, **_: value)):
        monkeypatch.setattr(f"egraph.optimize.pipeline.{name}", function)
    for name in ("program_digest", "extracted_digest"):
        monkeypatch.setattr(f"egraph.optimize.pipeline.{name}", lambda program: program)
    run = SimpleNamespace(
        options=Options(Path("m.onnx")), look_again=lambda: None, worker=SimpleNamespace(close=lambda: None),
        budget=SimpleNamespace(measuring_seconds=lambda: measuring_seconds),
        repair=SimpleNamespace(rehearsal=lambda: SimpleNamespace(notes=[]), notes=[]),
    )  # fmt: skip
    first = trial_of(80.0)
    best = pipeline._resumed(cast(Run, run), first, cast(Measurer, measurer), cast(CostModel, None))
    assert len(raced) == races and (best is not first) == is_better and measurer.measured == (5 if measuring_seconds < 2.0 else 6)


def _never(*_: object, **__: object) -> None:
    raise AssertionError("there is no time for this")
