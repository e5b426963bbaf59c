"""Derived programs that lose digits on a model's own values are removed from its e-graph, and no others are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from egraph.onnx import importer
from egraph.optimize.admission import choose_derivations, choose_rules
from egraph.optimize.budget import Budget
from egraph.optimize.check_noise import RunModel, open_onnxruntime
from egraph.optimize.choice import program_digest
from egraph.optimize.chooser import Chooser, Rounds, Space
from egraph.optimize.derivations import Deriver
from egraph.optimize.folding import Folder
from egraph.optimize.gate import Gate
from egraph.optimize.measuring import Measurer
from egraph.optimize.options import Options
from egraph.optimize.rehearsal import Rehearsal
from egraph.optimize.repair import Repair
from egraph.optimize.search import Search, plain_program, search, search_again
from egraph.tensor import Candidate, Graph, Program, Selection
from egraph.tolerance import Tolerance
from lower.cost.model import CostModel
from lower.roofline import DeviceSpeed
from runtime.profile import Database, Record
from tests.egraph.optimize.test_search import Clock, budget_of

CHANNELS, SIZE = 48, 30


def three_convolutions(path: Path, offset: float) -> Path:
    """Write three convolutions; before the second, a picture is added to all channels, with factors that its weights cancel."""
    random = np.random.default_rng(0)
    strengths = random.standard_normal((CHANNELS, 1, 1))
    picture = np.float32(offset * strengths * random.standard_normal((1, SIZE, SIZE)))
    nodes, constants, x = [], [numpy_helper.from_array(picture, "offset")], "x"
    for k in range(3):
        w = random.standard_normal((CHANNELS, CHANNELS, 3, 3)).astype(np.float32) * np.float32((9 * CHANNELS) ** -0.5)
        if k == 1:
            w -= np.float32(strengths * (w * strengths).sum(axis=1, keepdims=True) / (strengths**2).sum())
            nodes.append(helper.make_node("Add", [x, "offset"], ["moved"], name="add0"))
            x = "moved"
        constants.append(numpy_helper.from_array(w, f"w{k}"))
        nodes.append(helper.make_node("Conv", [x, f"w{k}"], [f"c{k}"], pads=[0] * 4 if k == 1 else [1] * 4, name=f"conv{k}"))
        nodes.append(helper.make_node("Relu", [f"c{k}"], [f"r{k}"], name=f"relu{k}"))
        x = f"r{k}"
    sizes = [1, CHANNELS, SIZE, SIZE]
    y = helper.make_tensor_value_info(x, 1, [1, CHANNELS, SIZE - 2, SIZE - 2])
    graph = helper.make_graph(nodes, "three", [helper.make_tensor_value_info("x", 1, sizes)], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@dataclass
class Lot:
    """A measurer that reports slow convolutions and quick other kernels."""

    clock: Clock
    measured: int = 0

    def measure_candidates(
        self, model: CostModel, candidates: Iterable[Candidate], time_left: Callable[[], float], tell: Callable[[str], None]
    ) -> None:
        for one in candidates:
            if not model.is_settled(one):
                self.measured += 1
                self.clock.spent_seconds += 1e-3
                text, implementation = model.key(one)
                model.file(Record(model.device, text, implementation, "ok", (1e4 if "Conv" in text else 10.0,)))

    def uncompiled_work(self, candidates: Iterable[Candidate]) -> int:
        return sum(one.implementation.is_generated for one in candidates)


@dataclass(frozen=True)
class Case:
    graph: Graph
    rehearsal: Rehearsal
    search: Callable[..., tuple[Search, CostModel, Clock, Budget]]
    """Search with a rehearsal or None, on a simulated clock."""


@cache
def deriver() -> Deriver:
    return Deriver(choose_derivations((), allow="finite"), Gate(prover=lambda *sides: ""))


def case(folder: Path, offset: float) -> Case:
    path = three_convolutions(folder / "m.onnx", offset)
    graph = importer.load(path).graph
    feeds = {"x": np.random.default_rng(1).standard_normal((1, CHANNELS, SIZE, SIZE)).astype(np.float32)}
    expected = open_onnxruntime(path, 1).run(None, feeds)
    rehearsal = Rehearsal(graph, Folder(graph), [(feeds, expected)], Tolerance(), 1, errors=deriver().errors)
    names = ("conv_channels_last", "transpose_out_of_relu", "transpose_into_add", "transpose_twice")
    rules = [rule for rule in choose_rules((), (), allow="finite", unsafe=False) if rule.name in names]

    def searched(rehearsal: Rehearsal | None, clock: Clock | None = None) -> tuple[Search, CostModel, Clock, Budget]:
        clock, model = clock or Clock(10_000.0), CostModel(Database.in_memory(), "here", DeviceSpeed())
        budget = budget_of(clock)
        found = search(
            graph, rules, lambda: model, cast(Measurer, Lot(clock)), budget,
            finalists=2, max_nodes=5_000, seed=0, derivations=deriver().open(), rehearsal=rehearsal,
        )  # fmt: skip
        return found, model, clock, budget

    return Case(graph, rehearsal, searched)


def derived_at(program: Program) -> set[str]:
    """Return the model's convolutions that derived programs compute."""
    return {
        f"conv{name[-1]}"
        for kernel in program.kernels
        if any(rule.startswith("winograd") for rule in kernel.rules)
        for name in program.graph.origins.get(kernel.output, ())
        if name.startswith(("conv", "relu", "add"))
    }


