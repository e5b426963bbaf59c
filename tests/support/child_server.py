"""Run processes as forks of servers that have done their imports, which would take longer than most of these processes run.

    python -m tests.support.child_server PROGRAM SOCKET      serves until its standard input ends

A process is replaced by ``LAUNCHER``, which hands its own pipes to a fork of the server and ends when the fork does. Compiling and
measuring processes are always such forks. Commands are forks if a test asks for the fixture ``forked_python``.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

LAUNCHER = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    request = {"environment": dict(os.environ), "folder": os.getcwd(), "arguments": sys.argv[2:]}
    socket.send_fds(server, [json.dumps(request).encode() + b"\\n"], [0, 1, 2])
    for descriptor in (0, 1):
        os.close(descriptor)
    code = server.recv(16)
os._exit(int(code or 1))
"""
"""The program that stands for the process; when it is killed, the fork ends too."""
MOST_BYTES = 1 << 17
"""The largest size of a request in bytes; it holds a command's environment, folder and arguments."""


def compiler() -> Callable[[], None]:
    """Import the code generator; return its main function."""
    from lower.targets.cpu.generator.compiler import load_generator, main

    load_generator()
    return main


def worker() -> Callable[[], None]:
    """Import the modules that run programs, and return the function that times them.

    Libraries that read their number of threads only once are not imported.
    """
    from runtime.worker import main

    for name in ("onnxruntime", "runtime.session"):
        import_module(name)

    return main


def python() -> Callable[[], None]:
    """Import what most commands need; return a function that runs the module or the text in its arguments, as Python does."""
    from tests.support.calibrations import share_calibrations
    from tests.support.forked import prepare

    prepare()
    places = json.loads(os.environ[PLACES_VARIABLE])
    take_the_place(places)
    share_calibrations(Path(places["python"]).with_name("calibrations.sqlite"))
    gc.freeze()  # otherwise a collection in a fork copies all imported objects

    def main() -> None:
        option, what, *rest = sys.argv
        sys.path[0] = os.getcwd()
        sys.path[1:1] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder and folder not in sys.path]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = [option, *rest]
        if option == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})

    return main


PROGRAMS: Mapping[str, Callable[[], Callable[[], None]]] = {"compiler": compiler, "worker": worker, "python": python}
OUR_PACKAGES = ("bench", "egraph", "lower", "runtime", "tests", "verify")
PLACES_VARIABLE = "EINSAT_TESTS_PLACES"
"""The environment variable that tells the server of commands the sockets of the others."""


def command_of(place: str | Path) -> tuple[str, ...]:
    """Return the arguments with which Python launches a process of a server."""
    return ("-S", "-c", LAUNCHER, str(place))


PLACES: dict[str, str] = {}
"""The sockets of this process's servers, by program."""


def take_the_place(places: Mapping[str, str]) -> None:
    """Replace the compiling and measuring processes that this process starts by forks, except those with a command of their own."""
    from lower.targets.cpu.generator import process as compiling
    from runtime import measure

    vars(compiling)["MODULE"] = command_of(places["compiler"])
    vars(measure)["WORKER_COMMAND"] = (sys.executable, *command_of(places["worker"]))


@contextmanager
def child_servers() -> Iterator[None]:
    """Start a server for each program and use them; a server imports its program on the first request."""
    with tempfile.TemporaryDirectory(prefix="einsat-tests-") as folder, ExitStack() as servers:
        places = {program: str(Path(folder) / program) for program in PROGRAMS}
        environment = {**os.environ, "PYTHONHASHSEED": "0", PLACES_VARIABLE: json.dumps(places)}
        for program, place in places.items():
            command = [sys.executable, "-m", __name__, program, place]
            server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True)
            servers.callback(end, server)
            assert server.stdout is not None
            server.stdout.readline()
        PLACES.update(places)
        take_the_place(places)
        yield


def write_stand_in(path: Path) -> Path:
    """Write a program that replaces Python for ``-m MODULE`` of this project and ``-c TEXT``, and leaves other calls to Python.

    Processes of ``multiprocessing`` are left to Python because they inherit descriptors beside the standard streams.
    """
    module = f"sys.argv[1] == '-m' and sys.argv[2].split('.')[0] in {OUR_PACKAGES!r}"
    text = "sys.argv[1] == '-c' and '--multiprocessing-fork' not in sys.argv"
    other = f"if not ({module} or {text}): os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])"
    place = f"sys.argv.insert(1, {PLACES['python']!r})"
    path.write_text(f"#!{sys.executable} -S\nimport os, sys\n{other}\n{place}\n{LAUNCHER}", encoding="utf-8")
    path.chmod(0o755)
    return path


def end(server: subprocess.Popen[bytes]) -> None:
    """Kill a server that leads its own session, with all its forks; a remaining fork would hold the pipes open."""
    os.killpg(server.pid, signal.SIGKILL)
    server.communicate()


def serve(launcher: socket.socket, main: Callable[[], None]) -> None:
    """Act as the process of a launcher."""
    text, descriptors, _, _ = socket.recv_fds(launcher, MOST_BYTES, 3)
    while not text.endswith(b"\n"):
        received = launcher.recv(MOST_BYTES)
        if not received:
            return  # the launcher was killed before it sent its request
        text += received
    request = json.loads(text)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["arguments"]
    tempfile.tempdir = None  # TMPDIR may differ
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in ((0, "r"), (1, "w"), (2, "w")))

    end = os._exit

    def end_with_the_launcher() -> None:
        launcher.recv(1)
        end(1)

    def end_at_once(status: int) -> NoReturn:
        """Make the launcher end with the code of a program that calls ``os._exit``."""
        raise SystemExit(status)

    os._exit = end_at_once
    threading.Thread(target=end_with_the_launcher, daemon=True).start()
    code = 1
    try:
        main()
        code = 0
    except SystemExit as end_of_program:
        code = code_of(end_of_program)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(ValueError):  # the program has closed it
                stream.flush()
        launcher.sendall(str(code).encode())
        os._exit = end


def code_of(end_of_program: SystemExit) -> int:
    """Return Python's exit code for an exit, and print the message that Python would print."""
    if end_of_program.code is None or isinstance(end_of_program.code, int):
        return end_of_program.code or 0
    print(end_of_program.code, file=sys.stderr)
    return 1


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
