"""Tell which of several contenders is fastest from rounds in each of which all were timed, one after the other.

A machine that is slower in one round slows every contender, so the median of the logarithms of the rounds' ratios is judged. How far
that median may be off, a smoothed bootstrap says: rounds are drawn again with noise added (``race.noise`` over the root of the number of
rounds), so that few rounds that agree by chance prove little. The draws are seeded, so the same rounds give the same verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from egraph.policy import RacePolicy
from runtime.measure import Timing

DRAWS = 500
"""Bootstrap samples of one comparison."""


def slowdown(first: Sequence[float], second: Sequence[float], policy: RacePolicy = RacePolicy()) -> tuple[float, float]:
    """Return least and most of log(second / first) with ``race.confidence`` on either side, over the rounds of both."""
    rounds = min(len(first), len(second))
    return _interval(tuple(first[:rounds]), tuple(second[:rounds]), policy.confidence, policy.noise)


@lru_cache(maxsize=1 << 10)
def _interval(first: tuple[float, ...], second: tuple[float, ...], confidence: float, noise: float) -> tuple[float, float]:
    ratios = np.log(np.asarray(second) / np.asarray(first))
    count, random = len(ratios), np.random.default_rng(0)
    drawn = ratios[random.integers(count, size=(DRAWS, count))] + random.normal(0.0, noise / count**0.5, (DRAWS, count))
    low, high = np.quantile(np.median(drawn, axis=1), [1.0 - confidence, confidence])
    return float(low), float(high)


def is_faster(first: Timing, second: Timing, policy: RacePolicy = RacePolicy()) -> bool:
    """Return whether the first is faster than the second beyond doubt."""
    return bool(first.samples_us) and (not second.samples_us or slowdown(first.samples_us, second.samples_us, policy)[0] > 0)


def winner(preferred: Sequence[str], timings: Mapping[str, Timing], policy: RacePolicy = RacePolicy()) -> str | None:
    """Return the first contender by preference that the fastest does not beat beyond doubt; None where no contender has a time.

    A contender that was given up in an earlier round does not win.
    """
    rounds = max((len(timings[name].samples_us) for name in preferred), default=0)
    left = [name for name in preferred if rounds and len(timings[name].samples_us) == rounds]
    fastest = min(left, key=lambda name: timings[name].median_us, default=None)
    return next((name for name in left if name == fastest or not is_faster(timings[fastest or name], timings[name], policy)), None)


def is_decided(preferred: Sequence[str], timings: Mapping[str, Timing], policy: RacePolicy = RacePolicy()) -> bool:
    """Return whether, beyond doubt, no contender is faster than the winner by more than ``race.margin``."""
    best = winner(preferred, timings, policy)
    rivals = [timings[name].samples_us for name in preferred if name != best and timings[name].samples_us]
    return best is not None and all(slowdown(timings[best].samples_us, each, policy)[0] >= -policy.margin for each in rivals)
