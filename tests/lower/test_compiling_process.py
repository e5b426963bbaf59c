"""Test that the compiling process is reused during a run, replaced when it dies, and never left behind."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Semaphore

import pytest

from egraph.errors import LowerError
from egraph.tensor import Node, TensorType, format_fragment, placeholder
from egraph.tensor.ops import apply
from lower.eoperator import KernelRequest
from lower.targets.cpu.generator import compile_library
from lower.targets.cpu.generator import library as library_module
from lower.targets.cpu.generator import process as process_module
from lower.targets.cpu.generator.process import Compiler, borrowed_compilers, kept_compiler
from runtime.child import Child
from tests.support.fragments import leaf

MODULE = process_module.MODULE
"""What users run: other tests' processes are forks of one that has imported it."""


@pytest.fixture(autouse=True)
def no_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "MODULE", MODULE)


def running(compiler: Compiler) -> subprocess.Popen[bytes]:
    assert compiler._child is not None
    return compiler._child.process


def _fragment(size: int) -> Node:
    return apply("Relu", placeholder(0, TensorType("float32", (size,))))


def _compile(size: int, folder: Path) -> int:
    return compile_library([_fragment(size)], folder / f"{size}.so", threads=1, cache=folder / "cache").compiled


def test_one_process_compiles_everything_while_it_is_kept(tmp_path: Path) -> None:
    with kept_compiler() as compiler:
        assert _compile(3, tmp_path) == 1
        first = running(compiler)
        assert _compile(5, tmp_path) == 1
        assert running(compiler) is first and first.poll() is None
        first.kill()
        first.wait()
        problems = compile_library([_fragment(7)], tmp_path / "7.so", threads=1, cache=tmp_path / "cache").failures
        assert "died" in problems[_fragment(7)].what
        assert _compile(9, tmp_path) == 1  # in a new process
        last = running(compiler)
    assert last is not first and last.poll() is not None


