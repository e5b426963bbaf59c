"""Time whole programs end to end, interleaved with onnxruntime on the original model, and ship the fastest.

Every engine runs in a process of its own, so that thread pools do not disturb each other. Rounds alternate, so that a machine that slows
down slows all engines down. Therefore two contenders are compared by the ratio of their times in each round, and the verdict rests on the
middle of the logarithms. A smoothed bootstrap gives its uncertainty: rounds are drawn again with noise added (``race.noise`` over the root
of the number of rounds), so that few rounds that agree by chance prove little. The draws are seeded, so the same rounds give the same
verdict.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from egraph.errors import EinsatError, LowerError
from egraph.policy import RacePolicy
from runtime.control_groups import free_bytes
from runtime.feeds import FeedSpec
from runtime.measure import Effort, Engine, Load, Timing, Worker
from runtime.profile import Database, RaceTime

NO_TIME_TO_RACE = "there was no time left to time it"
ESTIMATED_DEVICE = "nothing is timed on this device: its costs are estimates"


class MissingMeasurement(EinsatError):
    """The profile database lacks a time that ``--frozen`` needs."""


@dataclass(frozen=True)
class Contender:
    """A program in a race: its name, the digest that its time is filed under, the file to load and its approximate size in memory."""

    name: str
    digest: str
    engine: Engine
    path: str
    size_bytes: int = 0
    keep_subnormals: bool = True


@dataclass(frozen=True)
class Race:
    """The result of a race: a timing for every contender, by name, from one interleaved run (or from the database)."""

    timings: Mapping[str, Timing]

    def median_us(self, name: str) -> float:
        """Return a contender's median; for a dropped contender, it is extrapolated from the rounds that it ran in to all rounds."""
        samples_us, longest_us = self.timings[name].samples_us, max((t.samples_us for t in self.timings.values()), key=len)
        if not samples_us or len(samples_us) == len(longest_us):
            return self.timings[name].median_us
        ratios = (sample_us / longest for sample_us, longest in zip(samples_us, longest_us, strict=False))
        return statistics.median(longest_us) * statistics.median(ratios)


def not_raced(
    contenders: Sequence[Contender], reason: str, failed: Mapping[str, str] = MappingProxyType({}),
    known_seconds: Mapping[str, float] = MappingProxyType({}),
) -> Race:  # fmt: skip
    """Return a race that did not take place, with the reason; ``known_seconds`` are the times that some contenders took before."""

    def timing(name: str) -> Timing:
        return Timing("ok", (1e6 * known_seconds[name],)) if name in known_seconds else Timing("failed", message=failed.get(name, reason))

    return Race({c.name: timing(c.name) for c in contenders})


def recorded_race(
    contenders: Sequence[Contender],
    feeds: tuple[FeedSpec, ...],
    *,
    database: Database,
    device: str,
    frozen: bool,
    inputs: tuple[str, str] = ("", ""),
    generator: str = "",
) -> Race | None:
    """Return the latencies of all contenders from the database, or None if one is missing.

    Raises MissingMeasurement if one is missing and ``frozen`` is set. Latencies are compared only within one run, so if one is missing, all
    are measured again. ``generator``: hash of the sources of the code generator.
    """
    group = race_key(contenders, feeds, inputs[1], generator)
    records = {c.name: database.find(RaceTime, device, group, c.digest) for c in contenders}
    missing = sorted(name for name, record in records.items() if record is None)
    if not missing:
        return Race({name: Timing(r.status, r.samples_us, r.message) for name, r in records.items() if r is not None})
    if frozen:
        raise MissingMeasurement(
            f"the profile database has no end-to-end time of: {', '.join(missing)}",
            where=f"{database.place}, device {device}",
            fix="run once without --frozen on this machine, or import measurements with python -m runtime.profile import FILE",
        )
    return None


