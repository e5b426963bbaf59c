"""Which steps of a plan run concurrently: steps on streams, ordered by events if one reads or overwrites what another uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime.devices.cuda.driver import BRANCHES, COMPUTE
from runtime.plan import Buffer, Plan
from runtime.storage import byte_range

NOTE = "streams"
"""The plan's note with the most streams for its steps; without it, all streams are used. On an H100, a network with branches took 209 us on
four and 388 us on one: few of its kernels occupy all of it."""
Span = tuple[str, str, int, int]
"""An area, its key, and the range of bytes of a window in it."""


@dataclass(frozen=True)
class Placed:
    """A step on a stream. ``waits``: earlier steps on other streams that it waits for."""

    step: int
    stream: int
    is_first: bool
    """Whether it is the first step of its stream and waits only for the computing stream's work before all steps."""
    waits: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """Steps in the order in which they are enqueued. ``joined``: the steps for which the computing stream waits in the end."""

    placed: tuple[Placed, ...]
    joined: tuple[int, ...]

    @property
    def awaited(self) -> frozenset[int]:
        """The steps after which an event is recorded."""
        return frozenset(self.joined).union(*(each.waits for each in self.placed))

    @property
    def streams(self) -> frozenset[int]:
        return frozenset(each.stream for each in self.placed)


def streams_of(plan: Plan) -> int:
    """Return the number of streams on which a plan's steps run."""
    return max(1, min(int(plan.notes.get(NOTE, 1 + len(BRANCHES))), 1 + len(BRANCHES)))


def schedule(plan: Plan, first: int, last: int, most: int) -> Schedule:
    """Place the steps from ``first`` to before ``last`` on ``most`` streams at most.

    A step follows one that it needs on the same stream if it can. Otherwise it takes a stream whose work is over by then, else a new one,
    else the one with the least work.
    """
    if most == 1:
        return Schedule(tuple(Placed(step, COMPUTE, is_first=False, waits=()) for step in range(first, last)), ())
    needed = dependences(plan, first, last)
    before: dict[int, frozenset[int]] = {}
    for step, direct in needed.items():
        before[step] = frozenset(direct).union(*(before[each] for each in direct))
    streams = (COMPUTE, *BRANCHES)[:most]
    stream_of: dict[int, int] = {}
    tails: dict[int, int] = {}
    work_us = dict.fromkeys(streams, 0.0)
    known: dict[int, frozenset[int]] = {}
    placed = []
    for step in range(first, last):
        direct = [each for each in needed[step] if not any(each in before[other] for other in needed[step])]
        continued = [tails[stream] for stream in tails if tails[stream] in direct]
        idle = [stream for stream in streams if stream in tails and tails[stream] in before[step]]
        unused = [stream for stream in streams if stream not in tails]
        if continued:
            stream = stream_of[max(continued)]
        else:
            stream = (idle or unused or sorted(streams, key=lambda each: work_us[each]))[0]
        seen = known.get(stream, frozenset())
        waits = tuple(each for each in sorted(direct) if stream_of[each] != stream and each not in seen)
        placed.append(Placed(step, stream, stream != COMPUTE and stream not in tails and not waits, waits))
        known[stream] = seen | before[step] | {step}
        stream_of[step], tails[stream] = stream, step
        work_us[stream] += plan.steps[step].predicted_us
    joined = [tail for stream, tail in tails.items() if stream != COMPUTE and tail not in known.get(COMPUTE, frozenset())]
    return Schedule(tuple(placed), tuple(sorted(joined)))


def dependences(plan: Plan, first: int, last: int) -> Mapping[int, Sequence[int]]:
    """Return for each step the earlier ones that must precede it, because one of the two writes bytes that the other uses."""
    reads = {step: [_span(plan.buffers[i]) for i in plan.steps[step].inputs] for step in range(first, last)}
    writes = {step: [_span(plan.buffers[i]) for i in plan.steps[step].outputs] for step in range(first, last)}
    return {
        step: [
            earlier for earlier in range(first, step)
            if _meet(writes[earlier], reads[step] + writes[step]) or _meet(reads[earlier], writes[step])
        ]
        for step in range(first, last)
    }  # fmt: skip


def _span(buffer: Buffer) -> Span:
    return buffer.area, buffer.key, *byte_range(buffer)


def _meet(some: Sequence[Span], others: Sequence[Span]) -> bool:
    return any(a[:2] == b[:2] and a[2] < b[3] and b[2] < a[3] for a in some for b in others)