EVERY = {"conv0", "conv1", "conv2"}


def test_what_would_lose_digits_is_expected_to_and_left_out_before_it_is_chosen(tmp_path: Path) -> None:
    one = case(tmp_path, 200.0)
    program = one.search(None)[0].programs[0]
    assert derived_at(program) == EVERY and "largest error" in one.rehearsal.difference(program)
    found, _, _, _ = one.search(one.rehearsal)
    assert derived_at(found.programs[0]) == EVERY - {"conv1"} and not one.rehearsal.difference(found.programs[0])
    assert len(one.rehearsal.notes) == 1 and "sizes that this model computes" in one.rehearsal.notes[0]


def test_what_is_at_fault_is_bisected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rehearsal, "expected_errors", lambda self, part, candidates: {})
    one = case(tmp_path, 200.0)
    found, _, _, _ = one.search(one.rehearsal)
    assert derived_at(found.programs[0]) == EVERY - {"conv1"} and not one.rehearsal.difference(found.programs[0])
    assert one.rehearsal.notes and all("1 of 3 uses of derived programs are left out" in text for text in one.rehearsal.notes)


def test_usual_values_leave_everything_in(tmp_path: Path) -> None:
    one = case(tmp_path, 0.0)
    found, _, _, _ = one.search(one.rehearsal)
    assert derived_at(found.programs[0]) == EVERY and not one.rehearsal.notes


def test_after_a_failed_check_other_programs_come_from_the_same_e_graph(tmp_path: Path) -> None:
    one = case(tmp_path, 200.0)
    found, model, clock, _ = one.search(None)
    wrong = program_digest(found.programs[0])
    spent = clock.spent_seconds
    other = search_again(
        found, model, budget_of(clock), one.rehearsal, None, wrong=wrong, finalists=2, seed=0
    )  # fmt: skip
    assert other.saturation is found.saturation and clock.spent_seconds == spent, "nothing grows, nothing is measured"
    assert derived_at(other.programs[0]) == EVERY - {"conv1"} and program_digest(other.programs[0]) != wrong


def test_without_time_what_was_not_tried_is_left_out(tmp_path: Path) -> None:
    one = case(tmp_path, 0.0)
    left = iter([10.0, 10.0, 0.0, 0.0, 0.0])
    one.rehearsal.time_left = lambda: next(left)
    one.rehearsal.open_seconds = 1.0
    tried: list[frozenset[int]] = []

    def differs(kept: frozenset[int]) -> str:
        tried.append(kept)
        return "7 does" if 7 in kept else ""

    assert one.rehearsal.kept(range(8), differs) == {0, 1, 2, 3} and tried == [frozenset(range(4)), frozenset(range(8))]
    one.rehearsal.time_left = lambda: 10.0
    assert one.rehearsal.kept(range(8), differs) == set(range(7))


