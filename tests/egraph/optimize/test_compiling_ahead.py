"""Kernels are compiled beside a search, one lot after another."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread

import pytest

from egraph.optimize import compiling_ahead as module
from egraph.optimize.compiling_ahead import CompilingAhead, compiling_ahead
from egraph.optimize.kernels import kernel_program, uncompiled
from egraph.policy import MeasurePolicy
from egraph.tensor import Program, TensorType, placeholder
from egraph.tensor.ops import apply
from lower.compile import CompileOptions
from lower.targets import lowering
from tests.support.implementations import GENERATED


def _program(op: str) -> Program:
    return kernel_program(apply(op, placeholder(0, TensorType("float32", (5, 7)))), GENERATED, seed=0)


def test_more_is_compiled_after_an_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options, counts = CompileOptions(threads=1), SimpleQueue[float]()
    lots = [_program("Exp"), _program("Tanh")], [_program("Tanh"), _program("Sigmoid")]
    with compiling_ahead(tmp_path, options, lambda count, seconds: counts.put(count)) as ahead:
        ahead.end()  # nothing was started
        for lot in lots:
            ahead.start(iter(lot))
            assert counts.get(timeout=60.0) == (2 if lot is lots[0] else 1), "what is compiled is not compiled again"
            ahead.end()
    assert uncompiled([*lots[0], *lots[1]], options) == []


def test_what_runs_every_program_is_built_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    may_be_built, counts = Event(), SimpleQueue[float]()
    slow = replace(lowering(), prepare=lambda: None if may_be_built.wait(60.0) else pytest.fail("not built"))
    monkeypatch.setattr(module, "lowering_for", lambda target: slow)
    with compiling_ahead(tmp_path, CompileOptions(threads=1), lambda count, seconds: counts.put(count)) as ahead:
        assert not ahead.is_building
        ahead.start([_program("Exp")])
        assert ahead.is_building and counts.empty()
        may_be_built.set()
        assert counts.get(timeout=60.0) == 1 and not ahead.is_building


def test_libraries_are_built_before_kernels_unless_compiling_is_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    built, may_go_on, counts = SimpleQueue[str](), Event(), SimpleQueue[float]()

    def build(source: Path) -> Path:
        built.put(source.name)
        assert may_go_on.wait(60.0)
        return source

    monkeypatch.setattr(module, "lowering_for", lambda target: replace(lowering(), build=build))
    with compiling_ahead(tmp_path, CompileOptions(threads=1), lambda count, seconds: counts.put(count)) as ahead:
        ahead.start([_program("Exp")], [Path("first.c"), Path("second.c")])
        assert built.get(timeout=60.0) == "first.c" and ahead.is_building and counts.empty()
        Thread(target=ahead.end).start()
        while not ahead._is_over.is_set():
            time.sleep(0.01)
        may_go_on.set()
    assert built.empty() and counts.empty(), "the second one is built where it is needed"
    with compiling_ahead(tmp_path, CompileOptions(threads=1), lambda count, seconds: counts.put(count)) as ahead:
        ahead.start([_program("Exp")], [Path("first.c"), Path("second.c")])
        assert counts.get(timeout=60.0) == 1 and not ahead.is_building
    assert [built.get(timeout=1.0), built.get(timeout=1.0)] == ["first.c", "second.c"]


class _Process:
    """Lists what is asked of a compiler."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def start(self) -> None:
        self.asked.append("start")

    def wait(self, seconds: float) -> None:
        self.asked.append("wait")

    def stop(self) -> None:
        self.asked.append("stop")


def test_a_compiler_that_still_loads_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Loading takes a second of a core, and would disturb what is measured next."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    process = _Process()
    ahead = CompilingAhead([process], tmp_path, CompileOptions(threads=1), lambda count, seconds: None, MeasurePolicy(), lambda: 60.0)
    ahead.start([])
    ahead.end()
    assert process.asked == ["start", "wait"]
