"""Time whole programs end to end, interleaved with onnxruntime on the original model, and ship the fastest.

Every engine runs in a process of its own, so that thread pools do not disturb each other; rounds alternate, so that
a machine that slows down slows all of them down.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from egraph.errors import EinsatError
from runtime.feeds import FeedSpec
from runtime.measure import Effort, Engine, Load, Timing, Worker
from runtime.profile import Database, Record

ROUNDS = 7
SETTLE_SECONDS = 0.02
"""Between rounds: a thread pool that has just worked keeps spinning for a while."""
END_TO_END = "end to end"
MEMORY_SHARE = 0.6
"""Part of the free memory that all contenders may fill together; beyond it only one is loaded at a time."""
PATIENCE_SECONDS, SLOWEST_BYTES_A_SECOND = 20.0, 1e8
"""A contender hangs when it takes longer than this to answer, and this much longer for what it keeps in memory."""


class MissingMeasurement(EinsatError):
    """``--frozen`` needs a time that the profile database does not have."""


@dataclass(frozen=True)
class Contender:
    """Something to time: a name for people, the digest its time is filed under, what to load and about how large that gets."""

    name: str
    digest: str
    engine: Engine
    path: str
    size_bytes: int = 0


@dataclass(frozen=True)
class Race:
    """The outcome: a timing for every contender, by name, from one interleaved run (or from the database)."""

    timings: Mapping[str, Timing]
    remembered: bool

    def median_us(self, name: str) -> float:
        return self.timings[name].median_us


def race(
    contenders: Sequence[Contender],
    feeds: tuple[FeedSpec, ...],
    *,
    threads: int,
    seed: int,
    database: Database,
    device: str,
    frozen: bool,
    seconds: float,
) -> Race:
    """Return everyone's latency: remembered where all are in the database, measured together otherwise.

    Latencies are only compared within one run; so a single missing one means that all are measured again.
    """
    group = _group(contenders, feeds)
    found = {c.name: database.get(device, f"{group} {c.digest}", END_TO_END) for c in contenders}
    if all(record is not None for record in found.values()):
        return Race({name: Timing(r.status, r.samples_us, r.message) for name, r in found.items() if r is not None}, remembered=True)
    if frozen:
        missing = sorted(name for name, record in found.items() if record is None)
        raise MissingMeasurement(
            f"the profile database has no end-to-end time of: {', '.join(missing)}",
            where=f"{database.place}, device {device}",
            fix="run once without --frozen on this machine, or import measurements with python -m runtime.profile import FILE",
        )
    timings = _interleave(contenders, feeds, threads=threads, seed=seed, seconds=seconds)
    for contender in contenders:
        timing = timings[contender.name]
        database.put(Record(device, f"{group} {contender.digest}", END_TO_END, timing.status, timing.samples_us, timing.message))
    return Race(timings, remembered=False)


def _group(contenders: Sequence[Contender], feeds: tuple[FeedSpec, ...]) -> str:
    import hashlib

    text = repr((sorted(c.digest for c in contenders), feeds))
    return f"race {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def available_bytes() -> int:
    """Return how much memory can be had without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux: all of it, rather than nothing
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _interleave(
    contenders: Sequence[Contender], feeds: tuple[FeedSpec, ...], *, threads: int, seed: int, seconds: float
) -> dict[str, Timing]:
    deadline = time.monotonic() + seconds
    effort = Effort(seconds=seconds / (ROUNDS * len(contenders)), least=3, most=200, spread=0.0)
    stays = sum(c.size_bytes for c in contenders) <= MEMORY_SHARE * available_bytes()
    workers = {c.name: Worker(time_out_seconds=PATIENCE_SECONDS + c.size_bytes / SLOWEST_BYTES_A_SECOND) for c in contenders}
    timings: dict[str, Timing] = {}

    def load(c: Contender) -> Timing:
        return workers[c.name].load(Load(c.engine, c.path, feeds, threads, seed))

    try:
        if stays:
            timings = {c.name: load(c) for c in contenders}
        for round_number in range(ROUNDS):
            order = contenders if round_number % 2 == 0 else list(reversed(contenders))
            for c in order:
                known = timings.get(c.name)
                if known is None or (known.status == "ok" and not stays):
                    loaded = load(c)
                    timings[c.name] = known = replace(loaded, samples_us=known.samples_us if known else ())
                if known.status != "ok":
                    continue
                time.sleep(SETTLE_SECONDS)
                got = workers[c.name].time(effort)
                middle = (statistics.median(got.samples_us),) if got.samples_us else ()
                timings[c.name] = Timing(got.status, known.samples_us + middle if middle else (), got.message)
                if not stays:
                    workers[c.name].close()
            if time.monotonic() > deadline and round_number >= 2:
                break
    finally:
        for worker in workers.values():
            worker.close()
    return timings
