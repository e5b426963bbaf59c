"""Show progress on standard error: stage, counts, best cost and remaining budget, but no invented percentage."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from egraph.optimize.interruption import heed


def process_started() -> float:
    """Return the start of this process on the clock of ``time.monotonic``, because imports count towards the budget."""
    now_seconds = time.monotonic()
    try:
        with open("/proc/self/stat", encoding="utf-8") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):  # not Linux
        return now_seconds
    return now_seconds - max(0.0, age_seconds)


@dataclass
class Progress:
    """Prints a live line on a terminal, one plain line per stage otherwise, and nothing if quiet."""

    verbosity: int
    budget_seconds: float
    started: float = field(default_factory=time.monotonic)
    whole_seconds: float | None = None
    """The budget of the whole command, if this is the progress of a part of it."""
    _live: Any = None
    _stage: str = ""
    _said: str = ""

    @property
    def spent_seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def left_seconds(self) -> float:
        return max(0.0, self.budget_seconds - self.spent_seconds)

    @property
    def longer_seconds(self) -> float:
        """Return the ``--budget`` that gives twice as long."""
        return 2 * (self.whole_seconds or self.budget_seconds)

    def stage(self, name: str) -> None:
        """Begin a stage."""
        self._finish_stage()
        self._stage = name
        self.update("")

    def update(self, text: str) -> None:
        """Replace the text of the current stage."""
        heed()
        self._said = text
        if self.verbosity < 0:
            return
        if self._on_terminal():
            self._show(f"{self._stage}{': ' if text else ''}{text}  ({self.left_seconds:.0f} s of the budget left)")
        elif self.verbosity > 0 and text:
            print(f"  {text}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Print a line that stays."""
        if self.verbosity >= 0:
            self._clear()
            print(text, file=sys.stderr, flush=True)

    def detail(self, text: str) -> None:
        """Print a line that only -v shows."""
        if self.verbosity > 0:
            self.note(text)

    def close(self) -> None:
        self._finish_stage()
        self._clear()

    def _finish_stage(self) -> None:
        if self._stage and self.verbosity >= 0:
            self._clear()
            print(f"[{self.spent_seconds:6.1f} s] {self._stage}{': ' if self._said else ''}{self._said}", file=sys.stderr, flush=True)
        self._stage = self._said = ""

    def _on_terminal(self) -> bool:
        return sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"

    def _show(self, text: str) -> None:
        if self._live is None:
            from rich.console import Console  # slow to import, and needed only on a terminal
            from rich.status import Status

            self._live = Status(text, console=Console(stderr=True))
            self._live.start()
        self._live.update(text)

    def _clear(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