def race(
    contenders: Sequence[Contender],
    feeds: tuple[FeedSpec, ...],
    *,
    failed: Mapping[str, str],
    preferred: Sequence[str],
    essential: str,
    threads: int,
    seed: int,
    database: Database,
    device: str,
    seconds: float,
    most_seconds: float = 0.0,
    run_seconds: float = 0.0,
    inputs: tuple[str, str] = ("", ""),
    generator: str = "",
    policy: RacePolicy = RacePolicy(),
) -> Race:
    """Measure the latencies of all contenders together and file them.

    Contenders come in the order of their importance. ``preferred``: their names, in the order in which ties are decided. ``failed``:
    contenders that cannot be run, with the reason. ``run_seconds``: about how long the original takes. ``inputs``: a file to read inputs
    from, instead of random ones, and a digest of its content.

    A race ends after ``seconds``, once every contender has run a few times. If it is still open whether the fastest beats the ``essential``
    one, both go on, for as long again at most. Except for the first two, a contender is not timed if ``most_seconds`` would then be too
    short for all to run as often. Except for the first, a round does not begin if it would end later than that. A slow model is raced for
    ``seconds``, and at least one round.

    The ``essential`` contender is timed in every round. A contender that is far or clearly behind the fastest is dropped. The race ends
    once the winner is known.
    """
    group = race_key(contenders, feeds, inputs[1], generator)
    timings = {name: Timing("failed", message=reason) for name, reason in failed.items()}
    runners = [c for c in contenders if c.name not in failed]
    timings |= _interleave(
        runners, feeds, preferred=preferred, essential=essential, threads=threads, seed=seed, seconds=seconds,
        most_seconds=max(seconds, most_seconds), run_seconds=run_seconds, inputs=inputs[0], policy=policy,
    )  # fmt: skip
    if lacking := [timing.message for timing in timings.values() if timing.lacks_library]:
        raise LowerError(f"programs cannot be run on this machine: {lacking[0]}")  # not filed: the machine is the reason
    for contender in contenders:
        timing = timings[contender.name]
        database.put(RaceTime(device, group, contender.digest, timing.status, timing.samples_us, timing.message))
    return Race(timings)


def race_key(contenders: Sequence[Contender], feeds: tuple[FeedSpec, ...], inputs_digest: str = "", generator: str = "") -> str:
    """Return the key that a race is filed under: a hash of its contenders, their inputs, and the code generator."""
    flushing = [] if any(c.keep_subnormals for c in contenders) else ["subnormals count as zero"]
    text = repr((sorted(c.digest for c in contenders), feeds, inputs_digest, generator, *flushing))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def available_bytes() -> int:
    """Return how many bytes of memory this process may take without swapping: a container may have less than the machine."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux: all of it, rather than nothing
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = free_bytes()
    return available if limit is None else min(available, limit)


def _interleave(
    contenders: Sequence[Contender],
    feeds: tuple[FeedSpec, ...],
    *,
    preferred: Sequence[str],
    essential: str,
    threads: int,
    seed: int,
    seconds: float,
    most_seconds: float,
    run_seconds: float,
    inputs: str,
    policy: RacePolicy,
) -> dict[str, Timing]:
    start = time.monotonic()
    least_runs = 1 + policy.least_rounds * policy.runs  # one more when a contender is loaded
    is_slow = run_seconds >= policy.slow_run_seconds or policy.contenders * least_runs * run_seconds > most_seconds
    deadline = start + (seconds if is_slow else most_seconds)
    share_seconds = min(policy.turn_seconds, seconds / (policy.rounds * len(contenders)))
    effort = Effort(seconds=share_seconds, least=1 if is_slow else policy.runs, most=200, error=0.0)
    most_bytes = policy.memory_share * available_bytes()
    stays = sum(c.size_bytes for c in contenders) <= most_bytes
    patience_seconds = policy.patience_seconds + policy.slower_than_original * run_seconds
    workers = {c.name: Worker(time_out_seconds=patience_seconds + c.size_bytes / policy.loaded_bytes_s) for c in contenders}
    needed = {essential, next((c.name for c in contenders if c.name != essential), essential)}
    timings: dict[str, Timing] = {}
    slowest_seconds = 0.0
    turns_seconds = (1 if is_slow else policy.least_rounds) * max(effort.seconds, effort.least * run_seconds)

    def load(c: Contender) -> Timing:
        """Load a contender if enough time is left afterwards to compare all that are loaded."""
        nonlocal slowest_seconds
        started = time.monotonic()
        rounds_seconds = (len(timings) + 1) * turns_seconds if stays else 0.0
        if c.name not in needed and started + slowest_seconds + rounds_seconds > deadline:
            return Timing("failed", message=NO_TIME_TO_RACE)
        loaded = workers[c.name].load(Load(engine_for(c, most_bytes, policy.arena_factor), c.path, feeds, threads, seed, inputs))
        workers[c.name].settle(policy.settle_seconds)
        slowest_seconds = max(slowest_seconds, time.monotonic() - started)
        return loaded

    try:
        if stays:
            for worker in workers.values():
                worker.start(threads)
            for c in contenders:
                timings[c.name] = load(c)
        running = list(contenders)
        for round_number in range(policy.rounds):
            started = time.monotonic()
            for c in running if round_number % 2 == 0 else list(reversed(running)):
                timing = timings.get(c.name)
                if timing is None or (timing.status == "ok" and not stays):
                    loaded = load(c)
                    timings[c.name] = timing = replace(loaded, samples_us=timing.samples_us if timing else ())
                if timing.status != "ok":
                    continue
                timed = workers[c.name].time(effort)
                workers[c.name].settle(policy.settle_seconds)
                median_us = (statistics.median(timed.samples_us),) if timed.samples_us else ()
                timings[c.name] = Timing(timed.status, timing.samples_us + median_us if median_us else (), timed.message)
                if not stays:
                    workers[c.name].close()
            kept: Sequence[str] = still_running([c.name for c in running], timings, round_number, essential, policy)
            running = [c for c in running if c.name in kept]
            next_seconds = time.monotonic() - started
            if stays:  # a worker repeats samples while its threads share one core: for a few seconds in all, not in every round
                runs_seconds = (effort.least * max(timings[c.name].samples_us, default=0.0) / 1e6 for c in running)
                next_seconds = min(next_seconds, sum(2 * max(effort.seconds, each) for each in runs_seconds))
            if time.monotonic() + next_seconds > deadline:
                break  # no time for another round
            if round_number + 1 < policy.least_rounds:
                continue
            if time.monotonic() > start + seconds:
                kept = still_ahead([c.name for c in running], timings, essential)
                running = [c for c in running if c.name in kept]
            if not running or time.monotonic() > start + 2 * seconds or is_decided([n for n in preferred if n in kept], timings, policy):
                break
    finally:
        for worker in workers.values():
            worker.close()
    return timings


def engine_for(contender: Contender, most_bytes: float, arena_factor: float = RacePolicy.arena_factor) -> Engine:
    """Return the engine of a contender, given the free memory in bytes. A program's plan decides how it treats subnormal numbers."""
    if contender.engine != "onnxruntime":
        return contender.engine
    if arena_factor * contender.size_bytes > most_bytes:
        return "onnxruntime without arena" if contender.keep_subnormals else "onnxruntime without arena, subnormals are zero"
    return "onnxruntime" if contender.keep_subnormals else "onnxruntime, subnormals are zero"


