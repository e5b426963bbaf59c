"""Turns of an engine, classified by how near the cores were to each other: the cores of a virtual machine move while it runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from egraph.optimize.race import middle
from runtime.devices.cpu.core_distance import ONE_CORE_NS

ALIKE = 1.5
"""Turns whose lines pass at most this many times slower than in the quickest one saw the same state: near and far differ 3.5 times."""
PAUSE_SECONDS = 0.005
"""Seconds in which spinning threads go to sleep."""


class Timed(Protocol):
    """An engine that can be timed in turns."""

    warm_up_ns: int

    def time_ns(self, runs: int, seconds: float) -> list[int]:
        """Return the nanoseconds of some runs."""


@dataclass(frozen=True)
class Turn:
    """Some runs, and the time to write a line that another core had read, before or after them, whichever was worse; None: unknown."""

    line_ns: float | None
    times_ns: tuple[int, ...]


@dataclass
class Watched:
    """An engine that keeps its turns. ``look`` says how near the cores are."""

    engine: Timed
    look: Callable[[], float | None]
    turns: list[Turn] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.warm_up_ns = self.engine.warm_up_ns

    def time_ns(self, runs: int, seconds: float) -> list[int]:
        """Return the nanoseconds of some runs; of a turn with several, the first is not kept."""
        before = self.look()
        time.sleep(PAUSE_SECONDS)
        times_ns = self.engine.time_ns(runs, seconds)
        time.sleep(PAUSE_SECONDS)
        after = self.look()
        line_ns = worse(before, after) if before is not None and after is not None else None
        self.turns.append(Turn(line_ns, tuple(times_ns[1:] or times_ns)))
        return times_ns


def worse(before: float, after: float) -> float:
    """Return the reading of the worse placement: that of one core for both threads, else that of cores far from each other."""
    return min(before, after) if min(before, after) < ONE_CORE_NS else max(before, after)


def nearest(watched: Mapping[str, Watched]) -> dict[str, Any]:
    """Return each engine's time while the cores were nearest to each other, and the number of such turns; {} if unknown."""
    known_ns = [turn.line_ns for engine in watched.values() for turn in engine.turns if turn.line_ns is not None]
    distances_ns = [line_ns for line_ns in known_ns if line_ns >= ONE_CORE_NS]
    if not distances_ns:
        return {}
    farthest_ns = ALIKE * min(distances_ns)
    near = {
        name: [turn for turn in engine.turns if turn.line_ns is not None and ONE_CORE_NS <= turn.line_ns <= farthest_ns]
        for name, engine in watched.items()
    }
    return {
        "line_ns": round(min(distances_ns), 2),
        "median_us": {name: round(_median_us(turns), 2) for name, turns in near.items() if turns},
        "turns": {name: [len(turns), len(watched[name].turns)] for name, turns in near.items()},
    }


def by_turns(watched: Mapping[str, Watched], engine: str) -> dict[str, float]:
    """Return how many times as fast as the others one engine is, turn by turn: the middle of the ratios of turns of one round.

    A machine that is slower for seconds is slower for consecutive turns. Engines that took their turns in other rounds have no ratio.
    """
    if engine not in watched:
        return {}
    logarithms = {name: np.log([_median_us([turn]) for turn in each.turns]) for name, each in watched.items()}
    alike = {name: each for name, each in logarithms.items() if name != engine and len(each) == len(logarithms[engine]) > 0}
    return {name: round(float(np.exp(middle(each - logarithms[engine]))), 4) for name, each in alike.items()}


def _median_us(turns: Sequence[Turn]) -> float:
    return statistics.median(time_ns for turn in turns for time_ns in turn.times_ns) / 1e3
