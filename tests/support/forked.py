"""Commands as forks of one process that has imported everything: an import takes longer than many a command.

All forks have the hash seed of that process; what is about repeated runs starts a process of its own.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.support import child_server
from tests.support.paths import ROOT


def serve() -> dict[str, Any] | None:
    """Fork for every request on standard input; return the request in the fork, nothing at the end of the input."""
    import egraph.optimize.command
    import egraph.rules  # noqa: F401 - for the forks, as the line before

    child_server.take_the_place(json.loads(sys.argv[1]))
    gc.freeze()  # a fork that collects what was imported copies all of it
    for line in sys.stdin.buffer:
        request: dict[str, Any] = json.loads(line)
        process = os.fork()
        if not process:
            return request
        _, status = os.waitpid(process, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    return None


def become(request: Mapping[str, Any]) -> None:
    """Make this process the command of a request, but for what it runs."""
    for descriptor, path in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        file = os.open(path, os.O_RDWR)
        os.dup2(file, descriptor)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # TMPDIR may be another
    os.chdir(ROOT)
    sys.argv = ["egraph.optimize", *request["arguments"]]


@cache
def _server() -> subprocess.Popen[bytes]:
    """Start the process that forks; it ends with its input."""
    command = [sys.executable, "-m", __name__, json.dumps(child_server.PLACES)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)


def end_server() -> None:
    """End the process that forks, where there is one."""
    if _server.cache_info().currsize:
        child_server.end(_server())
        _server.cache_clear()


def run_forked(
    arguments: Sequence[str], environment: Mapping[str, str], timeout: float, script: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `python -m egraph.optimize`, or a script that does, with these arguments to its end."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        printed = [Path(folder) / name for name in ("stdout", "stderr")]
        for path in printed:
            path.touch()
        request = {"arguments": [*arguments], "environment": {**environment}, "script": script}
        server.stdin.write(json.dumps(request | {path.name: str(path) for path in printed}).encode() + b"\n")
        server.stdin.flush()
        alarm = threading.Timer(timeout, lambda: os.killpg(server.pid, signal.SIGKILL))
        alarm.start()
        answer = server.stdout.readline()
        alarm.cancel()
        texts = [path.read_text(encoding="utf-8") for path in printed]
    if not answer:
        _server.cache_clear()
        raise subprocess.TimeoutExpired([*arguments], timeout, *texts)
    return subprocess.CompletedProcess([*arguments], int(answer), *texts)


if __name__ == "__main__":
    asked = serve()
    if asked is not None:
        become(asked)
        if asked["script"]:
            exec(compile(asked["script"], "<script>", "exec"), {"__name__": "__main__"})
        else:
            from egraph.optimize.__main__ import main

            sys.exit(main())