def still_running(
    names: Sequence[str], timings: Mapping[str, Timing], round_number: int, essential: str, policy: RacePolicy = RacePolicy()
) -> list[str]:
    """Return the contenders that can still be the fastest, and the ``essential`` one.

    ``race.first_gap`` shrinks to ``race.gap`` round by round, because another process on a core may slow all of a contender's first rounds.
    """
    share = min(1.0, round_number / (policy.gap_rounds - 1))
    gap = policy.first_gap ** (1.0 - share) * policy.gap**share
    fastest = timings.get(leader(names, timings) or "", Timing("failed"))

    def may_win(timing: Timing) -> bool:
        """Return whether it was near the fastest in some round and is not clearly slower."""
        rounds = zip(fastest.samples_us, timing.samples_us, strict=False)
        if not any(own_us <= gap * best_us for best_us, own_us in rounds):
            return False
        return round_number + 1 < policy.least_rounds or slowdown(fastest.samples_us, timing.samples_us, policy)[0] <= policy.margin

    return [name for name in names if name == essential or may_win(timings[name])]


def leader(names: Sequence[str], timings: Mapping[str, Timing]) -> str | None:
    """Return the contender with the least middle of its rounds, each relative to the mean of all, or None if none has a time."""
    logarithms = {name: np.log(timings[name].samples_us) for name in names if timings[name].samples_us}
    rounds = min((len(each) for each in logarithms.values()), default=0)
    usual = np.mean([each[:rounds] for each in logarithms.values()], axis=0) if rounds else np.zeros(0)
    return min(logarithms, key=lambda name: float(middle(logarithms[name][:rounds] - usual)), default=None)


def still_ahead(names: Sequence[str], timings: Mapping[str, Timing], essential: str) -> tuple[str, ...]:
    """Return the contenders that go on after the time of a race: the ``essential`` one and the fastest, if they differ."""
    fastest = leader(names, timings)
    return () if fastest is None or fastest == essential else (essential, fastest)


DRAWS = 500
"""Number of bootstrap samples of one comparison."""


def slowdown(first: Sequence[float], second: Sequence[float], policy: RacePolicy = RacePolicy()) -> tuple[float, float]:
    """Return a lower and an upper bound of log(second / first), each with ``race.confidence``, over the rounds of both."""
    rounds = min(len(first), len(second))
    return _interval(tuple(first[:rounds]), tuple(second[:rounds]), policy.confidence, policy.noise)


def middle(values: np.ndarray) -> np.ndarray:
    """Return the median of the means of all pairs along the last axis, which is robust to bursts and needs fewer values than a median.

    Hodges and Lehmann, Estimates of location based on rank tests (1963).
    """
    first, second, place, is_odd = _central_pairs(values.shape[-1])
    ordered = np.sort(values, axis=-1)
    sums = ordered.take(first, axis=-1)
    sums += ordered.take(second, axis=-1)
    sums.partition(place, axis=-1)  # np.median partitions at three places, and takes five times as long
    upper = sums[..., place]
    lower = upper if is_odd else sums[..., :place].max(axis=-1)
    return np.asarray((lower + upper) / 4)


