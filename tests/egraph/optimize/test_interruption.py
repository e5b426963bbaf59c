"""Ctrl-C at any time: one exit code, one message, old results untouched; it comes too late once results are put in place."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from egraph.errors import ModelError
from egraph.onnx.importer import load
from egraph.optimize import interruption
from egraph.optimize.__main__ import main
from egraph.optimize.compiling_ahead import compiling_ahead
from egraph.optimize.progress import Progress
from egraph.tensor import Program
from lower.compile import CompileOptions
from lower.targets.cpu.generator.process import Compiler
from runtime.profile import Database
from tests.support.commands import build_model, files_below
from tests.support.forked import run_forked
from tests.support.paths import ROOT


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restore the test runner's own handlers, whatever a test installs."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    interruption.install()  # nothing is remembered
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    "stage", ["read the model", "calibrate", "saturate", "measure", "extract", "time the finalists", "check the saved files", "write"]
)
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, stage: str) -> None:
    """In every stage, Ctrl-C gives exit code 130, a message, untouched old results and a readable database."""
    model = build_model(tmp_path / "m.onnx")
    out = tmp_path / "out"
    out.mkdir()
    (out / "m.opt.onnx").write_text("old")
    arguments = (model, "-o", out, "--threads", 1, "--budget", "6s", "--database", tmp_path / "p.sqlite")
    done = run_forked([*map(str, arguments)], os.environ, 60, INTERRUPTED.format(stage=stage))
    assert done.returncode == 130, done.stderr
    assert "interrupted: nothing was written" in done.stderr
    assert files_below(out) == {"m.opt.onnx": b"old"}
    if (tmp_path / "p.sqlite").exists():
        warnings: list[str] = []
        list(Database.open(tmp_path / "p.sqlite", warn=warnings.append).records())
        assert not warnings


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_from_the_first_result_in_place_on_ctrl_c_comes_too_late(tmp_path: Path, number: str) -> None:
    """No new model is left beside an old artefact, and no interruption is reported, because there was none."""
    model = build_model(tmp_path / "m.onnx")
    out = tmp_path / "out"
    out.mkdir()
    (out / "m.opt.onnx").write_text("old")
    text = (
        "import os, signal, sys\nfrom egraph.optimize import __main__ as main, output\nreal = os.replace\n"
        "def replace(source, target):\n    real(source, target)\n"
        f"    if str(target) == {str(out / 'm.opt.onnx')!r}:\n        os.kill(os.getpid(), signal.{number})\n"
        "os.replace = replace\nsys.exit(main.main())"
    )
    arguments = (model, "-o", out, "--threads", 1, "--budget", "4s", "--database", tmp_path / "p.sqlite", "--json")
    done = run_forked([*map(str, arguments)], os.environ, 100, text)
    assert done.returncode == 0 and "interrupted" not in done.stderr, done.stderr
    assert json.loads(done.stdout)["files"] == [str(out / "m.opt.onnx"), str(out / "m.einsat")]
    assert sorted(path.name for path in out.iterdir()) == ["m.einsat", "m.opt.onnx"]
    from runtime import Session

    with Session(out / "m.einsat", threads=1):
        pass


@pytest.mark.usefixtures("handlers")
def test_an_interruption_that_a_finaliser_swallows_is_heeded_later() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        interruption.install()
        Progress(-1, 1.0).update("nothing was asked for")
        with contextlib.suppress(KeyboardInterrupt):  # as Python does in a finaliser
            signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            Progress(-1, 1.0).update("next")


@pytest.mark.parametrize("place", [(Compiler, "start"), (threading.Thread, "start")])
def test_an_interruption_while_compilers_start_is_no_other_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[type, str]
) -> None:
    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    program = Program(load(build_model(tmp_path / "m.onnx")).graph, (), 0.0)
    monkeypatch.setattr(*place, interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        compiling_ahead(tmp_path, CompileOptions(threads=1), lambda count, seconds: None) as ahead,
    ):
        ahead.start([program])


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("error", [RuntimeError("half done"), ModelError("half read")])
def test_what_fails_because_of_an_interruption_is_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fails(options: object) -> int:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise error

    monkeypatch.setattr("egraph.optimize.command.run", fails)
    monkeypatch.setattr(sys, "argv", ["optimize", str(build_model(tmp_path / "m.onnx"))])
    assert main() == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.usefixtures("handlers")
def test_an_interruption_waits_while_modules_are_loaded() -> None:
    loaded = []
    interruption.install()
    with contextlib.suppress(KeyboardInterrupt):
        with interruption.deferred():
            signal.raise_signal(signal.SIGTERM)
            loaded.append("whole")
        loaded.append("after it")
    assert loaded == ["whole"]


def test_an_interruption_of_generated_code_has_the_exit_code_of_any_other(tmp_path: Path) -> None:
    """CPython notes that code run by ``exec`` was interrupted, and would end by a signal."""
    text = (
        "import sys\nfrom egraph.optimize import __main__ as main, command\n"
        "def run(options):\n    exec('import os, signal; os.kill(os.getpid(), signal.SIGTERM)\\nfor k in range(10**7): pass')\n"
        "command.run = run\nsys.exit(main.main())"
    )
    model = build_model(tmp_path / "m.onnx")
    (tmp_path / "interrupted.py").write_text(text)
    arguments = [sys.executable, "-m", "interrupted", str(model)]  # as a module, because otherwise CPython does not check for this
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 130 and "interrupted" in done.stderr


INTERRUPTED = """
import os, signal, sys, threading, time
from egraph.optimize import __main__ as main
from egraph.optimize.progress import Progress
real = Progress.stage
def stage(self, name):
    real(self, name)
    if name == {stage!r} and name in ("extract", "check the saved files", "write"):  # short: at their beginning
        os.kill(os.getpid(), signal.SIGINT)
    elif name == {stage!r}:
        threading.Thread(target=lambda: (time.sleep(0.2), os.kill(os.getpid(), signal.SIGINT)), daemon=True).start()
Progress.stage = stage
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.exit(main.main())
"""