def test_a_program_is_opened_once_for_all_inputs(tmp_path: Path) -> None:
    """A program is opened once for all inputs.

    Regression: for five inputs, a model of 160 MB was written and opened five times, in 12 s of a budget of 55.
    """
    one = case(tmp_path, 0.0)
    program, opened = one.search(None)[0].programs[0], list[Program]()
    (feeds, expected), *_ = one.rehearsal.samples
    opened_seconds: list[float] = []
    twice = replace(one.rehearsal, samples=[(feeds, expected)] * 2, opened=opened_seconds.append)

    @contextmanager
    def open_counted(program: Program) -> Iterator[RunModel]:
        opened.append(program)
        with one.rehearsal.open_standard(program) as run:
            yield run

    assert not twice.difference(program, open_counted) and opened == [program]
    assert not twice.difference(program) and len(opened_seconds) == 1 and opened_seconds[0] > 0.0
    moved = replace(twice, samples=[(feeds, expected), (feeds, [2 * value for value in expected])])
    assert "largest error" in moved.difference(program, open_counted), "every sample is compared"

    @contextmanager
    def open_nothing(program: Program) -> Iterator[RunModel]:
        raise RuntimeError("no such\n model")
        yield lambda feeds: []

    assert twice.difference(program, open_nothing) == "it does not run: no such model"


def test_a_wrong_program_is_rehearsed_as_it_was_compiled(tmp_path: Path) -> None:
    """A program whose error appears only once it is compiled is opened as an artefact, which is removed afterwards."""
    one = case(tmp_path, 0.0)
    program = plain_program(one.graph, CostModel(Database.in_memory(), "here", DeviceSpeed()), seed=0)
    options = Options(tmp_path / "m.onnx", tmp_path / "out", threads=1)
    unused: Any = None
    work = tmp_path / "work"
    work.mkdir()
    repair = Repair(options, unused, unused, unused, one.rehearsal.folder, unused, unused, work, keep_subnormals=True)
    assert not one.rehearsal.difference(program, repair._open_compiled) and not list(work.iterdir())
    (feeds, expected), *_ = one.rehearsal.samples
    moved = replace(one.rehearsal, samples=[(feeds, [2 * value for value in expected])])
    assert "largest error" in moved.difference(program, repair._open_compiled)


def test_the_first_rehearsal_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: kernels of a UPerNet were measured until no time was left, its rehearsal took 11 s, and nothing was raced."""
    one, offered = case(tmp_path, 0.0), list[float]()

    def offer(self: Chooser, measurer: Measurer, time_left: Callable[[], float], rounds: Rounds, **more: Any) -> tuple[Selection, ...]:
        offered.append(time_left())
        return ()

    monkeypatch.setattr(Chooser, "refine", offer)

    def offered_seconds(open_seconds: float) -> float:
        """Return the time that is offered to measure kernels of derived programs, after those of the rules' program."""
        offered.clear()
        one.search(replace(one.rehearsal, open_seconds=open_seconds))
        return offered[1]

    assert offered_seconds(0.0) - offered_seconds(1000.0) == pytest.approx(2000.0, abs=1.0), "a rehearsal opens models twice"


def test_the_last_rehearsal_and_extractions_have_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = case(tmp_path, 0.0)
    assert one.search(None)[3].ending_seconds == 0.0, "nothing is rehearsed"
    clock, plainly = Clock(10_000.0), Rehearsal.difference

    def slowly(rehearsal: Rehearsal, *arguments: Any) -> str:
        clock.spent_seconds += 7.0
        return plainly(rehearsal, *arguments)

    monkeypatch.setattr(Rehearsal, "difference", slowly)
    budget = one.search(replace(one.rehearsal, open_seconds=10.0), clock)[3]
    assert budget.ending_seconds == 7.0, "as long as the first took"
    bisected = one.search(replace(one.rehearsal, open_seconds=1.0), clock)[3]
    assert bisected.ending_seconds == 2 * 2 * 1.0, "but no longer than one may take"
    monkeypatch.setattr(Space, "extract_seconds", 3.0)
    assert one.search(replace(one.rehearsal, open_seconds=10.0), clock)[3].ending_seconds == 7.0 + 2 * 3.0, "and two extractions"
    quick = replace(budget, ending_seconds=0.0)
    most_seconds = (1.0 - budget.policy.measure.share) * budget.seconds
    late = replace(budget, ending_seconds=most_seconds + 3.0)
    assert quick.measuring_seconds() - late.measuring_seconds() == pytest.approx(late.after_search_seconds() + 3.0)
