"""Compiling and measuring processes as forks of processes that have imported what they need: an import takes longer than most of them run.

    python -m tests.support.child_server PROGRAM SOCKET      serves until its standard input ends

Whoever needs such a process starts ``LAUNCHER`` in its place, which hands its own pipes to a fork of the server and lasts as long as that.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path

LAUNCHER = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    socket.send_fds(server, [json.dumps(dict(os.environ)).encode() + b"\\n"], [0, 1, 2])
    for descriptor in (0, 1):
        os.close(descriptor)
    code = server.recv(16)
os._exit(int(code or 1))
"""
"""What stands for the process: killed, it takes the fork with it."""
MOST_BYTES = 1 << 17
"""The largest environment of a command."""


def compiler() -> Callable[[], None]:
    """Import the code generator; return what compiles."""
    from lower.targets.cpu.generator.compiler import load_generator, main

    load_generator()
    return main


def worker() -> Callable[[], None]:
    """Import what runs programs, but none of the libraries that read their number of threads once; return what times them."""
    from runtime.worker import main

    for name in ("onnxruntime", "runtime.session"):
        import_module(name)

    return main


PROGRAMS: Mapping[str, Callable[[], Callable[[], None]]] = {"compiler": compiler, "worker": worker}


def command_of(place: str | Path) -> tuple[str, ...]:
    """Return the arguments of Python that stand for the process of a server."""
    return ("-S", "-c", LAUNCHER, str(place))


PLACES: dict[str, str] = {}
"""The sockets of this process's servers, by program."""


def take_the_place(places: Mapping[str, str]) -> None:
    """Have all compiling and measuring processes that this process starts, but for those with a command of their own, be forks."""
    from lower.targets.cpu.generator import process as compiling
    from runtime import measure

    vars(compiling)["MODULE"] = command_of(places["compiler"])
    vars(measure)["WORKER_COMMAND"] = (sys.executable, *command_of(places["worker"]))


@contextmanager
def child_servers() -> Iterator[None]:
    """Start a server for each program, which imports nothing before it is asked, and use them."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory(prefix="einsat-tests-") as folder, ExitStack() as servers:
        places = {program: str(Path(folder) / program) for program in PROGRAMS}
        for program, place in places.items():
            command = [sys.executable, "-m", __name__, program, place]
            server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True)
            servers.callback(end, server)
            assert server.stdout is not None
            server.stdout.readline()
        PLACES.update(places)
        take_the_place(places)
        yield


def end(server: subprocess.Popen[bytes]) -> None:
    """Kill a server that leads a session of its own, and every fork of it: one that is left holds its pipes open."""
    os.killpg(server.pid, signal.SIGKILL)
    server.communicate()


def serve(launcher: socket.socket, main: Callable[[], None]) -> None:
    """Be the process of a launcher."""
    text, descriptors, _, _ = socket.recv_fds(launcher, MOST_BYTES, 3)
    while not text.endswith(b"\n"):
        received = launcher.recv(MOST_BYTES)
        if not received:
            return  # the launcher was killed before it had asked
        text += received
    os.environ.clear()
    os.environ.update(json.loads(text))
    tempfile.tempdir = None  # TMPDIR may be another
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in ((0, "r"), (1, "w"), (2, "w")))

    def end_with_the_launcher() -> None:
        launcher.recv(1)
        os._exit(1)

    threading.Thread(target=end_with_the_launcher, daemon=True).start()
    code = b"1"
    try:
        main()
        code = b"0"
    finally:
        launcher.sendall(code)


def listen(program: str, place: str) -> None:
    """Fork for every launcher that connects."""
    main: Callable[[], None] | None = None
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(place)
        listener.listen()
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        os.write(1, b"ready\n")
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if sys.stdin in ready:
                return
            launcher, _ = listener.accept()
            with launcher:
                main = main or PROGRAMS[program]()
                if not os.fork():
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    listener.close()
                    serve(launcher, main)
                    os._exit(0)


if __name__ == "__main__":
    listen(*sys.argv[1:])
