"""Compiling processes of commands that tests run, as forks of one process that has imported the code generator.

    python -m tests.support.compiler_server SOCKET      serves until its standard input ends

A command starts ``LAUNCHER`` as its compiling process: it hands its own pipes to a fork of the server, and lasts as long as that does.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import threading

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
"""What stands for the compiling process: killed, it takes the fork with it."""
MOST_BYTES = 1 << 17
"""The largest environment of a command."""


def compile_for(launcher: socket.socket) -> None:
    """Be the compiling process of a launcher."""
    text, descriptors, _, _ = socket.recv_fds(launcher, MOST_BYTES, 3)
    while not text.endswith(b"\n"):
        text += launcher.recv(MOST_BYTES)
    os.environ.clear()
    os.environ.update(json.loads(text))
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in ((0, "r"), (1, "w"), (2, "w")))

    def end_with_the_launcher() -> None:
        launcher.recv(1)
        os._exit(1)

    threading.Thread(target=end_with_the_launcher, daemon=True).start()
    from lower.targets.cpu.generator.compiler import main

    code = b"1"
    try:
        main()
        code = b"0"
    finally:
        launcher.sendall(code)


def main() -> None:
    """Fork for every launcher that connects."""
    from lower.targets.cpu.generator import generate  # noqa: F401 - for the forks

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(sys.argv[1])
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
                if not os.fork():
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    listener.close()
                    compile_for(launcher)
                    os._exit(0)


if __name__ == "__main__":
    main()