@lru_cache(maxsize=1 << 6)
def _central_pairs(count: int) -> tuple[np.ndarray, np.ndarray, int, bool]:
    """Return the pairs of sorted numbers that may have the median sum, its place among theirs, and whether the number of all pairs is odd.

    The sum of a pair is no less than that of any pair whose two numbers stand at or before its own. If these are more than half of all
    pairs, the pair comes after the median in some order of the sums and is skipped; likewise on the other side. Half of the pairs are left.
    """
    first, second = np.triu_indices(count)
    pairs, half = len(first), len(first) // 2

    def up_to(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the number of pairs at or before each."""
        return np.asarray((first + 1) * (second + 1) - first * (first + 1) // 2)

    is_after = up_to(first, second) - 1 > half
    is_before = up_to(count - 1 - second, count - 1 - first) - 1 > pairs - 1 - (pairs - 1) // 2
    is_left = ~(is_after | is_before)
    return first[is_left], second[is_left], half - int(is_before.sum()), pairs % 2 == 1


@lru_cache(maxsize=1 << 6)
def _draws(count: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounds that the bootstrap draws out of ``count``, and the noise that it adds; both are the same for all comparisons."""
    random = np.random.default_rng(0)
    return random.integers(count, size=(DRAWS, count)), random.normal(0.0, noise / count**0.5, (DRAWS, count))


@lru_cache(maxsize=1 << 10)
def _interval(first: tuple[float, ...], second: tuple[float, ...], confidence: float, noise: float) -> tuple[float, float]:
    ratios = np.log(np.asarray(second) / np.asarray(first))
    rounds, added = _draws(len(ratios), noise)
    low, high = np.quantile(middle(ratios[rounds] + added), [1.0 - confidence, confidence])
    return float(low), float(high)


def is_faster(first: Timing, second: Timing, policy: RacePolicy = RacePolicy()) -> bool:
    """Return whether the first is faster than the second with ``race.confidence``."""
    return bool(first.samples_us) and (not second.samples_us or slowdown(first.samples_us, second.samples_us, policy)[0] > 0)


def winner(preferred: Sequence[str], timings: Mapping[str, Timing], policy: RacePolicy = RacePolicy()) -> str | None:
    """Return the first contender by preference that the fastest does not beat, or None if no contender has a time.

    ``race.verdict`` is enough to beat the most preferred contender, the original. A race asks after every round whether it may end; because
    it asks many times, it requires more then, ``race.confidence``. A contender that was dropped in an earlier round does not win, nor does
    one that is behind the original: if its times were disturbed, a slow program cannot be told from the fastest.
    """
    rounds = max((len(timings[name].samples_us) for name in preferred), default=0)
    left = [name for name in preferred if rounds and len(timings[name].samples_us) == rounds]
    best = leader(left, timings)
    final = replace(policy, confidence=min(policy.verdict, policy.confidence))

    def is_beaten(name: str) -> bool:
        return best is not None and is_faster(timings[best], timings[name], final if name == preferred[0] else policy)

    def is_behind(name: str) -> bool:
        return name != preferred[0] and leader([preferred[0], name], timings) == preferred[0]

    return next((name for name in left if name == best or not (is_beaten(name) or is_behind(name))), None)


def doubt(preferred: Sequence[str], timings: Mapping[str, Timing], policy: RacePolicy = RacePolicy()) -> str:
    """Describe the lead of a program that was ahead of the most preferred contender but did not win; empty if there is none."""
    original, rounds = preferred[0], max(len(timings[name].samples_us) for name in preferred)
    best = leader([name for name in preferred if len(timings[name].samples_us) == rounds], timings)
    if best is None or best == original or winner(preferred, timings, policy) != original:
        return ""
    first, second = timings[original].samples_us, timings[best].samples_us
    ahead = float(middle(np.log(second) - np.log(first)))
    if ahead > -policy.margin:
        return ""
    low, high = np.exp(slowdown(first, second, replace(policy, confidence=policy.verdict)))
    return f"{best} took {np.exp(ahead):.2f} of {original}'s time in {rounds} rounds, and may take {low:.2f} to {high:.2f} of it"


def is_decided(preferred: Sequence[str], timings: Mapping[str, Timing], policy: RacePolicy = RacePolicy()) -> bool:
    """Return whether, with ``race.confidence``, no contender is faster than the winner by more than ``race.margin``."""
    best = winner(preferred, timings, replace(policy, verdict=policy.confidence))
    rivals = [timings[name].samples_us for name in preferred if name != best and timings[name].samples_us]
    return best is not None and all(slowdown(timings[best].samples_us, each, policy)[0] >= -policy.margin for each in rivals)
