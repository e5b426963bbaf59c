"""Programs whose times differ from their predictions: which kernels are named, which time is believed, and what is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from egraph.onnx import importer
from egraph.optimize.estimated import compile_options
from egraph.optimize.folding import Folder
from egraph.optimize.measuring import Measurer
from egraph.optimize.repair import AtFault, at_fault, is_mispredicted, times_in_place
from egraph.optimize.search import plain_program
from egraph.tensor import Candidate, Program
from lower.compile import CompileOptions, compile_program
from lower.cost.model import CostModel, KernelKey
from lower.roofline import DeviceSpeed
from runtime import Session
from runtime.profile import Database, Record
from tests.support.commands import build_model

INSIDE_US = 10.0


@dataclass
class Alone:
    """A measurer that returns this time for every kernel."""

    alone_us: float | None
    options: CompileOptions

    def measure_again(self, model: CostModel, some: Sequence[Candidate], time_left: Callable[[], float]) -> dict[KernelKey, Record]:
        times = () if self.alone_us is None else (self.alone_us,)
        return {model.key(one): Record(model.device, *model.key(one), "ok", times) for one in some if times}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, Path]:
    folder = tmp_path_factory.mktemp("mispredicted")
    graph = importer.load(build_model(folder / "m.onnx")).graph
    program = Folder(graph).fold(plain_program(graph, CostModel(Database.in_memory(), "", DeviceSpeed()), seed=0))
    compile_program(program, folder / "program", compile_options(1))
    return program, folder / "program"


def look(
    compiled: tuple[Program, Path],
    monkeypatch: pytest.MonkeyPatch,
    *,
    recorded_us: float | None,
    alone_us: float | None,
    inside_us: Sequence[float],
) -> tuple[AtFault, CostModel]:
    """Examine the program; inside it, the first kernel takes these times and every other kernel its recorded time."""
    program, place = compiled
    model = CostModel(Database.in_memory(), "here", DeviceSpeed(), model="this one")
    launched = [Candidate(k.fragment, (), (), k.implementation) for k in program.kernels if not k.implementation.is_free]
    for one in launched:
        time_us = recorded_us if one is launched[0] else INSIDE_US
        if time_us is not None:
            model.file(Record("here", *model.key(one), "ok", (time_us,)))
    times = iter(inside_us)
    monkeypatch.setattr(Session, "profile", lambda self, count: [("first", next(times)), *(("", INSIDE_US) for _ in launched[1:])])
    feeds = {"x": np.zeros((5, 12), np.float32)}
    measurer = cast(Measurer, Alone(alone_us, compile_options(1)))
    (found,) = at_fault(program, str(place), feeds, model, measurer, lambda: 1.0)
    assert model.key(found.candidate) == model.key(launched[0])
    return found, model


@pytest.mark.parametrize(
    ("recorded_us", "alone_us", "inside_us", "verdict", "cost_us"),
    [
        (10.0, 10.0, (50.0, 52.0), "in place", 51.0),
        (10.0, 12.0, (50.0, 52.0), "in place", 51.0),
        (100.0, 100.0, (20.0, 20.0), "in place", 20.0),  # quicker inside: other processes never make a kernel quicker
        (100.0, 10.0, (10.0, 11.0), "recorded", 10.0),  # other processes ran when it was measured
        (None, 40.0, (50.0, 52.0), "estimated", 40.0),
        (10.0, 30.0, (50.0, 52.0), "busy", 10.0),  # other processes run now
        (10.0, 10.0, (50.0, 20.0), "busy", 10.0),
        (10.0, None, (50.0, 52.0), "untried", 10.0),
    ],
)
def test_what_is_believed(
    compiled: tuple[Program, Path],
    monkeypatch: pytest.MonkeyPatch,
    recorded_us: float | None,
    alone_us: float | None,
    inside_us: tuple[float, float],
    verdict: str,
    cost_us: float,
) -> None:
    found, model = look(compiled, monkeypatch, recorded_us=recorded_us, alone_us=alone_us, inside_us=inside_us)
    assert found.verdict == verdict and model.cost_us(found.candidate) == cost_us
    assert found.is_filed == (verdict in ("in place", "recorded", "estimated"))
    assert found.in_place_us == min(inside_us) and f"{min(inside_us):.0f} us, not" in str(found)


def test_what_costs_more_in_place_does_so_in_this_model_alone(compiled: tuple[Program, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    found, model = look(compiled, monkeypatch, recorded_us=10.0, alone_us=10.0, inside_us=(50.0, 52.0))
    one = found.candidate
    again = CostModel(model.database, "here", DeviceSpeed(), model="this one")
    other = CostModel(model.database, "here", DeviceSpeed(), model="that one")
    assert again.cost_us(one) == 51.0 and other.cost_us(one) == 10.0 == CostModel(model.database, "here", DeviceSpeed()).cost_us(one)


def test_a_program_as_predicted_is_no_reason_to_look() -> None:
    assert not is_mispredicted(129.0, 100.0) and not is_mispredicted(100.0, 129.0)
    assert is_mispredicted(131.0, 100.0) and is_mispredicted(47.0, 243.0)


def test_steps_are_told_by_their_kernels(compiled: tuple[Program, Path]) -> None:
    program, place = compiled
    with Session(place, threads=1) as session:
        session.run(None, {"x": np.zeros((5, 12), np.float32)})
        rows = times_in_place(session, program, compile_options(1))
    launched = [kernel for kernel in program.kernels if not kernel.implementation.is_free]
    assert [kernel for kernels, _ in rows for kernel in kernels] == [kernel for kernel in launched if any(kernel in k for k, _ in rows)]
    assert all(time_us > 0 for _, time_us in rows) and len(rows) >= 4
