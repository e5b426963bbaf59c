"""Processes that answer in lines, and may crash or hang without taking the caller along."""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

IMPORT_ROOT = str(Path(__file__).resolve().parent.parent)
"""The folder that holds this package, so that a new process imports the same one."""
CHUNK_BYTES = 1 << 16


class Child:
    """A running process with pipes to its input and from its output; its standard error is kept for a message."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, folder: str | None = None) -> None:
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._messages, bufsize=0,
            env={**os.environ, **environment}, cwd=folder, start_new_session=True,
        )  # fmt: skip
        self._unread = b""

    def send(self, request: bytes) -> None:
        """Write a request; raises BrokenPipeError if the process has ended."""
        assert self.process.stdin is not None
        while request:
            request = request[self.process.stdin.write(request) :]

    def line(self, seconds: float) -> bytes:
        """Return the next line, without its end; raises TimeoutError if it does not come in time, EOFError if the process has ended."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not selector.select(remaining):
                    raise TimeoutError
                chunk = os.read(self.process.stdout.fileno(), CHUNK_BYTES)
                if not chunk:
                    raise EOFError
                self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        return line

    def ended(self) -> tuple[int, str]:
        """Wait until the process has ended; return its exit code, and what it wrote to standard error."""
        code = self.process.wait()
        self._messages.seek(0)
        return code, self._messages.read().decode(errors="replace").strip()

    def close(self) -> None:
        """End the process and close what belongs to it."""
        try:
            self.process.kill()
        finally:
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):  # unread requests are lost with the process
                        pipe.close()
            self._messages.close()
