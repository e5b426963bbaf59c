"""The compiling processes from outside: started when first needed, kept while a run lasts, ended when they crash or hang."""

from __future__ import annotations

import json
import os
import pickle
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

START_SECONDS = 30.0
"""Seconds that the first answer of a process may take longer than any other."""
MESSAGE_BYTES = 400
MOST_PROCESSES = 4
"""The most compiler processes that run at once: each takes a few hundred megabytes."""
MODULE = ("-m", "lower.targets.cpu.generator.compiler")


class Compiler:
    """One compiling process at a time. It dies with its input, so that nothing is left of a caller that was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: IO[bytes] | None = None
        self._has_answered = False
        self._unread = b""
        self._is_stopped = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start loading the code generator in the process, which takes seconds, and return at once."""
        if self._process is None:
            root = str(Path(__file__).resolve().parents[4])
            paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
            self._messages = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
            self._process = subprocess.Popen(
                [sys.executable, *MODULE],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._messages, start_new_session=True,
                env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"},
            )  # fmt: skip
            self._has_answered, self._unread = False, b""

    def compile(self, jobs: Sequence[Any], threads: int, limit_seconds: float) -> tuple[list[str], str]:
        """Return one error ('' where there is none) for each job that was answered, and what ended it early."""
        with self._lock:
            return self._compile(jobs, threads, limit_seconds)

    def stop(self) -> None:
        """End the process: threads that wait for it get errors from now on."""
        self._is_stopped = True
        if self._process is not None:
            self._process.kill()

    def _compile(self, jobs: Sequence[Any], threads: int, limit_seconds: float) -> tuple[list[str], str]:
        if self._is_stopped:
            return [], "compiling was interrupted"
        self.start()
        process, messages = self._process, self._messages
        assert process is not None and messages is not None and process.stdin is not None and process.stdout is not None
        errors: list[str] = []
        problem = "interrupted"
        try:
            process.stdin.write(pickle.dumps((list(jobs), threads)))
            process.stdin.flush()
            while len(errors) < len(jobs):
                patience = limit_seconds + (0.0 if self._has_answered else START_SECONDS)
                if b"\n" not in self._unread and not select.select([process.stdout], [], [], patience)[0]:
                    problem = f"the compiler did not finish within {patience:.0f} s"
                    return errors, problem
                line = self._line(process.stdout.fileno())
                if not line:
                    messages.seek(0)
                    messages_tail = messages.read()[-MESSAGE_BYTES:].decode(errors="replace").strip().splitlines()
                    problem = f"the compiler died (exit code {process.wait()}): {messages_tail[-1] if messages_tail else 'no message'}"
                    return errors, problem
                errors.append(str(json.loads(line)["error"]))
                self._has_answered = True
            problem = ""
        except BrokenPipeError:
            problem = "the compiler died before it read its work"
        finally:
            if problem:  # Ctrl-C too: answers that come later must not be taken for the next job's
                self._end()
        return errors, problem

    def _line(self, descriptor: int) -> bytes:
        """Return the next line, nothing at the end of the output."""
        while b"\n" not in self._unread:
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                return b""
            self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        return line

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def close(self) -> None:
        """End the process, and wait for the threads that wait for it."""
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        messages, self._messages = self._messages, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):  # unread messages are lost with the process
                        pipe.close()
        if messages is not None:
            messages.close()


def most_processes() -> int:
    """Return how many processes may compile at once."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return min(cores, MOST_PROCESSES)


_kept: list[list[Compiler]] = []


@contextmanager
def kept_compiler() -> Iterator[Compiler]:
    """Keep the compiling processes for everything that is compiled meanwhile; yield the first, not started yet unless kept before."""
    if _kept:
        yield _kept[-1][0]
        return
    compilers = [Compiler() for _ in range(most_processes())]
    _kept.append(compilers)
    try:
        yield compilers[0]
    finally:
        _kept.remove(compilers)
        for compiler in compilers:
            compiler.close()


def running_compilers() -> int:
    """Return how many of the kept compilers have been started: another one takes a second to load."""
    return sum(compiler.is_running for compiler in _kept[-1]) if _kept else 0


@contextmanager
def borrowed_compilers(count: int) -> Iterator[list[Compiler]]:
    """Yield this many compilers: kept ones, or ones that are ended afterwards. After an error, such as Ctrl-C, all are ended."""
    compilers = [*_kept[-1][:count]] if _kept else [Compiler() for _ in range(count)]
    try:
        yield compilers
    except BaseException:
        for compiler in compilers:
            compiler.stop()
        raise
    finally:
        if not _kept:
            for compiler in compilers:
                compiler.close()
