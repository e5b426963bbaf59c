"""The forks that replace compiling and measuring processes end when their requester ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.child_server import command_of
from tests.support.paths import ROOT

REAL_PYTHON = sys.executable


def test_a_launcher_that_was_killed_before_it_asked_leaves_no_fork(tmp_path: Path) -> None:
    place = tmp_path / "worker"
    command = [sys.executable, "-m", "tests.support.child_server", "worker", str(place)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == b"ready\n"
            with socket.socket(socket.AF_UNIX) as killed:
                killed.connect(str(place))
            served_next = subprocess.run([sys.executable, *command_of(place)], stdin=subprocess.DEVNULL, timeout=60, check=False)
            server.communicate(timeout=60)  # a remaining fork would hold the server's output open
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
    assert served_next.returncode == 0


@pytest.mark.usefixtures("forked_python")
def test_what_stands_for_python_answers_as_it_does(tmp_path: Path) -> None:
    """A fork in Python's place keeps the command's folder, arguments, streams, variables and exit code; the rest is left to Python."""
    text = "import os, sys; print(os.getcwd(), sys.argv, input(), os.environ['MINE']); sys.exit(int(sys.argv[1]))"
    environment = {**os.environ, "MINE": "set"}
    for executable in (sys.executable, REAL_PYTHON):
        done = subprocess.run(
            [executable, "-c", text, "7"], cwd=tmp_path, env=environment, input="given", capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (7, f"{tmp_path} ['-c', '7'] given set\n"), done.stderr
        failed = subprocess.run([executable, "-c", "import sys; sys.exit('why')"], capture_output=True, text=True, check=False, timeout=60)
        assert (failed.returncode, failed.stderr) == (1, "why\n")
        raised = subprocess.run([executable, "-c", "1 / 0"], capture_output=True, text=True, check=False, timeout=60)
        assert raised.returncode == 1 and "ZeroDivisionError" in raised.stderr
        listed = subprocess.run([executable, "-m", "egraph.optimize", "--list-rules"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert "derivation rules" in listed.stdout
        version = subprocess.run([executable, "--version"], capture_output=True, text=True, check=True)
        assert version.stdout.startswith("Python")