def test_a_full_disk_is_no_failure_of_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a full disk were recorded as a kernel's failure, the kernel would stay unused after there is space again."""
    said = "the compiler died (exit code 1): LLVM ERROR: IO failure on output stream: No space left on device"
    monkeypatch.setattr(Compiler, "compile", lambda self, jobs, threads, limit_seconds: ([], said))
    with pytest.raises(LowerError, match=r"No space left on device\n  at: .*cache(.|\n)*fix: set EINSAT_CACHE to a writable folder"):
        _compile(3, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(LowerError, match=r"cannot be kept: .*Not a directory(.|\n)*EINSAT_CACHE"):
        compile_library([_fragment(3)], tmp_path / "3.so", threads=1, cache=tmp_path / "file")


FAKE = """
import json, pickle, sys, time
time.sleep(0.2)
print("", flush=True)
while True:
    jobs, threads = pickle.load(sys.stdin.buffer)
    for job in jobs:
        if job == "hang":
            time.sleep(60)
        print(json.dumps({"position": 0, "error": "" if job == "good" else "bad", "seconds": 2.0}), flush=True)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "compiler.py"
    script.write_text(FAKE)
    monkeypatch.setattr(process_module, "MODULE", (str(script),))
    monkeypatch.setattr(process_module, "START_SECONDS", 5.0)


@pytest.mark.usefixtures("fake")
def test_answers_that_come_at_once_are_all_read() -> None:
    with kept_compiler() as compiler:
        assert compiler.compile(["good", "bad", "good"], 1, 5.0) == (["", "bad", ""], "")
        assert compiler.compile(["bad"], 1, 5.0) == (["bad"], "")
        assert compiler.worked_seconds == 8.0, "as the process says, whatever it took to start it"


@pytest.mark.usefixtures("fake")
def test_waiting_ends_once_the_compiler_is_loaded() -> None:
    with kept_compiler() as compiler:
        compiler.wait(5.0)
        assert not compiler.is_running, "waiting starts no process"
        compiler.start()
        started = time.monotonic()
        compiler.wait(5.0)
        assert time.monotonic() - started > 0.1
        assert compiler.compile(["good"], 1, 5.0) == ([""], "")


@pytest.mark.usefixtures("fake")
def test_a_compiler_that_loads_for_too_long_is_waited_for_when_it_compiles() -> None:
    with kept_compiler() as compiler:
        compiler.start()
        compiler.wait(0.0)
        assert compiler.compile(["good"], 1, 5.0) == ([""], "")


@pytest.mark.usefixtures("fake")
def test_an_error_elsewhere_ends_all_that_compile() -> None:
    """Ctrl-C interrupts the main thread while other threads wait for their compilers."""
    used: list[Compiler] = []
    answers: list[Future[tuple[list[str], str]]] = []

    def interrupted() -> None:
        with ThreadPoolExecutor(2) as pool, borrowed_compilers(2) as compilers:
            used.extend(compilers)
            answers.extend(pool.submit(compiler.compile, ["good", "hang"], 1, 30.0) for compiler in compilers)
            while not all(compiler.worked_seconds for compiler in compilers):
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(answer.result()[0] == [""] and "died" in answer.result()[1] for answer in answers)
    assert used[0].compile(["good"], 1, 5.0) == ([], "compiling was interrupted")


def test_many_kernels_are_compiled_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "most_processes", lambda: 2)
    monkeypatch.setattr(library_module, "LEAST_A_PROCESS", 1)
    fragments = [_fragment(size) for size in (3, 5, 7)]
    both = compile_library(fragments, tmp_path / "a.so", threads=1, cache=tmp_path / "cache")
    monkeypatch.setattr(library_module, "most_processes", lambda: 1)
    alone = compile_library(fragments, tmp_path / "b.so", threads=1, cache=tmp_path / "other")
    assert (both.compiled, alone.compiled) == (3, 3)
    assert both.path.read_bytes() == alone.path.read_bytes()


def test_processes_that_run_share_few_kernels_and_none_waits_for_a_slow_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first compiler finishes only after the second has compiled everything that is left."""
    others_done = Semaphore(0)
    counts = [0, 0]

    @dataclass
    class Fake:
        number: int
        worked_seconds: float = 0.0

        def compile(self, jobs: Sequence[object], threads: int, seconds: float) -> tuple[list[str], str]:
            counts[self.number] += len(jobs)
            self.worked_seconds += len(jobs)
            if self.number == 1:
                others_done.release()
            elif not (others_done.acquire(timeout=20) and others_done.acquire(timeout=20)):
                return [], "the other one took nothing more"
            return [""] * len(jobs), ""

    monkeypatch.setattr(library_module, "running_compilers", lambda: 2)
    monkeypatch.setattr(library_module, "borrowed_compilers", lambda count: nullcontext([Fake(number) for number in range(count)]))
    requests = [KernelRequest(_fragment(size)) for size in (3, 4, 5)]
    failures, seconds = library_module._compile(requests, {each: tmp_path / each.symbol for each in requests}, 1)
    assert failures == {} and counts == [1, 2]
    assert seconds == 1.5, "two worked side by side"


def test_the_kernels_that_take_longest_are_compiled_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Fake:
        worked_seconds = 0.0

        def compile(self, jobs: Sequence[tuple[str, object, object, str]], threads: int, seconds: float) -> tuple[list[str], str]:
            order.extend(job[0] for job in jobs)
            return [""] * len(jobs), ""

    monkeypatch.setattr(library_module, "running_compilers", lambda: 2)
    monkeypatch.setattr(library_module, "borrowed_compilers", lambda count: nullcontext([Fake()]))
    transform = apply("Relu", apply("Expression", leaf(0, 4), text="{i0<4} ($0[i0] * 2)"))
    requests = [KernelRequest(each) for each in (_fragment(3), transform, _fragment(4))]
    library_module._compile(requests, {each: tmp_path / each.symbol for each in requests}, 1)
    assert order == [format_fragment(each) for each in (transform, _fragment(3), _fragment(4))]


@pytest.mark.usefixtures("fake")
def test_a_process_that_hangs_is_ended() -> None:
    compiler = Compiler()
    compiler.compile(["good"], 1, 5.0)
    process = running(compiler)
    errors, problem = compiler.compile(["good", "hang", "good"], 1, 0.2)
    assert errors == [""] and "did not finish" in problem
    assert process.poll() is not None and not compiler.is_running
    assert compiler.compile(["good"], 1, 5.0) == ([""], "")
    compiler.close()


@pytest.mark.usefixtures("fake")
def test_an_interrupt_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    compiler = Compiler()
    compiler.start()
    process = running(compiler)
    monkeypatch.setattr(Child, "line", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiler.compile(["good"], 1, 5.0)
    assert process.poll() is not None and not compiler.is_running
