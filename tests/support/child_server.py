"""Processes as forks of processes that have imported what they need: an import takes longer than most of them run.

    python -m tests.support.child_server PROGRAM SOCKET      serves until its standard input ends

Whoever needs such a process starts ``LAUNCHER`` in its place, which hands its own pipes to a fork of the server and lasts as long as that.
Compiling and measuring processes are always such forks, commands are where a test asks for the fixture ``forked_python``.
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
"""What stands for the process: killed, it takes the fork with it."""
MOST_BYTES = 1 << 17
"""The largest request: the environment, the folder and the arguments of a command."""


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


def python() -> Callable[[], None]:
    """Import what most commands need; return what runs the module or the text that its arguments name, as Python does."""
    from tests.support.calibrations import share_calibrations
    from tests.support.forked import prepare

    prepare()
    places = json.loads(os.environ[PLACES_VARIABLE])
    take_the_place(places)
    share_calibrations(Path(places["python"]).with_name("calibrations.sqlite"))
    gc.freeze()  # a fork that collects what was imported copies all of it

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
"""Where the server of commands is told the sockets of the others."""


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
    """Write a program that stands for Python where ``-m MODULE`` of this project or ``-c TEXT`` is run; it leaves other things to Python.

    Among these are processes of ``multiprocessing``, which inherit other descriptors than those of the standard streams.
    """
    module = f"sys.argv[1] == '-m' and sys.argv[2].split('.')[0] in {OUR_PACKAGES!r}"
    text = "sys.argv[1] == '-c' and '--multiprocessing-fork' not in sys.argv"
    other = f"if not ({module} or {text}): os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])"
    place = f"sys.argv.insert(1, {PLACES['python']!r})"
    path.write_text(f"#!{sys.executable} -S\nimport os, sys\n{other}\n{place}\n{LAUNCHER}", encoding="utf-8")
    path.chmod(0o755)
    return path


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
    request = json.loads(text)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["arguments"]
    tempfile.tempdir = None  # TMPDIR may be another
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in ((0, "r"), (1, "w"), (2, "w")))

    end = os._exit

    def end_with_the_launcher() -> None:
        launcher.recv(1)
        end(1)

    def end_at_once(status: int) -> NoReturn:
        """Have the launcher end with the code of a program that ends without more ado."""
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
    """Return the exit code that Python would have, and print what it would."""
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
