"""LSTM, GRU and RNN as one kernel: a fold along time over products that were computed before it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from lower.calls.launch import launch_matched
from lower.targets import Library
from lower.targets.cpu.recurrence.match import RecurrenceCall, match, recurrence_tiles

LAUNCH = partial(launch_matched, match=match, recipe=RecurrenceCall.spec)
LIBRARY = Library("recurrence", recurrence_tiles, LAUNCH, source=Path(__file__).with_name("recurrence.c"))
