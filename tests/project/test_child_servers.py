"""The forks that stand for compiling and measuring processes end with whoever asked for them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.support.child_server import command_of
from tests.support.paths import ROOT


def test_a_launcher_that_was_killed_before_it_asked_leaves_no_fork(tmp_path: Path) -> None:
    place = tmp_path / "worker"
    command = [sys.executable, "-m", "tests.support.child_server", "worker", str(place)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == b"ready\n"
            with socket.socket(socket.AF_UNIX) as killed:
                killed.connect(str(place))
            served_next = subprocess.run([sys.executable, *command_of(place)], stdin=subprocess.DEVNULL, timeout=60, check=False)
            server.communicate(timeout=60)  # a fork that is left holds the server's output open
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
    assert served_next.returncode == 0
