"""Time several engines in turns: a few runs of each, round after round, so that all see the same machine."""

from __future__ import annotations

import json
import math
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bench.environment import ROOT


class EngineFailed(Exception):
    """An engine could not load the model, crashed or hung; the text says how."""


@dataclass
class EngineProcess:
    """One engine in a process of its own."""

    engine: str
    model: Path
    feeds: Path
    threads: int
    start_seconds: float = 240.0

    def __enter__(self) -> EngineProcess:
        command = [sys.executable, "-m", "bench.engines", self.engine, str(self.model), str(self.feeds), str(self.threads)]
        self.errors = (self.feeds.parent / f"{self.engine}.log").open("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, cwd=ROOT)
        try:
            self._answer(self.start_seconds)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.communicate()
        self.errors.close()

    def _answer(self, seconds: float) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.errors.seek(0)
            told = _reason(self.errors.read().splitlines())
            raise EngineFailed(f"gave no answer in {seconds:.0f} s" if not ready else f"stopped: {told}")
        return line

    def time_ns(self, runs: int, seconds: float = 600.0) -> list[int]:
        """Return the nanoseconds of some runs; raises EngineFailed after so many seconds without an answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{runs}\n")
            self.process.stdin.flush()
        except OSError as error:
            raise EngineFailed(f"stopped: {error}") from error
        return [int(value) for value in json.loads(self._answer(seconds))]


def _reason(lines: Sequence[str]) -> str:
    """Return the last line that names an error, or the last."""
    said = [line.strip() for line in lines if line.strip()]
    return [*said[-1:], *(line for line in said if "Error" in line)][-1][:200] if said else "without a message"


def interleave(
    engines: Mapping[str, EngineProcess], *, seconds: float = 6.0, rounds: int = 12, deadline: float = math.inf
) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Return every engine's times in nanoseconds, and why some have none; the first round, where caches are cold, is not counted.

    An engine that fails, or gives no answer until ``deadline`` (``time.monotonic``), drops out; the others go on.
    """
    failed: dict[str, str] = {}

    def timed(name: str, runs: int) -> list[int]:
        if name in failed:
            return []
        try:
            return engines[name].time_ns(runs, max(1.0, min(600.0, deadline - time.monotonic())))
        except EngineFailed as error:
            failed[name] = str(error)
            return []

    first = {name: max(1, min(timed(name, 2), default=1)) for name in engines}
    share = seconds * 1e9 / rounds / max(1, len(engines))
    times: dict[str, list[int]] = {name: [] for name in engines}
    for number in range(rounds):
        order = list(engines)[:: 1 if number % 2 == 0 else -1]
        for name in order:
            runs = max(2, min(500, int(share / first[name])))
            time.sleep(0.005)  # lets the last engine's spinning threads go to sleep
            times[name] += timed(name, runs)[1:]
    return {name: values for name, values in times.items() if name not in failed}, failed
