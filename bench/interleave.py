"""Time several engines in turns: a few runs of each, round after round, so that all see the same machine."""

from __future__ import annotations

import json
import math
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bench.engines import LONG_RUN_NS
from bench.environment import ROOT
from bench.watched import Timed
from egraph.policy import RacePolicy

LEAST_SECONDS = 20.0
"""Even if one engine takes seconds per run, the others are timed for this long, because one run of each says little."""

END_SECONDS = 10.0
"""Seconds that an engine that no longer answers may take to end."""


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
    settle_seconds: float = RacePolicy.settle_seconds
    """Maximum seconds that an answer waits until the engine's threads sleep: they would disturb the next timing."""
    warm_up_ns: int = 0
    """Nanoseconds of the last run before the first timed one."""

    def __enter__(self) -> EngineProcess:
        arguments = self.engine, self.model, self.feeds, self.threads, self.settle_seconds
        command = [sys.executable, "-m", "bench.engines", *map(str, arguments)]
        self.errors = (self.feeds.parent / f"{self.engine}.log").open("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, cwd=ROOT)
        try:
            (self.warm_up_ns,) = json.loads(self._answer(self.start_seconds))
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
            with suppress(subprocess.TimeoutExpired):  # an error's text may follow the end of the answers
                self.process.wait(END_SECONDS if ready else 0.0)
            self.errors.seek(0)
            reason = _reason(self.errors.read().splitlines())
            raise EngineFailed(f"gave no answer in {seconds:.0f} s" if not ready else f"stopped: {reason}")
        return line

    def time_ns(self, runs: int, seconds: float = 600.0) -> list[int]:
        """Return the nanoseconds of some runs; raises EngineFailed after ``seconds`` without an answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{runs}\n")
            self.process.stdin.flush()
        except OSError as error:
            raise EngineFailed(f"stopped: {error}") from error
        return [int(value) for value in json.loads(self._answer(seconds))]


def _reason(lines: Sequence[str]) -> str:
    """Return the last line that names an error, or the last."""
    messages = [line.strip() for line in lines if line.strip()]
    return [*messages[-1:], *(line for line in messages if "Error" in line)][-1][:200] if messages else "without a message"


def interleave(
    engines: Mapping[str, Timed], *, seconds: float = 6.0, rounds: int = 12, deadline: float = math.inf
) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Return every engine's times in nanoseconds, and why some have none; the first round, with cold caches, is not counted.

    Engines that take seconds per run are timed in as many rounds as fit into ``seconds``, at least in one, and all their runs
    count; the others are timed in every round. An engine that fails, or does not answer by ``deadline`` (``time.monotonic``),
    drops out; the others continue.
    """
    failed: dict[str, str] = {}
    times: dict[str, list[int]] = {name: [] for name in engines}

    def timed(name: str, runs: int) -> list[int]:
        left_seconds = min(600.0, deadline - time.monotonic())
        if name in failed:
            return []
        if left_seconds <= 0:
            if not times[name]:
                failed[name] = "there was no time left to time it"
            return []
        try:
            return engines[name].time_ns(runs, left_seconds)
        except EngineFailed as error:
            failed[name] = str(error)
            return []

    def is_long(name: str) -> bool:
        return engines[name].warm_up_ns >= LONG_RUN_NS

    first = {name: engine.warm_up_ns if is_long(name) else max(1, min(timed(name, 2), default=1)) for name, engine in engines.items()}
    share = seconds * 1e9 / rounds / max(1, len(engines))
    runs = {name: 1 if is_long(name) else max(2, min(500, int(share / first[name]))) for name in engines}
    long, timed_rounds = frozenset(filter(is_long, engines)), frozenset[int]()
    if long:
        most_ns = max(seconds, LEAST_SECONDS) * 1e9
        quick_ns = sum(runs[name] * first[name] for name in engines if name not in long)
        long_rounds = max(1, min(rounds, int(most_ns / (quick_ns + sum(first[name] for name in long)))))
        rounds = max(long_rounds, min(rounds, int(most_ns / quick_ns))) if quick_ns else long_rounds
        timed_rounds = frozenset(number * rounds // long_rounds for number in range(long_rounds))
    for number in range(rounds):
        order = list(engines)[:: 1 if number % 2 == 0 else -1]
        for name in order:
            if name in long and number not in timed_rounds:
                continue
            times[name] += timed(name, runs[name])[0 if name in long else 1 :]
    return {name: values for name, values in times.items() if name not in failed}, failed
