"""The compiling processes from outside: started when first needed, kept while a run lasts, ended when they crash or hang."""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from runtime.child import IMPORT_ROOT, Child
from runtime.cores import usable_cores

START_SECONDS = 30.0
"""Maximum time for a process to load the code generator."""
MESSAGE_CHARACTERS = 400
MOST_PROCESSES = 4
"""The most compiler processes that run at once: each takes a few hundred megabytes."""
MODULE = ("-m", "lower.targets.cpu.generator.compiler")


class Compiler:
    """One compiling process at a time. It dies with its input, so that nothing is left of a caller that was killed."""

    def __init__(self) -> None:
        self.worked_seconds = 0.0
        """What compiling took so far, without what it took to start."""
        self._child: Child | None = None
        self._is_loaded = False
        self._is_stopped = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start loading the code generator in the process, which takes seconds, and return at once."""
        if self._child is None:
            paths = os.pathsep.join([IMPORT_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
            self._child = Child([sys.executable, *MODULE], {"PYTHONPATH": paths, "PYTHONHASHSEED": "0"})
            self._is_loaded = False

    def wait(self, seconds: float) -> None:
        """Wait until the process, if there is one, has loaded the code generator, because that disturbs whatever is measured beside it."""
        with self._lock, suppress(EOFError, TimeoutError):
            if self._child is not None and not self._is_loaded:
                self._await_loaded(self._child, min(seconds, START_SECONDS))

    def compile(self, jobs: Sequence[Any], threads: int, limit_seconds: float) -> tuple[list[str], str]:
        """Return one error ('' where there is none) for each job that was answered, and what ended it early."""
        with self._lock:
            return self._compile(jobs, threads, limit_seconds)

    def stop(self) -> None:
        """End the process: threads that wait for it get errors from now on."""
        self._is_stopped = True
        self._kill()

    def _compile(self, jobs: Sequence[Any], threads: int, limit_seconds: float) -> tuple[list[str], str]:
        if self._is_stopped:
            return [], "compiling was interrupted"
        self.start()
        child = self._child
        assert child is not None
        errors: list[str] = []
        problem = "interrupted"
        patience = START_SECONDS
        try:
            child.send(pickle.dumps((list(jobs), threads)))
            if not self._is_loaded:
                self._await_loaded(child, patience)
            patience = limit_seconds
            while len(errors) < len(jobs):
                answer = json.loads(child.line(patience))
                errors.append(str(answer["error"]))
                self.worked_seconds += float(answer["seconds"])
            problem = ""
        except BrokenPipeError:
            problem = "the compiler died before it read its work"
        except EOFError:
            code, messages = child.ended()
            last = messages[-MESSAGE_CHARACTERS:].splitlines()[-1:]
            problem = f"the compiler died (exit code {code}): {''.join(last) or 'no message'}"
        except TimeoutError:
            problem = f"the compiler did not finish within {patience:.0f} s"
        finally:
            if problem:  # Ctrl-C too: answers that come later must not be taken for the next job's
                self._end()
        return errors, problem

    def _await_loaded(self, child: Child, seconds: float) -> None:
        child.line(seconds)
        self._is_loaded = True

    @property
    def is_running(self) -> bool:
        return self._child is not None

    def close(self) -> None:
        """End the process, and wait for the threads that wait for it."""
        self._kill()
        with self._lock:
            self._end()

    def _kill(self) -> None:
        child = self._child
        if child is not None:
            child.process.kill()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()


def most_processes() -> int:
    """Return how many processes may compile at once."""
    return min(usable_cores(), MOST_PROCESSES)


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
