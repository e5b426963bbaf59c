"""Turns of an engine, told apart by how near the cores were to each other: those of a virtual machine move while it runs."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

ALIKE = 1.5
"""Turns in which lines pass at most so much slower than in the quickest one saw the cores in one state: near and far differ 3.5 times."""
ONE_CORE_NS = 2.5
"""Lines that pass quicker stayed in one core's own cache: both threads run on it. Readings there are 0.9 to 1.5 ns, of two cores from 4."""
EXPLORED = 6
"""Places of the cores that are looked at before the first row, to know how near they can be."""
PAUSE_SECONDS = 0.005
"""Lets spinning threads go to sleep."""
LOOK_AGAIN_SECONDS = 0.2


def sleep() -> None:
    """Let time pass: the cores may come to lie elsewhere."""
    time.sleep(LOOK_AGAIN_SECONDS)


class Timed(Protocol):
    """What can be timed in turns."""

    warm_up_ns: int

    def time_ns(self, runs: int, seconds: float) -> list[int]:
        """Return the nanoseconds of some runs."""


@dataclass(frozen=True)
class Turn:
    """Some runs, and what a line that another core had read took to write before or after them, whichever was worse."""

    line_ns: float
    times_ns: tuple[int, ...]


@dataclass
class Waiting:
    """How long the engines of a row may wait, all together, until the cores are as near as they were ever seen.

    ``move`` makes them lie elsewhere, if it can.
    """

    seconds: float = 0.0
    move: Callable[[], None] = sleep
    waited_seconds: float = 0.0
    least_ns: float = math.inf

    def explore(self, look: Callable[[], float | None]) -> None:
        """See how near the cores can come to lie."""
        for _ in range(EXPLORED):
            if (seen_ns := look()) is not None and seen_ns >= ONE_CORE_NS:
                self.least_ns = min(self.least_ns, seen_ns)
            self.move()

    def new_row(self) -> Waiting:
        """Start anew, knowing what was seen."""
        self.waited_seconds = 0.0
        return self

    def is_worth_it(self, seen_ns: float) -> bool:
        """Say whether the cores are not where they should be, and whether there is time left for them to come there."""
        if seen_ns >= ONE_CORE_NS:
            self.least_ns = min(self.least_ns, seen_ns)
        return not ONE_CORE_NS <= seen_ns <= ALIKE * self.least_ns and self.waited_seconds < self.seconds

    def wait(self, look: Callable[[], float | None]) -> float | None:
        """Wait until the cores lie well, or time is up; return how near they are then."""
        started, before_seconds = time.monotonic(), self.waited_seconds
        while (seen_ns := look()) is not None and self.is_worth_it(seen_ns):
            self.move()
            self.waited_seconds = before_seconds + time.monotonic() - started
        return seen_ns


@dataclass
class Watched:
    """An engine that keeps its turns. ``look`` says how near the cores are."""

    engine: Timed
    look: Callable[[], float | None]
    waiting: Waiting = field(default_factory=Waiting)
    turns: list[Turn] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.warm_up_ns = self.engine.warm_up_ns

    def time_ns(self, runs: int, seconds: float) -> list[int]:
        """Return the nanoseconds of some runs; of a turn with several, the first is not kept.

        A turn at whose beginning or end the cores were far from each other is taken again while there is time to wait.
        """
        while True:
            before = self.waiting.wait(self.look)
            started = time.monotonic()
            time.sleep(PAUSE_SECONDS)
            times_ns = self.engine.time_ns(runs, seconds)
            time.sleep(PAUSE_SECONDS)
            after = self.look()
            if before is None or after is None:
                return times_ns
            if not self.waiting.is_worth_it(after):
                self.turns.append(Turn(worse(before, after), tuple(times_ns[1:] or times_ns)))
                return times_ns
            self.waiting.waited_seconds += time.monotonic() - started


def worse(before: float, after: float) -> float:
    """Return which of two readings tells of a worse place: of one core for both threads, else of cores far from each other."""
    return min(before, after) if min(before, after) < ONE_CORE_NS else max(before, after)


def nearest(watched: Mapping[str, Watched]) -> dict[str, Any]:
    """Return what each engine took while the cores were as near as they came, and in how many of its turns they were; {} if unknown."""
    found = [turn.line_ns for one in watched.values() for turn in one.turns if turn.line_ns >= ONE_CORE_NS]
    if not found:
        return {}
    near = {name: [t for t in one.turns if ONE_CORE_NS <= t.line_ns <= ALIKE * min(found)] for name, one in watched.items()}
    return {
        "line_ns": round(min(found), 2),
        "median_us": {name: round(_median_us(turns), 2) for name, turns in near.items() if turns},
        "turns": {name: [len(turns), len(watched[name].turns)] for name, turns in near.items()},
    }


def _median_us(turns: Sequence[Turn]) -> float:
    return statistics.median(time_ns for turn in turns for time_ns in turn.times_ns) / 1e3
