"""The compiling process: kept while a run lasts, replaced when it dies, left behind by nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from egraph.ir import Node, TensorType, placeholder
from egraph.ops import apply
from lower.eoperator import compile_library
from lower.eoperator import process as process_module
from lower.eoperator.process import Compiler, compile_jobs, kept_compiler


def _fragment(size: int) -> Node:
    return apply("Relu", placeholder(0, TensorType("float32", (size,))))


def _compile(size: int, folder: Path) -> int:
    return compile_library([_fragment(size)], folder / f"{size}.so", threads=1, cache=folder / "cache").compiled


def test_one_process_compiles_everything_while_it_is_kept(tmp_path: Path) -> None:
    with kept_compiler() as compiler:
        assert _compile(3, tmp_path) == 1
        first = compiler._process
        assert _compile(5, tmp_path) == 1
        assert first is not None and compiler._process is first and first.poll() is None
        first.kill()
        first.wait()
        problems = compile_library([_fragment(7)], tmp_path / "7.so", threads=1, cache=tmp_path / "cache").failures
        assert "died" in problems[_fragment(7)].what
        assert _compile(9, tmp_path) == 1  # in a new process
        last = compiler._process
    assert last is not None and last is not first and last.poll() is not None


FAKE = """
import json, pickle, sys, time
while True:
    jobs, threads = pickle.load(sys.stdin.buffer)
    for job in jobs:
        if job == "hang":
            time.sleep(60)
        print(json.dumps({"position": 0, "error": "" if job == "good" else "bad"}), flush=True)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "compiler.py"
    script.write_text(FAKE)
    monkeypatch.setattr(process_module, "MODULE", (str(script),))
    monkeypatch.setattr(process_module, "START_SECONDS", 5.0)


@pytest.mark.usefixtures("fake")
def test_answers_that_come_at_once_are_all_read() -> None:
    with kept_compiler():
        assert compile_jobs(["good", "bad", "good"], 1, 5.0) == (["", "bad", ""], "")
        assert compile_jobs(["bad"], 1, 5.0) == (["bad"], "")


@pytest.mark.usefixtures("fake")
def test_a_process_that_hangs_is_ended() -> None:
    compiler = Compiler()
    compiler.compile(["good"], 1, 5.0)
    process = compiler._process
    errors, problem = compiler.compile(["good", "hang", "good"], 1, 0.2)
    assert errors == [""] and "did not finish" in problem
    assert process is not None and process.poll() is not None and compiler._process is None
    assert compiler.compile(["good"], 1, 5.0) == ([""], "")
    compiler.close()


@pytest.mark.usefixtures("fake")
def test_an_interrupt_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    compiler = Compiler()
    compiler.start()
    process = compiler._process
    monkeypatch.setattr(process_module.select, "select", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiler.compile(["good"], 1, 5.0)
    assert process is not None and process.poll() is not None and compiler._process is None
