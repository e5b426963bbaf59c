"""Time several engines in turns: a few runs of each, round after round, so that all see the same machine."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType


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
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        try:
            self._answer(self.start_seconds)
        except EngineFailed:
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
            last = [text.strip() for text in self.errors.read().splitlines() if text.strip()][-1:]
            raise EngineFailed(f"{'gave no answer in ' + str(seconds) + ' s' if not ready else 'stopped'}: {' '.join(last)[:200]}")
        return line

    def time_ns(self, runs: int) -> list[int]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{runs}\n")
        self.process.stdin.flush()
        return [int(value) for value in json.loads(self._answer(600.0))]


def interleave(engines: Mapping[str, EngineProcess], *, seconds: float = 6.0, rounds: int = 12) -> dict[str, list[int]]:
    """Return every engine's times in nanoseconds; the first round, where caches are cold, is not counted."""
    first = {name: max(1, min(engine.time_ns(2))) for name, engine in engines.items()}
    share = seconds * 1e9 / rounds / len(engines)
    times: dict[str, list[int]] = {name: [] for name in engines}
    for number in range(rounds):
        order = list(engines) if number % 2 == 0 else list(reversed(engines))
        for name in order:
            runs = max(2, min(500, int(share / first[name])))
            time.sleep(0.005)  # lets the last engine's spinning threads go to sleep
            taken = engines[name].time_ns(runs)
            times[name] += taken[1:]
    return times
